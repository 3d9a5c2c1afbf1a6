"""Pushing models."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import djinn
from djinn import _checkpoint, _parcel, _safetensors
from serving import GOLDEN, STORIES, Server, djinn_json


@pytest.fixture
def pushed_server(tmp_path_factory):
    with Server("--push-dir", tmp_path_factory.mktemp("pushed")) as server:
        yield server


class Heard(list):
    """Collects progress reports."""

    def __call__(self, progress):
        self.append(progress)

    def bytes(self, stage):
        return max((p.done_bytes for p in self if p.stage == stage), default=0)


def test_a_second_push_sends_nothing(pushed_server):
    client = djinn.connect(pushed_server.address)
    first, second = Heard(), Heard()
    model = djinn.push(STORIES, client=client, name="mine", progress=first)
    total = sum(s.bytes for s in _checkpoint.sources(STORIES)[1])
    assert first.bytes("hash") == first.bytes("send") == total
    result = model.generate("Once upon a time", 12, temperature=0)
    assert (
        result.tokens
        == djinn_json("run", "--max-tokens", 12, "--temperature", 0, "--prompt", "Once upon a time")[
            "output_ids"
        ]
    )
    again = client.push(STORIES, name="mine", progress=second)
    assert again.name == "mine" and second.bytes("send") == 0


def test_only_new_files_are_sent(pushed_server, tmp_path):
    client = djinn.connect(pushed_server.address)
    client.push(GOLDEN / "llama2", name="one")
    folder = tmp_path / "other"
    shutil.copytree(GOLDEN / "llama2", folder)
    config = json.loads((folder / "config.json").read_text())
    config["rms_norm_eps"] = 1e-4
    (folder / "config.json").write_text(json.dumps(config))
    heard = Heard()
    other = client.push(folder, progress=heard)
    assert other.name == "other"
    assert heard.bytes("send") == (folder / "config.json").stat().st_size
    one = client.model("one")
    assert not np.array_equal(one.logits([1, 2, 3]), other.logits([1, 2, 3]))


def big(folder, megabytes=64):
    """Creates a checkpoint that takes a moment to send."""
    folder.mkdir()
    shutil.copy(GOLDEN / "llama2" / "config.json", folder)
    tensors = _safetensors.read(GOLDEN / "llama2" / "model.safetensors")
    rng = np.random.default_rng(0)
    tensors["unused"] = rng.integers(0, 256, (megabytes, 1 << 20)).astype("u1")
    _safetensors.write(folder / "model.safetensors", tensors)
    return folder


def test_an_interrupted_push_resumes(pushed_server, tmp_path):
    client = djinn.connect(pushed_server.address)
    folder = big(tmp_path / "big")
    half = 32 << 20

    class Enough(Exception):
        pass

    def stop_halfway(progress):
        if progress.stage == "send" and progress.done_bytes >= half:
            raise Enough

    with pytest.raises(Enough):
        client.push(folder, progress=stop_halfway)
    heard = Heard()
    model = client.push(folder, progress=heard)
    assert 0 < heard.bytes("send") <= (64 << 20) - half + (16 << 20)
    assert model.logits([1, 2, 3]).shape[0] == 3


def test_a_push_survives_a_restart_of_the_server(tmp_path):
    folder, pushed = big(tmp_path / "big"), tmp_path / "pushed"
    server = Server("--push-dir", pushed)
    port = server.address.rpartition(":")[2]
    servers = [server]
    sent = Heard()

    def kill_halfway(progress):
        sent(progress)
        if progress.stage == "send" and progress.done_bytes >= (24 << 20) and len(servers) == 1:
            server.kill()
            servers.append(Server("--push-dir", pushed, port=port))

    try:
        model = djinn.connect(server.address).push(folder, progress=kill_halfway)
        assert model.logits([1, 2, 3]).shape[0] == 3
        again = [p.total_bytes for p in sent if p.stage == "send" and p.done_bytes == 0]
        assert len(again) >= 2 and again[-1] < again[0]
    finally:
        servers[-1].kill()


def test_only_files_of_a_checkpoint_are_sent(tmp_path):
    folder = tmp_path / "mixed"
    shutil.copytree(STORIES, folder)
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    names = {source.name for source in _checkpoint.sources(folder)[1]}
    assert names == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
    }
    with pytest.raises(FileNotFoundError):
        _checkpoint.sources(tmp_path)
    with pytest.raises(TypeError):
        _checkpoint.sources(3)


def test_generated_files_can_be_read_from_an_offset():
    pieces = [b"abc", b"", b"defgh", b"i"]
    made = _parcel.MadeFile("x.json", [(len(p), lambda p=p: p) for p in pieces])
    for offset in range(10):
        assert b"".join(made.views(offset)) == b"abcdefghi"[offset:]


def test_a_live_model(pushed_server):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    client = djinn.connect(pushed_server.address)
    sizes = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    ids = [1, 5, 7, 11, 2]
    for kind, extra in [
        (transformers.LlamaForCausalLM, dict(tie_word_embeddings=True)),
        (transformers.LlamaForCausalLM, dict(tie_word_embeddings=False)),
        (transformers.Qwen2ForCausalLM, {}),
        (transformers.MixtralForCausalLM, dict(num_local_experts=4)),
    ]:
        torch.manual_seed(0)
        config = kind.config_class(**sizes, **heads, **extra, initializer_range=0.3)
        for dtype in (torch.float32, torch.bfloat16):
            live = kind(config).to(dtype).eval()
            model = djinn.push(
                live, client=client, name=f"live-{kind.__name__}-{extra}-{dtype}".translate(CLEAN)
            )
            with torch.no_grad():
                expect = live.float()(torch.tensor([ids])).logits[0].numpy()
            found = model.logits(ids)
            near = 2e-3 if dtype == torch.float32 else 0.1
            assert np.allclose(found, expect, rtol=near, atol=near * np.abs(expect).max())


CLEAN = str.maketrans({c: "-" for c in " {}'():,."})


def test_torch_tensors(client, model):
    torch = pytest.importorskip("torch")
    row = torch.linspace(-1, 1, 256)
    hook = "blocks.2.hook_resid_post"
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        given = row.to(dtype)
        found = model.run_with_hooks("Once", djinn.add(hook, given))
        expect = model.run_with_hooks("Once", djinn.add(hook, given.float().numpy()))
        assert np.array_equal(found, expect), dtype
    _, cache = model.run_with_cache("Once", hook)
    tensors = cache.torch()
    tensors[hook][0, 0] = 3.0
    assert cache[hook][0, 0] == 3.0, "the memory is shared"


def test_invalid_pushes_are_rejected(pushed_server, tmp_path):
    client = djinn.connect(pushed_server.address)
    folder = tmp_path / "wrong"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    _safetensors.write(folder / "model.safetensors", {"x": np.zeros(3, "f4")})
    with pytest.raises(djinn.DjinnError):
        client.push(folder)


def test_two_clients_push_the_same_model(pushed_server):
    client = djinn.connect(pushed_server.address)
    with ThreadPoolExecutor() as pool:
        models = list(pool.map(lambda _: client.push(STORIES, name="same"), range(4)))
    assert {model.name for model in models} == {"same"}
