"""`show RUN --sample S`: one rollout, token by token, with its reward, the decision on its group and its fate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from schemas.arrays import Array
from schemas.turns import TurnRecorded
from slime_events.analysis.model import History, SampleHistory
from slime_events.app.cli.commands.show_group import decision_facts, decision_text, fate_text
from slime_events.app.cli.render.event_line import spans_text
from slime_events.app.cli.render.json_values import plain
from slime_events.app.cli.render.text import block, clock, duration, fields, shorten, table
from slime_events.core.trajectory import Trajectory
from slime_events.plugins.sample_view import DecodePrompt, prompt_text

TOKENS = 64
Decode = Callable[[int], str]
"""The text of one token."""


def sample_facts(
    history: History,
    sample: SampleHistory,
    made: Trajectory | None,
    decode: Decode | None = None,
    decode_prompt: DecodePrompt | None = None,
) -> dict[str, Any]:
    """Everything about one sample. `made`: its tokens, where any are there; `decode`: the text of one, where known;
    `decode_prompt`: of a prompt of its own that the log holds no text of.
    """
    group, done = history.group_of(sample), sample.completed
    prompt = group.prompt.event if group.prompt else None
    return {
        "sample": sample.sample,
        "group": sample.group,
        "requests": [_request(said) for said in sample.requests],
        "interruptions": [plain(said.event) for said in sample.interruptions],
        "chunks": sample.chunks,
        "turns": [_turn(said.event) for said in sample.turns],
        "prompt": _prompt(prompt, done, made, decode_prompt) if prompt else "",
        "prompt_is_own": bool(done and done.event.prompt is not None),
        "label": prompt.label if prompt else None,
        "source": prompt.source.path if prompt else "",
        "text": done.event.text if done else "",
        "stop": done.event.stop.value if done else None,
        "length": sample.length,
        "spans": [list(plain(span).values()) for span in sample.spans],
        "versions": spans_text(sample.spans),
        "digest": done.event.digest if done else None,
        "engine": done.event.engine if done else None,
        "timings": plain(done.event.timings) if done else None,
        "origin": plain(done.event.origin) if done and done.event.origin else None,
        "completed_at": done.at if done else None,
        "reward": plain(sample.reward.event) if sample.reward else None,
        "decision": decision_facts(group),
        "step": group.step,
        "version": history.version_of_step(group.step),
        "tokens": _tokens(made, decode) if made else [],
    }


def _prompt(asked: Any, done: Any, made: Trajectory | None, decode: DecodePrompt | None) -> str:
    def text(_: Array) -> str:  # a history's events hold no numbers, the trajectory does
        return decode(made.prompt) if decode and made else ""

    return prompt_text(asked, done.event if done else None, text)


def _request(said: Any) -> dict[str, Any]:
    event = said.event
    return {
        "attempt": event.attempt,
        "at": said.at,
        "seed": event.seed,
        "min_version": event.min_version,
        "purpose": event.purpose.value,
        "sampling": plain(event.sampling),
    }


def _turn(event: TurnRecorded) -> dict[str, Any]:
    call = plain(event.call) if event.call else None
    return {
        "turn": event.index,
        "role": event.role.value,
        "seconds": event.seconds,
        "tokens": event.length,
        "text": event.text,
        "call": call,
        "result": event.result,
        "error": event.error,
    }


def _turns_text(turns: list[dict[str, Any]]) -> str:
    rows = [
        [
            turn["turn"],
            turn["role"],
            duration(turn["seconds"]),
            turn["tokens"] or "-",
            shorten(f"{turn['call']['name']} {turn['call']['arguments']}" if turn["call"] else turn["text"], 60),
            shorten(str(turn["error"] or turn["result"]) if turn["call"] else "", 40),
        ]
        for turn in turns
    ]
    return table(["turn", "role", "took", "tokens", "said or asked", "answer"], rows) if rows else ""


def _tokens(made: Trajectory, decode: Decode | None) -> list[dict[str, Any]]:
    versions: list[int | None] = [None] * made.length  # what nobody generated has none
    for span in made.spans:
        versions[span.start : span.end] = [span.version] * (span.end - span.start)
    mask = made.loss_mask.tolist() if made.loss_mask is not None else [1] * made.length
    return [
        {"token": token, "text": decode(token) if decode else None, "log_prob": log_prob, "version": version,
         "trained": bool(on)}
        for token, log_prob, version, on in zip(
            made.tokens.tolist(), made.log_probs.tolist(), versions, mask, strict=True
        )
    ]  # fmt: skip


def sample_text(facts: dict[str, Any], tokens: int = TOKENS) -> str:
    """The same, for people; `tokens`: at most so many rows of the token table, 0 for all."""
    parts = [
        _head(facts),
        _turns_text(facts["turns"]),
        f"{_prompt_title(facts)}\n{block(facts['prompt'])}",
        f"response\n{block(facts['text'])}",
        _token_table(facts["tokens"], tokens),
    ]
    return "\n\n".join(part for part in parts if part)


def _head(facts: dict[str, Any]) -> str:
    reward, timings = facts["reward"] or {}, facts["timings"]
    first = facts["requests"][0] if facts["requests"] else None
    return fields([
        ("sample", facts["sample"]),
        ("group", facts["group"]),
        ("requested", f"{clock(first['at'])}, seed {first['seed']}, from weights v{first['min_version']}"
                      if first else None),
        ("sampling", " ".join(f"{k} {v}" for k, v in first["sampling"].items() if v not in ([], False))
                     if first else None),
        ("attempts", len(facts["requests"]) if len(facts["requests"]) > 1 else None),
        ("interrupted", "\n".join(str(i.get("message") or i.get("reason")) for i in facts["interruptions"]) or None),
        ("completed", f"{clock(facts['completed_at'])} by {facts['stop']} on {facts['engine']}"
                      if facts["completed_at"] else "not yet"),
        ("recorded as", _origin(facts["origin"], facts["source"])),
        ("seconds", ", ".join(f"{k} {duration(v)}" for k, v in timings.items()) if timings else None),
        ("length", f"{facts['length']} tokens, {facts['chunks']} chunks before the end"),
        ("weights", facts["versions"]),
        ("digest", facts["digest"]),
        ("label", facts["label"]),
        ("reward", _reward(reward)),
        ("decision", decision_text(facts["decision"])),
        ("trained in", fate_text(facts["step"], facts["version"])),
    ])  # fmt: skip


def _prompt_title(facts: dict[str, Any]) -> str:
    if not facts["prompt_is_own"]:
        return "prompt"
    return "prompt of its own" + ("" if facts["prompt"] else ", whose text is not in this log")


def _origin(origin: dict[str, Any] | None, source: str) -> str | None:
    if origin is None:
        return None
    made = ", ".join(f"v{version}" for version in dict.fromkeys(span["version"] for span in origin["spans"]))
    return f"{origin['sample']} of run {origin['run']}, made by its {made}\nposition {origin['position']} of {source}"


def _reward(reward: dict[str, Any]) -> str:
    if not reward:
        return "not graded"
    by = f"by {reward['grader']} {reward['grader_digest'][:12]} in {reward['seconds'] * 1e3:.1f} ms"
    if "value" not in reward:
        return f"none ({reward['kind']}: {reward['message']}) {by}"
    return f"{reward['value']:g} {by}" + (f"\n{reward['detail']}" if reward["detail"] else "")


def _token_table(tokens: list[dict[str, Any]], limit: int) -> str:
    if not tokens:
        return ""
    shown = list(enumerate(tokens))
    if limit and len(tokens) > limit:
        shown = [*shown[: limit // 2], *shown[-(limit - limit // 2) :]]
    named = any(token["text"] is not None for token in tokens)
    masked = not all(token["trained"] for token in tokens)
    head = ["#", "token", *(["text"] if named else []), "log-prob", "version", *(["trained"] if masked else [])]
    rows = [
        [
            number,
            token["token"],
            *([shorten(repr(token["text"])[1:-1], 24)] if named else []),
            f"{token['log_prob']:.4f}",
            "-" if token["version"] is None else f"v{token['version']}",
            *(["yes" if token["trained"] else "no"] if masked else []),
        ]
        for number, token in shown
    ]
    left = len(tokens) - len(shown)
    note = f"\n{left} tokens in the middle are left out: --tokens 0 shows all" if left else ""
    return table(head, rows) + note
