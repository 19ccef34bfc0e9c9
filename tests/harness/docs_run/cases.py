"""`CASES`: how each start of the pages is started, in the order in which they run.

The first makes the run `demo`, which pages read, branch off from, and train again. If the commands of a page use each
other's runs, they keep the order of the page.
"""

from __future__ import annotations

from tests.harness.docs_run.not_started import NOT_STARTED
from tests.harness.docs_run.pages_from_m import SECOND_CASES
from tests.harness.docs_run.pages_to_l import DEMO, FIRST_CASES

CASES = [*FIRST_CASES, *SECOND_CASES]

__all__ = ["CASES", "DEMO", "NOT_STARTED"]
