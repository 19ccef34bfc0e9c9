"""`show RUN --sample S` and `--group G`: a rollout token by token; a prompt, its samples and the filter decision."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import convert

from schemas.arrays import Array
from schemas.groups import GroupAccepted
from schemas.prompts import as_text
from schemas.rewards import RewardFailed
from schemas.turns import TurnRecorded
from slime_events.app.cli.render.json_values import picked, plain
from slime_events.app.cli.render.session_text import session_line, sessions_table
from slime_events.app.cli.render.text import (
    block,
    clock,
    duration,
    fields,
    figures_text,
    paragraphs,
    shorten,
    spans_text,
    table,
)
from slime_events.core.trajectory import Trajectory
from slime_events.model import Group, Run, Sample
from slime_events.model.agent_session import AgentSession
from slime_events.plugins.sample_view import DecodePrompt, prompt_text

TOKENS = 64
TEXT_WIDTH = 60
REMOVED = ", but no token is trained: --rollout-sample-filter-path removed the sample"
REQUEST_FIELDS = ("seed", "min_version", "purpose", "sampling")
Decode = Callable[[int], str]
"""Returns the text of one token."""


def group_facts(run: Run, group: Group, sessions: Sequence[AgentSession] = ()) -> dict[str, Any]:
    """Return prompt, samples, decision, step and weight version; null for steps not reached yet.

    sessions: agents' sessions that made the samples.
    """
    prompt = group.prompt
    return {
        "group": group.group,
        "submitted_at": prompt.at if prompt else None,
        "submitted_by": prompt.producer if prompt else None,
        "prompt": plain(prompt.event) if prompt else None,
        "samples": [_sample_line(sample) for sample in group.members],
        "sessions": [plain(session) for session in sessions],
        "decision": _decision(group),
        "step": group.step,
        "version": run.version_of_step(group.step),
    }


def sample_facts(
    run: Run,
    sample: Sample,
    trajectory: Trajectory | None,
    decode: Decode | None = None,
    decode_prompt: DecodePrompt | None = None,
    sessions: Sequence[AgentSession] = (),
) -> dict[str, Any]:
    """Return everything that the log holds about one sample.

    trajectory: its tokens; None if it has none. decode_prompt: returns the text of the sample's own prompt, if the log
    holds only its tokens. sessions: agents' sessions that made it.
    """
    group, done = run.groups[sample.group], sample.completed.event if sample.completed else None
    prompt = group.prompt.event if group.prompt else None
    batch = run.steps.get(group.step) if group.step is not None else None
    removed = batch is not None and sample.sample in batch.sealed.event.removed

    def own_prompt(_: Array) -> str:  # the trajectory holds the token ids, records do not
        return decode_prompt(trajectory.prompt) if decode_prompt and trajectory else ""

    return {
        "sample": sample.sample,
        "group": sample.group,
        "requests": [
            {"attempt": request.event.attempt, "at": request.at, **picked(request.event, *REQUEST_FIELDS)}
            for request in sample.requests
        ],
        "interruptions": [plain(interruption.event) for interruption in sample.interruptions],
        "chunks": sample.chunks,
        "turns": [
            {"turn": turn.index, "role": turn.role.value, "seconds": turn.seconds, "tokens": turn.length,
             **picked(turn, "text", "call", "result", "error", "extends"), **_agent_fields(turn)}
            for turn in (entry.event for entry in sample.turns)
        ],
        "sessions": [plain(session) for session in sessions],
        "prompt": prompt_text(prompt, done, own_prompt) if prompt else "",
        "prompt_is_own": bool(done and done.prompt is not None),
        "label": prompt.label if prompt else None,
        "source": prompt.source.path if prompt else "",
        "text": done.text if done else "",
        "stop": done.stop.value if done else None,
        "length": sample.length,
        "spans": [list(plain(span).values()) for span in sample.spans],
        "versions": spans_text(sample.spans),
        **picked(done, "digest", "engine", "timings", "origin", "functions"),
        "completed_at": sample.completed.at if sample.completed else None,
        "reward": plain(sample.reward.event) if sample.reward else None,
        "decision": _decision(group),
        "step": group.step,
        "version": run.version_of_step(group.step),
        "removed": removed,
        "tokens": _tokens(trajectory, decode, removed=removed) if trajectory else [],
    }  # fmt: skip


def _agent_fields(turn: TurnRecorded) -> dict[str, Any]:
    """Return the fields that only an agent's turn has."""
    if turn.agent is None:
        return {}
    return picked(turn.agent, "dialect", "root", "nearest", "drift", "rule") | {"generation": turn.agent.call}


