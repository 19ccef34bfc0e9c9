"""The cases: what is started, and how it has to end. A check that fails raises AssertionError."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from schemas.prompts import PromptRejected, PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import RolloutFailed
from schemas.steps import StepCommitted
from slime_events.app.demo.settings import BASE
from tests.harness.cases.live import Ended, Place, shown

REWARDS = ("--custom-rm-path", "rewards.reward_func", "--reward-key", "score")
KEPT = {"ok", "surrogate_text", "surrogate_metadata", "surrogate_attribute", "numpy_mask"}
"""What a generate function may do: such a group is no failure of its rollouts."""


@dataclass(frozen=True, slots=True)
class Case:
    """inputs: folders of `tests/harness/cases/inputs` that it needs. check: starts it, and asserts."""

    name: str
    inputs: tuple[str, ...]
    check: Callable[[Place], None]


def ended_well(place: Place, ended: Ended, run: str) -> None:
    """The run came to its end with every engine it began with, and `audit` finds nothing wrong."""
    assert ended.code == 0, ended.text[-2000:]
    assert "Traceback" not in ended.text, ended.text[-2000:]
    assert not ended.engines_lost(), shown(ended.engines_lost())
    audit = place.audit(run)
    assert audit.code == 0, audit.text[-2000:]


def failures(ended: Ended) -> dict[str, list[str]]:
    """Return the messages of failed rollouts, by what the generate function did (`metadata.do`)."""
    kinds = {e.group: (e.metadata or {}).get("do", "") for e in ended.of(PromptSubmitted)}
    messages: dict[str, list[str]] = {}
    for event in ended.of(RolloutFailed):
        messages.setdefault(kinds[event.group], []).append(event.message)
    return messages


def supervised(place: Place) -> None:
    """The documented example of SFT trains."""
    ended = place.run("train", "--config", "sft.toml", "--hf-checkpoint", str(BASE), "--run", "sft", name="sft")
    ended_well(place, ended, "sft")
    assert len(ended.of(StepCommitted)) == 2


def generate_functions(place: Place) -> None:
    """Each way in which a generate function goes wrong costs its own group."""
    path = ("--custom-generate-function-path", "made.generate", "--custom-rm-path", "made.reward_func")
    ended = place.train("made", "--prompt-data", "made.jsonl", *path, "--generate-timeout", "15")
    ended_well(place, ended, "made")
    messages = failures(ended)
    assert any("\ufffd" in text or "\\ud83d" in text for text in messages["raise_surrogate"]), shown(messages)
    for do in ("raise", "none", "text", "hang", "exit", "bad_token", "negative_token", "response_none"):
        assert messages.get(do), f"{do} failed no rollout: {shown(messages)}"
    assert any("99999" in text and "264" in text for text in messages["bad_token"])
    assert any("response" in text and "NoneType" in text for text in messages["response_none"])
    failed = {do: texts[0] for do, texts in messages.items() if do in KEPT}
    assert not failed, shown(failed)


def a_response_that_is_none(place: Place) -> None:
    """The rollout fails, and the run does not wait for it."""
    path = ("--custom-generate-function-path", "made.generate", "--custom-rm-path", "made.reward_func")
    ended = place.train("none", "--prompt-data", "rows.jsonl", *path)
    ended_well(place, ended, "none")
    assert any("NoneType" in text for text in failures(ended)["response_none"])


def tokens_out_of_vocabulary(place: Place) -> None:
    """A prompt with a token that the model does not have fails before anything is sealed."""
    path = ("--custom-generate-function-path", "bad_id.generate", "--rm-type", "random")
    ended = place.train("ids", "--prompt-data", "bad_id.jsonl", *path)
    ended_well(place, ended, "ids")
    assert any("264" in text for text in failures(ended)["bad_id"])


def rewards(place: Place) -> None:
    """Half a character in a reward's dict costs nothing; in an exception, the reward with its own reason."""
    ended = place.train("rewards", "--prompt-data", "rows.jsonl", *REWARDS)
    ended_well(place, ended, "rewards")
    kinds = {e.group: e.metadata["do"] for e in ended.of(PromptSubmitted)}
    counted = {kinds[event.group] for event in ended.of(RewardAssigned)}
    assert {"surrogate_detail", "surrogate_key", "surrogate_metadata", "ok"} <= counted, counted
    failed = {kinds[event.group]: event for event in ended.of(RewardFailed)}
    assert failed.keys() == {"surrogate_raise"}
    assert "cannot read" in failed["surrogate_raise"].message


