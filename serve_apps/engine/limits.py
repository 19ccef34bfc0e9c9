"""`EngineLimits`: what an engine is not asked, and what is not believed of it. Doors and workers ask the same."""

from dataclasses import dataclass

from schemas.rollouts import Sampling
from serve_apps.engine.checks import GRAMMARS, check_request, check_sampling
from serve_apps.engine.engine import GenerateRequest
from serve_apps.engine.grammars import Grammars
from slime_events.core.config.engine import EngineSettings
from slime_events.core.vocabulary import vocabulary_of


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """vocabulary: token ids are below it; None is unknown. grammars: compiles those of requests before an engine has
    to; None where engines have no grammar back-end that is known here.
    """

    vocabulary: int | None = None
    grammars: Grammars | None = None

    @classmethod
    def of(cls, settings: EngineSettings) -> "EngineLimits":
        """Of a run's engines."""
        vocabulary = vocabulary_of(settings.hf_checkpoint)
        backend = grammar_backend(settings)
        return cls(vocabulary, Grammars(settings.hf_checkpoint, vocabulary) if backend == "xgrammar" else None)

    async def check(self, request: GenerateRequest) -> None:
        """Raise InvalidValue for a request that an engine would refuse, hang on or die of."""
        check_request(request, self.vocabulary)
        await self._check_grammar(request.sampling)

    async def check_sampling(self, sampling: Sampling) -> None:
        """Raise InvalidValue as `check` does, before there is a request."""
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
    """SGLang's name of it; `none` on the CPU, if none is asked for."""
    return settings.sglang.get("grammar_backend") or ("xgrammar" if settings.device == "cuda" else "none")


NO_LIMITS = EngineLimits()
"""Ids are from 0 up, and nothing is known of grammars."""
