"""`event_line`: an event in one readable line, without raw arrays."""

from collections.abc import Callable
from typing import Any

from schemas.batches import BatchSealed
from schemas.evals import rates_text
from schemas.rollouts import Maker, spans_text
from schemas.steps import StepCommitted
from schemas.turns import TurnBegun, TurnRecorded
from slime_events.app.cli.render.text import clock, figures_text, one_line, placement_text, restored_text, shorten
from storage.log import Recorded

TEXT_WIDTH = 60


def event_line(recorded: Recorded) -> str:
    """Return position, time, type, entity and main figures of an event. The result has no line break."""
    envelope, event = recorded.envelope, recorded.envelope.event
    head = f"{recorded.position:>7} {clock(envelope.at)}  {envelope.type:<18} {event.entity()}"
    return one_line(f"{head}  {_FIGURES[envelope.type](event)}".rstrip())


def _quoted(text: str) -> str:
    return f'"{shorten(text, TEXT_WIDTH)}"'


def _turn(e: TurnBegun | TurnRecorded) -> str:
    if e.call is not None:
        return f"calls {e.call.name}"
    return f"{e.role} {e.length} tokens {spans_text(e.spans)}" if isinstance(e, TurnRecorded) else str(e.role)


def _sealed(e: BatchSealed) -> str:
    mean = sum(e.raw_rewards) / len(e.raw_rewards) if e.raw_rewards else 0.0
    if e.commands:
        return f"{len(e.commands)} commands up to {e.commands[-1]}"
    more = f", {len(e.removed)} removed from training" if e.removed else ""
    more += f", train data by {e.converted_by}" if e.converted_by else ""
    more += ", rollouts in flight are suspended" if e.suspends else ""
    return f"{len(e.groups)} groups {len(e.samples)} samples reward {mean:.3f} oldest v{e.oldest_version}{more}"


def _committed(e: StepCommitted) -> str:
    loss = f" loss {e.metrics['loss']:.4g}" if "loss" in e.metrics else ""
    return f"v{e.parent_version} -> v{e.version} {e.samples} samples {e.tokens} tokens{loss} {_seconds(e.seconds)}"


def _seconds(parts: dict[str, float]) -> str:
    return " ".join(f"{name} {value:.2f} s" for name, value in parts.items())


