"""`retrain`: steps of a run trained again from its log, and compared.

same topology     every digest as it was committed, bit for bit
another topology  how far the weights are from the recorded ones: from their files, or, where those are gone, from
                  a training on the run's own topology just before, whose digests are all those of the log
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec import structs

from actors.offline.ranks_at import MakeRanks, begin
from actors.offline.retrainer import FarFrom, Retrainer, SameDigests, run_steps
from actors.trainer.checkpoints import CheckpointFolders
from actors.trainer.local_ranks import local_ranks
from actors.trainer.ranks import Ranks
from schemas.errors import ImpossibleCombination, TrainerError
from slime_events.analysis.retrain.difference import Retrained
from slime_events.analysis.retrain.recorded_steps import RecordedStep
from slime_events.analysis.retrain.report import Report, likely_causes
from slime_events.analysis.retrain.settings import is_same, topology_text, with_topology
from slime_events.analysis.retrain.version_chain import Chain, read_chain
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_reader import OpenedRun
from storage.weights.files import TensorView
from storage.weights.store import WeightStore, read


@dataclass(frozen=True, slots=True)
class Save:
    """Weights of a version into the folder `out`, as a run keeps them; with `checkpoint` the trainer's state too."""

    version: int
    out: str
    checkpoint: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """steps: as `Chain.chosen` reads them. from_base: pass checkpoints over. tensor, ranks: another topology."""

    steps: str | None = None
    from_base: bool = False
    tensor: int | None = None
    ranks: int | None = None
    save: Save | None = None


async def retrain(
    opened: OpenedRun,
    wanted: Wanted,
    on_step: Callable[[Retrained], None] = lambda step: None,
    *,
    environment: Mapping[str, str] | None = None,
    make_ranks: MakeRanks = local_ranks,
    begun: float | None = None,
) -> Report:
    """Train them, from the nearest checkpoint or the run's beginning. environment: versions of the parts here.

    begun: `time.perf_counter` when the work began, by default now. It ends at the first step that differs, which is
    in the report. Raises RunNotFound, InvalidValue for steps that there are not, TrainerError where the run's
    beginning is another one, StorageError.
    """
    begun = time.perf_counter() if begun is None else begun
    chain = await read_chain(opened.log)
    work = _Work(opened, chain, wanted, make_ranks)
    async with work.judge() as (judge, compared), make_ranks(work.settings) as ranks:
        building = time.perf_counter() - begun
        first = await work.begin(ranks)
        saver = _Saver(ranks, work.settings, wanted.save)
        await saver.visit(first)
        steps: list[Retrained] = []

        def judged(step: Retrained) -> None:
            steps.append(step)
            on_step(step)

        retrainer = Retrainer(ranks, judge, judged, visit=saver.visit, visits=saver.visits)
        await retrainer.run(work.stream(first))
    report = Report(
        run=opened.run,
        origin=_origin(first, chain),
        compared=compared,
        topology=topology_text(work.settings),
        exact=work.exact,
        steps=tuple(steps),
        seconds=time.perf_counter() - begun,
        building=building,
        run_seconds=chain.seconds(range(first, work.steps.stop)),
        saved=tuple(saver.folders),
    )
    if (wrong := report.wrong) is None:
        return report
    return structs.replace(report, causes=likely_causes(wrong, chain.started, environment or {}))


