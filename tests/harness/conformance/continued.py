"""`Continued`: a case's sample that continues after an abort: its prompt, and a part for each generation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.harness.conformance import described
from tests.harness.conformance.case import UnknownShape

FIRST_VERSION = 4
"""Of the weights, where a case names none; each generation has the next."""
_PROMPT = ("prompt_tokens", "prompt_ids", "prompt_token_ids", "prompt", "input_ids")
_RESPONSE = re.compile("^(partial|old|first|aborted|existing|previous|before|response|generated_so_far|kept)(_|$)")
_NEW = re.compile(
    "^(re)?(new|second|resum|continu|output|answer|after|added|more|next|generated_tokens|generations|then)"
)
_NO_TOKENS = re.compile("version|log_?prob|length|text|max_|status|reward|finish|mask")
_LIMIT = ("max_new_tokens", "rollout_max_response_len", "max_response_len", "sampling_params.max_new_tokens", "limit")
_MASKS = ("mask_offpolicy_in_partial_rollout", "mask_offpolicy", "mask")
_ENDED = ("completed", "truncated")


class Part(NamedTuple):
    """The tokens of one generation."""

    tokens: list[int]
    log_probs: list[float]
    version: int


@dataclass
class Continued:
    """A sample that continues after an abort.

    limit: tokens of the whole response. masks: whether tokens of older weights are masked. status: before it continues.
    """

    prompt: list[int]
    parts: list[Part]
    limit: int = 10
    masks: bool = False
    status: str = "aborted"
    finish: str = "stop"
    text: str = ""
    reward: Any = None

    @property
    def is_complete(self) -> bool:
        """Whether it is not asked for again."""
        return self.status in _ENDED


def is_continued(fields: dict[str, Any]) -> bool:
    """Whether a case is about one sample."""
    words = _flat(fields)
    names = ("tokens", "steps", *_PROMPT[:3])
    return any(name in words for name in names) or any(
        isinstance(words[name], list) for name in words if _RESPONSE.match(name)
    )


def read(fields: dict[str, Any]) -> Continued:
    """Read a sample from slime's names or similar ones, in a dict or in words. Raises UnknownShape."""
    words = _flat(fields)
    if "steps" in words:
        prompt, parts, finish = _of_steps(words["steps"])
        words["finish"] = words.get("finish", finish)
    else:
        prompt, parts = _of_tokens(words)
    status = str(words.get("status", "aborted")).lower().rpartition(".")[2]
    if status not in _ENDED:
        parts += _new(words, parts)
    named = _versions(words)
    versions = [*named, *range(named[-1] + 1 if named else FIRST_VERSION, 10**6)][: len(parts)] if parts else []
    return Continued(
        prompt,
        [part if part.version >= 0 else part._replace(version=v) for part, v in zip(parts, versions, strict=True)],
        limit=int(_under(words, _LIMIT, 10)),
        masks=bool(_under(words, _MASKS, False)) and bool(words.get("partial_rollout", True)),
        status=status,
        finish=str(_under(words, ("finish", "finish_reason", "stop_reason"), "stop")),
        text=str(words.get("text", "")),
        reward=words.get("reward"),
    )


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """The sample's fields and the settings side by side."""
    flat = _of_scenario(str(fields.get("scenario", ""))) | fields
    for name, value in fields.items():
        if isinstance(value, str) and re.search(r"tokens\s*\[", value):
            sample = vars(described.sample(value))
            flat |= {
                key: sample[key] for key in ("tokens", "response_length", "rollout_log_probs", "loss_mask", "reward")
            }
            flat["status"] = (
                str(sample["status"]) if re.search("completed|truncated", value, re.IGNORECASE) else "aborted"
            )
        elif isinstance(value, dict) and not _NEW.match(name):
            flat |= {key: inner for key, inner in value.items() if key not in fields}
    return flat


