"""`OutsideRollouts`: a finished group from outside as events: its prompt, and an offer for each of its samples.

The prompt waits like any other. Then each of its samples is requested, and the offer answers the request instead of an
engine, as recorded rollouts of a different run do (decision 0016).
"""

from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from schemas.arrays import EMPTY_LOG_PROBS, pack, pack_log_probs, pack_tokens, unpack
from schemas.doc import doc
from schemas.errors import InvalidValue
from schemas.event import Event
from schemas.ids import sample_id
from schemas.outside import OutsideGroup, OutsideSample
from schemas.prompts import PromptSubmitted
from schemas.recorded import CommonVersion, Recalled
from schemas.rewards import MOST_REWARD, is_reward
from schemas.rollouts import RolloutOffered, StopReason
from schemas.text import message_text
from slime_events.core.checkpoint.vocabulary import token_ids, vocabulary_of
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.conductor.outside_prompts import OutsidePrompts
from slime_events.loop.prompts.inbox_message import WrongField
from slime_events.loop.prompts.json_value import BadValue
from slime_events.loop.prompts.messages import BadMessage, read_messages
from slime_events.plugins.tokenizer import Tokenizer, loaded_tokenizer


class Limits(NamedTuple):
    """Limits of a finished group."""

    samples: Annotated[int, doc("samples of each group")]
    response: Annotated[int, doc("most tokens of a response")]
    context: Annotated[int | None, doc("most tokens of prompt and response; None: no limit")]
    bound: Annotated[int, doc("how many versions its weights may be behind")]
    vocabulary: Annotated[int, doc("token ids are below this number")]

    @classmethod
    def of(cls, settings: TrainSettings, tokenizer: Tokenizer) -> "Limits":
        """Return the limits of a run's settings."""
        rollout = settings.rollout
        return cls(
            rollout.n_samples_per_prompt,
            rollout.rollout_max_response_len,
            rollout.rollout_max_context_len,
            settings.data.archive_max_staleness,
            vocabulary_of(settings.engine.hf_checkpoint) or len(tokenizer),
        )


class Answer(NamedTuple):
    """A sample's response."""

    tokens: list[int]
    mask: Annotated[list[int], doc("1: trained on, per token")]
    text: str


