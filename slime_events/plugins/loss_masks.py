"""`MultiTurnLossMaskGenerator`: a chat as tokens with a loss mask for supervised training (slime's type).

Trained tokens are those of assistant turns, with their end token and the text that the template adds after it. A
message with `"step_loss_mask": 0` is not trained.

    qwen            each message rendered alone, the default system prompt cut off
    qwen3           each message rendered after a user message: the template treats the first and the last differently
    qwen3_5         the whole chat rendered once, turns found in its text; an opening `<think>` is not trained
    distill_qwen    the first message is the prompt, the text of the last one the response

Consecutive tool results count as one message: templates put them into one turn.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from schemas.errors import DataError
from slime_events.plugins.tokenizer import Tokenizer

Message = Mapping[str, Any]
Block = list[Message]
"""One message, or consecutive tool results."""
Tools = Sequence[Mapping[str, Any]] | None
"""Tools for the chat template, in OpenAI's form."""
Masked = tuple[list[int], list[int]]
"""Token ids of the whole chat; and for each of them 1 if it is trained, else 0."""
PROBE = "FOR CALCULATING LOSS MASK ONLY"
HEADER, THINK, END = "<|im_start|>assistant\n", "<think>\n", "<|im_end|>"
DISTILLED = "<｜Assistant｜>"
TYPES = ("qwen", "qwen3", "qwen3_5", "distill_qwen")


