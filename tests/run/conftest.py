"""Share the finished run with the whole folder, and the clusters of a test's own launches."""

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
    """Collect the clusters of all launches."""
    started_clusters: list[LocalCluster] = []
    begin = LocalCluster.__init__

    def remember(self: LocalCluster, *args: Any) -> None:
        begin(self, *args)
        started_clusters.append(self)

    monkeypatch.setattr(LocalCluster, "__init__", remember)
    return started_clusters