def _sample_line(sample: Sample) -> dict[str, Any]:
    done = sample.completed.event if sample.completed else None
    failure = sample.reward.event.message if sample.reward and isinstance(sample.reward.event, RewardFailed) else None
    if done is None and sample.interruptions:
        failure = getattr(sample.interruptions[-1].event, "message", None)
    return {
        "sample": sample.sample,
        "reward": sample.value,
        "length": sample.length,
        "stop": done.stop.value if done else None,
        "versions": spans_text(sample.spans),
        "attempts": len(sample.requests),
        "text": done.text if done else "",
        "failure": failure,
    }


def _decision(group: Group) -> dict[str, Any] | None:
    """Return the decision with its filter, figures and reason; None if there is no decision yet."""
    if group.verdict is None:
        return None
    event = group.verdict.event
    return {
        "accepted": isinstance(event, GroupAccepted),
        "cause": None if isinstance(event, GroupAccepted) else event.cause.value,
        **picked(event, "reason", "filter", "filter_digest", "figures", "rewards"),
        "at": group.verdict.at,
    }


def _tokens(trajectory: Trajectory, decode: Decode | None, *, removed: bool) -> list[dict[str, Any]]:
    versions: list[int | None] = [None] * trajectory.length  # tokens that no engine generated have no version
    for span in trajectory.spans:
        versions[span.start : span.end] = [span.version] * (span.end - span.start)
    mask = [1] * trajectory.length if trajectory.loss_mask is None else trajectory.loss_mask.tolist()
    columns = (trajectory.tokens.tolist(), trajectory.log_probs.tolist(), versions, mask)
    return [
        {"token": token, "text": decode(token) if decode else None, "log_prob": log_prob, "version": version,
         "trained": bool(trained) and not removed}
        for token, log_prob, version, trained in zip(*columns, strict=True)
    ]  # fmt: skip


def group_text(facts: dict[str, Any]) -> str:
    """Return `group_facts` as text for a terminal."""
    prompt = facts["prompt"] or {}
    head = fields([
        ("group", facts["group"]),
        ("from", _source(prompt)),
        ("submitted", f"{clock(facts['submitted_at'])} by {facts['submitted_by']}" if prompt else None),
        ("label", as_text(prompt.get("label")) or None),
        ("metadata", prompt.get("metadata") or None),
        ("decision", _decision_text(facts["decision"])),
        ("trained in", _fate_text(facts["step"], facts["version"])),
    ])  # fmt: skip
    lines = [f"{m.get('role', '?')}: {m.get('content', '')}" for m in prompt.get("messages") or ()]
    rows = [
        (s["sample"], s["reward"], s["length"], s["stop"], s["versions"],
         shorten(s["failure"] or s["text"], TEXT_WIDTH))
        for s in facts["samples"]
    ]  # fmt: skip
    return paragraphs(
        head,
        "messages\n" + block("\n".join(lines)) if lines else "",
        f"prompt\n{block(prompt.get('text', ''))}",
        table(("sample", "reward", "length", "stop", "versions", "text"), rows),
        sessions_table(_sessions(facts)),
    )


def sample_text(facts: dict[str, Any], tokens: int = TOKENS) -> str:
    """Return `sample_facts` as text for a terminal. tokens: most rows of the token table, 0 for all."""
    title = "prompt"
    if facts["prompt_is_own"]:
        title += " of the sample" + ("" if facts["prompt"] else ", whose text is not in this log")
    return paragraphs(
        _head(facts),
        _turns(facts["turns"], _sessions(facts)),
        f"{title}\n{block(facts['prompt'])}",
        f"response\n{block(facts['text'])}",
        _token_table(facts["tokens"], tokens),
    )


def _head(facts: dict[str, Any]) -> str:
    timings, first = facts["timings"], facts["requests"][0] if facts["requests"] else None
    sampling = [f"{k} {v}" for k, v in first["sampling"].items() if v not in ([], {}, False)] if first else []
    return fields([
        ("sample", facts["sample"]),
        ("group", facts["group"]),
        ("requested", f"{clock(first['at'])}, seed {first['seed']}, from weights v{first['min_version']}"
                      if first else None),
        ("sampling", " ".join(sampling) or None),
        ("attempts", len(facts["requests"]) if len(facts["requests"]) > 1 else None),
        ("interrupted", "\n".join(str(i.get("message") or i.get("reason")) for i in facts["interruptions"]) or None),
        ("completed", f"{clock(facts['completed_at'])} by {facts['stop']} on {facts['engine']}"
                      if facts["completed_at"] else "not yet"),
        ("recorded as", _origin(facts["origin"], facts["source"])),
        ("agent", "\n".join(map(session_line, _sessions(facts))) or None),
        ("made by", "\n".join(f"{name} {digest[:12]}" for name, digest in (facts["functions"] or {}).items()) or None),
        ("seconds", ", ".join(f"{k} {duration(v)}" for k, v in timings.items()) if timings else None),
        ("length", f"{facts['length']} tokens, {facts['chunks']} chunks before the end"),
        ("weights", facts["versions"]),
        ("digest", facts["digest"]),
        ("label", as_text(facts["label"]) or None),
        ("reward", _reward(facts["reward"] or {})),
        ("decision", _decision_text(facts["decision"])),
        ("trained in", _fate_text(facts["step"], facts["version"]) + REMOVED * facts["removed"]),
    ])  # fmt: skip


