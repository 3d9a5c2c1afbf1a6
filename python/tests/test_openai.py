"""OpenAI's own Python client against the server."""

from __future__ import annotations

import shutil
import urllib.request

import pytest

from serving import STORIES, Server, djinn_json, eventually

openai = pytest.importorskip("openai")

import djinn  # noqa: E402

PROMPT = "Once upon a time"
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
CHAT = [{"role": "user", "content": "Tell me about a cat."}]


@pytest.fixture(scope="module")
def chat_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "chatty"
    shutil.copytree(STORIES, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    with Server("--model", f"stories-7m={STORIES}", "--model", f"chatty={folder}") as server:
        yield server


@pytest.fixture(scope="module")
def ai(chat_server):
    with openai.OpenAI(base_url=f"{chat_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def sessions(server):
    with djinn.connect(server.address) as client:
        return client.sessions()


def metrics(server):
    with urllib.request.urlopen(f"{server.url}/metrics") as reply:
        return reply.read().decode()


def complete(ai, **more):
    asked = {"model": "stories-7m", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, **more}
    return ai.completions.create(**asked)


def chat(ai, **more):
    asked = {"model": "chatty", "messages": CHAT, "max_tokens": 12, "temperature": 0, **more}
    return ai.chat.completions.create(**asked)


def test_models(ai):
    assert {"stories-7m", "chatty"} <= {model.id for model in ai.models.list()}
    assert ai.models.retrieve("chatty").id == "chatty"
    with pytest.raises(openai.NotFoundError):
        ai.models.retrieve("nothing")


def test_completions_are_those_of_the_command_line(ai):
    result = complete(ai)
    alone = djinn_json("run", "--prompt", PROMPT, "--max-tokens", 12, "--temperature", 0)
    assert result.choices[0].text == alone["text"]
    assert result.choices[0].finish_reason == "length"
    assert result.usage.prompt_tokens == len(alone["prompt_ids"])
    assert result.usage.completion_tokens == 12
    assert result.usage.total_tokens == result.usage.prompt_tokens + 12
    assert result.model == "stories-7m" and result.object == "text_completion"


def test_prompts_of_every_kind(ai, chat_server):
    with djinn.connect(chat_server.address) as client:
        ids = client.model("stories-7m").tokenize(PROMPT)
    expect = complete(ai).choices[0].text
    assert complete(ai, prompt=ids).choices[0].text == expect
    several = complete(ai, prompt=[PROMPT, "The cat", PROMPT])
    assert [c.index for c in several.choices] == [0, 1, 2]
    assert several.choices[0].text == several.choices[2].text == expect != several.choices[1].text


def test_chat(ai, chat_server):
    result = chat(ai)
    with djinn.connect(chat_server.address) as client:
        model = client.model("chatty")
        assert model.info.has_chat
        assert result.choices[0].message.content == model.generate(CHAT, 12, temperature=0).text
        assert model.detokenize(model.tokenize(CHAT)).startswith("user: Tell me about a cat.")
    assert result.choices[0].message.role == "assistant"
    assert result.object == "chat.completion"


def test_a_model_without_a_template_rejects_chats(ai):
    with pytest.raises(openai.BadRequestError) as raised:
        chat(ai, model="stories-7m")
    assert raised.value.code == "invalid"


def test_streams(ai):
    chunks = list(complete(ai, stream=True))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == complete(ai).choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"
    assert len({c.id for c in chunks}) == 1
    pieces = list(chat(ai, stream=True))
    assert pieces[0].choices[0].delta.role == "assistant"
    said = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
    assert said == chat(ai).choices[0].message.content
    assert pieces[-1].choices[0].finish_reason == "length"


def test_streams_report_usage(ai):
    chunks = list(complete(ai, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 12
    assert all(c.usage is None for c in chunks[:-1])
    pieces = list(chat(ai, stream=True, stream_options={"include_usage": True}))
    assert pieces[-1].choices == [] and pieces[-1].usage.completion_tokens == 12


def cached(usage):
    return usage.prompt_tokens_details.cached_tokens


def test_a_chat_computes_only_what_is_new(ai, chat_server):
    messages: list[dict[str, str]] = []
    computed: list[list[int]] = [[]]
    with djinn.connect(chat_server.address) as client:
        model = client.model("chatty")
        for turn in range(10):
            messages.append({"role": "user", "content": f"And what did animal {turn} do on its day?"})
            ids = model.tokenize(messages)
            options = {"extra_body": {"return_token_ids": True}}
            reply = chat(ai, messages=messages, **options)
            assert reply.usage.prompt_tokens == len(ids), "the template gives these tokens"
            # Whole pages of 16 tokens are reused; the last token of a prompt always runs.
            known = max(common(ids, past) for past in computed)
            assert cached(reply.usage) == min(known, len(ids) - 1) // 16 * 16, f"turn {turn}"
            # The last generated token has not run.
            answer = reply.choices[0].model_extra["token_ids"]
            computed.append((ids + list(answer))[:-1])
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
    assert cached(reply.usage) > reply.usage.prompt_tokens / 2


def common(a, b):
    """Returns the number of equal leading elements."""
    equal = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(equal, min(len(a), len(b)))


def test_a_repeated_prompt_is_cached(ai, chat_server):
    prompt = "The prompt that is sent twice tells of " + "a dog and " * 20
    first = complete(ai, prompt=prompt)
    again = complete(ai, prompt=prompt)
    assert again.choices[0].text == first.choices[0].text
    expect = (first.usage.prompt_tokens - 1) // 16 * 16
    assert (cached(first.usage), cached(again.usage)) == (0, expect)
    streamed = list(complete(ai, prompt=prompt, stream=True, stream_options={"include_usage": True}))
    assert cached(streamed[-1].usage) == expect
    with djinn.connect(chat_server.address) as client:
        generation = client.model("stories-7m").generate(prompt, 3, temperature=0)
    assert generation.cached_tokens == expect
    # Choices of one prompt share it, and the prompt counts once.
    several = complete(ai, prompt=prompt, n=3, temperature=1.0)
    assert cached(several.usage) == expect
    counters = metrics(chat_server)
    assert 'djinn_prefix_hits_total{model="stories-7m"}' in counters


def test_the_prefix_cache_can_be_turned_off():
    prompt = "Once upon a time there was " + "a cat and " * 20
    with (
        Server("--model", STORIES, "--prefix-cache", "off") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as ai,
    ):
        for _ in range(2):
            assert cached(complete(ai, prompt=prompt).usage) == 0


def test_stop(ai):
    whole = complete(ai, max_tokens=40).choices[0].text
    stop = whole[20:26]
    result = complete(ai, max_tokens=40, stop=stop)
    assert result.choices[0].text == whole[: whole.index(stop)]
    assert result.choices[0].finish_reason == "stop"
    several = complete(ai, max_tokens=40, stop=["never said", stop], stream=True)
    assert "".join(c.choices[0].text for c in several) == result.choices[0].text
    talk = chat(ai, max_tokens=40).choices[0].message.content
    assert (
        chat(ai, max_tokens=40, stop=[talk[10:14]]).choices[0].message.content
        == talk[: talk.index(talk[10:14])]
    )


def test_logprobs(ai, chat_server):
    result = complete(ai, logprobs=3).choices[0].logprobs
    with djinn.connect(chat_server.address) as client:
        model = client.model("stories-7m")
        expect = model.generate(PROMPT, 12, temperature=0, logprobs=3)
        assert result.token_logprobs == pytest.approx(expect.logprobs.tolist(), abs=1e-6)
        assert result.tokens == model.pieces(expect.tokens)
    assert len(result.top_logprobs) == 12 and all(len(top) >= 3 for top in result.top_logprobs)
    steps = chat(ai, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(steps) == 12 and all(len(step.top_logprobs) == 2 for step in steps)
    assert all(step.logprob <= 0 for step in steps)
    assert "".join(step.token for step in steps) == chat(ai).choices[0].message.content
    streamed = [c.choices[0] for c in chat(ai, logprobs=True, stream=True) if c.choices]
    assert sum(len(c.logprobs.content) for c in streamed if c.logprobs and c.logprobs.content) == 12


def test_several_choices(ai):
    result = complete(ai, n=4, temperature=1.0, seed=7)
    assert [c.index for c in result.choices] == [0, 1, 2, 3]
    assert len({c.text for c in result.choices}) > 1
    assert result.usage.completion_tokens == 48
    again = complete(ai, n=4, temperature=1.0, seed=7)
    assert [c.text for c in result.choices] == [c.text for c in again.choices]
    said: dict[int, str] = {}
    for chunk in complete(ai, n=4, temperature=1.0, seed=7, stream=True):
        for choice in chunk.choices:
            said[choice.index] = said.get(choice.index, "") + choice.text
    assert said == {c.index: c.text for c in result.choices}


def test_seeds(ai):
    result = [complete(ai, temperature=1.0, seed=seed).choices[0].text for seed in (1, 1, 2)]
    assert result[0] == result[1] != result[2]
    assert (
        chat(ai, temperature=1.0, seed=3).choices[0].message
        == chat(ai, temperature=1.0, seed=3).choices[0].message
    )


def test_closing_a_stream_ends_its_session(ai, chat_server):
    stream = complete(ai, max_tokens=400, stream=True, extra_body={"ignore_eos": True})
    for _, _ in zip(range(3), stream, strict=False):
        pass
    assert sessions(chat_server)
    stream.close()
    eventually(lambda: not sessions(chat_server))
    assert "djinn" in metrics(chat_server)


def test_errors(ai, chat_server):
    with pytest.raises(openai.NotFoundError) as raised:
        complete(ai, model="nothing")
    assert raised.value.code == "not_found"
    with pytest.raises(openai.NotFoundError):
        chat(ai, model="nothing")
    for wrong in (
        {"temperature": -1},
        {"max_tokens": -5},
        {"n": 0},
        {"prompt": []},
        {"prompt": [10**6]},
        {"top_p": 3},
        {"extra_body": {"nonsense": 1}},
        {"stop": ""},
    ):
        with pytest.raises(openai.BadRequestError):
            complete(ai, **wrong)
    for messages in ([], [{"content": "Hello"}], "text"):
        with pytest.raises(openai.BadRequestError):
            chat(ai, messages=messages)
    assert sessions(chat_server) == []


def test_keys(tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text('[[key]]\nowner = "ada"\nkey = "ada-0123456789abcdef"\n')
    with Server("--keys", keys) as server:
        good = openai.OpenAI(base_url=f"{server.url}/v1", api_key="ada-0123456789abcdef", max_retries=0)
        assert good.models.list().data
        assert complete(good).choices[0].text
        bad = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unknown", max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            complete(bad)


def test_the_asynchronous_client(chat_server, ai):
    import asyncio

    async def main():
        async with openai.AsyncOpenAI(base_url=f"{chat_server.url}/v1", api_key="none") as client:
            asked = {"model": "stories-7m", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
            many = await asyncio.gather(*(client.completions.create(**asked) for _ in range(8)))
            streamed = await client.completions.create(**asked, stream=True)
            return [m.choices[0].text for m in many], [c.choices[0].text async for c in streamed]

    many, streamed = asyncio.run(main())
    assert set(many) == {complete(ai).choices[0].text} == {"".join(streamed)}
