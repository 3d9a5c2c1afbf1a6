"""Text and tokens are the same as those of the command line."""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pytest

import djinn
from serving import djinn_json, eventually

PROMPT = "Once upon a time"


def test_tokens_are_those_of_the_command_line(model):
    for temperature, seed in [(0.0, 0), (0.8, 7), (1.3, 2**63)]:
        result = model.generate(PROMPT, 24, temperature=temperature, seed=seed)
        flags = ("--prompt", PROMPT, "--max-tokens", 24, "--temperature", temperature, "--seed", seed)
        alone = djinn_json("run", *flags)
        assert result.tokens == alone["output_ids"]
        assert result.text == alone["text"]
        assert result.finish == alone["finish"]
        assert result.seed == seed


def test_every_option_has_the_effect_of_its_flag(model):
    result = model.generate(
        PROMPT,
        16,
        temperature=0.9,
        seed=3,
        top_k=40,
        top_p=0.95,
        min_p=0.01,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.1,
        logit_bias={262: -2.0},
        logprobs=3,
    )
    flags = "--max-tokens 16 --temperature 0.9 --seed 3 --top-k 40 --top-p 0.95 --min-p 0.01"
    more = "--repetition-penalty 1.1 --presence-penalty 0.2 --frequency-penalty 0.1 --logit-bias 262=-2"
    alone = djinn_json("run", "--prompt", PROMPT, *flags.split(), *more.split(), "--logprobs", 3)
    assert result.tokens == alone["output_ids"]
    assert result.logprobs.tolist() == pytest.approx([p["logprob"] for p in alone["logprobs"]], abs=0)
    tops = [[t["token"] for t in p["top"]] for p in alone["logprobs"]]
    assert [[p.id for p in step] for step in result.alternatives] == tops


def test_prompts_may_be_tokens(model):
    ids = model.tokenize(PROMPT)
    prompts = (PROMPT, ids, np.array(ids), np.array([ids]))
    first, *others = [model.generate(prompt, 8, temperature=0).tokens for prompt in prompts]
    assert all(tokens == first for tokens in others)
    with pytest.raises(ValueError):
        model.generate(np.array([ids, ids]))
    with pytest.raises(TypeError):
        model.generate([1.5, 2.5])


def test_tokens_are_streamed_one_by_one(model):
    stream = model.generate(PROMPT, 12, temperature=0, stream=True)
    tokens = list(stream)
    whole = model.generate(PROMPT, 12, temperature=0)
    assert [t.id for t in tokens if t.id >= 0] == whole.tokens
    assert "".join(str(t) for t in tokens) == whole.text == stream.text
    assert [t.index for t in tokens if t.id >= 0] == list(range(12))
    assert stream.result().tokens == whole.tokens


def test_leaving_early_ends_the_session(client, model):
    for token in model.generate(PROMPT, 400, temperature=0, ignore_eos=True, stream=True):
        if token.index == 2:
            break
    eventually(lambda: not client.sessions())
    with model.generate(PROMPT, 400, temperature=0, ignore_eos=True, stream=True) as stream:
        next(stream)
        assert len(client.sessions()) == 1
    eventually(lambda: not client.sessions())
    with pytest.raises(djinn.errors.Cancelled):
        stream.result()


def test_a_client_that_dies_leaves_no_session(server, client):
    client.register("shape:gpt2?layers=6", "slow")
    code = f"""
import signal
import djinn
signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent process may ignore it
model = djinn.connect("{server.address}").model("slow")
print("runs", flush=True)
try:
    model.generate([1, 2, 3], 1000, ignore_eos=True)
except KeyboardInterrupt:
    print("stopped", flush=True)
    input()
"""
    for how in (signal.SIGINT, signal.SIGKILL):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
            assert process.stdout.readline() == "runs\n"
            eventually(client.sessions)
            process.send_signal(how)
            if how == signal.SIGINT:
                assert process.stdout.readline() == "stopped\n"
            eventually(lambda: not client.sessions())
            process.kill()
    client.unload("slow", forget=True)


def test_stop_strings_end_a_turn(model):
    whole = model.generate(PROMPT, 40, temperature=0).text
    stop = whole[20:26]
    result = model.generate(PROMPT, 40, temperature=0, stop=stop)
    assert result.finish == "stop"
    assert result.text == whole[: whole.index(stop)]
    several = model.generate(PROMPT, 40, temperature=0, stop=["never generated", stop])
    assert several.text == result.text


def test_a_drawn_seed_is_returned(model):
    drawn = model.generate(PROMPT, 10, temperature=1.0)
    again = model.generate(PROMPT, 10, temperature=1.0, seed=drawn.seed)
    assert drawn.tokens == again.tokens


def test_text_and_tokens(model):
    ids = model.tokenize(PROMPT)
    assert model.detokenize(ids) == PROMPT
    assert model.tokenize(PROMPT, plain=True) == ids[1:]
    assert "".join(model.pieces(ids[1:])) == PROMPT
    assert "<|endoftext|>" in model.detokenize(ids, special=True)
    assert model.detokenize(ids[1]) == model.pieces([ids[1]])[0]


def test_invalid_requests_are_rejected(model):
    with pytest.raises(djinn.Refused):
        model.generate(PROMPT, 4, temperature=float("nan"))
    with pytest.raises(djinn.Refused):
        model.generate([10**6], 4)
    with pytest.raises(djinn.Refused):
        model.generate([{"role": "user", "content": "Hello"}], 4)
    with pytest.raises(TypeError):
        model.generate(PROMPT, 4, temprature=1.0)


def test_generations_are_shown(model):
    result = model.generate(PROMPT, 4, temperature=0, logprobs=2)
    assert str(result) == result.text
    html = result._repr_html_()
    assert "background" in html and "%" in html
    assert result.logprobs.shape == (4,)
    assert model.generate(PROMPT, 4, temperature=0).logprobs is None
