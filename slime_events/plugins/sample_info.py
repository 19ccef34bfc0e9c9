"""Counts of engines for a sample: `SpecInfo` of speculative decoding, `PrefixCacheInfo` of the prefix cache."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, ClassVar, Self

from schemas.doc import doc


@dataclass
class _Counts:
    """Sums over the generations of a sample."""

    NAMES: ClassVar[Mapping[str, str]] = {}
    """Field name to the name in the engine's `meta_info`, if the two differ."""

    def add(self, meta_info: Mapping[str, Any]) -> None:
        """Add the counts of one generation."""
        for field in fields(self):
            more = meta_info.get(self.NAMES.get(field.name, field.name), 0)
            setattr(self, field.name, getattr(self, field.name) + int(more))

    def to_dict(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the counts of `to_dict`. Missing counts are 0."""
        return cls(**{field.name: int(data.get(field.name, 0)) for field in fields(cls)})


@dataclass
class SpecInfo(_Counts):
    """Counts of speculative decoding."""

    NAMES: ClassVar[Mapping[str, str]] = {"completion_token_num": "completion_tokens"}
    spec_accept_token_num: Annotated[int, doc("Draft tokens that the model accepted.")] = 0
    spec_draft_token_num: Annotated[int, doc("Draft tokens proposed.")] = 0
    spec_verify_ct: Annotated[int, doc("Verification passes of the model.")] = 0
    completion_token_num: Annotated[int, doc("Tokens generated.")] = 0

    @property
    def spec_accept_rate(self) -> float:
        """Share of draft tokens that were accepted; 0 without draft tokens."""
        return self.spec_accept_token_num / self.spec_draft_token_num if self.spec_draft_token_num > 0 else 0.0

    @property
    def spec_accept_length(self) -> float:
        """Tokens per verification pass; 0 without any pass."""
        return self.completion_token_num / self.spec_verify_ct if self.spec_verify_ct > 0 else 0.0


@dataclass
class PrefixCacheInfo(_Counts):
    """Prompt tokens, and how many of them were in the engine's prefix cache."""

    NAMES: ClassVar[Mapping[str, str]] = {"total_prompt_tokens": "prompt_tokens"}
    cached_tokens: int = 0
    total_prompt_tokens: int = 0

    @property
    def prefix_cache_hit_rate(self) -> float:
        """Share of prompt tokens that were cached; 0 without prompt tokens."""
        return self.cached_tokens / self.total_prompt_tokens if self.total_prompt_tokens > 0 else 0.0
