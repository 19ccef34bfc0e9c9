"""The graders, and which one a sample gets in slime's order: the sample's own, the run's own, a built-in by name."""

import dataclasses
import functools
import hashlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from schemas.errors import MissingPart, UngradableSample, UnknownGrader
from slime_events.core.config.reward import RewardSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.plugins.loader import digest_of, load_function, name_of
from slime_events.plugins.rewards import (
    dapo,
    deepscaler,
    exact,
    f1,
    gpqa,
    math,
    math_verify,
    random_reward,
    reasoning_gym,
)
from slime_events.plugins.rewards.ifbench import grader as ifbench
from slime_events.plugins.rewards.no_eval import without_eval
from slime_events.plugins.rewards.reward_model import by_class
from slime_events.plugins.rewards.unboxed import RULES, unboxed
from slime_events.plugins.sample import Sample

BuiltIn = Callable[[str, Sample], Any]
"""`(response, sample) -> value`: the response comes apart, since `boxed_` may have cut it."""

GRADERS: Mapping[str, BuiltIn] = {
    "dapo": dapo.reward,
    "deepscaler": deepscaler.reward,
    "exact": exact.reward,
    "f1": f1.reward,
    "gpqa": gpqa.reward,
    "ifbench": ifbench.reward,
    "math": math.reward,
    "math-verify": math_verify.reward,
    "random": random_reward.reward,
    "reasoning_gym": reasoning_gym.reward,
}

IMMEDIATE = frozenset({"exact", "random"})
"""Graders that return quickly for every input, and so need no process with a time limit: they pass over the text a few
times, and use no code of a user's, no regular expression and no parser."""

REWARD_KEYS: Mapping[str, str] = {"dapo": "score"}
"""Which entry of a grader's dict is the reward where no --reward-key is given."""

LABELS_AS_GIVEN = frozenset({"gpqa"})
"""Graders to which a number means something else than its digits. The others compare texts, and get labels as such."""

GRADES_WITHOUT_LABEL: Mapping[str, Callable[[Sample], bool]] = {
    "gpqa": lambda sample: _has_any(sample.metadata, "correct_letter", "correct_answer", "answer_text"),
    "ifbench": lambda sample: True,
    "random": lambda sample: True,
    "reasoning_gym": lambda sample: _has_any(sample.metadata, "entry"),
}
"""Whether a grader can do without the label of a sample. Those that are not named here need it (`check_label`)."""

HEAVY_IMPORTS: Mapping[str, tuple[str, ...]] = {
    "deepscaler": ("sympy", "sympy.parsing.sympy_parser", "pylatexenc.latex2text"),
    "math": ("sympy", "sympy.parsing.sympy_parser", "pylatexenc.latex2text"),
    "math-verify": ("math_verify",),
    "reasoning_gym": ("reasoning_gym",),
}
"""What a worker imports before it takes its first sample, so that no sample's time limit pays for it."""

GUARDS: Mapping[str, Callable[[], None]] = {"reasoning_gym": without_eval}
"""What is done to a grader's package before it sees a sample, once for each process."""

SOURCES: Mapping[str, tuple[Callable[..., Any], ...]] = {"ifbench": ifbench.SOURCES}
"""Functions whose files are part of a grader, beside its own."""

DEFAULT_NAMES = ("reward_func", "custom_rm", "CustomRewardModel")
"""Names that are looked up where --custom-rm-path names a file only."""

BOXED = "boxed_"
REMOTE = "remote_rm"
"""A reward model behind HTTP (`remote.py`): no process of the pool loads it."""
OUTSIDE = "outside"
"""No grader: somebody outside sends the reward to the run's inbox."""


class Grader(NamedTuple):
    """A grader: `function(args, sample)` or, for a group, `function(args, samples)`; sync or async.

    name, digest: for events. own: a user's. reward_key: the entry that counts where it returns a dict. concurrent: its
    calls may run side by side.
    """

    name: str
    digest: str
    function: Callable[..., Any]
    own: bool
    reward_key: str | None
    concurrent: bool = False