def _of_scenario(words: str) -> dict[str, Any]:
    """`prompt [1], aborted with [2,3] wv=4, then [7,8] wv=5, max_new_tokens 10, mask_offpolicy`: nothing of others."""
    lists = [list(map(int, described.numbers(part))) for part in re.findall(r"\[([\d,\s]+)\]", words)]
    if len(lists) < 2:
        return {}
    fields: dict[str, Any] = {"prompt": lists[0], "response_tokens": lists[1], "new_tokens": lists[2:]}
    fields["weight_versions"] = [int(version) for version in re.findall(r"(?:wv|version)\W*(\d+)", words)]
    if (limit := re.search(r"max_new_tokens\D{0,4}(\d+)", words)) is not None:
        fields["max_new_tokens"] = int(limit[1])
    return fields | {"mask_offpolicy": re.search(r"mask\w*\W*(on|true)?\b(?!\W*(off|false))", words) is not None}


def _under(words: dict[str, Any], names: tuple[str, ...], default: Any) -> Any:
    return next((words[name] for name in names if words.get(name) is not None), default)


def _of_tokens(words: dict[str, Any]) -> tuple[list[int], list[Part]]:
    """The prompt, and the part that was there when the sample was aborted."""
    prompt = next((words[name] for name in _PROMPT if isinstance(words.get(name), list)), None)
    response = next((value for name, value in words.items() if isinstance(value, list) and _is(_RESPONSE, name)), None)
    if (tokens := words.get("tokens")) is not None:
        per_token = words.get("loss_mask") or words.get("rollout_log_probs") or response or ()
        cut = len(tokens) - int(words["response_length"] if "response_length" in words else len(per_token))
        prompt, response = tokens[:cut], tokens[cut:]
    if prompt is None and response is None:
        raise UnknownShape(f"no tokens of a sample in {sorted(words)}")
    response = response or []
    log_probs = words.get("rollout_log_probs") or [-0.5] * len(response)
    return list(prompt or [1]), [Part(list(response), list(log_probs), -1)] if response else []


def _is(pattern: re.Pattern[str], name: str) -> bool:
    return bool(pattern.match(name)) and not _NO_TOKENS.search(name)


def _new(words: dict[str, Any], before: list[Part]) -> list[Part]:
    """Return the parts that are generated after the abort."""
    parts: list[Part] = []
    for name, value in words.items():
        if not _is(_NEW, name) or isinstance(value, bool | str | None):
            continue
        for entry in value if isinstance(value, list) and value and isinstance(value[0], list | dict) else [value]:
            fields = entry if isinstance(entry, dict) else {"tokens": entry}
            tokens = _under(fields, ("tokens", "new_tokens", "output_ids"), [])
            tokens = list(range(1000, 1000 + tokens)) if isinstance(tokens, int) else tokens
            log_probs = _under(fields, ("log_probs", "rollout_log_probs"), None) or words.get("new_log_probs")
            version = _under(fields, ("weight_version", "version", "wv"), -1)
            parts.append(Part(tokens, log_probs or [-0.5] * len(tokens), int(version)))
    return parts or ([] if words.get("steps") else [Part([], [], -1)])


def _of_steps(steps: list[str]) -> tuple[list[int], list[Part], str]:
    """`tokens=[1,2]`, then what each generation appends, in the words of `sample_append`."""
    prompt, parts, finish = [1], list[Part](), "stop"
    for step in steps:
        if step.strip().startswith("+"):
            call = described.appended(step)
            log_probs = call.log_probs or [-0.5] * len(call.tokens)
            parts.append(Part(call.tokens, log_probs, int(call.version or -1)))
            finish = call.finish or finish
        elif "[" in step:
            prompt = [int(number) for number in described.numbers(step)]
    return prompt, parts, finish


def _versions(words: dict[str, Any]) -> list[int]:
    """Weight versions as they are named, oldest first."""
    several = _under(words, ("weight_versions", "versions"), [])
    numbers = [int(version) for version in (several if isinstance(several, list) else [several])]
    old = _under(words, ("old_weight_version", "old_version", "first_version", "version_before"), None)
    new = _under(
        words, ("new_weight_version", "weight_version", "new_version", "second_version", "version_after"), None
    )
    numbers = [int(old)] if old is not None else numbers
    return numbers if new is None else [*(numbers[:1] or [FIRST_VERSION]), int(new)]