def _sessions(facts: dict[str, Any]) -> list[AgentSession]:
    return [convert(session, AgentSession, str_keys=True) for session in facts["sessions"]]


def _decision_text(decision: dict[str, Any] | None) -> str:
    if decision is None:
        return "not decided yet"
    verdict = "accepted" if decision["accepted"] else f"rejected ({decision['cause']})"
    by = f" by {decision['filter']}" if decision["filter"] != "none" else ", no filter set"
    why = f": {decision['reason']}" if decision["reason"] else ""
    figures = f", {figures_text(decision['figures'])}" if decision["figures"] else ""
    return f"{verdict}{by}{why}{figures}"


def _fate_text(step: int | None, version: int | None) -> str:
    """Return the step that trained the sample, and the resulting weight version."""
    if step is None:
        return "in no batch"
    return f"step {step}" + (f" -> weight version {version}" if version is not None else ", not committed yet")


def _source(prompt: dict[str, Any]) -> str | None:
    if not prompt:
        return None
    source = prompt["source"]
    if source["key"]:
        return f"{prompt['dataset']}, key {source['key']}"
    return f"{prompt['dataset']}, {source['path']}:{source['line']}, epoch {source['epoch']}"


def _origin(origin: dict[str, Any] | None, source: str) -> str | None:
    if origin is None:
        return None
    versions = ", ".join(f"v{version}" for version in dict.fromkeys(span["version"] for span in origin["spans"]))
    made_by = f"{origin['sample']} of run {origin['run']}, made by its {versions}"
    return f"{made_by}\nposition {origin['position']} of {source}"


def _reward(reward: dict[str, Any]) -> str:
    if not reward:
        return "not graded"
    by = f"by {reward['grader']} {reward['grader_digest'][:12]} in {reward['seconds'] * 1e3:.1f} ms"
    if "value" not in reward:
        return f"none ({reward['kind']}: {reward['message']}) {by}"
    return f"{reward['value']:g} {by}" + (f"\n{reward['detail']}" if reward["detail"] else "")


def _turns(turns: list[dict[str, Any]], sessions: Sequence[AgentSession]) -> str:
    rows, session_of = [], {turn.turn: session.session for session in sessions for turn in session.turns}
    for turn in turns:
        call = turn["call"]
        what = f"{call['name']} {call['arguments']}" if call else turn["text"]
        result = shorten(str(turn["error"] or turn["result"]) if call else "", 40)
        took = duration(turn["seconds"])
        after = "" if turn["extends"] is None else f"after {turn['extends']}"
        rows.append(
            (
                turn["turn"],
                turn["role"],
                turn.get("root") or after,
                took,
                turn["tokens"] or "-",
                shorten(what, TEXT_WIDTH),
                result,
                *([session_of.get(turn["turn"])] if len(sessions) > 1 else []),
            )
        )
    head = ("turn", "role", "place", "took", "tokens", "text or call", "result")
    return table((*head, *(["session"] if len(sessions) > 1 else [])), rows) if rows else ""


def _token_table(tokens: list[dict[str, Any]], limit: int) -> str:
    if not tokens:
        return ""
    numbers = list(range(len(tokens)))
    if limit and len(tokens) > limit:
        numbers = [*numbers[: limit // 2], *numbers[-(limit - limit // 2) :]]
    shown = [tokens[number] for number in numbers]
    columns: dict[str, list[Any]] = {"#": numbers, "token": [token["token"] for token in shown]}
    if any(token["text"] is not None for token in tokens):
        columns["text"] = [shorten(repr(token["text"])[1:-1], 24) for token in shown]
    columns["log-prob"] = [f"{token['log_prob']:.4f}" for token in shown]
    columns["version"] = ["-" if token["version"] is None else f"v{token['version']}" for token in shown]
    if not all(token["trained"] for token in tokens):
        columns["trained"] = ["yes" if token["trained"] else "no" for token in shown]
    left = len(tokens) - len(shown)
    note = f"\n{left} tokens in the middle are not shown: --tokens 0 shows all" if left else ""
    return table(list(columns), zip(*columns.values(), strict=True)) + note
