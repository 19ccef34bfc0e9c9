"""`show RUN --sample S` and `--group G`: a rollout token by token; a prompt, its samples and the filter decision."""

from collections.abc import Sequence

from schemas.prompts import PromptSubmitted, as_text
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import Origin, RolloutFailed, RolloutSuspended
from slime_events.analysis.views.group import Decision, GroupView
from slime_events.analysis.views.sample import SampleView, Token, Turn
from slime_events.app.cli.render.session_text import session_line, sessions_table
from slime_events.app.cli.render.text import block, clock, duration, fields, figures_text, paragraphs, shorten, table
from slime_events.model.agent_session import AgentSession
from slime_events.model.json_values import plain

TOKENS = 64
TEXT_WIDTH = 60
REMOVED = ", but no token is trained: --rollout-sample-filter-path removed the sample"


def group_text(view: GroupView) -> str:
    """Return a group as text for a terminal."""
    prompt = view.prompt
    head = fields([
        ("group", view.group),
        ("from", prompt and _source(prompt)),
        ("submitted", f"{clock(view.submitted_at or 0)} by {view.submitted_by}" if prompt else None),
        ("label", as_text(prompt.label) or None if prompt else None),
        ("metadata", plain(prompt.metadata) or None if prompt else None),
        ("decision", _decision_text(view.decision)),
        ("trained in", _fate_text(view.step, view.version)),
    ])  # fmt: skip
    messages = (prompt.messages if prompt else None) or ()
    lines = [f"{message.get('role', '?')}: {message.get('content', '')}" for message in messages]
    rows = [
        (s.sample, s.reward, s.length, s.stop, s.versions, shorten(s.failure or s.text, TEXT_WIDTH))
        for s in view.samples
    ]
    return paragraphs(
        head,
        "messages\n" + block("\n".join(lines)) if lines else "",
        f"prompt\n{block(prompt.text if prompt else '')}",
        table(("sample", "reward", "length", "stop", "versions", "text"), rows),
        sessions_table(view.sessions),
    )


def sample_text(view: SampleView, tokens: int = TOKENS) -> str:
    """Return a sample as text for a terminal. tokens: most rows of the token table, 0 for all."""
    title = "prompt"
    if view.prompt_is_own:
        title += " of the sample" + ("" if view.prompt else ", whose text is not in this log")
    return paragraphs(
        _head(view),
        _turns(view.turns, view.sessions),
        f"{title}\n{block(view.prompt)}",
        f"response\n{block(view.text)}",
        _token_table(view.tokens, tokens),
    )


def _head(view: SampleView) -> str:
    timings, first = view.timings, view.requests[0] if view.requests else None
    sampling = [f"{k} {v}" for k, v in plain(first.sampling).items() if v not in ([], {}, False)] if first else []
    return fields([
        ("sample", view.sample),
        ("group", view.group),
        ("requested", f"{clock(first.at)}, seed {first.seed}, from weights v{first.min_version}" if first else None),
        ("sampling", " ".join(sampling) or None),
        ("attempts", len(view.requests) if len(view.requests) > 1 else None),
        ("interrupted", "\n".join(_interruption(event) for event in view.interruptions) or None),
        ("completed", f"{clock(view.completed_at)} by {view.stop} on {view.engine}" if view.completed_at
                      else "not yet"),
        ("recorded as", view.origin and _origin(view.origin, view.source)),
        ("agent", "\n".join(map(session_line, view.sessions)) or None),
        ("made by", "\n".join(f"{name} {digest[:12]}" for name, digest in (view.functions or {}).items()) or None),
        ("seconds", ", ".join(f"{k} {duration(v)}" for k, v in plain(timings).items()) if timings else None),
        ("length", f"{view.length} tokens, {view.chunks} chunks before the end"),
        ("weights", view.versions),
        ("digest", view.digest),
        ("label", as_text(view.label) or None),
        ("reward", _reward(view.reward)),
        ("decision", _decision_text(view.decision)),
        ("trained in", _fate_text(view.step, view.version) + REMOVED * view.removed),
    ])  # fmt: skip


