"""One simulated run of each kind, for all tests of this folder."""

from __future__ import annotations

import pytest

from tests.audit.clean import CleanLogs, Run
from tests.audit.judged import Judged


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> CleanLogs:
    return CleanLogs(tmp_path_factory.mktemp("clean"))


@pytest.fixture(scope="session")
def synchronous(clean: CleanLogs) -> Run:
    return clean["synchronous"]


@pytest.fixture(scope="session")
def asynchronous(clean: CleanLogs) -> Run:
    return clean["asynchronous"]


@pytest.fixture(scope="session")
def judged(clean: CleanLogs) -> Judged:
    return Judged(clean)
