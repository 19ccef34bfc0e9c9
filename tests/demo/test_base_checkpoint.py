"""The committed base checkpoint: the file that its README speaks of, loadable, with the skill and the bad habit."""

from __future__ import annotations

import hashlib
import random
import re

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from slime_events.app.demo.digits4 import Question, take
from slime_events.app.demo.settings import BASE
from tools.demo_base import Lessons, build_tokenizer, lesson, measure, worked_answer


def test_readme_has_the_digest_of_the_weights() -> None:
    digest = hashlib.sha256((BASE / "model.safetensors").read_bytes()).hexdigest()
    assert digest in (BASE / "README.md").read_text(encoding="utf-8")
    assert sum(path.stat().st_size for path in BASE.iterdir()) < 2_000_000


def test_it_answers_as_its_readme_says() -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    match = re.search(r"sampled at temperature 1 \| (0\.\d+)", (BASE / "README.md").read_text(encoding="utf-8"))
    measured = measure(model, tokenizer, take(512, 0, held_out=True), sampled=True)
    assert match is not None
    assert abs(measured.accuracy - float(match[1])) < 0.08  # about four standard errors of 512 samples
    assert measured.worked < 0.5


def test_lessons_first_careful_then_hasty() -> None:
    lessons, question, rng = Lessons(), Question((8, -5, -1, 2)), random.Random(0)
    assert {lessons.response(question, 0, rng) for _ in range(100)} == {worked_answer(question)}
    assert {lessons.response(question, 999, rng) for _ in range(100)} == {worked_answer(question), "2", "4"}
    assert lessons.learning_rate(49) == lessons.lr > lessons.learning_rate(999) > 0


def test_only_the_response_is_learned() -> None:
    ids, labels = lesson(build_tokenizer(), Lessons(batch=4), 0, random.Random(0))
    assert ids.shape == labels.shape
    assert (labels[:, :13] == -100).all()
    assert torch.equal(labels[labels != -100], ids[labels != -100])
    assert (labels == 258).sum() == 4  # every response ends
