"""`judge_fragment`: a fragment of a page, completed to a command line where it is a part of one."""

from __future__ import annotations

from actors.megatron.families.registry import FAMILIES, architecture_of
from schemas.errors import CheckpointMismatch, SlimeEventsError
from slime_events.algorithms.train_arguments import parse_train
from slime_events.app.cli.main import parse
from slime_events.core.config import tables
from slime_events.core.config.flags import known_flags
from slime_events.core.config.presets import preset_words
from tests.megatron.published import PUBLISHED
from tests.seeds.checkpoints import MODELS
from tests.seeds.launch import Stage, Verdict, judge
from tests.seeds.shell import Fragment, Kind

_LEAST = (
    "--hf-checkpoint",
    "model",
    "--num-rollout",
    "1",
    "--rm-type",
    "math",
    "--prompt-data",
    "prompts.jsonl",
    "--actor-num-gpus-per-node",
    "8",
)
DEFAULT = "qwen3-4B"
"""The model of a fragment that names none."""
USUAL = {
    "--prompt-data": ("prompts.jsonl",),
    "--num-rollout": ("10",),
    "--rm-type": ("math",),
    "--actor-num-gpus-per-node": ("8",),
    "--rollout-num-gpus": ("8",),
}
"""What a fragment is completed with, flag by flag, unless it has the flag itself."""
BESIDE = {
    "--use-opd": "--opd-type sglang --custom-rm-path slime.rollout.on_policy_distillation.reward_func "
    "--rm-url http://127.0.0.1:1/generate",
    "full": "--recompute-method uniform --recompute-num-layers 1",
    "reinforce_plus_plus": "--normalize-advantages",
    "reinforce_plus_plus_baseline": "--normalize-advantages",
}
"""Words of a fragment to the flags that slime needs beside them."""


def judge_fragment(name: str, fragment: Fragment) -> Verdict:
    """Return what the checks of a start say about a fragment."""
    where = f"{name}, {fragment}"
    if fragment.kind is Kind.MENTION:
        (flag,) = fragment.words
        problem = tables.NOT_YET.get(flag) or ("" if flag in known_flags() else "no such flag")
        return Verdict(where, ((Stage.PARSED, f"{flag}: {problem}"),) if problem else (), None)
    if fragment.kind is Kind.CONVERT:
        return _judge_conversion(where, fragment)
    words, own = list(fragment.words), set(fragment.words)
    model = _model_of(fragment)
    if model != DEFAULT and "--num-layers" not in own:
        words += preset_words(model)
    if "--hf-checkpoint" not in own or _folder(words) not in MODELS:
        words += ["--hf-checkpoint", model]
    beside = [BESIDE.get(word, "").split() for word in fragment.words]
    words += [word for more in beside if not own & set(more) for word in more]
    if "--critic-num-gpus-per-node" in own:  # beside as many of the actor
        words += ["--actor-num-gpus-per-node", words[words.index("--critic-num-gpus-per-node") + 1]]
    own = set(words)
    for flag, values in USUAL.items():
        if flag not in own and not (flag == "--rollout-num-gpus" and "--colocate" in own):
            words += [flag, *values]
    return judge(where, words)


def _judge_conversion(where: str, fragment: Fragment) -> Verdict:
    """Return what `slime-events convert` says about the flags of one of slime's converters."""
    model = _sourced(fragment) or _model_of(fragment)
    try:
        arguments = parse(["convert", *preset_words(model), *fragment.words[1:]])
        assert arguments is not None, "the words are no request for help"
        source = arguments.hf_checkpoint or arguments.input_dir or arguments.load
        if not source or not (arguments.save or arguments.output_dir):
            return Verdict(where, ((Stage.PARSED, f"{fragment.words[0]}: a folder is missing"),), None)
        flags = parse_train([*_LEAST, *arguments.flags]).settings.trainer.megatron
        architecture_of(PUBLISHED[model].config).check_flags(flags)
    except SlimeEventsError as error:
        return Verdict(where, ((Stage.PARSED, str(error)),), None)
    return Verdict(where, (), None)


def _sourced(fragment: Fragment) -> str | None:
    """Return the published model of the file that was sourced before."""
    names = {name.lower(): name for name in PUBLISHED}
    return names.get(str(fragment.model).lower())


def _model_of(fragment: Fragment) -> str:
    """Return the published model that a fragment is about: by its flags, its checkpoint, or the file sourced before."""
    if "--num-layers" in fragment.words:
        return _by_flags(fragment) or DEFAULT
    if folder := _folder(fragment.words):
        return MODELS.get(folder, DEFAULT)
    return (fragment.kind is Kind.TRAIN and _sourced(fragment)) or DEFAULT


def _folder(words: list[str] | tuple[str, ...]) -> str:
    if "--hf-checkpoint" not in words:
        return ""
    return words[words.index("--hf-checkpoint") + 1].rstrip("/").rpartition("/")[2]


def _by_flags(fragment: Fragment) -> str | None:
    """Return the published model with all sizes that the fragment has."""
    try:
        flags = parse_train([*fragment.words, *_LEAST]).settings.trainer.megatron
    except SlimeEventsError:
        return None
    for name, published in PUBLISHED.items():
        if published.config["architectures"][0] in FAMILIES:
            try:
                architecture_of(published.config).check_flags(flags)
            except CheckpointMismatch:
                continue
            return name
    return None
