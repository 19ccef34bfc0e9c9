"""`PendingBatches`: sealed batches that are not trained yet, with their rollouts. A fold of the log.

A rollout stays in memory from its request until its batch is trained or its group rejected, so memory does not grow
with the log.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from schemas.batches import BatchSealed
from schemas.commands import CommandGiven
from schemas.errors import StorageError
from schemas.event import Event, Purpose
from schemas.groups import GroupRejected
from schemas.ids import group_of
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutRequested, StopReason
from slime_events.core.tokens.trajectory import FOLDED, Fetch, Trajectories, Trajectory
from slime_events.core.training.batch_columns import CREDIT, LOSS_MASKS, TRUNCATED, BatchCredit, BatchMasks, entries_of
from slime_events.core.training.train_batch import TrainBatch, TrainSample
from slime_events.loop.commands.batch import OF_BATCHES, commanded_batch
from slime_events.loop.conductor.seal import batch_digest


def build_batch(
    sealed: BatchSealed, trajectories: Mapping[str, Trajectory], fetch: Fetch, *, temperature: float
) -> TrainBatch:
    """Return the batch that `sealed` names. Raises StorageError if the log does not have exactly what was sealed."""
    masks = BatchMasks(sealed, fetch)
    columns = {column.name: entries_of(column, fetch) for column in sealed.columns}
    columns.pop(LOSS_MASKS, None)
    columns.pop(CREDIT, None)
    credit = BatchCredit(sealed, fetch)
    truncated = dict(zip(sealed.samples, columns.pop(TRUNCATED, ()), strict=False))
    taught = dict(zip(sealed.samples, columns.get("teacher_log_probs", ()), strict=False))
    samples = []
    for sample, reward, raw in zip(sealed.samples, sealed.rewards, sealed.raw_rewards, strict=True):
        trajectory = trajectories.get(sample)
        if trajectory is None or trajectory.stop is None:
            raise StorageError(f"step {sealed.step} names sample {sample}, but the log has no completed rollout of it")
        samples.append(
            TrainSample(
                sample=trajectory.sample,
                group=group_of(trajectory.sample),
                rollout=trajectory.rollout or trajectory.sample,
                tokens=np.concatenate([fetch(trajectory.prompt), trajectory.tokens]).astype(np.int32, copy=False),
                response_length=trajectory.length,
                loss_mask=masks.of(sample, trajectory.loss_mask, trajectory.length),
                rollout_log_probs=engine_log_probs(trajectory),
                reward=reward,
                raw_reward=raw,
                oldest_version=trajectory.oldest,
                newest_version=trajectory.newest,
                truncated=bool(truncated.get(sample, trajectory.stop is StopReason.LENGTH)),
                reused=trajectory.reused,
                kept=tuple(trajectory.kept),
                spans=trajectory.spans,
                experts=engine_experts(trajectory, fetch),
                credit=credit.of(sample, trajectory.credit, fetch),
                teacher_log_probs=taught.get(
                    sample, None if (own := trajectory.teacher_log_probs) is None else fetch(own)
                ),
            )
        )
    lines = [(s.sample, trajectories[s.sample].digest, s.reward) for s in samples]
    if batch_digest(sealed.step, lines) != sealed.digest:
        raise StorageError(f"step {sealed.step}: the log's samples and rewards do not have the digest that was sealed")
    return TrainBatch(step=sealed.step, samples=tuple(samples), columns=columns, temperature=temperature)


def engine_log_probs(trajectory: Trajectory) -> npt.NDArray[np.float32]:
    """Return float32 [response], over the kept vocabulary if the log has it.

    Trained tokens outside of all spans are NaN: no engine made them, so their log-probs are unknown.
    """
    if trajectory.kept:
        log_probs = trajectory.log_probs.copy()
        for part in trajectory.kept:
            log_probs[part.start : part.start + len(part.log_probs)] = part.log_probs
        return log_probs
    if sum(span.end - span.start for span in trajectory.spans) == trajectory.length:
        return trajectory.log_probs
    unknown = np.ones(trajectory.length, np.bool_) if trajectory.loss_mask is None else trajectory.loss_mask != 0
    for span in trajectory.spans:
        unknown[span.start : span.end] = False
    return np.where(unknown, np.float32(np.nan), trajectory.log_probs)


def engine_experts(trajectory: Trajectory, fetch: Fetch) -> npt.NDArray[np.uint8] | npt.NDArray[np.uint16] | None:
    """Return [tokens, layers, each]; None if the log does not have them. Raises StorageError if they have no shape."""
    experts = trajectory.experts
    if experts is None:
        return None
    if experts.layers < 1 or experts.each < 1 or experts.ids.n % (experts.layers * experts.each):
        raise StorageError(
            f"rollout {trajectory.sample} has {experts.ids.n} experts, which are not {experts.each} in each of "
            f"{experts.layers} layers"
        )
    ids: npt.NDArray[np.uint8] | npt.NDArray[np.uint16] = fetch(experts.ids)
    return ids.reshape(-1, experts.layers, experts.each)


class PendingBatches:
    """Sealed batches and the data to build them.

    sealed: by step. temperature: sampling temperature, for log-probs. folded: the event types that are needed; all
    others are ignored.
    """

    folded: tuple[type[Event], ...] = (*FOLDED, RewardAssigned, BatchSealed, GroupRejected, CommandGiven)

    def __init__(self, fetch: Fetch, *, temperature: float) -> None:
        self._fetch, self._temperature = fetch, temperature
        self._trajectories = Trajectories(fetch)
        self._commands: dict[str, CommandGiven] = {}
        self.sealed: dict[int, BatchSealed] = {}

    def apply(self, event: Event, position: int) -> None:
        """Fold an event in. Evaluations and the generations of a rollout function are ignored."""
        if not isinstance(event, self.folded):
            return
        if isinstance(event, RolloutRequested) and event.purpose is not Purpose.TRAIN:
            return
        if isinstance(event, BatchSealed):
            self.sealed[event.step] = event
        elif isinstance(event, CommandGiven):
            if event.kind in OF_BATCHES:
                self._commands[event.command] = event
        elif isinstance(event, GroupRejected):
            self._trajectories.forget(event.samples)
        else:
            self._trajectories.apply(event, position)

    def knows(self, sample: str) -> bool:
        """Return whether a sample was requested for training and is still in memory."""
        return sample in self._trajectories.by_sample

    def make(self, step: int) -> TrainBatch:
        """Return the batch of a step. Raises StorageError if the log does not have exactly what was sealed."""
        if self.sealed[step].commands:
            return commanded_batch(self.sealed[step], self._commands, self._fetch)
        return build_batch(self.sealed[step], self._trajectories.by_sample, self._fetch, temperature=self._temperature)

    async def when_ready(self, step: int) -> TrainBatch:
        """Return the batch of a step as `make` does. Subclasses wait here until its rollouts are read."""
        return self.make(step)

    def forget(self, step: int) -> None:
        """Release the rollouts of a trained step."""
        done = self.sealed.pop(step, None)
        self._trajectories.forget(done.samples if done else ())
        for command in done.commands if done else ():
            self._commands.pop(command, None)
