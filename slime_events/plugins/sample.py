"""`Sample`: one rollout as a user's function sees it (slime's type, field by field).

A function may set further attributes, which go with the sample wherever it goes, if they are JSON values (`carried`).

Only plug points use it. Inside, a rollout is its events; a `Sample` is made from them for a user's filter or reward,
and the function's decision goes back into an event.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.errors import PlugPointError
from schemas.text import repr_text, valid_text
from slime_events.plugins.sample_info import PrefixCacheInfo, SpecInfo


class Status(enum.StrEnum):
    """The status of a sample."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


FINISH = {"stop": Status.COMPLETED, "length": Status.TRUNCATED, "abort": Status.ABORTED}
"""The status by an engine's finish reason."""

END_TOKENS = ("</s>", "<eos>", "<end_of_turn>", "[EOS]")
"""End tokens that are not written as in `SPECIAL`."""
SPECIAL = (("<|", "|>"), ("<｜", "｜>"))
"""Special tokens of most models: Qwen, Llama, Phi, GLM and others, and DeepSeek."""
LAST = frozenset(token[-1] for token in (*END_TOKENS, *(closes for _, closes in SPECIAL)))
"""Of each of them."""
LONGEST = 48
"""Characters of a special token, at most."""


def answer_of(response: str) -> str:
    """The answer in a response: the text after the last `</think>`, or all of it, without special tokens at its end
    (`<|im_end|>`, `</s>`, ...) and without outer blanks.
    """
    return without_end(response).rpartition("</think>")[2].strip()


def without_end(response: str) -> str:
    """A response without the special tokens, and the blanks, at its end."""
    end = len(response)
    while (shorter := _shorter(response, end)) != end:
        end = shorter
    return response[:end]


def _shorter(text: str, end: int) -> int:
    """The end of `text[:end]` without the blanks and the special token there."""
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
    """The same list with more in it; of an array or a tuple, a list."""
    grown: list[Any] = values if isinstance(values, list) else list(values)
    grown += more
    return grown


def carried(value: Any, where: str, depth: int = 64, room: int = 4 * 1024 * 1024) -> Any:
    """`value` as the log carries it: None, numbers, texts, lists, and dicts with text keys, `depth` deep.

    A tuple becomes a list, a scalar or array of numpy or torch a number or a list, half a character U+FFFD. where: what
    holds it, for the message. room: bytes that it may take, about as an event has. Raises PlugPointError for anything
    else.
    """
    try:
        return _Carrier(where, room).of(value, depth)
    except _NotCarried as error:
        place = where + "".join(reversed(error.path))
        raise PlugPointError(
            f"{valid_text(place, 400)} is {error}: what a sample carries to its grader goes through the log, so it has "
            "to be made of None, numbers, texts, lists and dicts with text keys; convert it, or delete it before the "
            "function returns"
        ) from None


