"""What a run is evaluated on: data sets by name, each with the settings that differ from the run's."""

import re
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from msgspec import field
from msgspec.structs import asdict, replace

from schemas.ids import BROUGHT, INBOX, LOADED, TRAIN
from slime_events.core.config.base import Settings, doc

ROLLOUT_LOOP = "slime.rollout.sglang_rollout.generate_rollout"
"""slime's own rollout function, for training and evaluation: what a run does without one."""


class EvalSet(Settings, frozen=True, kw_only=True, omit_defaults=True):
    """One data set, by slime's names. What is None is as the flags have it; a `label_key` of "" means no labels."""

    path: Annotated[str, doc("JSONL or Parquet, any fsspec URL, optional @[a:b]")]
    n_samples_per_eval_prompt: Annotated[int | None, doc("samples per question", above=0)] = None
    temperature: Annotated[float | None, doc("0 is greedy")] = None
    top_p: Annotated[float | None, doc("nucleus p")] = None
    top_k: Annotated[int | None, doc("top k; -1 is off")] = None
    max_response_len: Annotated[int | None, doc("new tokens at most", above=0)] = None
    min_new_tokens: Annotated[int | None, doc("new tokens at least", least=0)] = None
    stop: Annotated[list[str] | None, doc("stop strings")] = None
    stop_token_ids: Annotated[list[int] | None, doc("stop token ids")] = None
    input_key: Annotated[str | None, doc("prompt field")] = None
    label_key: Annotated[str | None, doc("label field")] = None
    tool_key: Annotated[str | None, doc("tools field")] = None
    metadata_key: Annotated[str | None, doc("metadata field")] = None
    metadata_overrides: Annotated[dict[str, Any], doc("metadata of every question, over its own")] = field(
        default_factory=dict
    )
    rm_type: Annotated[str | None, doc("grader, put into each question's metadata")] = None
    custom_rm_path: Annotated[str | None, doc("your grader, before the run's")] = None
    custom_generate_function_path: Annotated[str | None, doc("your generate function, before the run's")] = None

    def metadata(self, own: dict[str, Any]) -> dict[str, Any]:
        """The metadata of a question of this set. own: what its line has."""
        return own | ({"rm_type": self.rm_type} if self.rm_type else {}) | self.metadata_overrides


HINTS = typing.get_type_hints(EvalSet, include_extras=True)
"""Types of a set's settings, with what `doc` says about them."""