class OutsideRollouts:
    """Makes the events of finished groups. prompts: makes their prompts. template: arguments of the chat template."""

    def __init__(self, prompts: OutsidePrompts, limits: Limits, template: dict[str, Any]) -> None:
        self._prompts, self._limits, self._template = prompts, limits, template
        self._tokenizer = loaded_tokenizer(prompts.tokenizer)

    def events(self, item: OutsideGroup, sender: str, run: str, published: int) -> list[Event]:
        """Return the events of a group. published: the newest weights. Raises WrongField."""
        if len(item.samples) != self._limits.samples:
            wrong = (
                f"it has {len(item.samples)}, and a group of this run {self._limits.samples} (--n-samples-per-prompt)"
            )
            raise WrongField("samples", wrong)
        graded = all(sample.reward is not None for sample in item.samples)
        prompt = self._prompts.submitted(item, sender, is_graded=graded)
        self._check_ids(unpack(prompt.tokens), "prompt")
        offers = []
        for index, sample in enumerate(item.samples):
            try:
                offers.append(self._offer(sample, sample_id(prompt.group, index), prompt, published))
            except WrongField as error:
                raise WrongField(f"samples[{index}].{error.field}", error.message) from error
        oldest = min(offer.version for offer in offers)
        names = tuple(offer.sample for offer in offers)
        recalled = Recalled(run, names, CommonVersion(published, published), oldest, self._limits.bound)
        return [msgspec.structs.replace(prompt, recalled=recalled), *offers]

    def _offer(self, sample: OutsideSample, name: str, prompt: PromptSubmitted, published: int) -> RolloutOffered:
        answer = self._answer(sample, prompt)
        self._check(sample, answer, prompt, published)
        log_probs = sample.log_probs
        return RolloutOffered(
            sample=name,
            group=prompt.group,
            tokens=pack_tokens(np.array(answer.tokens, np.int32)),
            log_probs=EMPTY_LOG_PROBS if log_probs is None else pack_log_probs(np.array(log_probs, np.float32)),
            loss_mask=None if all(answer.mask) else pack(answer.mask, "int8"),
            text=answer.text,
            version=published if sample.version is None else sample.version,
            stop=StopReason.LENGTH if sample.truncated else StopReason.STOP,
            reward=sample.reward,
            sender=prompt.source.sender,
            metadata=sample.metadata,
        )

    def _check(self, sample: OutsideSample, answer: Answer, prompt: PromptSubmitted, published: int) -> None:
        field = next(name for name in ("tokens", "text", "messages") if getattr(sample, name) is not None)
        count, limits = len(answer.tokens), self._limits
        if not count:
            raise WrongField(field, "no token is left of it")
        if count > limits.response:
            raise WrongField(field, f"it has {count} tokens, at most {limits.response} are allowed")
        if limits.context is not None and count + prompt.tokens.n > limits.context:
            raise WrongField(
                field, f"with its prompt it has {count + prompt.tokens.n} tokens, {limits.context} is the most"
            )
        self._check_ids(answer.tokens, field)
        if len(answer.mask) != count:
            raise WrongField("loss_mask", f"it has {len(answer.mask)} numbers for {count} tokens")
        if not any(answer.mask):
            raise WrongField("loss_mask", "no token is trained on")
        if sample.log_probs is not None:
            self._check_log_probs(sample.log_probs, count, is_tokens=sample.tokens is not None)
        if sample.version is not None and sample.version > published:
            raise WrongField("version", f"it is {sample.version}, and the newest weights are version {published}")
        if sample.reward is None and isinstance(prompt.metadata, dict):
            self._prompts.check_metadata(prompt.metadata | sample.metadata)
        elif sample.reward is not None and not is_reward(sample.reward):
            raise WrongField("reward", f"it is no finite number, or larger than {MOST_REWARD:g}")

    def _check_ids(self, tokens: object, field: str) -> None:
        """Raise WrongField for an id that the model does not have, such as a special token added to the tokenizer."""
        try:
            token_ids(tokens, self._limits.vocabulary, field)
        except InvalidValue as error:
            raise WrongField(field, str(error).removeprefix(f"{field}: ")) from error

    def _check_log_probs(self, log_probs: list[float], count: int, *, is_tokens: bool) -> None:
        if not is_tokens:
            raise WrongField("log_probs", "they are of tokens: give these in place of text or messages")
        if len(log_probs) != count:
            raise WrongField("log_probs", f"there are {len(log_probs)} for {count} tokens")
        if not all(-1e4 < value <= 0.0 for value in log_probs):
            raise WrongField("log_probs", "a natural logarithm of a probability is finite and at most 0")

    def _answer(self, sample: OutsideSample, prompt: PromptSubmitted) -> Answer:
        fields = [name for name in ("tokens", "text", "messages") if getattr(sample, name) is not None]
        if len(fields) != 1:
            raise WrongField(fields[-1] if fields else "tokens", "give one of tokens, text and messages")
        if sample.tokens is not None:
            self._check_ids(sample.tokens, "tokens")
        if sample.messages is not None:
            tokens, mask, text = self._of_messages(_read(sample.messages), prompt)
        else:
            text = sample.text if sample.text is not None else self._tokenizer.decode(sample.tokens or [])
            tokens = sample.tokens if sample.tokens is not None else self._encoded(text)
            mask = [1] * len(tokens)
        return Answer(tokens, mask if sample.loss_mask is None else sample.loss_mask, text)

    def _of_messages(self, messages: list[dict[str, Any]], prompt: PromptSubmitted) -> Answer:
        """Render the chat message by message, as a model would see it grow; assistants' messages are trained on."""
        chat = prompt.messages
        if chat is None:
            raise WrongField("messages", "the prompt is no chat: give text or tokens")
        tokens, mask, rendered = list[int](), list[int](), prompt.text
        for number, message in enumerate(messages):
            chat = [*chat, message]
            is_answer, is_last = message.get("role") == "assistant", number == len(messages) - 1
            follows = not is_last and messages[number + 1].get("role") == "assistant"
            text = self._rendered(chat, prompt, prompts_answer=follows)
            if not text.startswith(rendered):
                raise WrongField(f"messages[{number}]", "the chat template changes earlier messages: give tokens")
            piece = self._encoded(text[len(rendered) :])
            tokens, mask, rendered = [*tokens, *piece], [*mask, *[int(is_answer)] * len(piece)], text
        return Answer(tokens, mask, rendered.removeprefix(prompt.text))

    def _rendered(self, chat: list[dict[str, Any]], prompt: PromptSubmitted, *, prompts_answer: bool) -> str:
        more = {**({"tools": prompt.tools} if prompt.tools else {}), **self._template}
        try:
            return str(
                self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompts_answer, **more)
            )
        except Exception as error:  # a template is a program of the model's authors
            raise WrongField(
                "messages", f"the chat template raised {type(error).__name__}: {message_text(error)}"
            ) from error

    def _encoded(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def _read(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages that a template can render. Raises WrongField."""
    try:
        return read_messages(messages, "messages")
    except (BadMessage, BadValue) as error:
        raise WrongField(error.field, error.message) from None
