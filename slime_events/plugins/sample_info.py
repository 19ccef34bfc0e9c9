"""What engines counted for a sample: `SpecInfo` of speculative decoding, `PrefixCacheInfo` of the prefix cache."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self


@dataclass
class _Counts:
    """Sums over the generations of a sample."""

    NAMES: ClassVar[Mapping[str, str]] = {}
    """Our names to those of the engine's `meta_info`, where they differ."""

    def add(self, meta_info: Mapping[str, Any]) -> None:
        """Add what one generation counted."""
        for field in fields(self):
            more = meta_info.get(self.NAMES.get(field.name, field.name), 0)
            setattr(self, field.name, getattr(self, field.name) + int(more))

    def to_dict(self) -> dict[str, int]:
        """By name."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The counts of `to_dict`; those that are missing are 0."""
        return cls(**{field.name: int(data.get(field.name, 0)) for field in fields(cls)})


@dataclass
class SpecInfo(_Counts):
    """Draft tokens that were offered and taken, verifications, and tokens that came out."""

    NAMES: ClassVar[Mapping[str, str]] = {"completion_token_num": "completion_tokens"}
    spec_accept_token_num: int = 0
    spec_draft_token_num: int = 0
    spec_verify_ct: int = 0
    completion_token_num: int = 0

    @property
    def spec_accept_rate(self) -> float:
        """Share of the draft tokens that were taken; 0 without any."""
        return self.spec_accept_token_num / self.spec_draft_token_num if self.spec_draft_token_num > 0 else 0.0

    @property
    def spec_accept_length(self) -> float:
        """Tokens per verification; 0 without any."""
        return self.completion_token_num / self.spec_verify_ct if self.spec_verify_ct > 0 else 0.0


@dataclass
class PrefixCacheInfo(_Counts):
    """Prompt tokens, and those that the engine had in its prefix cache."""

    NAMES: ClassVar[Mapping[str, str]] = {"total_prompt_tokens": "prompt_tokens"}
    cached_tokens: int = 0
    total_prompt_tokens: int = 0

    @property
    def prefix_cache_hit_rate(self) -> float:
        """Share of the prompt tokens that were cached; 0 without any."""
        return self.cached_tokens / self.total_prompt_tokens if self.total_prompt_tokens > 0 else 0.0
