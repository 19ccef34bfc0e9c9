"""`slime-events replay-rollout`: generate one rollout again, on an engine with the same weights."""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from serve_apps.engines.arguments import engine_launch
from serve_apps.engines.sglang_engine import SglangEngine
from serve_apps.rollouts.replay_rollout import replay
from slime_events.analysis.replay_rollout.compare import Comparison, Decode, Token, compare
from slime_events.analysis.replay_rollout.recorded import RecordedRollout, read_rollout, weight_folder
from slime_events.app.cli.render.text import duration, fields, json_text, paragraphs, shorten, table
from slime_events.core.config.engine import EngineSettings
from slime_events.core.config.reach import check_reach
from slime_events.core.run.places import readable_weights
from slime_events.core.run.run_reader import open_run
from storage.weights.whole_copies import whole_copy

START_S = 600.0


async def run(arguments: argparse.Namespace) -> int:
    """Print the comparison; return 1 if the rollouts differ."""
    async with open_run(arguments.run, arguments.runs_dir) as opened:
        rollout = await read_rollout(opened, arguments.sample)
        check_reach(opened.settings, "engine")
        settings = opened.settings.engine
        own = readable_weights(opened.settings.run, opened.folder)
        folders = [*arguments.weights, *([own] if own else [])]
    with contextlib.ExitStack() as held:

        def local(version: int) -> str:
            return str(held.enter_context(whole_copy(weight_folder(rollout, version, folders))))

        base, device = local(rollout.spans[0].version), arguments.device or settings.device
        settings = msgspec.structs.replace(settings, hf_checkpoint=base, device=device)
        comparison, engine = await _with_engine(rollout, settings, local, arguments)
    if arguments.json:
        sys.stdout.write(json_text(msgspec.to_builtins(comparison) | {"engine": engine}))
    else:
        print(comparison_text(comparison, engine))
    return 0 if comparison.equal else 1


async def _with_engine(
    rollout: RecordedRollout, settings: EngineSettings, local: Callable[[int], str], arguments: argparse.Namespace
) -> tuple[Comparison, dict[str, Any]]:
    """Return the comparison, and the engine's device, determinism and seconds. local: returns a version's folder."""
    first = rollout.spans[0].version
    launch = engine_launch(settings, first)
    engine, begun = SglangEngine(settings, first), time.perf_counter()
    await engine.start(START_S)
    try:
        started = time.perf_counter()
        stretches = await replay(engine, rollout, local, force=arguments.force)
        seconds = {"start": started - begun, "replay": time.perf_counter() - started}
    finally:
        await engine.stop()
    decode = token_decoder(Path(settings.hf_checkpoint))
    facts = {"device": launch.device, "deterministic": launch.deterministic, "seconds": seconds}
    return compare(rollout, stretches, decode, forced=arguments.force, tolerance=arguments.tolerance), facts


def token_decoder(folder: Path) -> Decode:
    """Return a decoder that uses the tokenizer in the folder of the weights, or shows token ids if there is none."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return lambda token: f"<{token}>"
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    return lambda token: str(tokenizer.decode([token], skip_special_tokens=False))


def comparison_text(comparison: Comparison, engine: dict[str, Any]) -> str:
    """Return the verdict, the first difference and a table of spans. engine: its device, determinism and seconds."""
    how = "deterministic" if engine["deterministic"] else "not deterministic: another batch may give other tokens"
    seconds, divergence = engine["seconds"], ""
    same = f"all {sum(span.same for span in comparison.spans)} the same"
    why = f"log-probs differ by more than {comparison.tolerance:g}"
    if other := comparison.divergence:
        same, why = f"the same up to {other.position}", f"tokens differ from {other.position}"
        lines = [_line("recorded", other.recorded), _line("replayed", other.replayed)]
        divergence = table(("at", "token", "text", "log-prob"), lines)
    head = fields([
        ("sample", f"{comparison.sample} of run {comparison.run}, {comparison.tokens} tokens"),
        ("engine", f"SGLang on {engine['device']}, {how}; {duration(seconds['start'])} to start, "
                   f"{duration(seconds['replay'])} to {'score' if comparison.forced else 'generate'}"),
        ("tokens", "the recorded tokens, fed to the engine" if comparison.forced else same),
        ("log-probs", f"{comparison.max_difference:.3g} nats apart at most, "
                      f"{comparison.mean_difference:.3g} on average"),
        ("verdict", "equal" if comparison.equal else why),
    ])  # fmt: skip
    rows = [
        (f"{s.start}:{s.end}", f"v{s.version}", s.same, f"{s.max_difference:.3g}", s.at, f"{s.mean_difference:.3g}")
        for s in comparison.spans
    ]
    spans = table(("tokens", "version", "equal", "largest difference", "at", "on average"), rows)
    return paragraphs(head, spans, divergence, *comparison.notes)


def _line(name: str, token: Token) -> tuple[object, ...]:
    text = shorten(repr(token.text)[1:-1], 24)
    return name, token.token, text, None if token.log_prob is None else f"{token.log_prob:.4f}"