def a_large_reward(place: Place) -> None:
    """A dict of 6 MB costs its own sample at most."""
    ended = place.train("large", "--prompt-data", "rows.jsonl", *REWARDS)
    ended_well(place, ended, "large")
    kinds = {e.group: e.metadata["do"] for e in ended.of(PromptSubmitted)}
    ends = {kinds[e.group] for e in (*ended.of(RewardAssigned), *ended.of(RewardFailed))}
    assert ends == {"big_detail", "ok"}
    assert len(ended.of(StepCommitted)) >= 6


def latin1_rows(place: Place) -> None:
    """A byte outside UTF-8 makes one bad line, at the start of a file, in its middle and in an evaluation's."""
    for name, bad in (("latin1", "latin1.jsonl:4"), ("latin1_mid", "latin1_mid.jsonl:131")):
        evaluation = ("--eval-prompt-data", "held", "latin1.jsonl", "--eval-interval", "3") if name == "latin1" else ()
        run = name.replace("_", "-")
        steps = None if name == "latin1" else 66
        ended = place.train(run, "--prompt-data", f"{name}.jsonl", "--rm-type", "exact", *evaluation, steps=steps)
        ended_well(place, ended, run)
        lines = [f"{Path(e.source.path).name}:{e.source.line}" for e in ended.of(PromptRejected)]
        assert bad in lines, lines
        assert "refused" in ended.text, ended.text[-1500:]


def odd_rows(place: Place) -> None:
    """Rows that cannot be used are counted aloud, by reason."""
    ended = place.train("odd", "--prompt-data", "odd.jsonl", "--rm-type", "random")
    ended_well(place, ended, "odd")
    rejected = ended.of(PromptRejected)
    assert 8 <= len(rejected) <= 16
    assert f"{len(rejected)} of " in ended.text, ended.text[-1500:]
    assert len(ended.of(PromptSubmitted)) >= 10


def content_parts(place: Place) -> None:
    """Parts are joined, and parts without text are refused: no prompt has an empty question."""
    base = place.folder / "base"
    base.mkdir()
    for file in BASE.iterdir():
        if file.is_file():
            (base / file.name).write_bytes(file.read_bytes())
    (base / "chat_template.jinja").write_bytes((place.folder / "chat_template.jinja").read_bytes())
    rows = ("--prompt-data", "chats_p.jsonl", "--input-key", "prompt", "--label-key", "label")
    ended = place.train("parts", "--hf-checkpoint", str(base), *rows, "--rm-type", "random")
    ended_well(place, ended, "parts")
    texts = {e.metadata["id"]: e.text for e in ended.of(PromptSubmitted)}
    assert "3+4" in texts["parts"]
    assert texts.keys() == {"text", "parts", "call-text", "call-object", "call-empty"}, texts.keys()
    assert '"arguments": }' not in "".join(texts.values())
    assert "<tool_response>\n4\n" in texts["call-empty"]


def other_data(place: Place) -> None:
    """A prompt file that was replaced between two lives of a run is noticed, and refused unless asked for."""
    rows = [json.dumps({"q": [{"role": "user", "content": f"{n}+1"}], "a": str(n + 1)}) for n in range(6)]
    replaced = (place.folder / "ep.jsonl").read_bytes()
    (place.folder / "ep.jsonl").write_text("\n".join(rows) + "\n")
    first = place.train("data", "--prompt-data", "ep.jsonl", "--rm-type", "exact", steps=1)
    assert first.code == 0, first.text[-2000:]
    (place.folder / "ep.jsonl").write_bytes(replaced)
    refused = place.run("resume", "data", "--num-rollout", "3", name="data")
    assert refused.code == 2, refused.text[-2000:]
    assert "ep.jsonl" in refused.text
    resumed = place.run("resume", "data", "--num-rollout", "3", "--accept-changed-data", name="data")
    ended_well(place, resumed, "data")
    assert len(resumed.of(StepCommitted)) == 3


CASES = (
    Case("sft-broken", ("sft-broken",), supervised),
    Case("generate-raises-surrogate", ("generate-raises-surrogate",), generate_functions),
    Case("response-none", ("generate-raises-surrogate", "response-none"), a_response_that_is_none),
    Case("token-out-of-vocabulary", ("token-out-of-vocabulary",), tokens_out_of_vocabulary),
    Case("reward-surrogate", ("reward-surrogate",), rewards),
    Case("reward-detail-large", ("reward-surrogate", "reward-detail-large"), a_large_reward),
    Case("prompt-latin1", ("prompt-latin1",), latin1_rows),
    Case("refused-in-silence", ("refused-in-silence",), odd_rows),
    Case("prompt-content-parts", ("prompt-content-parts",), content_parts),
    Case("resume-other-data", ("resume-other-data",), other_data),
)
