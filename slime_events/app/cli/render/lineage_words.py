"""A reward, a decision, an advantage, a mask: the words of a lineage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slime_events.analysis.lineage.lineage import Advantage, Decision, Group, Lineage, Mask, Reward, Sample
from slime_events.analysis.lineage.picture import file_of
from slime_events.analysis.model.ancestry import VersionRange

SHORT = 12


def versions_text(parts: Iterable[VersionRange]) -> str:
    """`v0 to v4 of demo, v5 to v9 of hotter`."""
    return ", ".join(
        f"v{p.first} of {p.run}" if p.first == p.last else f"v{p.first} to v{p.last} of {p.run}" for p in parts
    )


def made_text(versions: Iterable[int], whose: str) -> str | None:
    """`v3 to v5 of demo`: the versions that made some tokens. whose: of `whose_text`."""
    found = sorted(set(versions))
    return None if not found else (f"v{found[0]}" if len(found) == 1 else f"v{found[0]} to v{found[-1]}") + whose


def whose_text(answer: Lineage, samples: Iterable[Sample]) -> str:
    """` of demo`, where versions of another line made the tokens."""
    runs = {s.run for s in samples if not all(answer.on_line(s.run, version) for version in s.made_by)}
    return f" of {runs.pop()}" if runs else ""


def recalled_text(samples: Iterable[Sample]) -> str | None:
    """`v3 to v5 of demo`: the versions that made recorded rollouts, by the run that has them."""
    origins = [sample.origin for sample in samples if sample.origin is not None]
    versions = (span.version for origin in origins for span in origin.spans)
    return made_text(versions, f" of {origins[0].run}") if origins else None


def origin_text(sample: Sample, group: Group) -> str | None:
    """Which rollout of another run a sample is, and where to look it up."""
    origin = sample.origin
    if origin is None:
        return None
    return f"{origin.sample} of run {origin.run}, position {origin.position} of its log, at {group.source.path}"


def descendants(samples: Iterable[Sample]) -> tuple[VersionRange, ...]:
    """Those of the sample that was trained first."""
    return max((s.descendants for s in samples), key=lambda parts: sum(part.count for part in parts), default=())


def numbers_text(versions: Sequence[int]) -> str:
    """`v1, v4, v9`, and after eight of them the last and how many there are."""
    shown = ", ".join(f"v{version}" for version in versions[:8])
    return shown if len(versions) <= 8 else f"{shown}, ... v{versions[-1]} ({len(versions)} in all)"


def into_text(sample: Sample) -> str:
    """`step 4 -> v5`: the step that has it in its batch, and the version that this made."""
    if sample.step is None:
        return "no version"
    return f"step {sample.step} -> " + ("not committed" if sample.trained_into is None else f"v{sample.trained_into}")


def graded_text(reward: Reward | None) -> str:
    """`1 by exact e9a5e81825d3`: a reward and its grader."""
    return "none yet" if reward is None else f"{reward_text(reward)} by {reward.grader} {reward.grader_digest[:SHORT]}"


def reward_text(reward: Reward | None) -> str | None:
    """`1`, or why there is none."""
    if reward is None:
        return None
    return f"{reward.value:g}" if reward.value is not None else f"none ({reward.failure})"


def advantage_text(advantage: Advantage | None) -> str | None:
    """`0.5 for each trained token (grpo)`."""
    if advantage is None:
        return None
    first, last = f"{advantage.first:.6g}", f"{advantage.last:.6g}"
    value = (
        f"{first} for each trained token" if first == last else f"{first} for the first token to {last} for the last"
    )
    left = f", without {' and '.join(advantage.left_out)}, which need log-probs" if advantage.left_out else ""
    return f"{value} ({advantage.estimator}){left}"


def mask_text(mask: Mask | None) -> str | None:
    """`12 of 40 tokens [0:12]`: those that were trained on."""
    if mask is None:
        return None
    if mask.trained == mask.tokens:
        return f"all {mask.tokens} tokens"
    ranges = " ".join(f"[{begin}:{end}]" for begin, end in mask.ranges[:8]) + (" ..." if len(mask.ranges) > 8 else "")
    return f"{mask.trained} of {mask.tokens} tokens {ranges}".rstrip()


def decision_text(decision: Decision | None) -> str:
    """`rejected (filtered) by check_reward_nonzero_std: all rewards are 0`."""
    if decision is None:
        return "not decided"
    what = "accepted" if decision.accepted else f"rejected ({decision.cause})"
    by = f" by {decision.filter}" if decision.filter != "none" else ""
    return what + by + (f": {decision.reason}" if decision.reason else "")


def files_text(groups: Iterable[Group]) -> str | None:
    """The files that their prompts were read from."""
    return ", ".join(dict.fromkeys(map(file_of, groups))) or None
