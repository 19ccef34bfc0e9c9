"""The functions that grade: built-ins by name, users' by path, and checks of what they need."""

import dataclasses
import functools
import hashlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from schemas.doc import doc
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
from slime_events.plugins.rewards.choice import OUTSIDE, REMOTE, Choice, Place, choose, grader_name, reward_key
from slime_events.plugins.rewards.ifbench import grader as ifbench
from slime_events.plugins.rewards.no_eval import without_eval
from slime_events.plugins.rewards.reward_model import by_class
from slime_events.plugins.rewards.unboxed import RULES, unboxed
from slime_events.plugins.sample import Sample

BuiltIn = Callable[[str, Sample], object]
"""`(response, sample) -> value`. The response is separate, since `boxed_` may have shortened it."""

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

REWARD_KEYS: Mapping[str, str] = {"dapo": "score"}
"""Entry of a grader's dict that is the reward if no --reward-key is set."""

KEEP_NUMERIC_LABELS = frozenset({"gpqa"})
"""Graders that treat a number differently from its digits. The others compare texts, and get every label as a text."""

GRADES_WITHOUT_LABEL: Mapping[str, Callable[[Sample], bool]] = {
    "gpqa": lambda sample: _has_any(sample.metadata, "correct_letter", "correct_answer", "answer_text"),
    "ifbench": lambda sample: True,
    "random": lambda sample: True,
    "reasoning_gym": lambda sample: _has_any(sample.metadata, "entry"),
}
"""Graders that can do without a sample's label if the condition holds. All others need it (`check_label`)."""

HEAVY_IMPORTS: Mapping[str, tuple[str, ...]] = {
    "deepscaler": ("sympy", "sympy.parsing.sympy_parser", "pylatexenc.latex2text"),
    "math": ("sympy", "sympy.parsing.sympy_parser", "pylatexenc.latex2text"),
    "math-verify": ("math_verify",),
    "reasoning_gym": ("reasoning_gym",),
}
"""Modules that a worker imports before its first sample, so that they do not count against a sample's time limit."""

GUARDS: Mapping[str, Callable[[], None]] = {"reasoning_gym": without_eval}
"""Preparation of a grader's package, once for each process, before the grader sees a sample."""

SOURCES: Mapping[str, tuple[Callable[..., Any], ...]] = {"ifbench": ifbench.SOURCES}
"""Functions in further files that belong to a grader, for its digest."""

DEFAULT_NAMES = ("reward_func", "custom_rm", "CustomRewardModel")
"""Names to look for if --custom-rm-path names only a file."""

BOXED = "boxed_"


class RewardFunction(NamedTuple):
    """A grader: `function(args, sample)`, or for a group `function(args, samples)`; sync or async."""

    name: Annotated[str, doc("For events.")]
    digest: Annotated[str, doc("sha256 (hex) of the source, for events.")]
    function: Callable[..., Any]
    own: Annotated[bool, doc("Whether the user wrote it.")]
    reward_key: Annotated[str | None, doc("Entry that is the reward if the function returns a dict.")]
    concurrent: Annotated[bool, doc("Whether its calls may run concurrently.")] = False


def resolve(
    settings: RewardSettings, sample: Sample, *, evaluation: bool = False, user_dir: Path | None = None
) -> RewardFunction:
    """Return the function that grades one sample. Raises as `load`."""
    return load(choose(settings, sample), reward_key(settings, evaluation=evaluation), user_dir)


def load(choice: Choice, key: str | None, user_dir: Path | None = None) -> RewardFunction:
    """Return a chosen function; `key` is its reward's entry.

    Raises UnknownGrader if none is named or the name is unknown, PlugPointError if a user's function does not load.
    """
    return load_own(choice.name, key, user_dir) if choice.is_own else built_in(choice.name, key)


@functools.lru_cache(maxsize=64)
def load_own(path: str, key: str | None, user_dir: Path | None) -> RewardFunction:
    function = load_function(path, default_names=DEFAULT_NAMES, user_dir=user_dir)
    if inspect.isclass(function):
        function = by_class(function)
    call = getattr(function, "__call__", None)  # noqa: B004  an object with an async __call__
    concurrent = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
    return RewardFunction(
        name_of(function), digest_of(function), function, own=True, reward_key=key, concurrent=concurrent
    )


@functools.lru_cache(maxsize=64)
def built_in(rm_type: str | None, key: str | None = None) -> RewardFunction:
    """Return the grader `rm_type`. `boxed_X` is grader X on the content of the last box (`unboxed.py`)."""
    name = (rm_type or "").strip()
    base = name.removeprefix(BOXED)
    if base not in GRADERS:
        names = ", ".join(sorted([*GRADERS, REMOTE, OUTSIDE]))
        raise UnknownGrader(
            f"no grader{f' is called {name!r}' if name else ''}: --rm-type takes {names}, each also after boxed_; "
            "--custom-rm-path takes your own"
        )
    grade = GRADERS[base]

    def function(_: object, sample: Sample) -> object:
        if base in GUARDS:
            GUARDS[base]()
        check_label(name, sample)
        if base not in KEEP_NUMERIC_LABELS and isinstance(sample.label, int | float):
            sample = dataclasses.replace(sample, label=str(sample.label))
        return grade(response_for(name, sample.response), sample)

    return RewardFunction(name, _digest(name, grade), function, own=False, reward_key=key or REWARD_KEYS.get(base))