def resolve(
    settings: RewardSettings, sample: Sample, *, evaluation: bool = False, user_dir: Path | None = None
) -> Grader:
    """The grader of one sample: `sample.custom_rm_path`, `custom_rm_path`, `metadata["rm_type"]`, `rm_type`.

    Raises UnknownGrader where no or an unknown name is left, PlugPointError for a user's function that will not load.
    """
    key = reward_key(settings, evaluation=evaluation)
    if path := sample.custom_rm_path or settings.custom_rm_path:
        return load_own(path, key, user_dir)
    return built_in(grader_name(settings, sample), key)


def grader_name(settings: RewardSettings, sample: Sample) -> str:
    """The name of a sample's built-in grader; empty where a user's function grades it, or none is named."""
    if sample.custom_rm_path or settings.custom_rm_path:
        return ""
    metadata = sample.metadata if isinstance(sample.metadata, dict) else {}
    return str(metadata.get("rm_type") or settings.rm_type or "").strip()


def own_grader(settings: RewardSettings, sample: Sample) -> str:
    """The path or name by which a sample itself says who grades it; empty where the run does."""
    if sample.custom_rm_path or settings.custom_rm_path:
        return sample.custom_rm_path or ""
    names = isinstance(sample.metadata, dict) and sample.metadata.get("rm_type")
    return grader_name(settings, sample) if names else ""


def resolve_group(
    settings: RewardSettings, sample: Sample, *, evaluation: bool = False, user_dir: Path | None = None
) -> Grader | None:
    """The user's `(args, samples) -> list` of --group-rm; None where groups are graded sample by sample. sample: one of
    the group, which may have a grader of its own.
    """
    path = sample.custom_rm_path or settings.custom_rm_path
    if not (settings.group_rm and path):
        return None
    return load_own(path, reward_key(settings, evaluation=evaluation), user_dir)


def reward_key(settings: RewardSettings, *, evaluation: bool = False) -> str | None:
    """--eval-reward-key for evaluation where it is set, else --reward-key."""
    return (settings.eval_reward_key if evaluation else None) or settings.reward_key


@functools.lru_cache(maxsize=64)
def load_own(path: str, key: str | None, user_dir: Path | None) -> Grader:
    """A user's grader."""
    function = load_function(path, default_names=DEFAULT_NAMES, user_dir=user_dir)
    if inspect.isclass(function):
        function = by_class(function)
    call = getattr(function, "__call__", None)  # noqa: B004  an object with an async __call__
    concurrent = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
    return Grader(name_of(function), digest_of(function), function, own=True, reward_key=key, concurrent=concurrent)


@functools.lru_cache(maxsize=64)
def built_in(rm_type: str | None, key: str | None = None) -> Grader:
    """The grader called `rm_type`; `boxed_X` is X for what the last box holds (`unboxed.py`)."""
    name = (rm_type or "").strip()
    base = name.removeprefix(BOXED)
    if base not in GRADERS:
        known = ", ".join(sorted([*GRADERS, REMOTE, OUTSIDE]))
        raise UnknownGrader(
            f"no grader{f' is called {name!r}' if name else ''}: --rm-type takes {known} or boxed_ before one; "
            "--custom-rm-path takes your own"
        )
    grade = GRADERS[base]

    def function(_: Any, sample: Sample) -> Any:
        if base in GUARDS:
            GUARDS[base]()
        check_label(name, sample)
        if base not in LABELS_AS_GIVEN and isinstance(sample.label, int | float):
            sample = dataclasses.replace(sample, label=str(sample.label))
        return grade(response_for(name, sample.response), sample)

    return Grader(name, _digest(name, grade), function, own=False, reward_key=key or REWARD_KEYS.get(base))


