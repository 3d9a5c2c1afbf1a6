"""Captures and edits are the same as those of `djinn trace`, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import FAMILIES
from djinn import Cache, NotFound, Refused, _safetensors, add, add_matched, clamp, project_out, replace
from djinn import scale as scale_edit
from djinn import zero as zero_edit
from serving import GOLDEN, djinn

PROMPT = "The cat sat on the"


def trace(tmp_path, *args):
    out = tmp_path / "traced.safetensors"
    djinn("trace", *args, "--out", out)
    return Cache.load(out)


def assert_same(found, expect):
    for name in found:
        assert found[name].dtype == np.float32
        assert found[name].shape == expect[name].shape, name
        assert np.array_equal(found[name], expect[name]), f"{name} has other bits"


def test_captures_are_those_of_a_trace(model, tmp_path):
    names = "blocks.*.hook_resid_post,blocks.2.attn.*,blocks.3.mlp.hook_post,hook_embed,logits"
    logits, cache = model.run_with_cache(PROMPT, names, return_logits=True)
    expect = trace(tmp_path, "--prompt", PROMPT, "--capture", names)
    assert set(cache) == set(expect) - {"input_ids"}
    assert_same(cache, expect)
    assert np.array_equal(logits, expect["logits"])


@pytest.mark.parametrize("family", FAMILIES)
def test_captures_of_every_family(client, tmp_path, family):
    golden = _safetensors.read(GOLDEN / family / "golden.safetensors")
    ids = golden["input_ids"].reshape(-1)
    _, cache = client.model(family).run_with_cache(ids, ["*"])
    tokens = ",".join(map(str, ids))
    here = ["--model", GOLDEN / family, "--kv-dtype", "f32"]
    expect = trace(tmp_path, *here, "--tokens", tokens, "--capture", "*")
    assert set(cache) == set(expect) - {"input_ids"}
    assert_same(cache, expect)
    assert np.allclose(cache["logits"], golden["logits"].reshape(cache["logits"].shape), 1e-3, 2e-3)


def test_parts_positions_and_reductions(model, tmp_path):
    names = [
        "blocks.1.attn.hook_z[0,2]@-1",
        "blocks.2.hook_resid_post[0..64]@0,2",
        "blocks.3.hook_resid_post|mean",
        "blocks.4.hook_resid_post|norm",
        "blocks.5.hook_resid_post|top5",
        "blocks.6.hook_resid_post|lens5",
        "logits@-1|likeliest3",
    ]
    _, cache = model.run_with_cache(PROMPT, names)
    assert_same(cache, trace(tmp_path, "--prompt", PROMPT, "--capture", ",".join(names)))
    assert cache["z", 1].shape == (1, 2, 32)
    assert cache["blocks.2.hook_resid_post"].shape == (2, 64)
    assert cache["resid_post", 3].shape == (256,)
    assert cache["logits"].shape == (1, 2, 3)


def test_a_function_selects_hooks(model):
    _, cache = model.run_with_cache(PROMPT, lambda name: name.endswith("hook_pattern"))
    assert len(cache) == model.dims.blocks
    with pytest.raises(NotFound):
        model.run_with_cache(PROMPT, lambda name: False)


def test_only_requested_captures_are_sent(model):
    nothing, cache = model.run_with_cache(PROMPT, "blocks.0.hook_resid_pre", positions=-1)
    assert nothing is None and cache["resid_pre", 0].shape == (1, 256)
    logits, cache = model.run_with_cache(PROMPT, "hook_embed", return_logits=True)
    assert logits.shape == (6, 4096) and list(cache) == ["hook_embed"]
    assert model.logits(PROMPT, positions=-1).shape == (1, 4096)
    assert np.array_equal(model.logits(PROMPT, positions=-1), logits[-1:])


def edits_both_ways(tmp_path):
    """Edits, each with its text for the command line."""
    rng = np.random.default_rng(5)
    hook, z = "blocks.4.hook_resid_post", "blocks.1.attn.hook_z"
    row, rows = rng.normal(size=256).astype("f4"), rng.normal(size=(2, 256)).astype("f4")
    head = rng.normal(size=32).astype("f4")
    file = tmp_path / "operands.safetensors"
    _safetensors.write(file, {"row": row, "rows": rows, "head": head})
    return [
        (scale_edit(hook, 0.9), f"{hook}:scale=0.9"),
        (scale_edit(hook, 0.5, positions=-1), f"{hook}:scale=0.5@-1"),
        (scale_edit("blocks.*.attn.hook_pattern", 0.5, part=1), "blocks.*.attn.hook_pattern[1]:scale=0.5"),
        (zero_edit(z, part=2), f"{z}[2]:zero"),
        (add(hook, row, 0.8), f"{hook}:add={file}#row*0.8"),
        (add(hook, rows, positions=[0, 2]), f"{hook}:add={file}#rows@0,2"),
        (add_matched(hook, row, 0.25), f"{hook}:add-matched={file}#row*0.25"),
        (replace(hook, rows, positions=slice(1, 3)), f"{hook}:replace={file}#rows@1..3"),
        (replace(z, head, part=[3]), f"{z}[3]:replace={file}#head"),
        (project_out(hook, row), f"{hook}:project-out={file}#row"),
        (clamp(hook, -0.5, 0.5), f"{hook}:clamp=-0.5..0.5"),
        (f"{hook}:scale=0.9@2..4", f"{hook}:scale=0.9@2..4"),
    ]


def test_edits_are_those_of_a_trace(model, tmp_path):
    plain = model.logits(PROMPT)
    for edit, text in edits_both_ways(tmp_path):
        logits = model.run_with_hooks(PROMPT, edit)
        expect = trace(tmp_path, "--prompt", PROMPT, "--capture", "logits", "--edit", text)
        assert np.array_equal(logits, expect["logits"]), text
        assert not np.array_equal(logits, plain), text


def test_edits_apply_in_order(model, tmp_path):
    edits = [edit for edit, _ in edits_both_ways(tmp_path)]
    texts = [arg for _, text in edits_both_ways(tmp_path) for arg in ("--edit", text)]
    logits, cache = model.run_with_hooks(PROMPT, edits, "blocks.4.hook_resid_post")
    names = "logits,blocks.4.hook_resid_post"
    expect = trace(tmp_path, "--prompt", PROMPT, "--capture", names, *texts)
    assert np.array_equal(logits, expect["logits"])
    assert_same(cache, expect)
    result = model.generate(PROMPT, 10, temperature=0, edits=edits)
    ids = trace(tmp_path, "--prompt", PROMPT, "--capture", names, *texts, "--generate", 10)
    assert result.tokens == ids["output_ids"].tolist()


def test_operands_are_sent_without_conversion(model):
    row = np.linspace(-1, 1, 256).astype("f2")
    half = model.run_with_hooks(PROMPT, add("blocks.2.hook_resid_post", row))
    whole = model.run_with_hooks(PROMPT, add("blocks.2.hook_resid_post", row.astype("f4")))
    listed = model.run_with_hooks(PROMPT, add("blocks.2.hook_resid_post", row.astype("f8").tolist()))
    assert np.array_equal(half, whole) and np.array_equal(half, listed)


def test_patching_restores_the_answer(model):
    clean = model.tokenize("Lily had a red ball. She liked it. The ball was")
    corrupt = model.tokenize("Lily had a blue ball. She liked it. The ball was")
    _, cache = model.run_with_cache(clean, "blocks.*.hook_resid_post")
    patched = model.run_with_hooks(corrupt, replace("blocks.7.hook_resid_post", cache["resid_post", 7]))
    assert np.array_equal(patched, model.logits(clean))


def test_invalid_captures_and_edits_are_rejected(model):
    hook = "blocks.4.hook_resid_post"
    with pytest.raises(Refused) as raised:
        model.run_with_cache(PROMPT, "blocks.99.hook_resid_post")
    assert raised.value.code == "invalid"
    with pytest.raises(Refused):
        model.run_with_hooks(PROMPT, add(hook, np.zeros(255)))
    with pytest.raises(Refused):
        model.run_with_hooks(PROMPT, add(hook, np.full(256, np.nan)))
    with pytest.raises(Refused):
        model.run_with_hooks(PROMPT, scale_edit(hook, float("inf")))
    with pytest.raises(Refused):
        model.run_with_cache(PROMPT, f"{hook}|sum")
    with pytest.raises(Refused):
        model.run_with_hooks(PROMPT, f"{hook}:add=/etc/hostname")
    with pytest.raises(TypeError):
        model.run_with_hooks(PROMPT, add(hook, ["a"]))


def test_hooks_are_listed(model):
    hooks = model.hooks("blocks.3.*")
    named = {hook.name: hook for hook in hooks}
    assert named["blocks.3.attn.hook_z"].shape == (8, 32)
    assert named["blocks.3.hook_resid_post"].stops
    assert not named["blocks.3.attn.hook_pattern"].stops
    assert len(model.hooks()) > 8 * len(hooks) - 8


def test_a_cache_is_displayed_and_saved(model, tmp_path):
    _, cache = model.run_with_cache(PROMPT, "blocks.*.hook_resid_post")
    assert "blocks.3.hook_resid_post  [6, 256] float32" in repr(cache)
    assert "blocks.3.hook_resid_post" in cache._repr_html_()
    assert cache.stack("resid_post").shape == (8, 6, 256)
    cache.save(tmp_path / "cache.safetensors")
    assert Cache.load(tmp_path / "cache.safetensors") == cache
    with pytest.raises(KeyError):
        cache["resid_pre", 0]
