"""slime's `GenerateState`: the part of slime's global state that generate functions read."""

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, ClassVar

from schemas.errors import PlugPointError
from serve_apps.engines.engine import sampling_params
from serve_apps.rollouts.generate.session import session_here
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.slime.aliases import in_force
from slime_events.plugins.tokenizer import Tokenizer

_OF_ARGS = {
    "temperature": "rollout_temperature",
    "top_p": "rollout_top_p",
    "top_k": "rollout_top_k",
    "max_new_tokens": "rollout_max_response_len",
    "stop": "rollout_stop",
    "stop_token_ids": "rollout_stop_token_ids",
    "skip_special_tokens": "rollout_skip_special_tokens",
}
"""SGLang's sampling parameters, to slime's settings for them."""
_FIXED = {"no_stop_trim": True, "spaces_between_special_tokens": False}
_HOMES = ("slime.rollout.sglang_rollout", "slime.utils.processing_utils")


class GenerateState:
    """slime's global state, for the current session; outside of a run for `args`.

    Outside of a run all instances share `aborted`, as slime's one instance does.
    """

    semaphore = nullcontext()
    """Never blocks: the engine limits its own concurrency."""
    _outside: ClassVar[dict[str, bool]] = {"aborted": False}

    def __init__(self, args: ArgsView) -> None:
        self._session, self.args = session_here(), args
        if self._session is None:
            own = {name: getattr(args, setting) for name, setting in _OF_ARGS.items() if hasattr(args, setting)}
            self.sampling_params: dict[str, Any] = own | _FIXED
        else:
            self.sampling_params = sampling_params(self._session.sampling)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The run's tokenizer; outside of a run that of `args.hf_checkpoint`. Raises PlugPointError without one."""
        return self._read("load_tokenizer") if self._session is None else self._session.tokenizer

    @cached_property
    def processor(self) -> Any:
        """None in a run; outside of a run the processor of `args.hf_checkpoint`, if it has one."""
        return self._read("load_processor") if self._session is None else None

    def _read(self, loader: str) -> Any:
        checkpoint = getattr(self.args, "hf_checkpoint", None)
        if not checkpoint:
            raise PlugPointError(
                "outside of a run GenerateState reads its tokenizer from args.hf_checkpoint, which is not set: set it, "
                "or replace slime.rollout.sglang_rollout.GenerateState"
            )
        return in_force(loader, *_HOMES)(checkpoint, trust_remote_code=True)

    @property
    def group_sampling_seeds(self) -> list[int]:
        """One seed for each sample of a group, counted from `args.rollout_seed`."""
        return [int(self.args.rollout_seed) + number for number in range(int(self.args.n_samples_per_prompt))]

    @property
    def aborted(self) -> bool:
        """Whether a rollout function has aborted its generations."""
        return self._outside["aborted"] if self._session is None else self._session.aborted

    @aborted.setter
    def aborted(self, aborted: bool) -> None:
        """Raises PlugPointError in a run: `abort` ends its generations."""
        if self._session is not None:
            raise PlugPointError("GenerateState.aborted: call `abort(args, rollout_id)` to end a run's generations")
        self._outside["aborted"] = aborted

    def reset(self) -> None:
        """Allow generations again after `abort`."""
        if self._session is None:
            self.aborted = False
        else:
            self._session.reset()

    def dp_rank_context(self) -> AbstractContextManager[int]:
        """Return rank 0: a rollout has one engine, so there is nothing to balance."""
        return nullcontext(0)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"GenerateState has no {name!r} here: it belongs to slime's rollout loop, and a run has its own loop"
        )
