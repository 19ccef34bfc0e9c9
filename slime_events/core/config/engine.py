"""Settings of the rollout engines: replicas, device, SGLang's own settings."""

from typing import Annotated, Any, Literal

from msgspec import field
from msgspec.structs import replace

from slime_events.core.config.base import Settings, doc
from slime_events.core.config.engine_addresses import engine_url
from slime_events.core.config.engine_groups import EngineGroup, ServedModel, groups_of
from slime_events.core.config.rules import Later, excludes, needs, unused_with, unused_without

Device = Literal["auto", "cpu", "cuda"]
CHUNK_TOKENS: dict[Device, int] = {"auto": 64, "cpu": 64, "cuda": 512}
"""Default of `chunk_tokens`: 512 samples at 60 tokens a second make 480 appends of 64 tokens a second, each 74 us."""
CHUNK_SECONDS = 5.0
"""Default of `chunk_seconds` for up to 10,000 samples in flight."""
CHUNKS_PER_S = 2_000
"""Most chunks of a run in a second, by default: one log server carries them and their tokens (docs/scale.md)."""
TOKENS_PER_S = 100
"""Speed of a sample up to which its chunks are appended by time, if more samples are in flight."""
LEASE_S = 5.0
"""Lease of a request in a run of up to 2,000 engines. A lost engine's requests wait about as long."""
LEASES_PER_S = 400
"""Most leases of a run that are renewed in a second: of more engines, each lease is longer (docs/scale.md)."""
MESSAGE_TOKENS = 16
"""Tokens of a sample per message from an engine's scheduler, at most. The worker joins messages into chunks."""


def message_tokens(chunk: int) -> int:
    """Return the tokens of a sample per message from an engine's scheduler, for chunks of this many tokens."""
    return max(1, min(MESSAGE_TOKENS, chunk))


def lease_of(engines: int) -> float:
    """Return the lease of an engine's requests in a run of this many engines [s]."""
    return max(LEASE_S, engines / LEASES_PER_S)


_EXTERNAL = unused_with("rollout_external_engine_addrs", why="the engines run already")
_SHARED = needs("colocate", why="ranks and engines that share no device have nothing to release to each other")


