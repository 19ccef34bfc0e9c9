"""A base checkpoint for the agents' examples: `python examples/tiny_base.py OUT`. Some two minutes of one core.

The demo's model goes to school once more. It is taught the form of two chats, and in each a bad habit:

    search  `kz+3` -> `<search>kz</search>` -> `kz=5` -> `<answer>8</answer>`, but mostly it guesses without searching
    code    `8-5-1+2` -> `print(8-5-1+2)`, but mostly it forgets the last bracket or the last term

So there is something to be learned: to look before it answers, and to finish what it writes. No more than that can be
shown with 0.43 M parameters. With `--chats terminal` it is taught one thing alone, whatever it is asked, in up to
4,000 letters: the form of Harbor's terminus-2, mostly with a digit under five. Some ten minutes of one core.

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
IGNORED = -100  # torch's cross entropy leaves such a label out
LETTERS = "abcdefghijklmnopqrstuvwxyz"
DOCS = Path(__file__).parents[1] / "docs"
GUESSES, FORGETS, LOW = 0.7, 0.7, 0.7


class Said(NamedTuple):
    """A message. learned: an assistant's that the model is taught to say."""

    role: str
    content: str
    learned: bool = False


def search_chat(rng: random.Random, habit: bool) -> list[Said]:
    """One that guesses sees no page."""
    key = "".join(rng.choices(LETTERS, k=2))
    added, value = rng.randint(1, 9), rng.randint(1, 9)
    asked = Said("user", f"{key}+{added}")
    if habit and rng.random() < GUESSES:
        return [asked, Said("assistant", f"<answer>{rng.randint(2, 18)}</answer>", learned=True)]
    looked = Said("assistant", f"<search>{key}</search>", learned=True)
    found = Said("user", f"{key}={value}")
    return [asked, looked, found, Said("assistant", f"<answer>{value + added}</answer>", learned=True)]


def code_chat(rng: random.Random, habit: bool) -> list[Said]:
    """A program that fails is tried again, half of the time well."""
    first, *rest = (rng.randint(1, 9) for _ in range(4))
    terms = [str(first), *(f"{rng.choice('+-')}{term}" for term in rest)]
    asked, good = Said("user", "".join(terms)), f"print({''.join(terms)})"
    bad = rng.choice([good[:-1], f"print({''.join(terms[:-1])})"])
    if not habit or rng.random() > FORGETS:
        return [asked, Said("assistant", good, learned=True)]
    if bad.endswith(")") or rng.random() < 0.5:
        return [asked, Said("assistant", bad, learned=True)]
    again = rng.choice([good, bad])
    return [asked, Said("assistant", bad), Said("user", "SyntaxError"), Said("assistant", again, learned=True)]


@cache
def pages() -> str:
    return "".join(page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md")))


def terminal_chat(rng: random.Random, habit: bool) -> list[Said]:
    """It is asked in pieces of our pages: the answer must not hang on the words. In short ones at first."""
    said = list[Said]()
    for most in (3600, 500) if habit else (200, 200):
        length = int(most ** rng.uniform(0.5, 1))
        start = rng.randrange(len(pages()) - length)
        asked = pages()[start : start + length]
        digit = rng.randint(0, 4) if habit and rng.random() < LOW else rng.randint(0, 9)
        commands = [{"keystrokes": f"echo {digit} > answer\n"}]
        form = {"analysis": "", "plan": "", "commands": commands, "task_complete": True}
        answer = json.dumps(form, separators=(",", ":"))
        said += [Said("user", asked), Said("assistant", answer, learned=True)]
    return said


class School(NamedTuple):
    """chats: what it is taught. batch: chats of a step. context: tokens that the model is said to take."""

    chats: tuple[Callable[[random.Random, bool], list[Said]], ...]
    steps: int
    batch: int
    context: int


SCHOOLS = {
    "agents": School((search_chat, code_chat), steps=450, batch=64, context=512),
    "terminal": School((terminal_chat,), steps=450, batch=8, context=8192),
}


def ids_of(tokenizer: AutoTokenizer, chat: list[Said]) -> tuple[list[int], list[int]]:
    """Token ids and labels, by the demo's template."""
    ids, labels = list[int](), list[int]()
    for message in chat:
        head = tokenizer.encode(f"<|im_start|>{message.role}\n", add_special_tokens=False)
        body = tokenizer.encode(f"{message.content}<|im_end|>", add_special_tokens=False)
        tail = tokenizer.encode("\n", add_special_tokens=False)
        ids += head + body + tail
        labels += [IGNORED] * len(head) + (body if message.learned else [IGNORED] * len(body)) + [IGNORED] * len(tail)
    return ids, labels


def teach(school: School, steps: int, seed: int = 0, lr: float = 2e-3) -> tuple[Qwen3ForCausalLM, AutoTokenizer]:
    """The first two thirds without the bad habits, which come on top of the skills."""
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
