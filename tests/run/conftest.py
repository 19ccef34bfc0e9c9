"""What the whole folder shares: the finished run, and the clusters of a test's own launches."""

from __future__ import annotations

from typing import Any

import pytest

from tests.run.cheap import LocalCluster
from tests.run.whole import Finished, finish


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """See tests/run/whole.py."""
    return finish(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> list[LocalCluster]:
    """Those that launches have made."""
    made: list[LocalCluster] = []
    begin = LocalCluster.__init__

    def remember(self: LocalCluster, *args: Any) -> None:
        begin(self, *args)
        made.append(self)

    monkeypatch.setattr(LocalCluster, "__init__", remember)
    return made
