"""Sessions of agents for a terminal: a line for each, or one with its turns."""

from collections import Counter
from collections.abc import Iterable, Sequence

from schemas.sessions import SealReason
from slime_events.analysis.model.agent_session import AgentSession, AgentTurn
from slime_events.app.cli.render.text import clock, duration, fields, paragraphs, shorten, table
from slime_events.core.credit import CreditRule

CLIENT, SEALED = 32, 160
"""Characters of a client's name, and of why a session ended, in a table."""


def sessions_summary(sessions: Sequence[AgentSession]) -> str | None:
    """`32 sessions of team in chat: 54 turns, 33 paths, 1 orphan; sealed by reward 31, idle 1; roots first 32, ...`."""
    if not sessions:
        return None
    turns = sum(len(one.turns) for one in sessions)
    counts = [_count(turns, "turn"), _count(sum(len(one.paths) for one in sessions), "path")]
    counts += [_count(orphans, "orphan")] if (orphans := sum(len(one.orphans) for one in sessions)) else []
    ended = Counter(str(one.sealed) if one.sealed else "open" for one in sessions)
    sources = ", ".join(dict.fromkeys(one.source for one in sessions))
    dialects = ", ".join(dict.fromkeys(name for one in sessions for name in one.dialects))
    opened = f"{_count(len(sessions), 'session')} of {sources}" + (f" in {dialects}" if dialects else "")
    roots = Counter(str(root) for one in sessions for root in one.roots)
    return f"{opened}: {', '.join(counts)}; sealed by {_counted(ended)}; roots {_counted(roots)}"


def sessions_table(sessions: Iterable[AgentSession]) -> str:
    """A line for each."""
    rows = [
        (one.session, one.source, ", ".join(one.dialects) or None,
         shorten(", ".join(one.clients), CLIENT) or None, len(one.turns),
         " ".join(map(str, one.leaves)) or None, len(one.samples),
         _roots(one) or None, " ".join(map(str, one.orphans)) or None, shorten(sealed_text(one), SEALED))
        for one in sessions
    ]  # fmt: skip
    head = ("session", "opened by", "api", "client", "turns", "ended by", "samples", "roots", "orphans", "sealed")
    return table(head, rows) if rows else ""


def session_paragraph(session: AgentSession) -> str:
    """One session with its turns."""
    head = fields([
        ("session", session.session),
        ("opened by", f"{session.source}, {clock(session.opened_at)}"),
        ("api", ", ".join(session.dialects) or None),
        ("client", ", ".join(session.clients) or None),
        ("sealed", sealed_text(session)),
        ("credit", str(CreditRule(session.credit, session.discount)) if session.credit else None),
        ("paths", "\n".join(f"{one.sample}: turns {' '.join(map(str, one.turns))}" for one in session.paths) or None),
    ])  # fmt: skip
    rows: list[tuple[object, ...]] = [
        (turn.turn, _place(turn), turn.dialect, turn.prompt, turn.tokens,
         ", ".join(f"v{version}" for version in turn.versions) or None, duration(turn.seconds), _trained(turn))
        for turn in session.turns
    ]  # fmt: skip
    rows += [(one.turn, "under way", *[None] * 5, f"since {clock(one.begun_at)}") for one in session.open]
    heads = ("turn", "place", "api", "prompt", "tokens", "made by", "took", "trained in")
    return paragraphs(head, table(heads, rows) if rows else "")


def session_line(session: AgentSession) -> str:
    """`session train-0-000000-s0.0 of team in chat (OpenAI/Python 1.9), sealed by reward, reward 1: 3 turns, ...`."""
    how = f" in {', '.join(session.dialects)}" if session.dialects else ""
    how += f" ({', '.join(session.clients)})" if session.clients else ""
    state = f"{'' if session.sealed is None else 'sealed '}{sealed_text(session)}"
    parts = [_count(len(session.turns), "turn"), f"roots {_roots(session) or 'none'}"]
    parts += [f"paths ended by {' '.join(map(str, session.leaves))}"] if session.leaves else []
    parts += [f"orphans {' '.join(map(str, session.orphans))}"] if session.orphans else []
    parts += [f"turn {one.turn} under way since {clock(one.begun_at)}" for one in session.open]
    return f"session {session.session} of {session.source}{how}, {state}: {', '.join(parts)}"


def sealed_text(session: AgentSession) -> str:
    """`reward 1`, `exit code 1, failed: ...`, or that it is open."""
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
    """`after 2`, `first`, `drift at 31 from 2`."""
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
