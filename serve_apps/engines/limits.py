"""`EngineLimits`: checks of an engine's requests and answers, for the gateway and the workers."""

from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc
from schemas.rollouts import Sampling
from serve_apps.engines.checks import GRAMMARS, check_request, check_sampling
from serve_apps.engines.engine import GenerateRequest
from serve_apps.engines.grammars import Grammars
from slime_events.core.checkpoint.vocabulary import vocabulary_of
from slime_events.core.config.engine import EngineSettings


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits of a run's engines."""

    vocabulary: Annotated[int | None, doc("Number of token ids; None if unknown.")] = None
    grammars: Annotated[
        Grammars | None,
        doc(
            "Compiles a request's grammar before an engine does; None if the engines' grammar back-end is not supported"
            " here."
        ),
    ] = None

    @classmethod
    def of(cls, settings: EngineSettings) -> "EngineLimits":
        """Return the limits of a run's engines."""
        vocabulary = vocabulary_of(settings.hf_checkpoint)
        backend = grammar_backend(settings)
        return cls(vocabulary, Grammars(settings.hf_checkpoint, vocabulary) if backend == "xgrammar" else None)

    async def check(self, request: GenerateRequest) -> None:
        """Raise InvalidValue for a request that an engine would refuse, hang on or crash on."""
        check_request(request, self.vocabulary)
        await self._check_grammar(request.sampling)

    async def check_sampling(self, sampling: Sampling) -> None:
        """Raise InvalidValue as `check` does, for sampling parameters without a request."""
        check_sampling(sampling, self.vocabulary)
        await self._check_grammar(sampling)

    async def _check_grammar(self, sampling: Sampling) -> None:
        if self.grammars is None or not sampling.more:
            return
        for kind in GRAMMARS:
            if text := sampling.more.get(kind):
                await self.grammars.check(kind, text)

    def close(self) -> None:
        """End the process that compiles grammars."""
        if self.grammars is not None:
            self.grammars.close()


def grammar_backend(settings: EngineSettings) -> str:
    """Return SGLang's name of the grammar back-end; by default `none` on the CPU."""
    return settings.sglang.get("grammar_backend") or ("xgrammar" if settings.device == "cuda" else "none")


NO_LIMITS = EngineLimits()
"""Limits if nothing is known of the engine: ids are from 0 up, and grammars are not compiled."""