class EngineSettings(Settings, frozen=True, kw_only=True):
    """Replicas of an SGLang engine. If `device` is auto, the launcher sets cuda on a machine with GPUs."""

    hf_checkpoint: Annotated[str, doc("Hugging Face folder of the engine's first weights", also=Later.LEARN)] = ""
    device: Annotated[Device, doc("device of engines and trainer; auto: cuda if there are GPUs", also=Later.RESUME)] = (
        "auto"
    )
    rollout_num_gpus: Annotated[
        int | None, doc("GPUs for all engines together (on the CPU: engines)", _EXTERNAL, above=0, also=Later.RESUME)
    ] = None
    rollout_num_gpus_per_engine: Annotated[
        int, doc("GPUs per engine (its tensor parallel size)", _EXTERNAL, above=0)
    ] = 1
    colocate: Annotated[
        bool,
        doc(
            "on GPUs: a trainer rank and an engine share each GPU; default of rollout-num-gpus: the trainer's ranks",
            also=Later.RESUME,
        ),
    ] = False
    offload: Annotated[bool, doc("offload-train and offload-rollout", _SHARED, also=Later.RESUME)] = False
    offload_train: Annotated[
        bool | None,
        doc(
            "ranks release their device while engines generate, together with offload-rollout; default: with colocate "
            "on GPUs of one machine, if generation and training do not overlap",
            _SHARED,
            also=Later.RESUME,
        ),
    ] = None
    offload_rollout: Annotated[
        bool | None,
        doc(
            "engines release their device while the trainer trains, together with offload-train; the default is "
            "the same",
            _SHARED,
            excludes(
                "max_staleness",
                why="generation and training overlap, so they cannot take turns. Leave one of them out, or give "
                "--no-offload-train --no-offload-rollout",
            ),
            excludes(
                "tinker",
                "ray_address",
                "actor_num_nodes!=1",
                why="only a run that draws its own prompts, on one machine, takes turns. Give --no-offload-train "
                "--no-offload-rollout",
            ),
            excludes(
                "update_weight_transport=collective",
                why="an engine that rests cannot receive weights. Leave one of them out",
            ),
            also=Later.RESUME,
        ),
    ] = None
    sglang_server_concurrency: Annotated[int, doc("most samples in flight per engine", above=0, also=Later.RESUME)] = (
        512
    )
    deterministic: Annotated[
        bool | None,
        doc("generate the same tokens for the same seed and weights; default: on for CPU, off for GPU", _EXTERNAL),
    ] = None
    chunk_tokens: Annotated[
        int | None,
        doc(
            "append a sample's progress to the log every N tokens; default: 64 on CPU, 512 on GPU, and more if over "
            "10,000 samples may be in flight",
            above=0,
            also=Later.RESUME,
        ),
    ] = None
    chunk_seconds: Annotated[
        float | None,
        doc(
            "append a sample's progress at the latest after this many seconds with new tokens; default: 5, and more if "
            "over 10,000 samples may be in flight",
            above=0,
            also=Later.RESUME,
        ),
    ] = None
    eval_hold_seconds: Annotated[
        float,
        doc("seconds that an evaluation may keep an engine from newer weights if training waits for them", above=0),
    ] = 5.0
    update_weight_local_checkpoint_dir: Annotated[
        str | None,
        doc(
            "folder on each engine's host for whole copies of weight versions that are stored as deltas; default: "
            "copies/ beside the versions",
            unused_without("update_weight_mode=delta", why="engines load full versions where they are stored"),
            also=Later.RESUME,
        ),
    ] = None
    rollout_external_engine_addrs: Annotated[
        list[str],
        doc(
            "host:port of SGLang servers that run already and make the rollouts in place of own engines "
            "(docs/external-engines.md)",
            excludes(
                "colocate",
                "use_rollout_routing_replay",
                why="the servers have GPUs of their own, and report no experts. Leave one of them out",
            ),
            excludes(
                "weights_url",
                "update_weight_local_checkpoint_dir",
                "update_weight_transport=shared-memory",
                "update_weight_transport=collective",
                why="a server reads weights in a folder that it shares with the trainer. Leave one of them out",
            ),
            also=Later.RESUME,
        ),
    ] = field(default_factory=list)
    sglang_config: Annotated[
        str | None,
        doc(
            "YAML file of models and of engine groups with their own SGLang arguments; it is read once and becomes "
            "sglang_models (docs/engine-groups.md)",
            excludes("colocate", why="each group has GPUs of its own. Leave one of them out"),
            excludes("rollout_external_engine_addrs", why="the servers run already. Leave one of them out"),
        ),
    ] = None
    sglang_models: Annotated[
        dict[str, ServedModel],
        doc(
            "models and engine groups by name",
            excludes("colocate", why="each group has GPUs of its own. Leave one of them out"),
            excludes("rollout_external_engine_addrs", why="the servers run already. Leave one of them out"),
        ),
    ] = field(default_factory=dict)
    sglang: Annotated[dict[str, Any], doc("SGLang's ServerArgs by name (flags --sglang-*)")] = field(
        default_factory=dict
    )

    @property
    def external_urls(self) -> list[str]:
        """URLs of the servers that run already. Raises InvalidValue for an address that is none."""
        return [engine_url(address) for address in self.rollout_external_engine_addrs]

    @property
    def groups(self) -> tuple[EngineGroup, ...]:
        """The engine groups; empty if all engines are equal and serve the trained model."""
        return groups_of(self.sglang_models, self.hf_checkpoint, self.rollout_num_gpus_per_engine)

    def of_group(self, group: EngineGroup) -> "EngineSettings":
        """Return the settings of the engines of a group."""
        return replace(
            self,
            hf_checkpoint=group.checkpoint,
            rollout_num_gpus=group.gpus,
            rollout_num_gpus_per_engine=group.each,
            sglang=self.sglang | group.overrides,
            sglang_config=None,
            sglang_models={},
        )

    @property
    def rollout_gpus(self) -> int:
        """GPUs of the engines that make rollouts."""
        if trained := [group for group in self.groups if group.trained]:
            return sum(group.engines * group.each for group in trained)
        return self.replicas * self.rollout_num_gpus_per_engine

    @property
    def replicas(self) -> int:
        """The number of engines that make rollouts."""
        if groups := self.groups:
            return sum(group.engines for group in groups if group.trained)
        if self.rollout_external_engine_addrs:
            return len(self.rollout_external_engine_addrs)
        return max(1, (self.rollout_num_gpus or 1) // self.rollout_num_gpus_per_engine)

    @property
    def lease_s(self) -> float:
        """Time after which a lost engine's requests go to others [s]."""
        return lease_of(self.replicas)

    @property
    def takes_turns(self) -> bool:
        """Whether ranks and engines use their devices in turns: one side releases its memory while the other works."""
        return self.colocate and bool(self.offload_train and self.offload_rollout)

    @property
    def chunk(self) -> int:
        """Tokens of a sample after which progress is appended."""
        return self.chunk_tokens or CHUNK_TOKENS[self.device]

    @property
    def chunk_s(self) -> float:
        """Time after which progress of a sample is appended [s]."""
        return self.chunk_seconds or CHUNK_SECONDS

    def with_chunks_for(self, samples: int) -> "EngineSettings":
        """Return the settings with chunks for `samples` in flight. A value that is set stays."""
        seconds = max(CHUNK_SECONDS, samples / CHUNKS_PER_S)
        tokens = self.chunk if seconds == CHUNK_SECONDS else max(self.chunk, round(TOKENS_PER_S * seconds))
        return replace(self, chunk_tokens=self.chunk_tokens or tokens, chunk_seconds=self.chunk_seconds or seconds)
