"""One running SGLang takes the same versions by every carrier: the same digest, and the same next 100 tokens.

With the tests that kill processes within each carrier it is one command: docs/testing.md#every-way-of-weights.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import pytest_asyncio
from msgspec.structs import replace

from schemas.weights import WeightsCarrier, WeightsPublished
from serve_apps.engines.carriers.carrier import WeightPlaces
from serve_apps.engines.carriers.delivery import Delivery
from serve_apps.engines.sglang_engine import SglangEngine
from slime_events.core.config.engine import EngineSettings
from storage.folders.cache import FOLDER
from storage.weights.delta_rule import DeltaRule
from storage.weights.delta_version import base_of
from storage.weights.files import open_checkpoint
from storage.weights.shards import TensorBytes
from storage.weights.shared_versions import SharedVersions
from storage.weights.store import WeightStore
from storage.weights.stored_version import verify
from tests import made
from tests.engine import tiny_model
from tests.engine.broadcasts import Stored
from tests.engine.contract import Response, collect, request
from tests.storage.seaweed import as_s3

pytestmark = [pytest.mark.real, pytest.mark.soak, pytest.mark.asyncio(loop_scope="module")]

START_S = 240.0
VERSIONS = 5
FULL_EVERY = 3
LATE = (4, 1, 2, 0, 3)
"""The order in which an engine that joined late takes them: the newest, and then each of them again."""
RULE = DeltaRule(FULL_EVERY)
KINDS = {"files": None, "deltas": RULE, "s3": None, "s3 deltas": RULE, "memory": None, "memory deltas": RULE}
"""Carriers that bring a folder, with how versions are stored."""


class Taken(NamedTuple):
    """Digest of a version, and the response that the engine generates with it."""

    digest: str
    tokens: bytes
    log_probs: bytes


async def _response(engine: SglangEngine) -> Response:
    return await collect(engine, request(5, new=100, more={"ignore_eos": True}))


def _taken(digest: str, response: Response) -> Taken:
    assert len(response.tokens) == 100
    return Taken(digest, response.tokens.tobytes(), response.log_probs.tobytes())


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [tiny_model.write(tmp_path_factory.mktemp(f"weights{seed}"), seed) for seed in range(2)]


@pytest.fixture(scope="module")
def versions(checkpoints: list[Path]) -> list[list[TensorBytes]]:
    """Version 0 is a checkpoint; in each later one more of its values are those of another."""
    first, last = map(open_checkpoint, checkpoints)
    rng, made_of = np.random.default_rng(0), []
    for version in range(VERSIONS):
        tensors: list[TensorBytes] = []
        for name, tensor in first.items():
            old, new = (np.frombuffer(each[name].data, np.float32) for each in (first, last))
            tensors.append((name, "F32", tensor.shape, np.where(rng.random(old.size) < 0.2 * version, new, old)))
        made_of.append(tensors)
    return made_of


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with as_s3(tmp_path_factory.mktemp("s3")):
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(checkpoints: list[Path]) -> AsyncIterator[SglangEngine]:
    settings = EngineSettings(hf_checkpoint=str(checkpoints[0]), device="cpu")
    engine = SglangEngine(settings, template=f"carriers-{os.getpid()}")
    await engine.start(START_S)
    yield engine
    await engine.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def expected(
    engine: SglangEngine,
    versions: list[list[TensorBytes]],
    checkpoints: list[Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> list[Taken]:
    """Responses with each version, read from a plain checkpoint."""
    store, taken = WeightStore(str(tmp_path_factory.mktemp("plain")), checkpoints[0], durable=False), list[Taken]()
    for version, tensors in enumerate(versions):
        digest = store.write(version, tensors, None).digest
        await engine.update_weights(store.folder(version), engine.version + 1)
        taken.append(_taken(digest, await _response(engine)))
    assert len({each.log_probs for each in taken}) == VERSIONS
    return taken


def _published(store: WeightStore, version: int, digest: str, offered: SharedVersions | None) -> WeightsPublished:
    event = made.published(version, url=store.folder(version, digest), digest=digest)
    carrier = WeightsCarrier.FILES if offered is None else offered.carrier(version, digest)
    return replace(event, carrier=carrier)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_late_engine_takes_each_version(
    engine: SglangEngine,
    versions: list[list[TensorBytes]],
    expected: list[Taken],
    checkpoints: list[Path],
    s3: None,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has no copies: what is stored as deltas is made from the full version before it."""
    run, rule = f"carriers-{os.getpid()}-{kind}", KINDS[kind]
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    url = f"s3://slime/{kind.replace(' ', '-')}/run" if kind.startswith("s3") else str(tmp_path / "w")
    offered = SharedVersions(run, lambda version: True) if kind.startswith("memory") else None
    store = WeightStore(url, checkpoints[0], durable=False, deltas=rule, offering=offered)
    events = []
    for version, tensors in enumerate(versions):
        manifest = store.write(version, tensors, version - 1 if version else None)
        events.append(_published(store, version, manifest.digest, offered))
        assert (base_of(events[-1].url) is not None) == (rule is not None and version % FULL_EVERY != 0)
    monkeypatch.setenv(FOLDER, str(tmp_path / "other-cache"))  # of another host
    delivery = Delivery(WeightPlaces(url, copies=str(tmp_path / "copies"), run=run))
    with contextlib.closing(_Retired(offered)):
        for version in LATE:
            with ExitStack() as held:
                update = await delivery.bring(events[version], held, wait_s=0)
                by_memory = offered is not None
                assert update.carrier is (WeightsCarrier.SHARED_MEMORY if by_memory else WeightsCarrier.FILES)
                assert verify(update.folder, expected[version].digest).version == version
                await engine.update_weights(str(update.folder), engine.version + 1)
            taken = _taken(events[version].digest, await _response(engine))
            assert taken == expected[version]


class _Retired:
    """Withdraws what is offered in memory."""

    def __init__(self, offered: SharedVersions | None) -> None:
        self._offered = offered

    def close(self) -> None:
        if self._offered is not None:
            self._offered.retire(None)


@pytest.mark.parametrize("rule", [None, RULE], ids=["full", "deltas"])
async def test_an_engine_receives_a_version_by_a_broadcast(
    engine: SglangEngine,
    versions: list[list[TensorBytes]],
    expected: list[Taken],
    checkpoints: list[Path],
    rule: DeltaRule | None,
    tmp_path: Path,
) -> None:
    """The sender reads full versions and deltas."""
    store = WeightStore(str(tmp_path / "w"), checkpoints[0], durable=False, deltas=rule)
    for version, tensors in enumerate(versions):
        store.write(version, tensors, version - 1 if version else None)
    for version in (4, 1):
        stored = Stored.of(store, version)
        assert (base_of(stored.folder) is not None) == (rule is not None)
        stored.version = engine.version + 1
        async with stored.sent() as sent:
            assert await sent.receive(engine) == (None, "")
        assert _taken(sent.digest, await _response(engine)) == expected[version]
