"""The measures, on logs with one thing wrong each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from schemas.arrays import pack_log_probs, pack_tokens, unpack
from schemas.batches import BatchSealed
from schemas.event import Event, Purpose
from schemas.groups import RejectionCause
from schemas.prompts import PromptRejected, PromptSubmitted, Source
from schemas.rollouts import RolloutCompleted, RolloutProgressed
from schemas.steps import StepCommitted
from slime_events.core.tokens.trajectory import content_digest
from storage.log import Recorded
from tests import made
from tests.harness.chaos import measures
from tests.harness.chaos.engine_log import tokens_in_lines
from tests.harness.chaos.killer import Struck
from tests.harness.chaos.schedule import Kind
from tests.harness.chaos.watcher import Sighting

SAMPLE, GROUP = "train-0-000000-s0", "train-0-000000"
SECOND = 1_000_000_000


def chunk(start: int, tokens: Sequence[int]) -> RolloutProgressed:
    return made.progressed(SAMPLE, tokens, start=start, log_probs=_log_probs(tokens), spans=())


def end(start: int, tokens: Sequence[int], whole: Sequence[int]) -> RolloutCompleted:
    digest = content_digest(np.array(whole, np.int32), unpack(_log_probs(whole)))
    return made.completed(SAMPLE, tokens, start=start, prompt_length=3, digest=digest, log_probs=_log_probs(tokens))


def _log_probs(tokens: Sequence[int]) -> Any:
    return pack_log_probs([-float(token) for token in tokens])


@pytest.mark.parametrize(
    ("events", "lost"),
    [
        ([chunk(0, [1, 2]), chunk(2, [3]), end(3, [4], [1, 2, 3, 4])], 0),
        ([chunk(0, [1, 2]), chunk(2, [3])], 0),
        ([end(0, [1, 2], [1, 2])], 0),
        ([chunk(0, [1, 2]), chunk(2, [3]), end(2, [7, 8], [1, 2, 7, 8])], 1),
        ([chunk(0, [1, 2]), chunk(0, [5, 6]), end(2, [4], [5, 6, 4])], 2),
        ([chunk(0, [1, 2]), end(2, [4], [1, 9, 4])], 2),
    ],
    ids=["all there", "not ended yet", "no chunk", "its end writes over", "begun anew", "another digest"],
)
def test_acked_tokens_that_do_not_stay_are_lost(events: list[Event], lost: int) -> None:
    assert sum(measures.tokens_lost(events, unpack).values()) == lost


def test_a_rollout_that_engines_gave_up_loses_what_it_had() -> None:
    failed = made.failed(SAMPLE, attempt=2)
    rejected = made.rejected(GROUP, RejectionCause.ROLLOUT_FAILED, reason="")
    assert measures.tokens_lost([chunk(0, [1, 2]), failed, rejected], unpack) == {SAMPLE: 2}
    assert measures.tokens_lost([chunk(0, [1, 2]), failed, end(2, [3], [1, 2, 3])], unpack) == {}


def test_what_a_reader_saw_must_be_there_afterwards() -> None:
    log = [_recorded(1, chunk(0, [1])), _recorded(2, chunk(1, [2]))]
    seen = [Sighting(recorded.position, recorded.envelope.id, 0, 0, 1) for recorded in log]
    assert measures.vanished(seen, log) == []
    assert measures.vanished(seen, log[:1]) == [2]
    assert measures.vanished(seen, [log[0], _recorded(2, chunk(1, [3]))]) == [2]


def _recorded(position: int, event: Event) -> Recorded:
    return made.recorded(event, first=position)[0]


def sealed(step: int, *samples: str) -> BatchSealed:
    return made.sealed(step, samples=samples, digest=f"batch {step}")


def committed(step: int) -> StepCommitted:
    return made.committed(
        step, batch_digest=f"batch {step}", weights_digest=f"w{step + 1}", optimizer_digest="", samples=2, tokens=2
    )


def test_a_sample_is_trained_where_its_batch_is_committed() -> None:
    events = [sealed(0, "a-s0", "b-s0"), committed(0), sealed(1, "c-s0", "a-s0")]
    assert measures.trained(events) == ["a-s0", "b-s0"]
    assert measures.trained_twice(events) == []
    assert measures.trained_twice([*events, committed(1)]) == ["a-s0"]
    assert measures.trained_twice([*events, committed(0)]) == ["a-s0", "b-s0"]
    assert measures.weight_digests([*events, committed(1)]) == {1: "w1", 2: "w2"}


def drawn(offset: int, **changes: Any) -> PromptSubmitted:
    source = Source(path="p.jsonl", offset=offset)
    fields: dict[str, Any] = {"group": f"train-0-{offset:06}", "text": "", "tokens": pack_tokens([1]), "source": source}
    return PromptSubmitted(**fields | changes)


def test_offsets_without_prompt_are_skipped_and_offsets_with_two_repeated() -> None:
    bad = PromptRejected(source=Source(path="p.jsonl", offset=1), reason="no JSON")
    others = [drawn(9, purpose=Purpose.EVAL), drawn(9, source=Source(path="inbox", offset=9))]
    fine = [drawn(0), bad, drawn(2), *others, sealed(0, "train-0-000000-s0", "train-0-000002-s0"), committed(0)]
    assert measures.prompts_drawn(fine, nothing_waits=True) == measures.Drawn((), (), ())
    drawn_prompts = measures.prompts_drawn([drawn(0), drawn(3), drawn(3)], nothing_waits=False)
    assert drawn_prompts == measures.Drawn(("p.jsonl@1", "p.jsonl@2"), ("p.jsonl@3",), ())


def test_a_group_without_a_fate_is_forgotten_where_nothing_may_wait() -> None:
    events = [drawn(0), drawn(1), made.rejected("train-0-000001", reason="")]
    assert measures.prompts_drawn(events, nothing_waits=True).forgotten == ("train-0-000000",)
    assert measures.prompts_drawn(events, nothing_waits=False).forgotten == ()


def test_seconds_count_from_the_kill_to_what_was_stamped_after_it() -> None:
    struck = [_kill(Kind.TRAINER, 10), _kill(Kind.NATS, 14)]
    sightings = [
        _sight(9, seen=9.1, tokens=4),
        _sight(9.9, seen=10.5, tokens=4),  # was on its way
        _sight(11, seen=12, tokens=3),
        _sight(13, seen=13.5, joined="trainer", start_s=0.5),
    ]
    first, second = measures.recoveries(struck, sightings)
    assert [first.first_token_s, first.back_s, first.start_s] == pytest.approx([2.0, 3.5, 0.5])
    assert first.alone
    assert (second.first_token_s, second.back_s, second.alone) == (None, None, True)
    assert measures.parts([first]) == {"until the successor's start": 3.0, "its start": 0.5, "then to a token": 0.0}
    assert measures.parts([second]) == {}
    assert measures.middle_and_worst([3.0, None, 1.0]) == {"count": 2, "open": 1, "median": 2.0, "worst": 3.0}
    assert measures.middle_and_worst([None]) == {"count": 0, "open": 1}


def test_a_kill_that_falls_into_a_start_or_into_another_recovery_is_not_alone() -> None:
    into_start, engine, into_recovery = _kill(Kind.GRADER, 1), _kill(Kind.ENGINE, 10), _kill(Kind.GRADER, 11)
    sightings = [_sight(5, seen=5.1, tokens=4), _sight(19, seen=19.1, tokens=4)]
    measured = measures.recoveries([into_start, engine, into_recovery], sightings)
    assert [recovery.alone for recovery in measured] == [False, False, False]
    measured = measures.recoveries([into_start, engine], sightings)
    assert [recovery.alone for recovery in measured] == [False, True]


def test_a_dead_drivers_engines_do_not_count_as_recovery() -> None:
    sightings = [
        _sight(10.2, seen=10.3, tokens=4),
        Sighting(1, "", 12 * SECOND, 12 * SECOND, 0, resumed=True),
        _sight(15, seen=16, tokens=4),
    ]
    (driver,) = measures.recoveries([_kill(Kind.DRIVER, 10)], sightings)
    assert driver.first_token_s == pytest.approx(6.0)


def _kill(kind: Kind, at: float) -> Struck:
    return Struck(0, kind, 1, int(at * SECOND), 0, 0)


def _sight(at: float, seen: float, tokens: int = 0, joined: str = "", start_s: float = 0.0) -> Sighting:
    return Sighting(1, "", int(at * SECOND), int(seen * SECOND), tokens, joined, start_s=start_s)


def test_ks_distance_against_known_values() -> None:
    assert measures.ks_distance([1, 2, 3, 4], [1, 2, 3, 4]) == 0.0
    assert measures.ks_distance([1, 2], [3, 4]) == 1.0
    assert measures.ks_distance([1, 2, 3, 4], [1, 2]) == pytest.approx(0.5)
    assert measures.ks_critical(100, 100) == pytest.approx(0.2756, abs=1e-3)


def test_tokens_by_sglangs_own_lines() -> None:
    lines = [
        "[2026-01-01 00:00:00] Prefill batch, #new-seq: 8, #new-token: 96, #cached-token: 0, #running-req: 0,",
        "[2026-01-01 00:00:00] Decode batch, #running-req: 10, #token: 300, token usage: 0.01, #queue-req: 0,",
        "[2026-01-01 00:00:01] Decode batch [7], #running-req: 3, #token: 90,",
        "[2026-01-01 00:00:01] max_total_num_tokens=16384",
    ]
    assert tokens_in_lines(lines) == 21
