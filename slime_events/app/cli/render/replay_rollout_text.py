"""A comparison of a rollout with its recording, for a terminal."""

from __future__ import annotations

from typing import Any

from slime_events.analysis.replay_rollout.compare import Comparison, Token
from slime_events.app.cli.render.text import duration, fields, shorten, table


def comparison_text(found: Comparison, engine: dict[str, Any]) -> str:
    """The verdict, where it parts, and each span. engine: device, deterministic, seconds."""
    how = "deterministic" if engine["deterministic"] else "not deterministic: other company may give other tokens"
    seconds = engine["seconds"]
    head = fields([
        ("sample", f"{found.sample} of run {found.run}, {found.tokens} tokens"),
        ("engine", f"SGLang on {engine['device']}, {how}; {duration(seconds['start'])} to start, "
                   f"{duration(seconds['replay'])} to {'score' if found.forced else 'make'} it"),
        ("tokens", "as recorded, fed to it" if found.forced else _tokens(found)),
        ("log-probs", f"{found.max_difference:.3g} nats apart at most, {found.mean_difference:.3g} on average"),
        ("verdict", "equal" if found.equal else _why(found)),
    ])  # fmt: skip
    rows = [
        (f"{s.start}:{s.end}", f"v{s.version}", s.same, f"{s.max_difference:.3g}", s.at, f"{s.mean_difference:.3g}")
        for s in found.spans
    ]
    parts = [
        head,
        table(("tokens", "version", "the same", "apart at most", "at", "on average"), rows),
        _divergence(found),
    ]
    return "\n\n".join(part for part in (*parts, *found.notes) if part)


def _tokens(found: Comparison) -> str:
    same = sum(span.same for span in found.spans)
    return f"all {same} the same" if found.divergence is None else f"the same up to {found.divergence.position}"


def _why(found: Comparison) -> str:
    if found.divergence is not None:
        return f"other tokens from {found.divergence.position} on"
    return f"log-probs differ by more than {found.tolerance:g}"


def _divergence(found: Comparison) -> str:
    if found.divergence is None:
        return ""
    return table(
        ("at", "token", "text", "log-prob"),
        [_line("recorded", found.divergence.recorded), _line("replayed", found.divergence.replayed)],
    )


def _line(name: str, token: Token) -> tuple[object, ...]:
    text = shorten(repr(token.text)[1:-1], 24)
    return name, token.token, text, None if token.log_prob is None else f"{token.log_prob:.4f}"