class _NotCarried(Exception):
    """What a value is that the log does not carry. path: to it, the last step first."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.path: list[str] = []


class _Carrier:
    """whole: what holds all of it. room: bytes that are left; what is looked at takes one at least, so that neither a
    cycle nor ten million keys take long.
    """

    def __init__(self, whole: str, room: int) -> None:
        self._whole, self._most, self._room = whole, room, room

    def of(self, value: Any, depth: int) -> Any:
        """The value. Raises _NotCarried; PlugPointError where there is no room."""
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
            least = getattr(value, "nbytes", 0) // 8
            self._take(least)  # before a list is made of it, whose items are what counts
            self._room += least
            return self.of(value.tolist(), depth - 1)
        raise _NotCarried(f"{type(value).__name__} {repr_text(value, 80)}" if depth else "nested too deep")

    def _dict(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        made, key = dict[str, Any](), None
        try:
            for key, item in value.items():
                if not isinstance(key, str):
                    raise _NotCarried(f"a dict with keys that are no texts, such as {repr_text(key, 40)}")
                made[self._text(key)] = self.of(item, depth - 1)
        except _NotCarried as error:
            if isinstance(key, str):
                error.path.append(f"[{repr_text(key, 40)}]")
            raise
        return made

    def _list(self, value: Any, depth: int) -> list[Any]:
        made: list[Any] = []
        try:
            for item in value:
                made.append(self.of(item, depth - 1))
        except _NotCarried as error:
            error.path.append(f"[{len(made)}]")
            raise
        return made

    def _text(self, text: str) -> str:
        text = valid_text(str.__str__(text))
        self._take(len(text))
        return text

    def _take(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            raise PlugPointError(
                f"{self._whole} takes more than {self._most} bytes, which is all that an event has: keep what is large "
                "in a file, and its path here"
            )


@dataclass
class Sample:
    """One response to one prompt.

    `tokens` is prompt + response (ids); `loss_mask` (0/1) and `rollout_log_probs` (nats, of logits / temperature)
    are aligned with the response, the last `response_length` of them. So are `teacher_log_probs` (nats), which a reward
    function sets for the trainer. Those of images, expert routing and top-p replay are for code that knows slime's
    fields: nothing here fills them in.
    """

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str | list[dict[str, Any]] = ""
    tokens: list[int] = field(default_factory=list)
    multimodal_inputs: dict[str, Any] | None = None
    multimodal_train_inputs: dict[str, Any] | None = None
    multimodal_train_input_id: str | None = None
    apply_chat_template_kwargs: dict[str, Any] | None = None
    response: str = ""
    response_length: int = 0
    label: Any = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    rollout_top_p_token_ids: list[int] | None = None
    rollout_top_p_token_offsets: list[int] | None = None
    rollout_routed_experts: Any = None
    remove_sample: bool = False
    teacher_log_probs: list[float] | None = None
    status: Status = Status.PENDING
    metadata: Any = field(default_factory=dict)
    generate_function_path: str | None = None
    custom_rm_path: str | None = None
    train_metadata: dict[str, Any] | None = None
    session_id: str | None = None
    non_generation_time: float = 0.0
    spec_info: SpecInfo = field(default_factory=SpecInfo)
    prefix_cache_info: PrefixCacheInfo = field(default_factory=PrefixCacheInfo)
    trace: dict[str, Any] | None = None

    Status, SpecInfo, PrefixCacheInfo = Status, SpecInfo, PrefixCacheInfo

    def to_dict(self) -> dict[str, Any]:
        """All fields, and what else was set on it, as slime's dumps hold them."""
        counts = {"spec_info": self.spec_info.to_dict(), "prefix_cache_info": self.prefix_cache_info.to_dict()}
        return vars(self) | {"status": str(self.status)} | counts

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "Sample":
        """The sample of `to_dict`. Keys that are no fields become attributes."""
        read = {
            "status": Status(data.get("status", Status.PENDING)),
            "spec_info": SpecInfo.from_dict(data.get("spec_info") or {}),
            "prefix_cache_info": PrefixCacheInfo.from_dict(data.get("prefix_cache_info") or {}),
        }
        sample = Sample()
        vars(sample).update(data, **read)
        return sample

    def get_reward_value(self, args: Any) -> Any:
        """The reward, or its `args.reward_key` entry where the grader gave a dict."""
        key = getattr(args, "reward_key", None)
        if isinstance(self.reward, dict) and key:
            return self.reward[key]
        return self.reward

    @property
    def answer(self) -> str:
        """The response without its thinking and its end token: see `answer_of`. `response` has both, as in slime.

        It is what `--rm-type exact` compares with the label. A stop string of --rollout-stop is text, and stays.
        """
        return answer_of(self.response)

    @property
    def effective_response_length(self) -> int:
        """Trainable tokens of the response."""
        return sum(self.loss_mask) if self.loss_mask is not None else self.response_length

    def append_response_tokens(
        self,
        args: Any = None,
        *,
        tokens: Iterable[int] | None = None,
        log_probs: Iterable[float] | None = None,
        trainable: bool = True,
        meta_info: dict[str, Any] | None = None,
        text: str | None = None,
        update_terminal_info: bool = True,
    ) -> None:
        """Append the tokens of a generation or a tool; mask and log-probs stay aligned with the response.

        The sample's lists grow in place, as in slime: who holds `sample.loss_mask` sees what is appended.

        Trainable tokens come with their log-probs (nats); the others (a tool's, the environment's) come without and
        get mask 0 and log-prob 0.0. `meta_info` is the engine's: each call adds one weight version and its prefix
        cache counts, and its finish reason becomes the status unless `update_terminal_info` is off. `args` is
        for slime's signature. Raises PlugPointError for log-probs that are missing, unexpected or of another length.
        """
        new = [int(token) for token in tokens or ()]
        given = None if log_probs is None else [float(value) for value in log_probs]
        self._check_appended(len(new), given, trainable)
        before = self.response_length
        if text is not None:
            self.response += text
        if new:
            self.response_length += len(new)
            mask = [1] * before if self.loss_mask is None else self.loss_mask
            known = [0.0] * before if self.rollout_log_probs is None else self.rollout_log_probs
            self.tokens = _grown(self.tokens, new)
            self.loss_mask = _grown(mask, [int(trainable)] * len(new))
            self.rollout_log_probs = _grown(known, given or [0.0] * len(new))
        if meta_info is not None:
            self._add_meta_info(meta_info, update_terminal_info)

    def update_from_meta_info(self, args: Any, meta_info: dict[str, Any]) -> None:
        """Take in what the engine says of one generation: its weight version, how it ended, prefix cache, and under
        `args.sglang_speculative_algorithm` its drafts.
        """
        self._add_meta_info(meta_info, True, speculates=bool(getattr(args, "sglang_speculative_algorithm", None)))

    def _check_appended(self, count: int, log_probs: list[float] | None, trainable: bool) -> None:
        """Raises PlugPointError before a bad call changes anything."""
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
        """Keep weight version, prefix cache counts and finish reason of one generation call."""
        if "weight_version" in meta_info:
            self.weight_versions = _grown(self.weight_versions, [str(meta_info["weight_version"])])
        self.prefix_cache_info.add(meta_info)
        if meta_info.get("spec_verify_ct") if speculates is None else speculates:
            self.spec_info.add(meta_info)
        reason = (meta_info.get("finish_reason") or {}).get("type")
        if update_terminal_info and reason is not None:
            self.status = FINISH.get(reason, self.status)  # as in slime, a reason that nobody knows changes nothing


_FIELDS = frozenset(Sample.__dataclass_fields__)


def own_attributes(sample: Sample) -> dict[str, Any]:
    """What a user's code set on a sample that is no field of it, by name."""
    return {name: value for name, value in vars(sample).items() if name not in _FIELDS}
