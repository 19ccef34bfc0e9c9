"""`LatentAttention`: the sizes of multi-head latent attention, and how config.json has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from schemas.doc import doc
from schemas.errors import CheckpointMismatch


@dataclass(frozen=True, slots=True)
class Yarn:
    """RoPE that is stretched over `factor` times the length that the model was first trained with."""

    factor: float
    original_length: Annotated[int, doc("Tokens of the longest sequence in the first training.")]
    beta_fast: float
    beta_slow: float
    mscale: Annotated[float, doc("Scale of the rotated values.")]
    mscale_all_dim: Annotated[float, doc("Scale of the scores of attention.")]

    @classmethod
    def read(cls, rope: Mapping[str, Any], where: str) -> Yarn:
        """Read the RoPE settings of a config.json. Raises CheckpointMismatch if Megatron would compute other values."""
        scales = rope.get("mscale"), rope.get("mscale_all_dim")
        # With one of the two scales, or a factor for the rotated values, transformers computes what Megatron cannot.
        problems = [f"{name} {rope[name]}" for name in ("attention_factor",) if rope.get(name) is not None]
        problems += ["truncate false"] if not rope.get("truncate", True) else []
        if bool(scales[0]) != bool(scales[1]) and scales != (1.0, 0.0):
            problems.append(f"mscale {scales[0]} with mscale_all_dim {scales[1]}")
        problems += [f"{name} missing" for name in ("factor", "original_max_position_embeddings") if not rope.get(name)]
        if problems:
            raise CheckpointMismatch(f"{where}: yarn RoPE with {', '.join(problems)} is not supported by the trainer")
        return cls(
            factor=float(rope["factor"]),
            original_length=int(rope["original_max_position_embeddings"]),
            beta_fast=float(rope.get("beta_fast") or 32),
            beta_slow=float(rope.get("beta_slow") or 1),
            mscale=float(scales[0] or 1.0),
            mscale_all_dim=float(scales[1] or 0.0),
        )

    def as_flags(self) -> dict[str, object]:
        """Return Megatron's flags that describe the scaling, by name."""
        return {
            "rope_type": "yarn",
            "rotary_scaling_factor": self.factor,
            "original_max_position_embeddings": self.original_length,
            "beta_fast": self.beta_fast,
            "beta_slow": self.beta_slow,
            "mscale": self.mscale,
            "mscale_all_dim": self.mscale_all_dim,
        }


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Attention whose keys and values are made of one small vector per token.

    A head's query and key have a part without a position and a rotated part; the rotated part of the key is the same
    for all heads.
    """

    query_rank: Annotated[int | None, doc("Size of the vector that queries are made of; None: the hidden state.")]
    key_value_rank: Annotated[int, doc("Size of the vector that keys and values are made of.")]
    unrotated_size: Annotated[int, doc("Part of a head's query and key without a position.")]
    rotated_size: Annotated[int, doc("Part of a head's query and key that RoPE rotates.")]
    value_size: Annotated[int, doc("Size of a head's value.")]
    yarn: Annotated[Yarn | None, doc("RoPE's scaling; None without.")]

    @classmethod
    def read(cls, config: Mapping[str, Any], where: str) -> LatentAttention:
        """Read a parsed config.json. Raises CheckpointMismatch."""
        rope = rope_of(config)
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", "yarn"):
            raise CheckpointMismatch(f"{where}: RoPE scaling {dict(rope)} is not supported (default and yarn are)")
        return cls(
            query_rank=config.get("q_lora_rank"),
            key_value_rank=config["kv_lora_rank"],
            unrotated_size=config["qk_nope_head_dim"],
            rotated_size=config["qk_rope_head_dim"],
            value_size=config["v_head_dim"],
            yarn=Yarn.read(rope, where) if kind == "yarn" else None,
        )

    @property
    def head_size(self) -> int:
        """Size of a head's query and key."""
        return self.unrotated_size + self.rotated_size

    @property
    def cut_sizes(self) -> dict[str, int]:
        """Sizes that are cut over tensor parallel ranks, by their names in config.json."""
        queries = {} if self.query_rank is None else {"q_lora_rank": self.query_rank}
        return queries | {"kv_lora_rank + qk_rope_head_dim": self.key_value_rank + self.rotated_size}

    def weights(self, hidden: int, heads: int) -> int:
        """Return the number of weights of a layer's attention, without its norms."""
        query = heads * self.head_size
        queries = hidden * query if self.query_rank is None else self.query_rank * (hidden + query)
        down = hidden * (self.key_value_rank + self.rotated_size)
        up = self.key_value_rank * heads * (self.unrotated_size + self.value_size)
        return queries + down + up + heads * self.value_size * hidden

    def as_flags(self) -> dict[str, object]:
        """Return Megatron's flags that describe the attention, by name.

        Without yarn the scales have no effect, and slime's scripts set `--rotary-scaling-factor 1` for it.
        """
        return {
            "multi_latent_attention": True,
            "q_lora_rank": self.query_rank,
            "kv_lora_rank": self.key_value_rank,
            "qk_head_dim": self.unrotated_size,
            "qk_pos_emb_head_dim": self.rotated_size,
            "v_head_dim": self.value_size,
            **({"rotary_scaling_factor": 1.0} if self.yarn is None else self.yarn.as_flags()),
        }


def rope_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the RoPE settings of a config.json: `rope_parameters` of transformers 5, else `rope_scaling`."""
    rope: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return rope
