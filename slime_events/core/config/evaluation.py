"""Settings of evaluation: data sets by name, each with the settings that differ from the run's."""

import re
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from msgspec import field
from msgspec.structs import asdict, replace

from schemas.ids import BROUGHT, INBOX, LOADED, TRAIN
from slime_events.core.config.base import Settings, doc
from slime_events.core.config.rules import is_below, needs, unused_with, unused_without

ROLLOUT_LOOP = "slime.rollout.sglang_rollout.generate_rollout"
"""slime's own rollout function, for training and evaluation; here: the run's built-in loop."""


class EvalSet(Settings, frozen=True, kw_only=True, omit_defaults=True):
    """A data set, with slime's names. A field that is None has the flag's value; `label_key` "" means no labels."""

    path: Annotated[str, doc("JSONL or Parquet file, any fsspec URL, optional slice @[a:b]")]
    n_samples_per_eval_prompt: Annotated[int | None, doc("samples per question", above=0)] = None
    temperature: Annotated[float | None, doc("sampling temperature; 0: greedy")] = None
    top_p: Annotated[float | None, doc("nucleus sampling: top p")] = None
    top_k: Annotated[int | None, doc("top k; -1: off")] = None
    max_response_len: Annotated[int | None, doc("most tokens of an answer", above=0)] = None
    min_new_tokens: Annotated[int | None, doc("fewest tokens of an answer", least=0)] = None
    stop: Annotated[list[str] | None, doc("stop strings")] = None
    stop_token_ids: Annotated[list[int] | None, doc("stop token ids")] = None
    input_key: Annotated[str | None, doc("field with the prompt")] = None
    label_key: Annotated[str | None, doc("field with the label")] = None
    tool_key: Annotated[str | None, doc("field with tools")] = None
    metadata_key: Annotated[str | None, doc("field with metadata")] = None
    metadata_overrides: Annotated[dict[str, Any], doc("entries to set in the metadata of every question")] = field(
        default_factory=dict
    )
    rm_type: Annotated[str | None, doc("built-in grader, set in the metadata of every question")] = None
    custom_rm_path: Annotated[str | None, doc("your grader, instead of the run's")] = None
    custom_generate_function_path: Annotated[str | None, doc("your generate function, instead of the run's")] = None

    def metadata(self, own: dict[str, Any]) -> dict[str, Any]:
        """Return the metadata of a question of this set. own: the metadata in its line."""
        return own | ({"rm_type": self.rm_type} if self.rm_type else {}) | self.metadata_overrides


HINTS = typing.get_type_hints(EvalSet, include_extras=True)
"""Field name to type, with the `doc` of the field."""


