"""Agents' sessions for a terminal: a table of sessions, or one session with its turns."""

from collections import Counter
from collections.abc import Iterable, Sequence

from schemas.sessions import SealReason
from slime_events.algorithms.credit import CreditRule
from slime_events.app.cli.render.text import clock, duration, fields, paragraphs, shorten, table
from slime_events.model.agent_session import AgentSession, AgentTurn

CLIENT, SEALED = 32, 160
"""Widths in a table, in characters: the clients' names, and the reason why a session ended."""


def sessions_summary(sessions: Sequence[AgentSession]) -> str | None:
    """Return `32 sessions of team in chat: 54 turns, 33 paths; sealed by reward 31, idle 1; roots first 32, ...`."""
    if not sessions:
        return None
    turns = sum(len(session.turns) for session in sessions)
    counts = [_count(turns, "turn"), _count(sum(len(session.paths) for session in sessions), "path")]
    counts += [_count(orphans, "orphan")] if (orphans := sum(len(session.orphans) for session in sessions)) else []
    ended = Counter(str(session.sealed) if session.sealed else "open" for session in sessions)
    sources = ", ".join(dict.fromkeys(session.source for session in sessions))
    dialects = ", ".join(dict.fromkeys(name for session in sessions for name in session.dialects))
    opened = f"{_count(len(sessions), 'session')} of {sources}" + (f" in {dialects}" if dialects else "")
    roots = Counter(str(root) for session in sessions for root in session.roots)
    return f"{opened}: {', '.join(counts)}; sealed by {_counted(ended)}; roots {_counted(roots)}"


def sessions_table(sessions: Iterable[AgentSession]) -> str:
    rows = [
        (session.session, session.source, ", ".join(session.dialects) or None,
         shorten(", ".join(session.clients), CLIENT) or None, len(session.turns),
         " ".join(map(str, session.leaves)) or None, len(session.samples), _roots(session) or None,
         " ".join(map(str, session.orphans)) or None, shorten(sealed_text(session), SEALED))
        for session in sessions
    ]  # fmt: skip
    head = ("session", "opened by", "api", "client", "turns", "ended by", "samples", "roots", "orphans", "sealed")
    return table(head, rows) if rows else ""


def session_paragraph(session: AgentSession) -> str:
    """Return a session with a table of its turns."""
    paths = [f"{path.sample}: turns {' '.join(map(str, path.turns))}" for path in session.paths]
    head = fields([
        ("session", session.session),
        ("opened by", f"{session.source}, {clock(session.opened_at)}"),
        ("api", ", ".join(session.dialects) or None),
        ("client", ", ".join(session.clients) or None),
        ("sealed", sealed_text(session)),
        ("credit", str(CreditRule(session.credit, session.discount)) if session.credit else None),
        ("paths", "\n".join(paths) or None),
    ])  # fmt: skip
    rows: list[tuple[object, ...]] = [
        (turn.turn, _place(turn), turn.dialect, turn.prompt, turn.tokens,
         ", ".join(f"v{version}" for version in turn.versions) or None, duration(turn.seconds), _trained(turn))
        for turn in session.turns
    ]  # fmt: skip
    rows += [(turn.turn, "under way", *[None] * 5, f"since {clock(turn.begun_at)}") for turn in session.open]
    heads = ("turn", "place", "api", "prompt", "tokens", "made by", "took", "trained in")
    return paragraphs(head, table(heads, rows) if rows else "")


def session_line(session: AgentSession) -> str:
    """Return `session train-0-000000-s0.0 of team in chat (OpenAI/Python 1.9), sealed by reward 1: 3 turns, ...`."""
    how = f" in {', '.join(session.dialects)}" if session.dialects else ""
    how += f" ({', '.join(session.clients)})" if session.clients else ""
    state = f"{'' if session.sealed is None else 'sealed '}{sealed_text(session)}"
    parts = [_count(len(session.turns), "turn"), f"roots {_roots(session) or 'none'}"]
    parts += [f"paths ended by {' '.join(map(str, session.leaves))}"] if session.leaves else []
    parts += [f"orphans {' '.join(map(str, session.orphans))}"] if session.orphans else []
    parts += [f"turn {turn.turn} under way since {clock(turn.begun_at)}" for turn in session.open]
    return f"session {session.session} of {session.source}{how}, {state}: {', '.join(parts)}"


def sealed_text(session: AgentSession) -> str:
    """Return why the session was sealed, such as `by reward 1`; or its open turns, or its failure."""
    if session.sealed is None:
        return f"open, {_count(len(session.open), 'turn')} under way" if session.failure is None else session.failure
    rewarded = session.sealed is SealReason.REWARD
    parts = [] if session.reward is None else [f"reward {session.reward:g}"]
    parts += [f"turn {turn}: {reward:g}" for turn, reward in session.rewards.items()]
    parts = [f"by {', '.join(parts)}"] if rewarded else [f"by {session.sealed}", *parts]
    parts += [f"exit code {session.exit_code}"] if session.exit_code is not None else []
    parts += [f"failed: {session.failure}"] if session.failure is not None else []
    return ", ".join(parts)


def _place(turn: AgentTurn) -> str:
    """Return `after 2`, `first`, or `drift at 31 from 2`."""
    if turn.root is None:
        return f"after {turn.extends}"
    at = "" if turn.drift is None else f" at {turn.drift}"
    return f"{turn.root}{at}" + ("" if turn.nearest is None else f" from {turn.nearest}")


def _trained(turn: AgentTurn) -> str:
    if turn.sample is None:
        return "none: orphan" if turn.orphan else "none"
    return turn.sample + (f" x {turn.weight:.3g}" if turn.weight not in (None, 1.0) else "")


def _roots(session: AgentSession) -> str:
    return ", ".join(_place(turn) for turn in session.turns if turn.root is not None)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common()) or "none"
