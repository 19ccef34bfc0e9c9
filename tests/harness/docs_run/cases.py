"""`CASES`: how each start of the pages is started, in the order in which they are.

The first makes the run `demo`, which pages look at, branch off from, and train again. A page whose commands go on with
each other's runs has them in its order.
"""

from __future__ import annotations

from tests.harness.docs_run.not_started import NOT_STARTED
from tests.harness.docs_run.pages_from_m import SECOND_CASES
from tests.harness.docs_run.pages_to_l import DEMO, FIRST_CASES

CASES = [*FIRST_CASES, *SECOND_CASES]

__all__ = ["CASES", "DEMO", "NOT_STARTED"]