_FIGURES: dict[str, Callable[[Any], str]] = {
    "run.started": lambda e: f"slime-events {e.code_version}",
    "run.resumed": lambda e: f"incarnation {e.incarnation}, slime-events {e.code_version}",
    "run.finished": lambda e: f"{e.reason} after {e.steps} steps, {e.events} events, state {e.state_digest[:12]}",
    "run.failed": lambda e: f"{e.role}: {e.reason}",
    "prompt.submitted": lambda e: (
        f"{e.dataset}{f' key {e.source.key}' if e.source.key else ''} {e.tokens.n} tokens {_quoted(e.text)}"
    ),
    "prompt.offered": lambda e: f"key {e.key}{f' by {e.sender}' if e.sender else ''}",
    "rollout.offered": lambda e: (
        f"{e.tokens.n} tokens v{e.version}{f' by {e.sender}' if e.sender else ''} {_quoted(e.text)}"
    ),
    "prompt.wanted": lambda e: f"{e.total} prompts in all",
    "prompt.rejected": lambda e: f"{e.source.path}:{e.source.key or e.source.line} {e.reason}",
    "rollout.requested": lambda e: (
        f"answered by {e.function}"
        if e.function
        else f"attempt {e.attempt} from v{e.min_version} by an agent"
        if e.maker is Maker.AGENT
        else f"attempt {e.attempt} from v{e.min_version} at most {e.sampling.max_new_tokens} tokens"
    ),
    "rollout.progressed": lambda e: f"tokens {e.start} to {e.start + e.tokens.n} {spans_text(e.spans)} on {e.engine}",
    "rollout.completed": lambda e: (
        f"{e.length} tokens {e.stop} {spans_text(e.spans)} {e.timings.generating:.2f} s {_quoted(e.text)}"
    ),
    "rollout.returned": lambda e: (
        f"{'evaluation' if e.evaluation else f'{len(e.groups)} groups'} by {e.function} in {e.seconds:.1f} s"
        + (f", {len(e.dropped)} not returned" if e.dropped else "")
    ),
    "rollout.suspended": lambda e: f"{e.reason} with {e.length} tokens",
    "turn.begun": lambda e: f"turn {e.index} {_turn(e)} on {e.engine}",
    "turn.recorded": lambda e: f"turn {e.index} {_turn(e)} in {e.seconds:.2f} s",
    "session.opened": lambda e: f"attempt {e.attempt} by {e.sender}",
    "session.sealed": lambda e: (
        f"attempt {e.attempt} {e.reason} after {e.turns} turns, {e.seconds:.1f} s"
        + ("" if e.exit_code is None else f", exit code {e.exit_code}")
        + ("" if e.reward is None else f", reward {e.reward:.4g}")
    ),
    "rollout.failed": lambda e: f"attempt {e.attempt} {e.kind}: {e.message}",
    "reward.assigned": lambda e: f"{e.value:.4g} by {e.grader} in {e.seconds * 1e3:.1f} ms",
    "reward.failed": lambda e: f"{e.kind} by {e.grader}: {e.message}",
    "group.accepted": lambda e: f"by {e.filter} {figures_text(e.figures)}" + (f" ({e.reason})" if e.reason else ""),
    "group.rejected": lambda e: f"{e.cause} by {e.filter}: {e.reason} {figures_text(e.figures)}".rstrip(),
    "command.given": lambda e: f"{e.kind}{f' {e.datums.n} bytes of datums' if e.datums.n else ''} of {e.source}",
    "command.done": lambda e: f"on v{e.version} {e.error or e.path or figures_text(e.metrics)} {e.seconds:.2f} s",
    "batch.sealed": _sealed,
    "step.claimed": lambda e: f"by {e.trainer}",
    "step.committed": _committed,
    "trainer.restored": lambda e: f"{e.trainer}: {restored_text(e)}",
    "weights.published": lambda e: f"{e.kind} {e.bytes / 1e6:.1f} MB digest {e.digest[:12]} {e.url}",
    "weights.stored": lambda e: f"{e.kind} {e.bytes / 1e6:.1f} MB in {e.seconds:.2f} s {e.url}",
    "weights.activated": lambda e: f"on {e.engine} in {e.seconds:.2f} s, {e.lag:.2f} s after publication",
    "transfer.joined": lambda e: f"v{e.version} to {e.engine} by {e.backend}",
    "transfer.begun": lambda e: f"v{e.version} to {', '.join(e.members)} by {e.backend}",
    "transfer.ended": lambda e: f"{e.outcome} in {e.seconds:.2f} s" + (f": {e.reason}" if e.reason else ""),
    "eval.completed": lambda e: (
        f"mean {e.mean:.3f} over {e.samples} samples, {e.failed} failed"
        + (f", {rates_text(e.pass_rates)}" if e.pass_rates else "")
    ),
    "checkpoint.saved": lambda e: f"{e.url} in {e.seconds:.1f} s",
    "archive.sealed": lambda e: f"positions {e.first} to {e.last}, {e.bytes / 1e6:.1f} MB",
    "placement.planned": placement_text,
    "device.wanted": lambda e: f"by {e.worker}",
    "device.taken": lambda e: f"by {e.worker} of the {e.side} after {e.seconds:.2f} s",
    "device.released": lambda e: f"by {e.worker} of the {e.side} in {e.seconds:.2f} s",
    "worker.joined": lambda e: f"{e.role} pid {e.pid} {_seconds(e.seconds)}",
    "worker.lost": lambda e: f"{e.role}: {e.reason}",
}
