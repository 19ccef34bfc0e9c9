"""The finished run, shared by the whole folder."""

from __future__ import annotations

import pytest

from tests.run.whole import Finished, finish


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """See tests/run/whole.py."""
    return finish(tmp_path_factory.mktemp("whole"))
