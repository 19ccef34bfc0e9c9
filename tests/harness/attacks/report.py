"""`Row`: an attack, what was answered, and how the run was meanwhile; the table of them, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.harness.attacks.attack import Answer, Attack
from tests.harness.attacks.watch import Seen

HEALTHZ_MS = 1000.0
GROWTH_MB = {"engine": 1500, "replica": 1500, "trainer": 1500}
"""What a role may take more at its peak than before the attack; compute has memory of its own."""
MOST_MB = 500
COLUMNS = ("kind", "attack", "door", "answer", "healthz ms", "engines lost", "memory MB", "ok")
WIDTHS = (8, 40, 20, 60, 10, 12, 24, 3)


@dataclass(frozen=True, slots=True)
class Row:
    """before: MB of each role. lost: reasons of workers that were lost in the time of the attack."""

    kind: str
    attack: Attack
    answer: Answer
    before: dict[str, int]
    seen: Seen
    lost: tuple[str, ...] = ()

    @property
    def broken(self) -> list[str]:
        """Sentences about each thing that was neither refused nor bounded."""
        sentences = [] if self.answer.ok else [f"answered: {self.answer.text} (expected: {self.attack.expects})"]
        if self.healthz_ms > HEALTHZ_MS:
            sentences.append(f"/healthz took {self.healthz_ms:.0f} ms")
        sentences += [f"lost: {reason}" for reason in self.lost]
        return sentences + [f"{role} grew from {before} to {now} MB" for role, before, now in self.grown]

    @property
    def healthz_ms(self) -> float:
        """Milliseconds of the longest answer, less those of an idle server at that time."""
        return max(0.0, self.seen.worst_ms - self.seen.late_ms)

    @property
    def grown(self) -> list[tuple[str, int, int]]:
        """Roles that took too much, with MB before and at the peak."""
        pairs = [(role, self.before.get(role), now) for role, now in self.seen.peaks.items()]
        return [
            (role, was, now) for role, was, now in pairs if was is not None and now - was > GROWTH_MB.get(role, MOST_MB)
        ]

    @property
    def memory(self) -> str:
        """Memory of the role that grew most, before and at its peak; "-" without roles."""
        role = max(self.seen.peaks, key=lambda role: self.seen.peaks[role] - self.before.get(role, 0), default="")
        return f"{role} {self.before.get(role, 0)}/{self.seen.peaks[role]}" if role else "-"


def line(words: Sequence[str]) -> str:
    """Return a row of the table."""
    cells = [word[:width].ljust(width) for word, width in zip(words, WIDTHS, strict=True)]
    return "  ".join(cells).rstrip()


def cells(row: Row) -> list[str]:
    """Return the cells of a row, in the order of COLUMNS."""
    text = ascii(row.answer.text)[1:-1]
    ok = "no" if row.broken else "yes"
    lost = str(len(row.lost)) if row.lost else "0"
    return [row.kind, row.attack.name, row.attack.door, text, f"{row.healthz_ms:.0f}", lost, row.memory, ok]


def summary(rows: Iterable[Row], others: Sequence[str]) -> list[str]:
    """Return what is broken, and a last line with the counts. others: faults of the runs as a whole."""
    rows = list(rows)
    sentences = [
        f"{row.kind}: {row.attack.name} ({row.attack.door}): {sentence}" for row in rows for sentence in row.broken
    ]
    bad = sum(bool(row.broken) for row in rows)
    good = f"{len(rows) - bad} of {len(rows)} attacks refused or bounded"
    return [*sentences, *others, f"{good}, {len(others)} other faults"]
