"""`slime-events replay-rollout`: one rollout once more, from an engine with the weights that it had: where its tokens
part from the recorded ones, and by how much log-probs differ. A rollout over several weight versions is made again
span by span. Exit code 0 where it is equal, 1 where it is not.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from slime_events.analysis.replay_rollout.compare import Comparison, Decode, compare
from slime_events.analysis.replay_rollout.recorded import RecordedRollout, read_rollout, weight_folder
from slime_events.app.cli.render.replay_rollout_text import comparison_text
from slime_events.app.cli.render.text import json_text
from slime_events.app.cli.run_argument import RunParser
from slime_events.core.config.engine import EngineSettings
from slime_events.core.run.run_reader import open_run

START_S = 600.0
TOLERANCE = 1e-3


def main(argv: Sequence[str] = ()) -> int:
    """Print the comparison; 1 where the rollout came otherwise. Errors are raised."""
    said = _parser().parse_args(argv)
    comparison, facts = asyncio.run(_replay(said))
    if said.json:
        sys.stdout.write(json_text(msgspec.to_builtins(comparison) | {"engine": facts}))
    else:
        sys.stdout.write(comparison_text(comparison, facts) + "\n")
    return 0 if comparison.equal else 1


async def _replay(said: argparse.Namespace) -> tuple[Comparison, dict[str, Any]]:
    async with open_run(said.run, said.runs_dir) as opened:
        rollout = await read_rollout(opened, said.sample)
        settings = opened.settings.engine
        folders = [*said.weights, *([str(opened.folder.weights)] if opened.folder else [])]
    first = rollout.spans[0].version
    base = weight_folder(rollout, first, folders)
    settings = msgspec.structs.replace(settings, hf_checkpoint=base, device=said.device or settings.device)
    return await _with_engine(rollout, settings, folders, said)


async def _with_engine(
    rollout: RecordedRollout, settings: EngineSettings, folders: list[str], said: argparse.Namespace
) -> tuple[Comparison, dict[str, Any]]:
    from serve_apps.engine.arguments import engine_launch
    from serve_apps.engine.sglang_engine import SglangEngine
    from serve_apps.replay_rollout import replay

    first = rollout.spans[0].version
    launch = engine_launch(settings, first)
    engine, begun = SglangEngine(settings, first), time.perf_counter()
    await engine.start(START_S)
    try:
        started = time.perf_counter()
        spans = await replay(engine, rollout, lambda v: weight_folder(rollout, v, folders), force=said.force)
        seconds = {"start": started - begun, "replay": time.perf_counter() - started}
    finally:
        await engine.stop()
    decode = token_decoder(Path(settings.hf_checkpoint))
    facts = {"device": launch.device, "deterministic": launch.deterministic, "seconds": seconds}
    return compare(rollout, spans, decode, forced=said.force, tolerance=said.tolerance), facts


def token_decoder(folder: Path) -> Decode:
    """Token texts by the tokenizer that lies with the weights; ids alone where there is none."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return lambda token: f"<{token}>"
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    return lambda token: str(tokenizer.decode([token], skip_special_tokens=False))


def _parser() -> argparse.ArgumentParser:
    parser = RunParser(prog="slime-events replay-rollout", description=__doc__)
    parser.add_argument("sample", metavar="SAMPLE", help="id of the sample, as `show` and `lineage` give it")
    parser.add_argument("--force", action="store_true", help="feed the recorded tokens, and compare log-probs only")
    parser.add_argument(
        "--weights",
        action="append",
        default=[],
        metavar="DIR",
        help="look for weight versions here too; may be repeated",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="where the engine runs [as in the run]")
    parser.add_argument(
        "--tolerance", type=float, default=TOLERANCE, metavar="X", help=f"log-probs may differ by X nats [{TOLERANCE}]"
    )
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    return parser
