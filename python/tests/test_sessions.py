"""Sessions: breakpoints, branches, several turns, restarts."""

from __future__ import annotations

import time

import numpy as np
import pytest

import djinn
from serving import Server, eventually

PROMPT = "The cat sat on the"
HOOK = "blocks.3.hook_resid_post"


def test_turns_continue_a_session(client, model):
    with model.session(temperature=0, max_tokens=8) as s:
        first = s.generate(PROMPT)
        second = s.say(" One day", 6)
        assert first.kept and second.kept
        ids = model.tokenize(PROMPT) + first.tokens + model.tokenize(" One day", plain=True)
        assert s.info().token_ids[: len(ids)] == tuple(ids)
        assert s.tokens == first.tokens + second.tokens
        assert second.tokens == model.generate(ids, 6, temperature=0).tokens
        third = s.generate(None, 5)
        assert third.prompt_tokens == 0 and len(third.tokens) == 5
        assert [x.session for x in client.sessions()] == [s.id]
    assert client.sessions() == []


def test_a_session_streams(model):
    with model.session(temperature=0) as s:
        result = "".join(str(token) for token in s.generate(PROMPT, 8, stream=True))
    assert result == model.generate(PROMPT, 8, temperature=0).text


def test_edits_of_a_turn_end_with_the_turn(model):
    edit = djinn.scale(HOOK, 0.2)
    with model.session(temperature=0, max_tokens=6) as s, model.session(temperature=0, max_tokens=6) as plain:
        s.generate(PROMPT)
        plain.generate(PROMPT)
        assert s.say(" A", edits=edit).tokens != plain.say(" A").tokens
    with model.session(temperature=0, max_tokens=6) as s:
        first = s.generate(PROMPT, edits=edit)
        assert first.tokens == model.generate(PROMPT, 6, temperature=0, edits=edit).tokens
        edited = model.session(temperature=0, max_tokens=6, edits=edit)
        with edited as lasting:
            lasting.generate(PROMPT)
            assert s.say(" A").tokens != lasting.say(" A").tokens


@pytest.mark.parametrize("hook", [HOOK, "blocks.0.attn.hook_z", "blocks.7.mlp.hook_post", "logits"])
def test_a_resumed_turn_equals_an_uninterrupted_one(model, hook):
    whole = model.generate(PROMPT, 10, temperature=0.7, seed=4)
    with model.session(temperature=0.7, seed=4, max_tokens=10) as s:
        s.breakpoint(hook)
        at = s.run(PROMPT)
        stops = 0
        while isinstance(at, djinn.Paused):
            assert at.hook == hook and s.paused == at and at.took_us > 0
            stops += 1
            at = s.resume()
        assert s.paused is None
        assert stops == 10 and s.tokens == whole.tokens


def test_an_activation_equals_a_capture(model):
    _, cache = model.run_with_cache(PROMPT, [HOOK, "blocks.3.attn.hook_z"])
    with model.session(max_tokens=4) as s:
        s.breakpoint(HOOK, step=0)
        at = s.run(PROMPT)
        assert (at.position, at.rows, at.shape) == (0, 6, (6, 256))
        assert np.array_equal(s.activation(), cache[HOOK])
        assert np.array_equal(s.activation(positions=-1), cache[HOOK][-1:])
        assert np.array_equal(s.activation(part=slice(0, 64), positions=[0, 2]), cache[HOOK][[0, 2], :64])
        s.resume()
    with model.session(max_tokens=4, breakpoints="blocks.3.attn.hook_z,step=0") as s:
        s.run(PROMPT)
        assert np.array_equal(s.activation(part=[1, 3]), cache["z", 3][:, [1, 3]])


def test_edits_at_a_breakpoint_equal_edits_of_the_turn(model):
    for given in (djinn.scale(HOOK, 0.5, positions=-1), f"{HOOK}:scale=0.5@-1", None):
        edit = given
        with model.session(temperature=0, max_tokens=8) as s:
            s.breakpoint(HOOK, step=0)
            s.run(PROMPT)
            if edit is None:
                edit = s.activation()
                edit[-1] *= np.float32(0.5)
            result = s.resume(edit)
        flown = model.generate(PROMPT, 8, temperature=0, edits=djinn.scale(HOOK, 0.5, positions=-1))
        assert result.tokens == flown.tokens
    with model.session() as s:
        s.breakpoint(HOOK, step=0)
        s.run(PROMPT)
        with pytest.raises(djinn.Refused):
            s.resume(djinn.scale("blocks.4.hook_resid_post", 0.5))
        with pytest.raises(djinn.Refused):
            s.resume(np.zeros((6, 255)))
        assert s.paused.hook == HOOK