def check_label(rm_type: str, sample: Sample) -> None:
    """Raises UngradableSample where a built-in grader needs a label and the sample has none, or an empty one.

    An answer is neither right nor wrong then: an empty one would be equal to an empty label, and all others wrong.
    """
    may_grade = GRADES_WITHOUT_LABEL.get(rm_type.removeprefix(BOXED))
    if not is_empty(sample.label) or (may_grade is not None and may_grade(sample)):
        return
    label = "no label" if sample.label is None else f"an empty label, {sample.label!r:.40}"
    raise UngradableSample(f"{rm_type} needs a label to grade by, and the sample has {label} (is --label-key right?)")


def is_empty(label: Any) -> bool:
    """Whether it says nothing: null, NaN, blanks, or a list or dict of nothing else."""
    match label:
        case None:
            return True
        case str():
            return not label.strip()
        case float():
            return label != label  # NaN: a column of numbers with a gap in it
        case dict():
            return all(map(is_empty, label.values()))
        case list() | tuple():
            return all(map(is_empty, label))
    return False


def _has_any(metadata: Any, *keys: str) -> bool:
    return isinstance(metadata, dict) and any(not is_empty(metadata.get(key)) for key in keys)


def response_for(rm_type: str, response: str) -> str:
    """The part of a response that a grader called `rm_type` reads."""
    return unboxed(rm_type.removeprefix(BOXED), response) if rm_type.startswith(BOXED) else response


def _digest(name: str, grade: BuiltIn) -> str:
    """Of the grader's source; of several where its files, or the rule for its box, are parts of it."""
    base = name.removeprefix(BOXED)
    parts: list[Callable[..., Any]] = [grade, *SOURCES.get(base, ())]
    if base in RULES and base != name:
        parts.append(unboxed)
    digests = [digest_of(part) for part in parts]
    return hashlib.sha256("".join(digests).encode()).hexdigest() if digests[1:] else digests[0]


@functools.lru_cache(maxsize=64)
def check_installed(rm_type: str) -> None:
    """Raises MissingPart where a package that a built-in grader needs is not there."""
    for module in HEAVY_IMPORTS.get(rm_type.removeprefix(BOXED), ()):
        package = module.partition(".")[0]
        if importlib.util.find_spec(package) is None:
            raise MissingPart(f"--rm-type {rm_type} needs {_pip_name(package)}: pip install {_pip_name(package)}")


def check_metadata(settings: RewardSettings, metadata: Any) -> None:
    """Raises UnknownGrader, MissingPart or UngradableSample where a prompt's metadata allows no grading."""
    name = grader_name(settings, Sample(metadata=metadata))
    if not name:
        return
    if REMOTE in name:
        if not settings.rm_url:
            raise UnknownGrader(f"metadata names the grader {name}, and the run has no --rm-url")
        return
    if name == OUTSIDE:
        return
    built_in(name)
    check_installed(name)
    if name.removeprefix(BOXED) == "ifbench":
        ifbench.instructions_of(metadata)


def metadata_check(settings: TrainSettings) -> Callable[[Any], None] | None:
    """`check_metadata` of a run; None where the user's functions may grade otherwise."""
    return None if settings.rollout.functions_may_grade else functools.partial(check_metadata, settings.reward)


def label_check(settings: TrainSettings) -> Callable[[Any, Any], None] | None:
    """Of a prompt's metadata and label: raises UngradableSample where a built-in grader will need a label that is not
    there. None where an agent, or a function of the user's, may give the reward or the label.
    """
    if settings.rollout.functions_may_grade or settings.rollout.agents:
        return None

    def check(metadata: Any, label: Any) -> None:
        sample = Sample(metadata=metadata, label=label)
        name = grader_name(settings.reward, sample)
        if name.removeprefix(BOXED) in GRADERS:
            check_label(name, sample)

    return check


def import_heavy(rm_type: str) -> None:
    """Import what a built-in grader needs. Raises MissingPart."""
    check_installed(rm_type)
    for module in HEAVY_IMPORTS.get(rm_type.removeprefix(BOXED), ()):
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise MissingPart(f"--rm-type {rm_type} needs a working {_pip_name(module)}: {error}") from error


def _pip_name(module: str) -> str:
    return module.partition(".")[0].replace("_", "-")