class _Work:
    """What is to be trained, how, and what it is compared with."""

    def __init__(self, opened: OpenedRun, chain: Chain, wanted: Wanted, make_ranks: MakeRanks) -> None:
        self._opened, self._chain, self._wanted, self._make_ranks = opened, chain, wanted, make_ranks
        self.settings = with_topology(opened.settings, wanted.tensor, wanted.ranks)
        self.exact = is_same(self.settings, opened.settings)
        self.steps = _steps(chain, wanted)
        if wanted.save is not None and not self.exact:
            raise ImpossibleCombination(
                "--save-version makes weights that the run had: only the run's own topology can"
            )

    async def begin(self, ranks: Ranks, *, exact: bool | None = None) -> int:
        exact = self.exact if exact is None else exact
        newest, from_base = self.steps.start, self._wanted.from_base
        return await begin(self._opened, self._chain, ranks, newest=newest, from_base=from_base, exact=exact)

    def stream(self, first: int) -> AsyncGenerator[RecordedStep, None]:
        return run_steps(self._opened, self._chain, range(first, self.steps.stop))

    @asynccontextmanager
    async def judge(self) -> AsyncIterator[tuple[SameDigests | FarFrom, str]]:
        """With what it compares, in words."""
        if self.exact:
            yield SameDigests(), "rewards, batch, weights and optimizer digest of each step with those in the log"
        elif all(self._file(step + 1) for step in self.steps):
            yield FarFrom(self._weights), "the weights after each step with the files that the run has written"
        else:
            with tempfile.TemporaryDirectory(prefix="slime-events-retrain-") as folder:
                store = WeightStore(folder, durable=False)
                await self._train_exactly(store)
                topology = topology_text(self._opened.settings)
                yield (
                    FarFrom(partial(_stored, store)),
                    (
                        f"the weights after each step with those of a training on the run's own topology ({topology}) "
                        "just before, whose digests were all those of the log: the run's own files are gone"
                    ),
                )

    async def _train_exactly(self, store: WeightStore) -> None:
        async with self._make_ranks(self._opened.settings) as ranks:
            first = await self.begin(ranks, exact=True)
            if wrong := await Retrainer(ranks, SameDigests(store)).run(self.stream(first)):
                raise TrainerError(
                    f"step {wrong.step} differs from what was committed on the run's own topology already: "
                    f"{', '.join(map(str, wrong.differences))}"
                )

    def _weights(self, version: int) -> Mapping[str, TensorView] | None:
        folder = self._file(version)
        return None if folder is None else read(folder)[1]

    def _file(self, version: int) -> str | None:
        """The folder of a version's weights, where the run's files are still there."""
        digest = self._chain.trained.committed[version].weights
        published = self._chain.trained.published.get(version)
        if published is not None and Path(published.url).is_dir():
            return published.url
        if self._opened.folder is None:
            return None
        folders = sorted(self._opened.folder.weights.glob(f"v{version:06d}-{digest[:12]}*"))
        return str(folders[-1]) if folders else None


class _Saver:
    """folders: that were written."""

    def __init__(self, ranks: Ranks, settings: TrainSettings, save: Save | None) -> None:
        self._ranks, self._base, self._save = ranks, settings.trainer.hf_checkpoint, save
        self.visits = frozenset() if save is None else frozenset({save.version})
        self.folders: list[str] = []

    async def visit(self, version: int) -> None:
        """Write the version that the ranks are at, if it is the one to save."""
        save = self._save
        if save is None or version != save.version:
            return
        store, tensors = WeightStore(save.out, base=self._base), await self._ranks.export_weights()
        manifest = await asyncio.to_thread(store.write, version, tensors, version - 1 if version else None)
        self.folders.append(store.folder(version, manifest.digest))
        if save.checkpoint:
            folder = CheckpointFolders(f"{save.out}/checkpoints").of(version)
            await self._ranks.save_checkpoint(folder)
            self.folders.append(folder)


def _stored(store: WeightStore, version: int) -> Mapping[str, TensorView]:
    return read(store.folder(version))[1]


def _steps(chain: Chain, wanted: Wanted) -> range:
    """What is to be trained; with a version to save alone, up to that version."""
    if wanted.save is None:
        return chain.chosen(wanted.steps)
    version = wanted.save.version
    chain.check(version)
    if wanted.steps is None:
        return range(version, version)
    steps = chain.chosen(wanted.steps)
    if not steps.start <= version <= steps.stop:
        raise ImpossibleCombination(
            f"--save-version {version} is none of the versions {steps.start} to {steps.stop} of --steps {wanted.steps}"
        )
    return steps


def _origin(first: int, chain: Chain) -> str:
    if first in chain.trained.saved:
        return f"the checkpoint of version {first}"
    return f"version {first}, which the run branched off from" if first else "the base checkpoint"
