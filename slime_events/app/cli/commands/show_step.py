"""`show RUN --step N` and `--version V`: a step with its batch and result; a weight version and its use."""

from schemas.prompts import as_text
from slime_events.analysis.views.step import StepView
from slime_events.analysis.views.version import VersionView
from slime_events.app.cli.render.evals import evals_text
from slime_events.app.cli.render.text import clock, fields, paragraphs, restored_text, shorten, table

LABEL_WIDTH = 24


def step_text(view: StepView) -> str:
    """Return a step as text for a terminal."""
    done = view.committed
    parts = {"metrics": done.metrics, "seconds": done.seconds} if done else {}
    head = fields([
        ("step", view.step),
        ("sealed", f"{clock(view.sealed_at)}, oldest weights v{view.oldest_version}"),
        ("trained", f"v{done.parent_version} -> v{done.version} at {clock(view.committed_at or 0)}" if done
                    else "not yet"),
        ("size", f"{len(view.commands)} commands of a client" if view.commands
                 else f"{len(view.groups)} groups, {len(view.samples)} samples"),
        ("commands", "\n".join(view.commands) or None),
        ("tokens", done and done.tokens),
        ("batch", view.batch_digest),
        ("weights", done and done.weights_digest),
        ("optimizer", done and done.optimizer_digest),
        ("critic", done and done.critic_digest),
    ])  # fmt: skip
    return paragraphs(
        head,
        *([] if view.commands else _batch(view)),
        *(f"{name}\n{fields(sorted(values.items()), '  ')}" for name, values in parts.items() if values),
    )


def _batch(view: StepView) -> list[str]:
    """Return tables of the batch's groups and samples."""
    groups = [
        (g.group, g.dataset, shorten(as_text(g.label), LABEL_WIDTH), " ".join(f"{r:g}" for r in g.rewards))
        for g in view.groups
    ]
    samples = [
        (s.sample, f"{s.reward:.3f}", f"{s.normalised:.3f}", s.length, s.stop, s.versions, s.digest[:12])
        for s in view.samples
    ]
    return [
        table(("group", "from", "label", "rewards"), groups),
        table(("sample", "reward", "normalised", "length", "stop", "versions", "digest"), samples),
    ]


def _stored(view: VersionView) -> str | None:
    if not view.is_stored:
        return "not yet"
    if (stored := view.stored) is None:
        return None
    return f"after its step, {stored.kind}, {stored.bytes / 1e6:.1f} MB in {stored.seconds:.2f} s"


def version_text(view: VersionView) -> str:
    """Return a weight version as text for a terminal."""
    published, checkpoint = view.published, view.checkpoint
    maker = f"{view.branched.run}, the parent run" if view.branched else "nobody: the run begins with it"
    parent = published.parent if published else None
    head = fields([
        ("version", view.version),
        ("made by", maker if view.step is None else f"step {view.step} from v{parent}"),
        ("published", f"{clock(view.published_at or 0)}, {published.kind}, {published.bytes / 1e6:.1f} MB"
                      if published else "not published"),
        ("stored", _stored(view)),
        ("folder", published and published.url),
        ("digest", published and published.digest),
        ("checkpoint", checkpoint and checkpoint.url),
        *(("restored", f"by {event.trainer}: {restored_text(event)}") for event in view.restored),
    ])  # fmt: skip
    loads = [(a.engine, f"{a.seconds:.3f}", f"{a.lag:.3f}", a.resumed) for a in view.activations]
    return paragraphs(
        head,
        table(("engine", "update s", "after publication s", "continued rollouts"), loads) if loads else "",
        evals_text(view.evals),
    )
