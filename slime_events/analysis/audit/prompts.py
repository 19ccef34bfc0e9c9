"""Prompts: every source's cursor moves one by one."""

import itertools

from schemas.evals import EvalCompleted
from schemas.event import Purpose
from schemas.ids import INBOX, TRAIN
from schemas.prompts import PromptRejected, PromptSubmitted, Source
from slime_events.analysis.audit.check import Check
from slime_events.analysis.audit.ledger import Ledger


class Prompts(Check):
    """Drawn in order from each file, once per key from the inbox, and the whole set for each evaluation."""

    name = "prompts"
    promise = "no prompt of a source skipped or repeated, evaluations whole"
    counted = ("drawn", "sources", "from outside", "of evaluations", "refused")

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._next: dict[str, int] = {}
        self._keys: dict[tuple[str, str], int] = {}
        self._rows: dict[tuple[str, int], set[int]] = {}
        self._sets: dict[str, tuple[int, set[int]]] = {}

    def _on_prompt_rejected(self, event: PromptRejected) -> None:
        self.seen["refused"] += 1
        if event.dataset == TRAIN and event.source.offset >= 0:  # a line that is not a JSON object has no offset
            self._draw(event.source)

    def _on_prompt_submitted(self, event: PromptSubmitted) -> None:
        if event.purpose is Purpose.EVAL:
            self.seen["of evaluations"] += 1
            rows = self._rows.setdefault((event.dataset, event.version or 0), set())
            if event.source.offset in rows:
                wrong = f"prompt {event.source.offset} of its set was already submitted for v{event.version}"
                self.find(wrong, "it counts twice in the mean")
            rows.add(event.source.offset)
        elif event.source.path != INBOX:
            self._draw(event.source)
        else:
            key = (event.source.sender, event.source.key)
            first = self._keys.setdefault(key, self.recorded.position)
            self.seen["from outside"] = len(self._keys)
            if first != self.recorded.position:
                wrong = f"its key {event.source.key!r} was already taken in at position {first}"
                self.find(wrong, "a producer's prompt is trained on twice")

    def _draw(self, source: Source) -> None:
        expected = self._expected(source.path)
        if source.offset > expected:
            last = source.offset - 1
            skipped = f"prompt {last}" if last == expected else f"prompts {expected} to {last}"
            self.find(f"{skipped} of {source.path} did not come before it", "the cursor skipped prompts")
        elif source.offset < expected:
            wrong = f"prompt {source.offset} of {source.path} was already drawn, the cursor was at {expected}"
            self.find(wrong, "a prompt was repeated or drawn out of order")
        self._next[source.path] = max(expected, source.offset + 1)
        self.seen["drawn"] += 1
        self.seen["sources"] = len(self._next)

    def _expected(self, path: str) -> int:
        """Return the offset of a source's next prompt. A branch starts where its parent was, and skips the prompts that
        its parent had finished.
        """
        branched = self.ledger.branched
        if branched is None:
            return self._next.get(path, 0)
        start, passed = self._next.get(path, branched.cursors.get(path, 0)), branched.passed.get(path, ())
        return next(offset for offset in itertools.count(start) if offset not in passed)

    def _on_eval_completed(self, event: EvalCompleted) -> None:
        rows = self._rows.pop((event.dataset, event.version), set())
        version, first = self._sets.setdefault(event.dataset, (event.version, rows))
        if different := rows ^ first:
            wrong = f"its set differs from that of version {version} in prompt {min(different)}"
            self.find(wrong, "the two means cover different questions")