class MultiTurnLossMaskGenerator:
    """Builder of loss masks.

    `tokenizer` is a tokenizer of transformers with a chat template, `tokenizer_type` one of `TYPES`.
    """

    def __init__(self, tokenizer: Tokenizer, tokenizer_type: str = "qwen") -> None:
        """Raises ValueError for an unknown type."""
        self._by_type = {
            "qwen": self.gen_multi_turn_loss_mask_qwen,
            "qwen3": self.gen_multi_turn_loss_mask_qwen3,
            "qwen3_5": self.gen_multi_turn_loss_mask_qwen3_5,
            "distill_qwen": self.gen_multi_turn_loss_mask_distill_qwen,
        }
        if tokenizer_type not in self._by_type:
            raise ValueError(f"unknown loss mask type {tokenizer_type!r}: use {', '.join(TYPES)}")
        if tokenizer_type == "qwen" and DISTILLED in tokenizer.get_added_vocab():
            tokenizer_type = "distill_qwen"
        self.tokenizer, self.tokenizer_type = tokenizer, tokenizer_type
        self.system_message_length, self.gen_token_length = self.get_system_message_length()

    def get_loss_mask(self, messages: Sequence[Message], tools: Tools = None) -> Masked:
        """Return the chat by the rules of the type. Raises DataError if the template hides an assistant's turn."""
        return self._by_type[self.tokenizer_type](messages, tools)

    def get_response_lengths(self, loss_masks: Sequence[Sequence[int]]) -> list[int]:
        """Return for each chat the tokens from the first trained one on; 0 if no token is trained."""
        return [len(mask) - list(mask).index(1) if 1 in mask else 0 for mask in loss_masks]

    def get_text_from_loss_mask(self, token_ids: Sequence[int], loss_masks: Sequence[int]) -> list[str]:
        """Return the text of each run of trained tokens."""
        runs: list[list[int]] = []
        before = 0
        for token, trained in zip(token_ids, loss_masks, strict=True):
            if trained and not before:
                runs.append([])
            if trained:
                runs[-1].append(token)
            before = trained
        return [self.tokenizer.decode(run) for run in runs]

    def get_system_message_length(self) -> tuple[int, int]:
        """Return two token counts: of the template's default system prompt, and of an answer's opening."""
        chat = [{"role": "user", "content": PROBE}, {"role": "user", "content": PROBE}]
        probe, rendered = self._tokens(PROBE), self._render(chat)
        first, second = (place for place in range(len(rendered)) if rendered[place : place + len(probe)] == probe)
        after = len(rendered) - second - len(probe)
        header = second - first - len(probe) - after
        return first - header, len(self._render(chat, add_generation_prompt=True)) - len(rendered)

    def gen_multi_turn_loss_mask_qwen(self, messages: Sequence[Message], tools: Tools = None) -> Masked:
        blocks = _blocks(messages)
        return self._joined(blocks, [self._render(block, tools=tools) for block in blocks])

    def gen_multi_turn_loss_mask_qwen3(self, messages: Sequence[Message], tools: Tools = None) -> Masked:
        """Return the chat by the rules of `qwen3`. Tools are rendered only with the first message."""
        probe = {"role": "user", "content": PROBE}
        before = len(self._render([probe]))
        after = before - self.system_message_length  # a message after another one has no system prompt
        blocks = _blocks(messages)
        rendered = [self._render([*blocks[0], probe], tools=tools)[:-after]]
        rendered += [self._render([probe, *block])[before:] for block in blocks[1:]]
        return self._joined(blocks, rendered, system=0)

    def gen_multi_turn_loss_mask_qwen3_5(self, messages: Sequence[Message], tools: Tools = None) -> Masked:
        """Return the chat by the rules of `qwen3_5`. A token across the start of a turn belongs to the turn."""
        text = self._text(messages, tools=tools)
        trained, cursor = [False] * len(text), 0
        for message in messages:
            if message["role"] != "assistant":
                continue
            start, end = text.find(HEADER, cursor) + len(HEADER), -1
            if start >= cursor + len(HEADER):
                end = text.find(END, start)
            if end < 0:
                raise DataError(f"the chat template hides an assistant's turn: no {HEADER!r} and {END!r} for it")
            cursor = end + len(END) + text.startswith("\n", end + len(END))
            start += len(THINK) * text.startswith(THINK, start)
            if _is_trained(message):
                trained[start:cursor] = [True] * (cursor - start)
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        mask = [int(any(trained[start:end])) for start, end in encoded["offset_mapping"]]
        return list(encoded["input_ids"]), mask

    def gen_multi_turn_loss_mask_distill_qwen(self, messages: Sequence[Message], tools: Tools = None) -> Masked:
        prompt = self._render(messages[:1], tools=tools, add_generation_prompt=True)
        response = self._tokens(messages[-1]["content"])
        return prompt + response, [0] * len(prompt) + [int(_is_trained(messages[-1]))] * len(response)

    def _joined(self, blocks: Sequence[Block], rendered: Sequence[list[int]], system: int | None = None) -> Masked:
        """Join the blocks. `system` is the number of tokens to cut off before each block except the first."""
        cut = self.system_message_length if system is None else system
        tokens, mask = list[int](), list[int]()
        for place, ((message, *_), whole) in enumerate(zip(blocks, rendered, strict=True)):
            part = whole[cut:] if place and message["role"] != "system" else whole
            trained = message["role"] == "assistant" and _is_trained(message)
            opening = min(self.gen_token_length, len(part)) if trained else len(part)
            tokens += part
            mask += [0] * opening + [1] * (len(part) - opening)
        return tokens, mask

    def _text(self, messages: Sequence[Message], **more: object) -> str:
        return str(self.tokenizer.apply_chat_template(list(messages), tokenize=False, **more))

    def _render(self, messages: Sequence[Message], **more: object) -> list[int]:
        return self._tokens(self._text(messages, **more))

    def _tokens(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def loss_masks_of(tokenizer: Tokenizer, kind: str) -> MultiTurnLossMaskGenerator:
    """Return the generator of a tokenizer, built once."""
    return _generator(tokenizer, kind)  # the type checker does not check the arguments of a cached function


@functools.lru_cache(maxsize=2)
def _generator(tokenizer: Tokenizer, kind: str) -> MultiTurnLossMaskGenerator:
    return MultiTurnLossMaskGenerator(tokenizer, kind)


def _blocks(messages: Sequence[Message]) -> list[Block]:
    blocks: list[Block] = []
    for message in messages:
        if blocks and message["role"] == blocks[-1][0]["role"] == "tool":
            blocks[-1].append(message)
        else:
            blocks.append([message])
    return blocks


def _is_trained(message: Message) -> bool:
    return bool(message.get("step_loss_mask", 1) == 1)