def name_problem(name: str) -> str:
    """Return why a data set cannot have this name; empty if it can."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        return "a name is part of NATS subjects, so it has 1 to 64 letters, digits, - and _ only."
    if name in (TRAIN, INBOX, LOADED, BROUGHT):
        return "the name is reserved for the run's own prompts: choose another."
    return ""


def sampling_problems(questions: EvalSet, prefix: str = "") -> Iterator[str]:
    """Yield a sentence for each invalid sampling setting. prefix: `eval_` if the values come from flags."""
    if questions.temperature is not None and questions.temperature < 0:
        yield f"{prefix}temperature is {questions.temperature}: it cannot be below 0, and 0 is greedy."
    if questions.top_p is not None and not 0 < questions.top_p <= 1:
        yield f"{prefix}top_p is {questions.top_p}: it is a share of probability, above 0 and at most 1."
    if questions.top_k is not None and questions.top_k != -1 and questions.top_k < 1:
        yield f"{prefix}top_k is {questions.top_k}: it is a count of tokens, or -1 for all."
    least, most = questions.min_new_tokens, questions.max_response_len
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
"""Settings of a set, and the flags with their values for sets without one."""


class EvalSettings(Settings, frozen=True, kw_only=True):
    """Evaluation on named data sets every `eval_interval` versions, on the same engines as training.

    If `eval_on` is `version`, the evaluated version makes all answers, even if engines load newer weights meanwhile.
    Runs recorded before this setting existed have None, which means `latest`.
    """

    eval_interval: Annotated[int | None, doc("evaluate every N versions", above=0)] = None
    eval_prompt_data: Annotated[
        list[str],
        doc(
            "data sets to evaluate, as pairs: name path name path ...",
            unused_with("eval_sets", why="eval_config or eval_sets replaces it"),
            unused_without("eval_interval"),
        ),
    ] = field(default_factory=list)
    eval_config: Annotated[
        str | None, doc("YAML file of data sets with their own settings; it is read once and becomes eval_sets")
    ] = None
    eval_sets: Annotated[
        dict[str, EvalSet],
        doc("data sets with their own settings, by name; replaces eval-prompt-data", unused_without("eval_interval")),
    ] = field(default_factory=dict)
    eval_on: Annotated[
        Literal["version", "latest"] | None,
        doc("weights that make the answers: the version under evaluation, or the newest that the engine has"),
    ] = None
    eval_function_path: Annotated[
        str | None,
        doc(
            "your evaluation function: (args, rollout_id, data_source, evaluation=True) -> RolloutFnEvalOutput; "
            "default: the rollout function",
            needs(
                "eval_interval",
                why="without it the function is never called",
                unless=(f"eval_function_path={ROLLOUT_LOOP}",),
            ),
        ),
    ] = None
    skip_eval_before_train: Annotated[bool, doc("do not evaluate the first version")] = False
    eval_input_key: Annotated[str | None, doc("field with the prompt; default: input-key")] = None
    eval_label_key: Annotated[str | None, doc("field with the label; default: label-key")] = None
    eval_tool_key: Annotated[str | None, doc("field with tools; default: tool-key")] = None
    n_samples_per_eval_prompt: Annotated[int, doc("samples per question", above=0)] = 1
    eval_temperature: Annotated[float | None, doc("sampling temperature; 0: greedy; default: rollout-temperature")] = (
        None
    )
    eval_top_p: Annotated[float | None, doc("nucleus sampling: top p; default: rollout-top-p")] = None
    eval_top_k: Annotated[int | None, doc("top k; -1: off; default: rollout-top-k")] = None
    eval_max_response_len: Annotated[
        int | None, doc("most tokens of an answer; default: rollout-max-response-len", above=0)
    ] = None
    eval_min_new_tokens: Annotated[int | None, doc("fewest tokens of an answer", least=0)] = None
    eval_max_context_len: Annotated[int | None, doc("most tokens of question and answer together", above=0)] = None
    eval_max_prompt_len: Annotated[
        int | None,
        doc(
            "most tokens of a question; longer ones are rejected; default: rollout-max-prompt-len",
            is_below("eval_max_context_len", why="no room is left for an answer"),
            above=0,
        ),
    ] = None

    def where(self, name: str) -> str:
        """Return the origin and name of a data set, for messages."""
        origin = "--eval-prompt-data"
        if self.eval_sets:
            origin = f"--eval-config {self.eval_config}" if self.eval_config else "eval_sets"
        return f"{origin}: set {name!r}"

    @property
    def has_functions(self) -> bool:
        """Whether a data set has its own grader or generate function."""
        return any(
            dataset.custom_rm_path or dataset.custom_generate_function_path for dataset in self.eval_sets.values()
        )

    @property
    def own_function(self) -> str | None:
        """The user's evaluation function; None: the run evaluates its data sets itself."""
        return None if self.eval_function_path == ROLLOUT_LOOP else self.eval_function_path

    def sets(self) -> dict[str, EvalSet]:
        """Return the data sets by name, with the flags' values for fields that are None."""
        pairs = zip(self.eval_prompt_data[::2], self.eval_prompt_data[1::2], strict=False)
        sets = self.eval_sets or {name: EvalSet(path=path) for name, path in pairs}
        return {name: self.over(dataset) for name, dataset in sets.items()}

    def over(self, dataset: EvalSet) -> EvalSet:
        """Return a data set with the flags' values for fields that are None."""
        own = asdict(dataset)
        return replace(dataset, **{name: getattr(self, flag) for name, flag in _FLAGS.items() if own[name] is None})
