"""slime's `GenerateState`: what generate functions know of the generation that they are part of."""

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, ClassVar

from schemas.errors import PlugPointError
from serve_apps.engine.engine import sampling_params
from serve_apps.generate.session import session_here
from slime_events.plugins.slime_compat import in_force

_OF_ARGS = {
    "temperature": "rollout_temperature",
    "top_p": "rollout_top_p",
    "top_k": "rollout_top_k",
    "max_new_tokens": "rollout_max_response_len",
    "stop": "rollout_stop",
    "stop_token_ids": "rollout_stop_token_ids",
    "skip_special_tokens": "rollout_skip_special_tokens",
}
"""SGLang's sampling parameters, and slime's settings for them."""
_FIXED = {"no_stop_trim": True, "spaces_between_special_tokens": False}
_HOMES = ("slime.rollout.sglang_rollout", "slime.utils.processing_utils")


class GenerateState:
    """slime's global state, as far as a function may know it: of the current session, and outside of a run of `args`.

    Outside of a run all instances share `aborted`, as slime's one instance does.
    """

    semaphore = nullcontext()
    """Open: the engine bounds its own concurrency."""
    _outside: ClassVar[dict[str, bool]] = {"aborted": False}

    def __init__(self, args: Any) -> None:
        self._session, self.args = session_here(), args
        if self._session is None:
            given = {name: getattr(args, setting) for name, setting in _OF_ARGS.items() if hasattr(args, setting)}
            self.sampling_params: dict[str, Any] = given | _FIXED
        else:
            self.sampling_params = sampling_params(self._session.sampling)

    @cached_property
    def tokenizer(self) -> Any:
        """The run's; outside of one that of `args.hf_checkpoint`. Raises PlugPointError where there is none."""
        return self._read("load_tokenizer") if self._session is None else self._session.tokenizer

    @cached_property
    def processor(self) -> Any:
        """None in a run; outside of one that of `args.hf_checkpoint`, if it has one."""
        return self._read("load_processor") if self._session is None else None

    def _read(self, loader: str) -> Any:
        checkpoint = getattr(self.args, "hf_checkpoint", None)
        if not checkpoint:
            raise PlugPointError(
                "GenerateState reads its tokenizer from args.hf_checkpoint outside of a run, and it is not set: set "
                "it, or replace slime.rollout.sglang_rollout.GenerateState"
            )
        return in_force(loader, *_HOMES)(checkpoint, trust_remote_code=True)

    @property
    def group_sampling_seeds(self) -> list[int]:
        """One for each sample of a group, from `args.rollout_seed` on."""
        return [int(self.args.rollout_seed) + number for number in range(int(self.args.n_samples_per_prompt))]

    @property
    def aborted(self) -> bool:
        """Whether a rollout function has aborted its generations."""
        return self._outside["aborted"] if self._session is None else self._session.aborted

    @aborted.setter
    def aborted(self, aborted: bool) -> None:
        """Raises PlugPointError in a run: its generations are ended by `abort`."""
        if self._session is not None:
            raise PlugPointError("GenerateState.aborted: a run's generations are ended by `abort(args, rollout_id)`")
        self._outside["aborted"] = aborted

    def reset(self) -> None:
        """Generate again after that."""
        if self._session is None:
            self.aborted = False
        else:
            self._session.reset()

    def dp_rank_context(self) -> AbstractContextManager[int]:
        """Nothing to balance: a rollout has one engine."""
        return nullcontext(0)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"GenerateState has no {name!r} here: slime's rollout loop keeps it, and a run has a loop of its own"
        )
