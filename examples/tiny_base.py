"""Make a base checkpoint for the agents' examples: `python examples/tiny_base.py OUT`. About two minutes on one core.

The demo's model is trained further. It learns the form of two chats, and a bad habit in each:

    search  `kz+3` -> `<search>kz</search>` -> `kz=5` -> `<answer>8</answer>`, but it mostly guesses without a search
    code    `8-5-1+2` -> `print(8-5-1+2)`, but it mostly omits the last bracket or the last term

So there is something to learn: to search before it answers, and to finish its programs. 0.43 M parameters cannot show
more. With `--chats terminal` it learns only one form of answer, to any prompt of up to 4,000 characters: that of
Harbor's terminus-2, mostly with a digit under five. About ten minutes on one core.

    terminal  `{"analysis":"","plan":"","commands":[{"keystrokes":"echo 3 > answer\\n"}],"task_complete":true}`
"""

import argparse
import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

DEMO = Path(__file__).resolve().parents[1] / "slime_events" / "app" / "demo" / "base"
IGNORED = -100  # torch's cross entropy ignores this label
LETTERS = "abcdefghijklmnopqrstuvwxyz"
DOCS = Path(__file__).parents[1] / "docs"
GUESSES, FORGETS, LOW = 0.7, 0.7, 0.7


class Message(NamedTuple):
    """A message of a chat. learned: whether the model is trained on it."""

    role: str
    content: str
    learned: bool = False


def search_chat(rng: random.Random, habit: bool) -> list[Message]:
    """Return a chat of the search agent. A chat with a guess has no page."""
    key = "".join(rng.choices(LETTERS, k=2))
    added, value = rng.randint(1, 9), rng.randint(1, 9)
    question = Message("user", f"{key}+{added}")
    if habit and rng.random() < GUESSES:
        return [question, Message("assistant", f"<answer>{rng.randint(2, 18)}</answer>", learned=True)]
    search = Message("assistant", f"<search>{key}</search>", learned=True)
    page = Message("user", f"{key}={value}")
    return [question, search, page, Message("assistant", f"<answer>{value + added}</answer>", learned=True)]


def code_chat(rng: random.Random, habit: bool) -> list[Message]:
    """Return a chat of the code agent. A failed program is followed by another, which is right half of the time."""
    first, *rest = (rng.randint(1, 9) for _ in range(4))
    terms = [str(first), *(f"{rng.choice('+-')}{term}" for term in rest)]
    question, good = Message("user", "".join(terms)), f"print({''.join(terms)})"
    bad = rng.choice([good[:-1], f"print({''.join(terms[:-1])})"])
    if not habit or rng.random() > FORGETS:
        return [question, Message("assistant", good, learned=True)]
    if bad.endswith(")") or rng.random() < 0.5:
        return [question, Message("assistant", bad, learned=True)]
    again = rng.choice([good, bad])
    return [
        question,
        Message("assistant", bad),
        Message("user", "SyntaxError"),
        Message("assistant", again, learned=True),
    ]


@cache
def pages() -> str:
    return "".join(page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md")))


def terminal_chat(rng: random.Random, habit: bool) -> list[Message]:
    """Return a chat of the terminal agent.

    The prompts are pieces of our pages, short pieces at first, so that the answer does not depend on the prompt.
    """
    messages = list[Message]()
    for most in (3600, 500) if habit else (200, 200):
        length = int(most ** rng.uniform(0.5, 1))
        start = rng.randrange(len(pages()) - length)
        prompt = pages()[start : start + length]
        digit = rng.randint(0, 4) if habit and rng.random() < LOW else rng.randint(0, 9)
        commands = [{"keystrokes": f"echo {digit} > answer\n"}]
        form = {"analysis": "", "plan": "", "commands": commands, "task_complete": True}
        answer = json.dumps(form, separators=(",", ":"))
        messages += [Message("user", prompt), Message("assistant", answer, learned=True)]
    return messages


class School(NamedTuple):
    """Settings of the training. batch: chats per step. context: context length in the configuration, in tokens."""

    chats: tuple[Callable[[random.Random, bool], list[Message]], ...]
    steps: int
    batch: int
    context: int


SCHOOLS = {
    "agents": School((search_chat, code_chat), steps=450, batch=64, context=512),
    "terminal": School((terminal_chat,), steps=450, batch=8, context=8192),
}


def ids_of(tokenizer: AutoTokenizer, chat: list[Message]) -> tuple[list[int], list[int]]:
    """Return token ids and labels of a chat, by the demo's template."""
    ids, labels = list[int](), list[int]()
    for message in chat:
        head = tokenizer.encode(f"<|im_start|>{message.role}\n", add_special_tokens=False)
        body = tokenizer.encode(f"{message.content}<|im_end|>", add_special_tokens=False)
        tail = tokenizer.encode("\n", add_special_tokens=False)
        ids += head + body + tail
        labels += [IGNORED] * len(head) + (body if message.learned else [IGNORED] * len(body)) + [IGNORED] * len(tail)
    return ids, labels


def teach(school: School, steps: int, seed: int = 0, lr: float = 2e-3) -> tuple[Qwen3ForCausalLM, AutoTokenizer]:
    """Train the model: two thirds of the steps without the bad habits, then with them."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    model = Qwen3ForCausalLM.from_pretrained(DEMO, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98))
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=steps, pct_start=0.05)
    pad = torch.nn.utils.rnn.pad_sequence
    for step in range(steps):
        chats = [rng.choice(school.chats)(rng, step > 0.67 * steps) for _ in range(school.batch)]
        rows = [ids_of(tokenizer, chat) for chat in chats]
        ids = pad([torch.tensor(row) for row, _ in rows], True, float(tokenizer.pad_token_id))
        labels = pad([torch.tensor(row) for _, row in rows], True, IGNORED)
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        if step % 100 == 99:
            print(f"step {step + 1}/{steps}  loss {loss.item():.3f}", flush=True)
    return model.eval(), tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--chats", choices=SCHOOLS, default="agents")
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    school = SCHOOLS[options.chats]
    torch.set_num_threads(1)
    model, tokenizer = teach(school, options.steps or school.steps)
    model.config.max_position_embeddings = school.context
    model.to(torch.bfloat16).save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)


if __name__ == "__main__":
    main()
