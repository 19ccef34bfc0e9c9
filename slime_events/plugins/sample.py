"""`Sample`: one rollout as a user's function sees it. It has every field of slime's type.

A function may set further attributes. They travel with the sample if they are JSON values (`carried`).

Only plug points use `Sample`. Inside the system a rollout is its events: a `Sample` is built from them for a user's
filter or reward function, and the function's decision is recorded as an event.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

from schemas.doc import doc
from schemas.errors import PlugPointError
from schemas.text import repr_text, valid_text
from slime_events.plugins.plain_values import Array
from slime_events.plugins.sample_info import PrefixCacheInfo, SpecInfo


class Status(enum.StrEnum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


FINISH = {"stop": Status.COMPLETED, "length": Status.TRUNCATED, "abort": Status.ABORTED}
"""Finish reason of an engine to status."""

END_TOKENS = ("</s>", "<eos>", "<end_of_turn>", "[EOS]")
"""End tokens that do not have one of the forms in `SPECIAL`."""
SPECIAL = (("<|", "|>"), ("<｜", "｜>"))
"""Opening and closing text of special tokens: of Qwen, Llama, Phi, GLM and most other models, and of DeepSeek."""
LAST = frozenset(token[-1] for token in (*END_TOKENS, *(closes for _, closes in SPECIAL)))
"""Last character of each special token."""
LONGEST = 48
"""Maximum length of a special token [characters]."""


def answer_of(response: str) -> str:
    """Return the answer in a response: the text after the last `</think>`, or the whole response if it has none.

    Special tokens at the end (`<|im_end|>`, `</s>`, ...) and surrounding white space are removed.
    """
    return without_end(response).rpartition("</think>")[2].strip()


def without_end(response: str) -> str:
    """Return the response without special tokens and white space at its end."""
    end = len(response)
    while (shorter := _shorter(response, end)) != end:
        end = shorter
    return response[:end]


def _shorter(text: str, end: int) -> int:
    """Return the end of `text[:end]` without trailing white space and one trailing special token."""
    while end and text[end - 1].isspace():
        end -= 1
    if text[end - 1 : end] not in LAST:
        return end
    for token in END_TOKENS:
        if text.endswith(token, 0, end):
            return end - len(token)
    for opens, closes in SPECIAL:
        if text.endswith(closes, 0, end):
            start = text.rfind(opens, max(0, end - LONGEST), end)
            name = text[start + len(opens) : end - len(closes)]
            if start >= 0 and name and not any(letter.isspace() for letter in name):
                return start
    return end


def _grown(values: Any, more: list[Any]) -> list[Any]:
    """Extend `values` in place and return it. If it is no list (an array, a tuple), return a new list."""
    grown: list[Any] = values if isinstance(values, list) else list(values)
    grown += more
    return grown


def carried(value: Any, where: str, depth: int = 64, room: int = 4 * 1024 * 1024) -> Any:
    """Return `value` as the log stores it: None, numbers, texts, lists, and dicts with text keys, at most `depth` deep.

    A tuple becomes a list, a scalar or array of numpy or torch a number or a list, an unpaired surrogate U+FFFD.
    `where` names the holder of the value for error messages. `room` is the maximum size [bytes], about as much as an
    event has. Raises PlugPointError for anything else.
    """
    try:
        return _Carrier(where, room).of(value, depth)
    except _NotCarried as error:
        source = where + "".join(reversed(error.path))
        raise PlugPointError(
            f"{valid_text(source, 400)} is {error}: the log carries a sample to its grader, and takes None, numbers, "
            "texts, lists and dicts with text keys; convert it, or delete it before the function returns"
        ) from None


class _NotCarried(Exception):
    """A value that the log cannot store. `path` leads to the value, the innermost step first."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.path: list[str] = []


