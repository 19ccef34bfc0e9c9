"""`COMBINATIONS`: the layouts that the table compares with one rank. A line adds one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from schemas.doc import doc


@dataclass(frozen=True, slots=True)
class Combination:
    """A family on ranks. Data parallel ranks are counted without context parallelism."""

    family: Annotated[str, doc("name for tests.megatron.tiny.make_model")]
    tp: int = 1
    sp: bool = False
    pp: int = 1
    vpp: int = 1
    ends: Annotated[bool, doc("the embedding and the output layer count as layers of their stages")] = False
    cp: int = 1
    ep: int = 1
    etp: Annotated[int | None, doc("None: not set")] = None
    dp: int = 1
    variation: Annotated[str, doc("name in VARIATIONS")] = ""

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def title(self) -> str:
        """The layout in words: `TP 2, SP, DP 2`."""
        sizes = {"TP": self.tp, "PP": self.pp, "VPP": self.vpp, "CP": self.cp, "EP": self.ep, "DP": self.dp}
        words = [f"{axis} {size}" for axis, size in sizes.items() if size > 1]
        words[1:1] = ["SP"] if self.sp else []
        words += ["ends count"] if self.ends else []
        words += [f"ETP {self.etp}"] if self.etp is not None else []
        return ", ".join(words)

    @property
    def settings(self) -> dict[str, Any]:
        """The trainer's settings."""
        megatron: dict[str, Any] = {"expert_model_parallel_size": self.ep} if self.ep > 1 else {}
        if self.etp is not None:
            megatron["expert_tensor_parallel_size"] = self.etp
        if self.ends:
            megatron |= {f"account_for_{end}_in_pipeline_split": True for end in ("embedding", "loss")}
        if self.vpp > 1:
            megatron["virtual_pipeline_model_parallel_size"] = self.vpp
        settings = {
            "tensor_model_parallel_size": self.tp,
            "sequence_parallel": self.sp,
            "pipeline_model_parallel_size": self.pp,
            "context_parallel_size": self.cp,
        }
        return settings | {"megatron": megatron}


@dataclass(frozen=True, slots=True)
class Variation:
    """Settings besides the layout, which one rank has too."""

    settings: dict[str, Any]
    algorithm: dict[str, Any]
    megatron: dict[str, Any]

    @classmethod
    def of(cls, settings: dict[str, Any], algorithm: dict[str, Any] | None = None, **megatron: Any) -> Variation:
        """Return a variation. megatron: further flags of Megatron."""
        return cls(settings, algorithm or {}, megatron)


EXCHANGE = {"advantage_estimator": "reinforce_plus_plus", "kl_coef": 0.1, "normalize_advantages": True}
CRITIC = {"advantage_estimator": "ppo", "kl_coef": 0.1, "gamma": 0.99, "lambd": 0.9}
VARIATIONS: dict[str, Variation] = {
    "": Variation.of({}, {"entropy_coef": 0.01}),
    "reference, teacher, entropy, 2 updates": Variation.of(
        {"num_steps_per_rollout": 2, "opd_teacher_load": "{model}"},
        EXCHANGE | {"entropy_coef": 0.01, "use_opd": True, "opd_type": "megatron"},
    ),
    "critic": Variation.of({"critic_lr": 2e-3}, CRITIC),
    "tree packing": Variation.of({"tree_packing": True}),
    "log-probs in chunks": Variation.of({"log_probs_chunk_size": 6, "recompute_loss_function": True}),
    "full recompute": Variation.of(
        {}, recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1
    ),
    "selective recompute": Variation.of({}, recompute_granularity="selective", recompute_modules=["mlp"]),
    "selective recompute of norms": Variation.of(
        {}, recompute_granularity="selective", recompute_modules=["layernorm"]
    ),
    "selective recompute of experts": Variation.of({}, recompute_granularity="selective", recompute_modules=["moe"]),
    "frozen attention": Variation.of({"freeze_params_name_list": ["self_attention"]}),
    "only norms and the last layer": Variation.of({"only_train_params_name_list": ["layernorm", "layers.3"]}),
    "only the first layer": Variation.of({"only_train_params_name_list": [r"layers\.0\."], "clip_grad": 0.5}),
    "only the output layer": Variation.of({"only_train_params_name_list": ["output_layer|final_layernorm"]}),
    "embedding frozen": Variation.of({"freeze_params_name_list": ["embedding"]}),
    "only experts 0 and 1": Variation.of({"only_train_params_name_list": [r"experts\.[01]\."]}),
}