def test_steps(model):
    with model.session(max_tokens=3, temperature=0) as s:
        s.breakpoint("blocks.2.hook_resid_mid", step=0)
        s.run(PROMPT)
        hooks = [s.resume(until="hook").hook, s.resume(until="block").hook]
        hooks += [s.resume(until="block").hook, s.resume(until="blocks.5.hook_attn_out").hook]
        assert hooks[0].startswith("blocks.2.")
        assert hooks[1:] == [
            "blocks.2.hook_resid_post",
            "blocks.3.hook_resid_post",
            "blocks.5.hook_attn_out",
        ]
        s.set_breakpoints([])
        assert isinstance(s.resume(), djinn.Generation)


def test_conditions(model):
    ids = model.tokenize(PROMPT)
    _, cache = model.run_with_cache(PROMPT, f"{HOOK}|norm")
    norms = cache[HOOK]
    ordered = np.sort(norms)
    for conditions, first in [
        ({"positions": [2, 3]}, 2),
        ({"token": ids[4]}, ids.index(ids[4])),
        ({"norm_above": float(ordered[-2:].mean())}, int(norms.argmax())),
        ({"norm_below": float(ordered[:2].mean())}, int(norms.argmin())),
    ]:
        with model.session(max_tokens=2) as s:
            s.breakpoint(HOOK, step=0, **conditions)
            assert s.run(PROMPT).position == first, conditions


def test_branches_are_independent(client, model):
    with model.session(temperature=0, max_tokens=6) as s:
        s.breakpoint(HOOK, step=0)
        s.run(PROMPT)
        branches = s.branch(8)
        assert len({b.id for b in branches} | {s.id}) == 9
        assert all(np.array_equal(b.activation(), s.activation()) for b in branches[:2])
        result = [b.resume(djinn.scale(HOOK, 0.2 * i)).tokens for i, b in enumerate(branches)]
        for i, tokens in enumerate(result):
            flown = djinn.scale(HOOK, 0.2 * i, positions="prompt")
            assert tokens == model.generate(PROMPT, 6, temperature=0, edits=flown).tokens, i
        assert s.resume().tokens == model.generate(PROMPT, 6, temperature=0).tokens
        assert len(client.sessions()) == 9
    assert client.sessions() == []


def test_a_branch_can_start_at_an_earlier_hook(model):
    clean = model.tokenize("Lily had a red ball. The ball was")
    corrupt = model.tokenize("Lily had a blue ball. The ball was")
    position = next(i for i, (a, b) in enumerate(zip(clean, corrupt, strict=True)) if a != b)
    _, cache = model.run_with_cache(clean, "blocks.*.hook_resid_post")
    _, wrong = model.run_with_cache(corrupt, "blocks.*.hook_resid_post")
    hook = "blocks.2.hook_resid_post"
    residual = wrong[hook][position:].copy()
    residual[0] = cache[hook][position]
    with model.session(temperature=0, max_tokens=4, captures="logits@-1") as s:
        s.breakpoint("blocks.7.hook_resid_post", step=0)
        s.run(corrupt)
        back = s.branch_back(hook, position, residual)
        assert back.paused.hook == hook and back.paused.position == position
        back.set_breakpoints([])
        result = back.resume()
        edit = djinn.replace(hook, cache[hook][position], positions=position)
        flown = model.generate(corrupt, 4, temperature=0, edits=edit)
        assert result.tokens == flown.tokens


def test_forks_continue_independently(client, model):
    with model.session(temperature=0, max_tokens=6) as s:
        s.generate(PROMPT)
        fork = s.fork()
        other = s.fork(temperature=1.5, seed=1)
        assert fork.generate(" Then", 6).tokens == s.generate(" Then", 6).tokens
        assert other.generate(" Then", 12).tokens != s.tokens[6:]
        assert len(client.sessions()) == 3


def test_captures_accumulate_over_turns(model):
    with model.session(captures=[HOOK, "blocks.0.attn.hook_pattern"], temperature=0) as s:
        first = s.generate(PROMPT, 4)
        second = s.say(" One day", 3)
        rows = first.captured[HOOK].shape[0] + second.captured[HOOK].shape[0]
        assert s.captured[HOOK].shape == (rows, 256)
        ids = s.info().token_ids[:rows]
        _, cache = model.run_with_cache(ids, [HOOK, "blocks.0.attn.hook_pattern"])
        assert np.array_equal(cache[HOOK], s.captured[HOOK])
        assert np.array_equal(cache["pattern", 0], s.captured["pattern", 0])


def test_captures_arrive_at_a_breakpoint(model):
    with model.session(captures=["blocks.1.hook_resid_post", "blocks.5.hook_resid_post"]) as s:
        s.breakpoint(HOOK, step=0)
        at = s.run(PROMPT)
        assert list(at.captured) == ["blocks.1.hook_resid_post"]
        s.resume()
        assert "blocks.5.hook_resid_post" in s.captured