def name_problem(name: str) -> str:
    """Why a data set cannot have this name; empty where it can."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        return "a name is part of NATS subjects, so it has 1 to 64 letters, digits, - and _ only."
    if name in (TRAIN, INBOX, LOADED, BROUGHT):
        return "the run's own prompts go by this name; choose another."
    return ""


def sampling_problems(one: EvalSet, prefix: str = "") -> Iterator[str]:
    """A sentence for each way in which answers cannot be drawn. prefix: of the names, `eval_` for those of flags."""
    if one.temperature is not None and one.temperature < 0:
        yield f"{prefix}temperature is {one.temperature}: it cannot be below 0, and 0 is greedy."
    if one.top_p is not None and not 0 < one.top_p <= 1:
        yield f"{prefix}top_p is {one.top_p}: it is a share of probability, above 0 and at most 1."
    if one.top_k is not None and one.top_k != -1 and one.top_k < 1:
        yield f"{prefix}top_k is {one.top_k}: it is a count of tokens, or -1 for all."
    least, most = one.min_new_tokens, one.max_response_len
    if least is not None and most is not None and least > most:
        yield f"{prefix}min_new_tokens {least} is above {prefix}max_response_len {most}."


_FLAGS = {
    "n_samples_per_eval_prompt": "n_samples_per_eval_prompt",
    "temperature": "eval_temperature",
    "top_p": "eval_top_p",
    "top_k": "eval_top_k",
    "max_response_len": "eval_max_response_len",
    "min_new_tokens": "eval_min_new_tokens",
    "input_key": "eval_input_key",
    "label_key": "eval_label_key",
    "tool_key": "eval_tool_key",
}
"""Settings of a set, and the flags of those that have none of their own."""


class EvalSettings(Settings, frozen=True, kw_only=True):
    """Named data sets, every `eval_interval` versions, on the same engines as training.

    eval_on `version`: all answers are made by the version that is evaluated, whatever engines train on meanwhile. Runs
    recorded before this setting existed have none; it means `latest` there.
    """

    eval_interval: Annotated[int | None, doc("evaluate every N versions", above=0)] = None
    eval_prompt_data: Annotated[list[str], doc("pairs: name path name path ...")] = field(default_factory=list)
    eval_config: Annotated[
        str | None, doc("YAML file of data sets with settings of their own; read once: what it says becomes eval_sets")
    ] = None
    eval_sets: Annotated[
        dict[str, EvalSet], doc("data sets with settings of their own, by name; eval-prompt-data counts no more")
    ] = field(default_factory=dict)
    eval_on: Annotated[
        Literal["version", "latest"] | None,
        doc("weights that make an evaluation's answers: those that it is of, or what engines run by then"),
    ] = None
    eval_function_path: Annotated[
        str | None,
        doc(
            "own evaluation function: (args, rollout_id, data_source, evaluation=True) -> RolloutFnEvalOutput; "
            "default: the rollout function"
        ),
    ] = None
    skip_eval_before_train: Annotated[bool, doc("no evaluation of the first version")] = False
    eval_input_key: Annotated[str | None, doc("prompt field; default: input-key")] = None
    eval_label_key: Annotated[str | None, doc("label field; default: label-key")] = None
    eval_tool_key: Annotated[str | None, doc("tools field; default: tool-key")] = None
    n_samples_per_eval_prompt: Annotated[int, doc("samples per question", above=0)] = 1
    eval_temperature: Annotated[float | None, doc("default: the rollout's")] = None
    eval_top_p: Annotated[float | None, doc("default: the rollout's")] = None
    eval_top_k: Annotated[int | None, doc("default: the rollout's")] = None
    eval_max_response_len: Annotated[int | None, doc("default: the rollout's", above=0)] = None
    eval_min_new_tokens: Annotated[int | None, doc("new tokens at least, before the model may end", least=0)] = None
    eval_max_context_len: Annotated[int | None, doc("prompt + response, tokens", above=0)] = None
    eval_max_prompt_len: Annotated[
        int | None, doc("longer questions are refused, tokens; default: the rollout's", above=0)
    ] = None

    def where(self, name: str) -> str:
        """A data set in a message: where it comes from, and its name."""
        origin = "--eval-prompt-data"
        if self.eval_sets:
            origin = f"--eval-config {self.eval_config}" if self.eval_config else "eval_sets"
        return f"{origin}: set {name!r}"

    @property
    def has_functions(self) -> bool:
        """Whether a data set names a grader or a generate function of its own."""
        return any(one.custom_rm_path or one.custom_generate_function_path for one in self.eval_sets.values())

    @property
    def own_function(self) -> str | None:
        """The user's evaluation function; None where the run evaluates its data sets itself."""
        return None if self.eval_function_path == ROLLOUT_LOOP else self.eval_function_path

    def sets(self) -> dict[str, EvalSet]:
        """Every data set by name, with the flags' values for what it does not say itself."""
        pairs = zip(self.eval_prompt_data[::2], self.eval_prompt_data[1::2], strict=False)
        given = self.eval_sets or {name: EvalSet(path=path) for name, path in pairs}
        return {name: self.over(one) for name, one in given.items()}

    def over(self, one: EvalSet) -> EvalSet:
        """A set with the flags' values for what it does not say itself."""
        own = asdict(one)
        return replace(one, **{name: getattr(self, flag) for name, flag in _FLAGS.items() if own[name] is None})