def check_label(rm_type: str, sample: Sample) -> None:
    """Raise UngradableSample if a built-in grader needs a label and the sample has none, or an empty one.

    Without a label an answer is neither right nor wrong: an empty answer would equal an empty label, all others would
    be wrong.
    """
    may_grade = GRADES_WITHOUT_LABEL.get(rm_type.removeprefix(BOXED))
    if not is_empty(sample.label) or (may_grade is not None and may_grade(sample)):
        return
    label = "no label" if sample.label is None else f"an empty label, {sample.label!r:.40}"
    raise UngradableSample(f"{rm_type} needs a label to grade by, and the sample has {label} (is --label-key right?)")


def is_empty(label: object) -> bool:
    """Return whether a label has no content: null, NaN, white space, or a list or dict of such values."""
    match label:
        case None:
            return True
        case str():
            return not label.strip()
        case float():
            return label != label  # NaN: a gap in a column of numbers
        case dict():
            return all(map(is_empty, label.values()))
        case list() | tuple():
            return all(map(is_empty, label))
    return False


def _has_any(metadata: object, *keys: str) -> bool:
    return isinstance(metadata, dict) and any(not is_empty(metadata.get(key)) for key in keys)


def response_for(rm_type: str, response: str) -> str:
    """Return the part of a response that the grader `rm_type` reads."""
    return unboxed(rm_type.removeprefix(BOXED), response) if rm_type.startswith(BOXED) else response


def _digest(name: str, grade: BuiltIn) -> str:
    """Return the digest of the grader's source, including its further files and the rule for its box."""
    base = name.removeprefix(BOXED)
    parts: list[Callable[..., Any]] = [grade, *SOURCES.get(base, ())]
    if base in RULES and base != name:
        parts.append(unboxed)
    digests = [digest_of(part) for part in parts]
    return hashlib.sha256("".join(digests).encode()).hexdigest() if digests[1:] else digests[0]


@functools.lru_cache(maxsize=64)
def check_installed(rm_type: str) -> None:
    """Raise MissingPart if a package that a built-in grader needs is not installed."""
    for module in HEAVY_IMPORTS.get(rm_type.removeprefix(BOXED), ()):
        package = module.partition(".")[0]
        if importlib.util.find_spec(package) is None:
            raise MissingPart(f"--rm-type {rm_type} needs {_pip_name(package)}: pip install {_pip_name(package)}")


def check_metadata(settings: RewardSettings, metadata: object) -> None:
    """Raise UnknownGrader, MissingPart or UngradableSample if a prompt's metadata does not allow grading."""
    choice = choose(settings, Sample(metadata=metadata))
    if choice.is_own or not choice.name or choice.place is Place.OUTSIDE:
        return
    if choice.place is Place.JUDGE:
        if not settings.rm_url:
            raise UnknownGrader(f"metadata names the grader {choice.name}, but the run has no --rm-url")
        return
    built_in(choice.name)
    check_installed(choice.name)
    if choice.name.removeprefix(BOXED) == "ifbench":
        ifbench.instructions_of(metadata)


def metadata_check(settings: TrainSettings) -> Callable[[object], None] | None:
    """Return `check_metadata` of a run; None if user functions may grade."""
    return None if settings.rollout.functions_may_grade else functools.partial(check_metadata, settings.reward)


def label_check(settings: TrainSettings) -> Callable[[object, object], None] | None:
    """Return a check of a prompt's metadata and label.

    The check raises UngradableSample if a built-in grader needs a label and there is none. Returns None if an agent or
    a user's function may supply the reward or the label.
    """
    if settings.rollout.functions_may_grade or settings.rollout.agents:
        return None

    def check(metadata: object, label: object) -> None:
        sample = Sample(metadata=metadata, label=label)
        name = grader_name(settings.reward, sample)
        if name.removeprefix(BOXED) in GRADERS:
            check_label(name, sample)

    return check


def import_heavy(rm_type: str) -> None:
    """Import the modules that a built-in grader needs. Raises MissingPart."""
    check_installed(rm_type)
    for module in HEAVY_IMPORTS.get(rm_type.removeprefix(BOXED), ()):
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise MissingPart(f"--rm-type {rm_type} needs a working {_pip_name(module)}: {error}") from error


def _pip_name(module: str) -> str:
    return module.partition(".")[0].replace("_", "-")
