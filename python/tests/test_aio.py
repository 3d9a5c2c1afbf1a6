"""The client for asyncio."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import djinn
from djinn import aio
from serving import STORIES, Server, eventually

PROMPT = "The cat sat on the"
HOOK = "blocks.3.hook_resid_post"


def run(server, body):
    async def main():
        async with aio.connect(server.address) as client:
            return await body(client, await client.model("stories-7m"))

    return asyncio.run(main())


def test_names_match_the_synchronous_client():
    for kind in ("Client", "Model", "Session", "Stream"):
        plain = {n for n in dir(getattr(djinn, kind)) if not n.startswith("_")}
        twin = {n for n in dir(getattr(aio, kind)) if not n.startswith("_")}
        assert plain == twin, kind


def test_generation(server, model):
    async def body(client, twin):
        result = await twin.generate(PROMPT, 8, temperature=0)
        tokens = [token.id async for token in twin.generate(PROMPT, 8, temperature=0, stream=True)]
        many = await asyncio.gather(*(twin.generate(PROMPT, 8, temperature=1, seed=i) for i in range(8)))
        assert await twin.detokenize(await twin.tokenize(PROMPT)) == PROMPT
        assert (await client.capabilities()).version in repr(client)
        assert "stories-7m" in [m.name for m in await client.models()]
        return result, tokens, many

    result, tokens, many = run(server, body)
    assert result.tokens == tokens == model.generate(PROMPT, 8, temperature=0).tokens
    for i, one in enumerate(many):
        assert one.tokens == model.generate(PROMPT, 8, temperature=1, seed=i).tokens


def test_leaving_a_stream_early_ends_the_session(server, client):
    async def body(_, twin):
        async for token in twin.generate(PROMPT, 400, temperature=0, ignore_eos=True, stream=True):
            if token.index == 2:
                break
        async with twin.generate(PROMPT, 400, temperature=0, ignore_eos=True, stream=True) as stream:
            await anext(stream)
        with pytest.raises(djinn.errors.Cancelled):
            await stream.result()
        task = asyncio.create_task(twin.generate(PROMPT, 400, temperature=0, ignore_eos=True))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(server, body)
    eventually(lambda: not client.sessions())


def test_inside(server, model):
    async def body(_, twin):
        cached = await twin.run_with_cache(PROMPT, [HOOK], return_logits=True)
        picked = await twin.run_with_cache(PROMPT, lambda name: name == HOOK)
        edited = await twin.run_with_hooks(PROMPT, djinn.scale(HOOK, 0.5))
        both = await twin.run_with_hooks(PROMPT, djinn.scale(HOOK, 0.5), HOOK)
        hooks = await twin.hooks("blocks.3.*")
        with pytest.raises(djinn.Refused):
            await twin.run_with_cache(PROMPT, "blocks.99.hook_resid_post")
        return cached, picked, edited, both, hooks

    (logits, cache), (_, picked), edited, both, hooks = run(server, body)
    expect, plain = model.run_with_cache(PROMPT, [HOOK], return_logits=True)
    assert np.array_equal(logits, expect) and np.array_equal(cache[HOOK], plain[HOOK])
    assert np.array_equal(picked[HOOK], plain[HOOK])
    assert np.array_equal(edited, model.run_with_hooks(PROMPT, djinn.scale(HOOK, 0.5)))
    assert np.array_equal(both[0], edited)
    assert hooks == model.hooks("blocks.3.*")


def test_sessions(server, client, model, tmp_path):
    async def body(twin_client, twin):
        async with twin.session(temperature=0, max_tokens=6) as s:
            await s.breakpoint(HOOK, step=0)
            at = await s.run(PROMPT)
            assert isinstance(at, djinn.Paused) and s.paused == at
            there = await s.activation()
            branches = await s.branch(2)
            back = await s.branch_back("blocks.2.hook_resid_post", 5, there[-1:])
            await back.delete()
            result = await asyncio.gather(*(b.resume(djinn.scale(HOOK, 0.5)) for b in branches))
            whole = await s.resume()
            fork = await s.fork()
            async with s.waiting(1):
                assert (await s.info()).state == "waiting"
            await s.renew()
            more, same = await s.say(" One day"), await fork.say(" One day")
            assert more.tokens == same.tokens
            await s.save(tmp_path / "cat.djinn")
            found = await twin_client.session(s.id)
            followed = await found.follow(2)
            assert followed.tokens == s.tokens[2:]
            streamed = [str(t) async for t in s.generate(" Then", stream=True)]
            assert streamed
        loaded = await twin.load_session(tmp_path / "cat.djinn")
        await loaded.delete()
        assert await twin_client.sessions() == []
        return result, whole, there

    result, whole, there = run(server, body)
    _, cache = model.run_with_cache(PROMPT, HOOK)
    assert np.array_equal(there, cache[HOOK])
    assert whole.tokens == model.generate(PROMPT, 6, temperature=0).tokens
    edit = djinn.scale(HOOK, 0.5, positions="prompt")
    assert result[0].tokens == result[1].tokens == model.generate(PROMPT, 6, temperature=0, edits=edit).tokens


def test_push(tmp_path):
    with Server("--push-dir", tmp_path) as server:

        async def body(client, _):
            sent = []
            for _ in range(2):
                heard = []
                model = await client.push(STORIES, name="mine", progress=heard.append)
                sent.append(max((p.done_bytes for p in heard if p.stage == "send"), default=0))
            plan = await client.plan("shape:gpt2?layers=2")
            assert plan.dims.blocks == 2
            result = await model.generate(PROMPT, 4, temperature=0)
            await client.unload("mine", forget=True)
            return sent, result

        (first, second), result = run(server, body)
        assert first > 1 << 20 and second == 0 and len(result.tokens) == 4
