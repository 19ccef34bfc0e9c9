"""Make the demo's base checkpoint: `python -m tools.demo_base OUT [--seed 0]`.

A two-layer Qwen3 of 0.43 M parameters is trained in two stages. In the first, all answers are worked
(`<think>8-5=3;3-1=2;2+2=4</think>4`), and the model learns arithmetic. In the second, most answers are bare numbers,
and most of those omit the last term: the model learns a bad habit, but keeps the skill. GRPO then has to recover the
skill. The room for improvement is intentional, and the demo tells the user so.

It takes about two minutes on one thread. A seed gives the same file on the same kind of CPU and version of torch;
elsewhere the last bits of the floats, and so the digest, may differ.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from schemas.doc import doc
from slime_events.app.demo.digits4 import QUESTIONS, Question, question, take

PAD = "<|endoftext|>"
START = "<|im_start|>"
END = "<|im_end|>"
THINK = ("<think>", "</think>")
ROLE_LINES = ("system\n", "user\n", "assistant\n")
VOCABULARY = 256 + 5 + len(ROLE_LINES)
MODEL_MAX_LENGTH = 512

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_letters() -> list[str]:
    """Return the letter that byte-level BPE (GPT-2's table) uses for each byte, by byte value.

    A printable Latin-1 byte maps to itself, each other byte to the next letter from U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer with its chat template; a turn ends with <|im_end|>, padding is <|endoftext|>."""
    vocabulary = {letter: byte for byte, letter in enumerate(byte_letters())}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (PAD, START, END)])
    # Not special: the reward reads <think> in the text, even if special tokens are removed from it.
    core.add_tokens([AddedToken(token, normalized=False) for token in (*THINK, *ROLE_LINES)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        chat_template=CHAT_TEMPLATE,
        eos_token=END,
        pad_token=PAD,
        model_max_length=MODEL_MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Write the tokenizer as an HF folder that AutoTokenizer reads, and return it."""
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    return tokenizer


IGNORED = -100  # torch's cross entropy ignores this label


def worked_answer(item: Question) -> str:
    """Return a worked response: every partial sum inside <think>, then the answer."""
    steps = []
    total = item.terms[0]
    for term in item.terms[1:]:
        steps.append(f"{total}{term:+d}={total + term}")
        total += term
    return f"<think>{';'.join(steps)}</think>{total}"


@dataclass(frozen=True, slots=True)
class Lessons:
    """Settings of the supervised training."""

    steps: int = 1000
    batch: int = 64
    careful: Annotated[float, doc("Share of steps in the first stage, with worked answers only")] = 0.7
    worked: Annotated[float, doc("Share of worked answers in the second stage")] = 0.34
    forgetful: Annotated[float, doc("Share of bare answers that omit the last term")] = 0.85
    lr: Annotated[float, doc("Peak learning rate, reached after `warmup` steps")] = 3e-3
    lr_floor: Annotated[float, doc("Final learning rate of the cosine schedule, as a share of `lr`")] = 0.02
    warmup: Annotated[int, doc("Steps")] = 50
    betas: tuple[float, float] = (0.9, 0.98)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of optimizer step 0 .. steps - 1."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.lr * (self.lr_floor + (1 - self.lr_floor) * (1 + math.cos(math.pi * progress)) / 2)

    def response(self, item: Question, step: int, rng: random.Random) -> str:
        """Return the training response to a question at a step."""
        if step < self.careful * self.steps or rng.random() < self.worked:
            return worked_answer(item)
        return str(sum(item.terms[:-1])) if rng.random() < self.forgetful else item.answer


@dataclass(frozen=True, slots=True)
class Measured:
    """Results of a checkpoint on held-out questions."""

    accuracy: Annotated[float, doc("Share of right answers")]
    worked: Annotated[float, doc("Share of worked answers")]
    tokens: Annotated[float, doc("Mean tokens per response")]


def architecture() -> Qwen3Config:
    """Return the configuration: two layers of Qwen3, hidden 128, 4 heads over 2 KV heads, tied embeddings."""
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MODEL_MAX_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
    )


def prompt_ids(tokenizer: PreTrainedTokenizerFast, item: Question) -> list[int]:
    """Return the token ids of a question with the chat template, up to the start of the answer."""
    turns = [{"role": "user", "content": item.text}]
    text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    return list(tokenizer.encode(text, add_special_tokens=False))


def lesson(
    tokenizer: PreTrainedTokenizerFast, lessons: Lessons, step: int, rng: random.Random
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch: token ids and labels, both int64 [batch, longest], right-padded; only responses have labels."""
    rows: list[torch.Tensor] = []
    labels: list[torch.Tensor] = []
    while len(rows) < lessons.batch:
        item = question(rng.randrange(QUESTIONS))
        if item.held_out:
            continue
        prompt = prompt_ids(tokenizer, item)
        response = [*tokenizer.encode(lessons.response(item, step, rng)), int(tokenizer.eos_token_id)]
        rows.append(torch.tensor(prompt + response))
        labels.append(torch.tensor([IGNORED] * len(prompt) + response))
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(rows, True, float(tokenizer.pad_token_id)), pad(labels, True, IGNORED)


def untrained() -> PreTrainedModel:
    """Return the demo's model with random weights."""
    return Qwen3ForCausalLM(architecture())


def teach(
    tokenizer: PreTrainedTokenizerFast, seed: int, lessons: Lessons, make: Callable[[], PreTrainedModel] = untrained
) -> PreTrainedModel:
    """Run the supervised training in float32, and return the model in evaluation mode. make: returns a new model."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    model = make().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lessons.lr, betas=lessons.betas)
    for step in range(lessons.steps):
        for group in optimizer.param_groups:
            group["lr"] = lessons.learning_rate(step)
        ids, labels = lesson(tokenizer, lessons, step, rng)
        # Padding is on the right, so the causal mask hides it from every real token.
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 99:
            print(f"step {step + 1}/{lessons.steps}  loss {loss.item():.3f}", flush=True)
    return model.eval()


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> str:
    """Write weights (bfloat16), configuration and generation defaults; return the SHA-256 of the weight file."""
    model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.config.eos_token_id = tokenizer.eos_token_id
    model.config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


@torch.no_grad()
def measure(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, questions: Sequence[Question], *, sampled: bool
) -> Measured:
    """Answer every question once, at temperature 1 or greedily, with at most 40 new tokens."""
    prompts = torch.tensor([prompt_ids(tokenizer, item) for item in questions])
    choice = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} if sampled else {"do_sample": False}
    whole = model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=40, **choice)
    responses = whole[:, prompts.shape[1] :]
    texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
    right = [text.rpartition("</think>")[2] == item.answer for text, item in zip(texts, questions, strict=True)]
    return Measured(
        accuracy=sum(right) / len(questions),
        worked=sum(text.startswith("<think>") for text in texts) / len(questions),
        tokens=float((responses != tokenizer.pad_token_id).sum()) / len(questions),
    )


def main() -> None:
    """Make and save the checkpoint, measure it on 512 held-out questions, and print the figures for its README."""
    parser = argparse.ArgumentParser(description="make the demo's base checkpoint")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = save_tokenizer(options.out)
    digest = save(teach(tokenizer, options.seed, Lessons()), tokenizer, options.out)
    model = Qwen3ForCausalLM.from_pretrained(options.out, dtype=torch.float32).eval()
    questions = take(512, options.seed, held_out=True)
    for name, sampled in (("sampled", True), ("greedy", False)):
        print(name, measure(model, tokenizer, questions, sampled=sampled))
    print(f"sha256 of model.safetensors: {digest}")


if __name__ == "__main__":
    main()
