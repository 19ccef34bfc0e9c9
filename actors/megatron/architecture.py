"""`Architecture`: a dense decoder, read from a Hugging Face config.json and described by Megatron's terms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from schemas.doc import doc
from schemas.errors import CheckpointMismatch, ImpossibleCombination
from slime_events.core.config.trainer import TrainerSettings

FAMILIES = {"Qwen3ForCausalLM": "qwen3", "Qwen2ForCausalLM": "qwen2", "LlamaForCausalLM": "llama"}
SAME_NAMES = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels",
    "qk_layernorm", "add_qkv_bias",
)  # fmt: skip
"""Fields that have the same name in `Architecture`, in Megatron's flags and in its config."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A Qwen3, Qwen2 or Llama style decoder: RMSNorm, RoPE, grouped-query attention, SwiGLU.

    Sizes are those of the whole model, before tensor parallelism.
    """

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: Annotated[int, doc("Query heads.")]
    num_query_groups: Annotated[int, doc("Key and value heads.")]
    kv_channels: Annotated[int, doc("Size of an attention head.")]
    vocab_size: int
    max_position_embeddings: Annotated[int, doc("Longest sequence, in tokens.")]
    norm_epsilon: float
    rotary_base: float
    rope_scaling_factor: Annotated[float | None, doc("Factor of Llama 3's RoPE scaling; None without.")]
    qk_layernorm: Annotated[bool, doc("RMSNorm on each query and key head.")]
    add_qkv_bias: bool
    tied: Annotated[bool, doc("The output layer shares the embedding's weights.")]

    @classmethod
    def read(cls, folder: str | Path) -> Architecture:
        """Read the architecture of a Hugging Face folder. Raises CheckpointMismatch if the trainer cannot build it."""
        path = Path(folder) / "config.json"
        try:
            config = json.loads(path.read_text())
        except FileNotFoundError:
            raise CheckpointMismatch(f"{path} is missing: give a Hugging Face checkpoint folder") from None
        except json.JSONDecodeError as error:
            raise CheckpointMismatch(f"{path} is not JSON: {error}") from error
        return cls.of(config, str(path))

    @classmethod
    def of(cls, config: Mapping[str, Any], where: str = "config.json") -> Architecture:
        """Return the architecture of a parsed config. Raises CheckpointMismatch, whose message begins with `where`."""
        names = config.get("architectures") or ["nothing"]
        family = FAMILIES.get(names[0])
        if family is None:
            raise CheckpointMismatch(f"{where}: architecture {names[0]} is not one of {', '.join(FAMILIES)}")
        # Settings that change the results and that the Megatron model does not support.
        act = config.get("hidden_act", "silu")
        unsupported = {
            f"hidden_act {act} (silu is supported)": act != "silu",
            "attention_bias": config.get("attention_bias") and family != "qwen2",
            "mlp_bias": config.get("mlp_bias"),
            "use_sliding_window": config.get("use_sliding_window"),
        }
        if reasons := [reason for reason, is_so in unsupported.items() if is_so]:
            raise CheckpointMismatch(f"{where}: not supported by the trainer: {', '.join(reasons)}")
        heads = config["num_attention_heads"]
        rotary_base, scaling_factor = _rope(config, where)
        return cls(
            num_layers=config["num_hidden_layers"],
            hidden_size=config["hidden_size"],
            ffn_hidden_size=config["intermediate_size"],
            num_attention_heads=heads,
            num_query_groups=config.get("num_key_value_heads") or heads,
            kv_channels=config.get("head_dim") or config["hidden_size"] // heads,
            vocab_size=config["vocab_size"],
            max_position_embeddings=config.get("max_position_embeddings", 4096),
            norm_epsilon=config.get("rms_norm_eps", 1e-6),
            rotary_base=rotary_base,
            rope_scaling_factor=scaling_factor,
            qk_layernorm=family == "qwen3",
            add_qkv_bias=family == "qwen2",
            tied=bool(config.get("tie_word_embeddings", False)),
        )

    def check_flags(self, flags: Mapping[str, object]) -> None:
        """Compare Megatron's architecture flags (slime's MODEL_ARGS), by name, with the checkpoint.

        Other flags are ignored. Raises CheckpointMismatch with every flag that disagrees and both values.
        """
        expected = self.as_flags()
        wrong = [
            f"--{name.replace('_', '-')} {flags[name]} (the checkpoint says {expected[name]})"
            for name in sorted(flags.keys() & expected.keys())
            if not _same(flags[name], expected[name])
        ]
        if wrong:
            raise CheckpointMismatch(
                "model flags disagree with the checkpoint's config.json: " + "; ".join(wrong) + ". Leave them out, or "
                "give the checkpoint that they describe"
            )

    def check_parallelism(self, settings: TrainerSettings) -> None:
        """Raise ImpossibleCombination if the model cannot be cut over ranks as the settings say."""
        ranks = settings.tensor_model_parallel_size
        if settings.pipeline_model_parallel_size > 1 or settings.context_parallel_size > 1:
            raise ImpossibleCombination(
                "the trainer runs tensor and data parallelism: set pipeline-model-parallel-size and "
                "context-parallel-size to 1"
            )
        for name in ("vocab_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups"):
            size = getattr(self, name)
            if size % ranks:
                raise ImpossibleCombination(
                    f"{name} {size} of the checkpoint cannot be cut over tensor-model-parallel-size {ranks}"
                )

    def as_flags(self) -> dict[str, object]:
        """Return Megatron's architecture flags by name, with this architecture's values."""
        same = {name: getattr(self, name) for name in (*SAME_NAMES, "vocab_size", "norm_epsilon", "rotary_base")}
        return same | {
            "group_query_attention": self.num_query_groups != self.num_attention_heads,
            "layernorm_epsilon": self.norm_epsilon,
            "padded_vocab_size": self.vocab_size,
            "rotary_percent": 1.0,
            "use_rope_scaling": self.rope_scaling_factor is not None,
            "rope_scaling_factor": self.rope_scaling_factor or 8.0,
            "untie_embeddings_and_output_weights": not self.tied,
            "swiglu": True,
            "gated_linear_unit": True,
            "num_moe_experts": None,
            "multi_latent_attention": False,
            "normalization": "RMSNorm",
            "add_bias_linear": False,
            "disable_bias_linear": True,
            "use_rotary_position_embeddings": True,
            "position_embedding_type": "rope",
        }


def check_vocabulary(student: str | Path, teacher: str | Path) -> None:
    """Raise CheckpointMismatch if student and teacher, two Hugging Face folders, do not assign the same ids to tokens.

    Models of one tokenizer may differ in the padded size of their embeddings.
    """
    sizes = [Architecture.read(folder).vocab_size for folder in (student, teacher)]
    ids = [_token_ids(Path(folder) / "tokenizer.json") for folder in (student, teacher)]
    if None in ids:
        if sizes[0] == sizes[1]:
            return
        raise CheckpointMismatch(f"{teacher} has {sizes[1]} tokens, {student} has {sizes[0]}: {_ONE_VOCABULARY}")
    ours, theirs = (table or {} for table in ids)
    if apart := sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token)):
        token = apart[0]
        raise CheckpointMismatch(
            f"{teacher} and {student} differ in {len(apart)} tokens; the first is {token!r} with ids "
            f"{theirs.get(token)} and {ours.get(token)}: {_ONE_VOCABULARY}"
        )


_ONE_VOCABULARY = "the teacher scores the student's tokens, so use a teacher of the same model family"


def _token_ids(path: Path) -> dict[str, int] | None:
    """Return token -> id of a tokenizer file; None if there is no file, or if its format has no such table."""
    try:
        parsed = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return None
    table = parsed.get("model", {}).get("vocab")
    if not isinstance(table, dict):
        return None
    return table | {token["content"]: token["id"] for token in parsed.get("added_tokens", ())}


def _same(value: object, expected: object) -> bool:
    if isinstance(expected, bool) or isinstance(value, bool):
        return value is expected
    if isinstance(expected, int | float):
        try:
            return abs(float(value) - expected) <= 1e-9 * abs(expected)  # type: ignore[arg-type]  # TypeError is False
        except (TypeError, ValueError):
            return False
    return bool(value == expected)


def _rope(config: Mapping[str, Any], where: str) -> tuple[float, float | None]:
    """Return (base, Llama 3 scaling factor or None) from either format of config.json."""
    rope: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return base, None
    # Megatron supports Llama 3's scaling only with these three values.
    fixed = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    if kind != "llama3" or any(rope.get(name, value) != value for name, value in fixed.items()):
        raise CheckpointMismatch(f"{where}: RoPE scaling {dict(rope)} is not supported (default and llama3 are)")
    return base, float(rope["factor"])