def _interruption(event: RolloutFailed | RolloutSuspended) -> str:
    return event.message if isinstance(event, RolloutFailed) else str(event.reason)


def _decision_text(decision: Decision | None) -> str:
    if decision is None:
        return "not decided yet"
    verdict = "accepted" if decision.accepted else f"rejected ({decision.cause})"
    by = f" by {decision.filter}" if decision.filter != "none" else ", no filter set"
    why = f": {decision.reason}" if decision.reason else ""
    figures = f", {figures_text(decision.figures)}" if decision.figures else ""
    return f"{verdict}{by}{why}{figures}"


def _fate_text(step: int | None, version: int | None) -> str:
    """Return the step that trained the sample, and the resulting weight version."""
    if step is None:
        return "in no batch"
    return f"step {step}" + (f" -> weight version {version}" if version is not None else ", not committed yet")


def _source(prompt: PromptSubmitted) -> str:
    source = prompt.source
    if source.key:
        return f"{prompt.dataset}, key {source.key}"
    return f"{prompt.dataset}, {source.path}:{source.line}, epoch {source.epoch}"


def _origin(origin: Origin, source: str) -> str:
    versions = ", ".join(f"v{version}" for version in dict.fromkeys(span.version for span in origin.spans))
    made_by = f"{origin.sample} of run {origin.run}, made by its {versions}"
    return f"{made_by}\nposition {origin.position} of {source}"


def _reward(reward: RewardAssigned | RewardFailed | None) -> str:
    if reward is None:
        return "not graded"
    by = f"by {reward.grader} {reward.grader_digest[:12]} in {reward.seconds * 1e3:.1f} ms"
    if isinstance(reward, RewardFailed):
        return f"none ({reward.kind}: {reward.message}) {by}"
    return f"{reward.value:g} {by}" + (f"\n{reward.detail}" if reward.detail else "")


def _turns(turns: Sequence[Turn], sessions: Sequence[AgentSession]) -> str:
    session_of = {turn.turn: session.session for session in sessions for turn in session.turns}
    rows = [
        (turn.turn, turn.role, turn.root or ("" if turn.extends is None else f"after {turn.extends}"),
         duration(turn.seconds), turn.tokens or "-", *_content(turn),
         *([session_of.get(turn.turn)] if len(sessions) > 1 else []))
        for turn in turns
    ]  # fmt: skip
    head = ("turn", "role", "place", "took", "tokens", "text or call", "result")
    return table((*head, *(["session"] if len(sessions) > 1 else [])), rows) if rows else ""


def _content(turn: Turn) -> tuple[str, str]:
    """Return the text or call, and the result of a call."""
    if turn.call is None:
        return shorten(turn.text, TEXT_WIDTH), ""
    call = f"{turn.call.name} {plain(turn.call.arguments)}"
    return shorten(call, TEXT_WIDTH), shorten(str(turn.error or plain(turn.result)), 40)


def _token_table(tokens: Sequence[Token], limit: int) -> str:
    if not tokens:
        return ""
    numbers = list(range(len(tokens)))
    if limit and len(tokens) > limit:
        numbers = [*numbers[: limit // 2], *numbers[-(limit - limit // 2) :]]
    shown = [tokens[number] for number in numbers]
    columns: dict[str, list[object]] = {"#": [*numbers], "token": [token.token for token in shown]}
    if any(token.text is not None for token in tokens):
        columns["text"] = [shorten(repr(token.text)[1:-1], 24) for token in shown]
    columns["log-prob"] = [f"{token.log_prob:.4f}" for token in shown]
    columns["version"] = ["-" if token.version is None else f"v{token.version}" for token in shown]
    if not all(token.trained for token in tokens):
        columns["trained"] = ["yes" if token.trained else "no" for token in shown]
    left = len(tokens) - len(shown)
    note = f"\n{left} tokens in the middle are not shown: --tokens 0 shows all" if left else ""
    return table(list(columns), zip(*columns.values(), strict=True)) + note