COMBINATIONS = (
    Combination("qwen3", dp=2),
    Combination("qwen3", tp=2),
    Combination("qwen3", tp=2, sp=True),
    Combination("qwen3", tp=2, dp=2),
    Combination("qwen3", tp=2, sp=True, dp=2),
    Combination("qwen3", pp=2),
    Combination("qwen3", tp=2, pp=2),
    Combination("qwen3", tp=2, sp=True, pp=2),
    Combination("qwen3", pp=2, vpp=2),
    Combination("qwen3", pp=2, vpp=3, ends=True),
    Combination("qwen3", tp=2, sp=True, pp=2, vpp=2),
    Combination("qwen3", pp=2, vpp=2, dp=2),
    Combination("qwen3", pp=2, vpp=2, cp=2),
    Combination("qwen3", cp=2),
    Combination("qwen3", tp=2, sp=True, cp=2),
    Combination("qwen2", tp=2, sp=True),
    Combination("llama", tp=2, sp=True),
    Combination("mistral", tp=2, sp=True),
    Combination("glm4", dp=2),
    Combination("glm4", tp=2),
    Combination("glm4", tp=2, sp=True),
    Combination("deepseek_v2_dense", tp=2),
    Combination("deepseek_v2_dense", tp=2, sp=True),
    Combination("deepseek_v2_dense", pp=2),
    Combination("qwen3_moe", dp=2),
    Combination("qwen3_moe", pp=2),
    Combination("qwen3_moe", pp=2, vpp=2),
    Combination("qwen3_moe", dp=2, ep=2),
    Combination("qwen3_moe", cp=2),
    Combination("qwen3_moe", tp=2),
    Combination("qwen3_moe", tp=2, sp=True),
    Combination("qwen3_moe", tp=2, sp=True, etp=1),
    Combination("qwen3_moe", tp=2, sp=True, dp=2),
    Combination("qwen3_moe", tp=2, sp=True, ep=2, etp=1),
    Combination("qwen3_moe", dp=2, etp=2),
    Combination("qwen3_moe", tp=2, sp=True, pp=2),
    Combination("qwen3_moe", tp=2, sp=True, cp=2),
    Combination("glm4_moe", dp=2),
    Combination("glm4_moe", tp=2, sp=True),
    Combination("glm4_moe", pp=2),
    Combination("glm4_moe", pp=2, vpp=2),
    Combination("glm4_moe", cp=2),
    Combination("glm4_moe", ep=2, dp=2),
    Combination("glm4_moe", tp=2, sp=True, ep=2, etp=1),
    Combination("deepseek_v3", dp=2),
    Combination("deepseek_v3", tp=2, sp=True),
    Combination("deepseek_v3", pp=2),
    Combination("deepseek_v3", pp=2, vpp=2),
    Combination("deepseek_v3", cp=2),
    Combination("deepseek_v3", ep=2, dp=2),
    Combination("deepseek_v3", tp=2, sp=True, ep=2, etp=1),
    Combination("deepseek_v2", tp=2, sp=True),
    Combination("qwen3_moe", tp=2, sp=True, dp=2, ep=2),
    Combination("qwen3_moe", tp=2, sp=True, pp=2, vpp=2),
    Combination("qwen3_moe", pp=2, vpp=2, ep=2, dp=2),
)
"""Rows of the page."""
FROZEN = [name for name, variation in VARIATIONS.items() if any("params" in setting for setting in variation.settings)]
FURTHER = (
    *(Combination("qwen3", pp=2, vpp=2, variation=name) for name in VARIATIONS if name and "experts" not in name),
    *(Combination("qwen3", tp=2, sp=True, variation=name) for name in VARIATIONS if name and "experts" not in name),
    *(
        Combination("qwen3_moe", tp=2, sp=True, variation=name)
        for name in VARIATIONS
        if name and name not in ("selective recompute", "tree packing")
    ),
    *(Combination("qwen3", pp=2, variation=name) for name in FROZEN if "expert" not in name),
    *(Combination("qwen3_moe", dp=2, ep=2, variation=name) for name in FROZEN),
    *(Combination("qwen3_moe", pp=2, variation=name) for name in FROZEN),
)
"""Layouts with other settings."""