def test_a_session_continues_after_waiting(model):
    with model.session(temperature=0, max_tokens=5) as s:
        s.generate(PROMPT)
        with s.waiting(seconds=3) as reaction_us:
            assert s.info().state == "waiting"
        assert reaction_us >= 0
        s.renew()
        result = s.say(" One day")
    with model.session(temperature=0, max_tokens=5) as s:
        s.generate(PROMPT)
        assert s.say(" One day").tokens == result.tokens


def test_a_kept_session_is_found_again(client, model):
    with model.session(temperature=0, max_tokens=5, keep=True) as s:
        s.generate(PROMPT)
    assert [info.session for info in client.sessions("stories-7m")] == [s.id]
    again = client.session(s.id)
    followed = again.follow(2)
    assert followed.tokens == s.tokens[2:]
    assert again.say(" One day").tokens
    again.delete()
    with pytest.raises(djinn.NotFound):
        client.session(s.id)
    with model.session(max_tokens=2) as s:
        s.generate(PROMPT)
        s.detach()
    client.session(s.id).delete()


def test_a_running_session_is_followed(client, model):
    with model.session(temperature=0, max_tokens=200, ignore_eos=True) as s:
        stream = s.generate(PROMPT, stream=True)
        heard = [next(stream).id for _ in range(5)]
        stream.close()
        rest = client.session(s.id).follow(3)
        assert rest.tokens[:2] == heard[3:]
        whole = model.generate(PROMPT, 200, temperature=0, ignore_eos=True)
        assert heard[:3] + rest.tokens == whole.tokens


def test_saved_and_loaded(client, model, tmp_path):
    with model.session(temperature=0, max_tokens=5) as s:
        s.generate(PROMPT)
        s.save(tmp_path / "cat.djinn")
        expect = s.say(" One day").tokens
    loaded = model.load_session(tmp_path / "cat.djinn")
    try:
        assert loaded.say(" One day", 5).tokens == expect
    finally:
        loaded.delete()
    (tmp_path / "broken.djinn").write_bytes(b"nothing of the kind")
    with pytest.raises(djinn.Refused):
        model.load_session(tmp_path / "broken.djinn")


def test_an_expired_lease_ends_a_session(client, model):
    with model.session(max_tokens=2, lease_s=0.3, keep=True) as s:
        s.generate(PROMPT)
    eventually(lambda: not client.sessions())
    with pytest.raises(djinn.NotFound):
        s.say(" One day")


def test_operations_in_the_wrong_state_are_rejected(model):
    with model.session(max_tokens=3) as s:
        with pytest.raises(djinn.WrongState):
            s.resume()
        s.generate(PROMPT)
        with pytest.raises(djinn.WrongState):
            s.resume()
        with pytest.raises(djinn.WrongState):
            s.activation()
        with pytest.raises(djinn.WrongState):
            s.branch(2)
        with pytest.raises(djinn.Refused):
            s.breakpoint("blocks.99.hook_resid_post")
        assert s.breakpoints == []
        s.breakpoint(HOOK)
        with pytest.raises(djinn.WrongState):
            s.generate(" One day")
        with pytest.raises(djinn.WrongState):
            s.say(" One day")
        assert isinstance(s.resume(), djinn.Paused)


def test_a_session_is_displayed(model):
    with model.session(max_tokens=3) as s:
        assert "not open" in repr(s) and "not open" in s._repr_html_()
        s.breakpoint(HOOK, step=0)
        s.run(PROMPT)
        assert HOOK in repr(s) and HOOK in s._repr_html_()


def test_sessions_survive_a_restart_of_the_server(tmp_path):
    state = ("--state", tmp_path)
    with Server(*state) as server:
        model = djinn.connect(server.address).model()
        whole = model.generate(PROMPT, 9, temperature=0)
        with model.session(temperature=0, max_tokens=5, keep=True) as kept:
            kept.generate(PROMPT)
        with model.session(temperature=0, max_tokens=9, keep=True) as stopped:
            stopped.breakpoint(HOOK, step=0)
            stopped.run(PROMPT)
            there = stopped.activation()
        server.kill()
    with Server(*state) as server:
        client = djinn.connect(server.address)
        again = client.session(kept.id)
        assert kept.tokens + again.generate(None, 4).tokens == whole.tokens
        back = client.session(stopped.id)
        assert back.paused.hook == HOOK
        assert isinstance(back.recall(), djinn.Paused)
        assert np.array_equal(back.activation(), there)
        assert back.resume().tokens == whole.tokens
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < 30