class _Carrier:
    """Converter of one value, with a budget of bytes.

    `whole` names the holder of the value. `room` is the number of bytes left. Each value that is visited takes at least
    one byte, so that neither a cycle nor ten million keys take long.
    """

    def __init__(self, whole: str, room: int) -> None:
        self._whole, self._most, self._room = whole, room, room

    def of(self, value: object, depth: int) -> Any:
        """Return the converted value. Raises _NotCarried, or PlugPointError if the value is too large."""
        self._take(1)
        if value is None or isinstance(value, bool | float):
            return value if value is None or isinstance(value, bool) else float(value)
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, int) and -(2**63) <= value < 2**63:
            return int(value)
        if depth and isinstance(value, dict):
            return self._dict(value, depth)
        if depth and isinstance(value, list | tuple):
            return self._list(value, depth)
        if depth and callable(getattr(value, "tolist", None)) and not isinstance(value, type):
            least: int = getattr(value, "nbytes", 0) // 8
            self._take(least)  # before `tolist`, so that a huge array makes no list; then the list's items are counted
            self._room += least
            return self.of(cast(Array, value).tolist(), depth - 1)
        raise _NotCarried(f"{type(value).__name__} {repr_text(value, 80)}" if depth else "nested too deep")

    def _dict(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        result, key = dict[str, Any](), None
        try:
            for key, item in value.items():
                if not isinstance(key, str):
                    raise _NotCarried(f"a dict with keys that are not texts, such as {repr_text(key, 40)}")
                result[self._text(key)] = self.of(item, depth - 1)
        except _NotCarried as error:
            if isinstance(key, str):
                error.path.append(f"[{repr_text(key, 40)}]")
            raise
        return result

    def _list(self, value: Iterable[object], depth: int) -> list[Any]:
        result: list[Any] = []
        try:
            for item in value:
                result.append(self.of(item, depth - 1))
        except _NotCarried as error:
            error.path.append(f"[{len(result)}]")
            raise
        return result

    def _text(self, text: str) -> str:
        text = valid_text(str.__str__(text))
        self._take(len(text))
        return text

    def _take(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            raise PlugPointError(
                f"{self._whole} takes more than {self._most} bytes, the limit of an event: keep large data in a file, "
                "and its path here"
            )


@dataclass
class Sample:
    """One response to one prompt.

    Fields for images, expert routing and top-p replay exist for code that knows slime's fields: no run sets them.
    """

    group_index: Annotated[int | None, doc("Number of the group, in the order of requests.")] = None
    index: Annotated[int | None, doc("Number of the rollout, counted over all groups.")] = None
    rollout_id: int | None = None
    prompt: Annotated[
        str | list[dict[str, Any]],
        doc("Text after the chat template, or chat messages if the run applies no template."),
    ] = ""
    tokens: Annotated[list[int], doc("Token ids of prompt and response.")] = field(default_factory=list)
    multimodal_inputs: dict[str, Any] | None = None
    multimodal_train_inputs: dict[str, Any] | None = None
    multimodal_train_input_id: str | None = None
    apply_chat_template_kwargs: dict[str, Any] | None = None
    response: Annotated[str, doc("Text of the response, with its thinking and its end token.")] = ""
    response_length: Annotated[int, doc("Tokens of the response: the last ones of `tokens`.")] = 0
    label: Annotated[Any, doc("Expected answer, as the prompt's data has it.")] = None
    reward: Annotated[float | dict[str, Any] | None, doc("Reward, or several by name.")] = None
    loss_mask: Annotated[list[int] | None, doc("int [response_length]: 1 for a token that is trained, else 0.")] = None
    weight_versions: Annotated[list[str], doc("Weight versions that generated the response, oldest first.")] = field(
        default_factory=list
    )
    rollout_log_probs: Annotated[list[float] | None, doc("float [response_length], nats, of logits / temperature.")] = (
        None
    )
    rollout_top_p_token_ids: list[int] | None = None
    rollout_top_p_token_offsets: list[int] | None = None
    rollout_routed_experts: Any = None
    remove_sample: Annotated[bool, doc("Whether the step leaves the sample out of the loss.")] = False
    teacher_log_probs: Annotated[
        list[float] | None, doc("float [response_length], nats: a reward function sets them for distillation.")
    ] = None
    status: Status = Status.PENDING
    metadata: Annotated[Any, doc("Metadata of the prompt, and what user functions add to it.")] = field(
        default_factory=dict
    )
    generate_function_path: Annotated[str | None, doc("Generate function of this sample, if not the run's.")] = None
    custom_rm_path: Annotated[str | None, doc("Reward function of this sample, if not the run's.")] = None
    train_metadata: dict[str, Any] | None = None
    session_id: Annotated[str | None, doc("Name of the sample in the log.")] = None
    non_generation_time: float = 0.0
    spec_info: SpecInfo = field(default_factory=SpecInfo)
    prefix_cache_info: PrefixCacheInfo = field(default_factory=PrefixCacheInfo)
    trace: Annotated[dict[str, Any] | None, doc("Spans noted by `slime_events.plugins.slime.traces`.")] = None

    Status, SpecInfo, PrefixCacheInfo = Status, SpecInfo, PrefixCacheInfo

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and additional attributes, as slime's dumps hold them."""
        counts = {"spec_info": self.spec_info.to_dict(), "prefix_cache_info": self.prefix_cache_info.to_dict()}
        return vars(self) | {"status": str(self.status)} | counts

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "Sample":
        """Return the sample of `to_dict`. A key that is not a field becomes an attribute."""
        read = {
            "status": Status(data.get("status", Status.PENDING)),
            "spec_info": SpecInfo.from_dict(data.get("spec_info") or {}),
            "prefix_cache_info": PrefixCacheInfo.from_dict(data.get("prefix_cache_info") or {}),
        }
        sample = Sample()
        vars(sample).update(data, **read)
        return sample

    def get_reward_value(self, args: object) -> Any:
        """Return the reward. If the grader gave a dict and `args.reward_key` is set, return that entry."""
        key = getattr(args, "reward_key", None)
        if isinstance(self.reward, dict) and key:
            return self.reward[key]
        return self.reward

    @property
    def answer(self) -> str:
        """The response without its thinking and its end token: see `answer_of`. `response` has both, as in slime.

        `--rm-type exact` compares it with the label. A stop string of --rollout-stop is ordinary text, so it stays.
        """
        return answer_of(self.response)

    @property
    def effective_response_length(self) -> int:
        """Number of trainable response tokens."""
        return sum(self.loss_mask) if self.loss_mask is not None else self.response_length

    def append_response_tokens(
        self,
        args: object = None,
        *,
        tokens: Iterable[int] | None = None,
        log_probs: Iterable[float] | None = None,
        trainable: bool = True,
        meta_info: dict[str, Any] | None = None,
        text: str | None = None,
        update_terminal_info: bool = True,
    ) -> None:
        """Append the tokens of a generation or a tool. Loss mask and log-probs stay aligned with the response.

        The sample's lists grow in place, as in slime: code that holds `sample.loss_mask` sees the appended entries.

        Trainable tokens need log-probs (nats). Tokens of a tool or of the environment have none: they get mask 0 and
        log-prob 0.0. `meta_info` is the engine's: each call adds one weight version and its prefix cache counts, and
        its finish reason becomes the status unless `update_terminal_info` is off. `args` is there for slime's
        signature. Raises PlugPointError if log-probs are missing, unexpected or of the wrong length.
        """
        new = [int(token) for token in tokens or ()]
        new_log_probs = None if log_probs is None else [float(value) for value in log_probs]
        self._check_appended(len(new), new_log_probs, trainable)
        before = self.response_length
        if text is not None:
            self.response += text
        if new:
            self.response_length += len(new)
            mask = [1] * before if self.loss_mask is None else self.loss_mask
            old_log_probs = [0.0] * before if self.rollout_log_probs is None else self.rollout_log_probs
            self.tokens = _grown(self.tokens, new)
            self.loss_mask = _grown(mask, [int(trainable)] * len(new))
            self.rollout_log_probs = _grown(old_log_probs, new_log_probs or [0.0] * len(new))
        if meta_info is not None:
            self._add_meta_info(meta_info, update_terminal_info)

    def update_from_meta_info(self, args: object, meta_info: dict[str, Any]) -> None:
        """Record an engine's report of one generation: weight version, finish reason, prefix cache counts, and with
        `args.sglang_speculative_algorithm` the counts of speculative decoding.
        """
        self._add_meta_info(meta_info, True, speculates=bool(getattr(args, "sglang_speculative_algorithm", None)))

    def _check_appended(self, count: int, log_probs: list[float] | None, trainable: bool) -> None:
        """Raise PlugPointError before a bad call changes anything."""
        where = f"sample {self.index}"
        if log_probs is not None and len(log_probs) != count:
            raise PlugPointError(f"{where}: {len(log_probs)} log-probs for {count} tokens: give one for each")
        if count and trainable and log_probs is None:
            raise PlugPointError(f"{where}: {count} trainable tokens without log-probs: pass them or trainable=False")
        if count and not trainable and log_probs is not None:
            raise PlugPointError(f"{where}: log-probs for tokens that are not trainable: leave them out")
        if count and trainable and self.rollout_log_probs is None and self.response_length:
            raise PlugPointError(f"{where}: the {self.response_length} response tokens before have no log-probs")

    def _add_meta_info(
        self, meta_info: dict[str, Any], update_terminal_info: bool, *, speculates: bool | None = None
    ) -> None:
        """Record weight version, prefix cache counts and finish reason of one generation."""
        if "weight_version" in meta_info:
            self.weight_versions = _grown(self.weight_versions, [str(meta_info["weight_version"])])
        self.prefix_cache_info.add(meta_info)
        if meta_info.get("spec_verify_ct") if speculates is None else speculates:
            self.spec_info.add(meta_info)
        reason = (meta_info.get("finish_reason") or {}).get("type")
        if update_terminal_info and reason is not None:
            self.status = FINISH.get(reason, self.status)  # as in slime, an unknown reason changes nothing


_FIELDS = frozenset(Sample.__dataclass_fields__)


def own_attributes(sample: Sample) -> dict[str, Any]:
    """Return the attributes that a user's code added to a sample, by name."""
    return {name: value for name, value in vars(sample).items() if name not in _FIELDS}
