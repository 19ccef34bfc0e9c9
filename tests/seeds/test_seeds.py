"""The launches that slime's users have are accepted, or are named exceptions; pages are read as a person reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.seeds.__main__ import HERE, main, read_launches
from tests.seeds.exceptions import LAUNCHES, MESSAGES, reason_for
from tests.seeds.fragments import judge_fragment
from tests.seeds.launch import Stage, Verdict, judge
from tests.seeds.shell import Kind, read_fragments

PAGE = HERE / "pages" / "guide.txt"


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Verdict]:
    return {name: judge(name, words) for name, words in read_launches(HERE / "launches.json").items()}


def test_each_launch_is_accepted_or_an_exception(verdicts: dict[str, Verdict]) -> None:
    refused = {name: verdict.refusals for name, verdict in verdicts.items() if not verdict.accepted}
    assert refused.keys() == LAUNCHES.keys()
    assert len(verdicts) == 33


def test_what_is_planned_for_some_of_them(verdicts: dict[str, Verdict]) -> None:
    assert str(verdicts["scripts/low_precision/run-qwen3-4b-fp8"].plan) == (
        "qwen3-4B 4.02 B, 8 ranks: TP 2 PP 1 CP 1 EP 1 ETP 1 DP 4, 16.9 GiB a rank; 4 engines of 2 GPUs, 3.7 GiB a GPU"
    )
    assert str(verdicts["scripts/run-qwen3-32B"].plan) == (
        "qwen3-32B 32.76 B, 8 ranks: TP 8 PP 1 CP 1 EP 1 ETP 1 DP 1, 22.9 GiB a rank without the optimizer; "
        "1 engine of 8 GPUs, 7.6 GiB a GPU"
    )
    for name, verdict in verdicts.items():
        assert verdict.plan is None or verdict.plan.memory.total < 80 * 2**30, name


def test_two_nodes_have_the_ranks_that_a_launch_lacks() -> None:
    words = read_launches(HERE / "launches.json")["scripts/run-glm4.7-30B-A3B"]
    assert judge("two nodes", [*words, "--actor-num-nodes", "2"]).accepted


def test_a_page_is_read_as_its_reader_does() -> None:
    fragments = list(read_fragments(PAGE.read_text(encoding="utf-8")))
    kinds = [fragment.kind for fragment in fragments]
    assert {kind: kinds.count(kind) for kind in Kind} == {
        Kind.TRAIN: 3,
        Kind.FLAGS: 9,
        Kind.CONVERT: 1,
        Kind.MENTION: 4,
    }
    from_array, glm, _ = (fragment for fragment in fragments if fragment.kind is Kind.TRAIN)
    assert from_array.model == "qwen3-4B"
    assert from_array.words == (
        *("--update-weight-buffer-size", "2097152"),
        *("--hf-checkpoint", "/root/Qwen3-4B", "--rollout-batch-size", "32", "--n-samples-per-prompt", "8"),
        *("--rm-type", "deepscaler"),
    )
    assert glm.model == "glm4-9B"
    assert "--load" in glm.words
    assert ("--sglang-cuda-graph-bs", "1", "2", "8", "16", "24", "32") in {fragment.words for fragment in fragments}


def test_fragments_of_a_page_are_judged() -> None:
    verdicts = [judge_fragment("guide", fragment) for fragment in read_fragments(PAGE.read_text(encoding="utf-8"))]
    refused = {verdict.name.partition(": ")[2]: verdict.refusals[0][1] for verdict in verdicts if not verdict.accepted}
    assert len(verdicts) - len(refused) == 14
    assert "a single engine answers a request" in refused["--prefill-num-servers"]
    assert "FSDP" in refused["--train-backend fsdp --gradient-checkpointing"]
    (wrong,) = read_fragments("python3 train.py --rollout-max-len 8")
    assert "Unknown flag --rollout-max-len" in judge_fragment("wrong", wrong).refusals[0][1]
    assert reason_for(judge_fragment("wrong", wrong)) is None


def test_a_launch_that_no_exception_names_fails_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launches = tmp_path / "launches.json"
    launches.write_text(
        '{"good": "train.py --hf-checkpoint /root/Qwen3-4B --num-rollout 3 --prompt-data p.jsonl --rm-type math",'
        ' "bad": ["train.py", "--hf-checkpoint", "/root/Qwen3-4B", "--num-layers", "9", "--num-rollout", "3",'
        ' "--prompt-data", "p.jsonl", "--rm-type", "math"]}'
    )
    monkeypatch.setattr("sys.argv", ["seeds", "--launches", str(launches), "--pages", str(tmp_path / "none")])
    assert main() == 1
    printed = capsys.readouterr().out
    assert "flags: model flags disagree with the checkpoint's config.json: --num-layers 9" in printed
    assert "1 of 2 launches" in printed
    monkeypatch.setitem(LAUNCHES, "bad", "a reason")
    monkeypatch.setitem(LAUNCHES, "good", "a reason")
    assert main() == 1
    assert "no exception any more: a reason" in capsys.readouterr().out


def test_an_exception_is_one_by_its_message() -> None:
    reasons = [reason_for(judge_fragment("guide", fragment)) for fragment in read_fragments(PAGE.read_text())]
    assert {reason for reason in reasons if reason} <= set(MESSAGES.values())
    assert len([reason for reason in reasons if reason]) == 3
    assert judge("nothing", ["--hf-checkpoint", "x"]).refusals[0][0] is Stage.PARSED
