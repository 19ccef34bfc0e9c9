"""`report`: the figures of a run that was struck, and whether it kept what was promised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.harness.chaos import measures
from tests.harness.chaos.aftermath import Aftermath
from tests.harness.chaos.killer import Struck
from tests.harness.chaos.reference import Reference
from tests.harness.chaos.schedule import Kind
from tests.harness.chaos.watcher import Sighting

SHOWN = 10


def report(
    struck: Sequence[Struck],
    sightings: Sequence[Sighting],
    after: Aftermath,
    reference: Reference,
    *,
    kills: int,
    synchronous: bool,
) -> dict[str, Any]:
    """Return the figures that are printed as JSON. `broken` lists the promises that were not kept."""
    lost = measures.tokens_lost(after.events, after.fetch)
    gone = measures.vanished(sightings, after.log)
    twice = measures.trained_twice(after.events)
    drawn = measures.prompts_drawn(after.events, nothing_waits=synchronous)
    digests = measures.weight_digests(after.events)
    lengths = measures.trained_lengths(after.events)
    in_log = measures.tokens_in_log(after.events)
    recoveries = measures.recoveries(struck, sightings)
    differs = _first_difference(digests, reference.digests)
    broken = {
        f"{kills - len(struck)} of {kills} kills were not made before the run was over": len(struck) < kills,
        f"acked tokens lost: {dict(list(lost.items())[:SHOWN])}": lost,
        f"acked events that are not in the log any more, positions {gone[:SHOWN]}": gone,
        f"samples trained twice: {twice[:SHOWN]}": twice,
        f"prompts skipped: {drawn.skipped[:SHOWN]}": drawn.skipped,
        f"prompts repeated: {drawn.repeated[:SHOWN]}": drawn.repeated,
        f"groups without a fate: {drawn.forgotten[:SHOWN]}": drawn.forgotten,
        f"weights differ from the run without kills from version {differs} on": synchronous and differs is not None,
        f"the history checker found: {list(after.history[:SHOWN])}": after.history,
        f"the audit is not clean: {after.audit}": after.audit,
    }
    return {
        "kills": len(struck),
        "kills_by_kind": dict(sorted(Counter(strike.kind.value for strike in struck).items())),
        "acked_tokens_lost": sum(lost.values()) + len(gone),
        "tokens_in_log": in_log,
        "tokens_generated_again": after.generated - in_log,
        "tokens_generated_again_without_kills": reference.again,
        "samples_trained": len(lengths),
        "samples_trained_twice": len(twice),
        "prompts_skipped": len(drawn.skipped) + len(drawn.forgotten),
        "prompts_repeated": len(drawn.repeated),
        "seconds_to_first_token": _by_kind(recoveries, "first_token_s"),
        "seconds_to_be_back": _by_kind(recoveries, "back_s"),
        "weights_digest": digests[max(digests)] if digests else None,
        "weights_digest_without_kills": reference.digests[max(reference.digests)],
        "weights_equal": differs is None,
        "ks_distance_of_trained_lengths": round(measures.ks_distance(lengths, reference.lengths), 4),
        "ks_critical_at_one_in_a_thousand": round(measures.ks_critical(len(lengths), len(reference.lengths)), 4),
        "history_checker": list(after.history),
        "audit": after.audit or "clean",
        "broken": [sentence for sentence, is_so in broken.items() if is_so],
    }


def _first_difference(digests: dict[int, str], expected: dict[int, str]) -> int | None:
    return next((v for v in sorted({*digests, *expected}) if digests.get(v) != expected.get(v)), None)


def _by_kind(recoveries: Sequence[measures.Recovery], field: str) -> dict[str, Any]:
    """Return the seconds over all kills, and by kind over those that struck alone, with their parts."""
    kinds = [kind for kind in Kind if any(recovery.struck.kind is kind for recovery in recoveries)]
    if field == "back_s":
        kinds = [kind for kind in kinds if kind in measures.BACK]
    every = [recovery for recovery in recoveries if recovery.struck.kind in kinds]
    groups = {"all": every, "alone": [recovery for recovery in every if recovery.alone]}
    groups |= {
        kind.value: [recovery for recovery in every if recovery.alone and recovery.struck.kind is kind]
        for kind in kinds
    }
    table: dict[str, Any] = {
        name: measures.middle_and_worst(getattr(recovery, field) for recovery in group)
        for name, group in groups.items()
    }
    if field == "back_s":
        for kind in kinds:
            table[kind.value] |= measures.parts(groups[kind.value])
    return table
