"""The argument tree: every command of `slime-events`, its module and what it takes."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slime_events.app.cli.parser import CommandParser


@dataclass(frozen=True, slots=True)
class Command:
    """module: under `commands`, imported once the command is chosen; its `run` takes the arguments and gives the exit
    code. takes_flags: flags of a run's settings stand among its own.
    """

    module: str
    summary: str
    declare: Callable[[CommandParser], None]
    takes_flags: bool = False


def tree(chosen: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands. Only the chosen one (None: each) has its arguments: declaring may import a little."""
    root = argparse.ArgumentParser(
        prog="slime-events",
        usage="slime-events COMMAND [...]",
        epilog="slime-events COMMAND --help shows the arguments of a command.",
        formatter_class=_Wide,
    )
    root.add_argument("-V", "--version", action="store_true", help="show the version")
    commands = root.add_subparsers(
        title="commands", prog="slime-events", metavar="COMMAND", dest="command", parser_class=CommandParser
    )
    for name, command in COMMANDS.items():
        parser = commands.add_parser(name, help=command.summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.takes_flags = command.takes_flags
        if chosen in (None, name):
            command.declare(parser)
    branch = commands.add_parser(RETRAIN_BRANCH, prog="slime-events retrain")
    branch.takes_flags = True
    if chosen in (None, RETRAIN_BRANCH):
        _learn(branch)
    return root


def command_of(name: str) -> Command:
    """Raises KeyError."""
    return COMMANDS["learn" if name == RETRAIN_BRANCH else name]


class _Wide(argparse.HelpFormatter):
    """A command and its summary on one line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24, width=max(100, shutil.get_terminal_size().columns - 2))


def _version(text: str) -> int:
    number = text.removeprefix("v")
    if not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: give a weight version, such as 5")
    return int(number)


def _demo(parser: CommandParser) -> None:
    parser.usage = (
        "slime-events demo [--model tiny|smollm2-135m] [--steps N] [--force] [any flag of slime-events train ...]"
    )
    parser.description = """\
A real run: SGLang rollouts, Megatron training, every event in the log. The tiny model comes with the package
and learns its task visibly; smollm2-135m is a pretrained model, for a few steps."""
    parser.epilog = """\
flags of slime-events train that are often given:
  --run NAME           name of the run [demo, or smollm2-135m]
  --runs-dir DIR       folder of all runs [slime-runs]
  --max-staleness N    versions that a rollout may be behind; 0 is synchronous"""
    parser.add_argument("--model", default="tiny", metavar="M", help="tiny or smollm2-135m [tiny]")
    parser.add_argument("--steps", metavar="N", help="training steps (--num-rollout)")
    parser.add_switch(
        "--force", "replace an earlier demo of that name (one under the default name is replaced without asking)"
    )
    parser.add_argument("--config", help=argparse.SUPPRESS)  # refused with a sentence of its own


def _train(parser: CommandParser) -> None:
    from slime_events.core.config.help import help_text

    parser.whole_help = lambda: help_text(max(60, min(120, shutil.get_terminal_size().columns)))


def _resume(parser: CommandParser) -> None:
    parser.usage = "slime-events resume RUN [--runs-dir DIR] [flags]"
    parser.description = """\
Continue a run that was interrupted, has failed or was killed: no acked token is lost, no sample is trained twice.
The settings are those that it was started with."""
    parser.epilog = """\
Flags may change what does not enter into what is trained:
  --num-rollout N      more steps; also after the run has finished
  --rollout-deadline, --max-attempts, --max-deaths, --rm-timeout, --rm-workers, --distributed-timeout-minutes
  --rollout-num-gpus, --sglang-server-concurrency, --chunk-tokens, --chunk-seconds, --keep-weights
  --nats-url, --archive-seconds, --ray-address, --otlp-endpoint, --trace-share, --plain

A run that is on is not touched. A run that has finished is left as it is."""
    parser.add_run()


def _branch(parser: CommandParser) -> None:
    parser.usage = (
        "slime-events branch RUN --from VERSION --run NAME [--reset-optimizer] [--runs-dir DIR] [any flag of train ...]"
    )
    parser.description = """\
A new run that continues from weight version VERSION of RUN: one that is on, has finished, or of which only the
archive is left (<--archive-url>/<name>). Its past is RUN's log up to there, which is shared, not copied."""
    parser.epilog = "Settings that no flag changes are RUN's. --num-rollout counts the steps of RUN up to VERSION too."
    parser.add_run(beside=True)
    parser.add_argument(
        "--from", dest="version", type=_version, metavar="VERSION", help="the weight version that it begins with"
    )
    parser.add_argument("--run", dest="name", metavar="NAME", help="name of the new run")
    parser.add_switch("--reset-optimizer", "begin with a new optimizer and schedule; else both continue")


def _learn(parser: CommandParser) -> None:
    parser.usage = """\
slime-events learn RUN --run NAME [--from VERSION] [--follow] [--drop SQL] [--changes FILE] [flags]
       slime-events retrain RUN --branch NAME [--drop SQL] [--changes FILE] [flags]"""
    parser.description = """\
A run of its own that is trained on the rollouts of RUN: one that is on, has finished, or of which only the archive
is left. It generates nothing. Which samples it takes, with which rewards, and how it trains on them is in its own
log."""
    parser.epilog = """\
Flags of the algorithm and the trainer, --dynamic-sampling-filter-path and --num-rollout may differ from RUN's."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_run(beside=True)
    parser.add_argument(
        "--run", "--branch", dest="name", metavar="NAME",
        help="name of the new run. If it is there, it continues where it was stopped or killed",
    )  # fmt: skip
    parser.add_argument(
        "--from", dest="version", type=_version, metavar="VERSION",
        help="the weight version of RUN that it begins with [learn: the first; retrain: the newest that nothing is "
        "changed before]",
    )  # fmt: skip
    parser.add_switch("--follow", "continue until RUN ends [only what is in its log now]")
    parser.add_argument(
        "--drop", metavar="SQL",
        help="train without these samples: a query over RUN with a column `sample` or `group_id`",
    )  # fmt: skip
    parser.add_argument(
        "--changes", metavar="FILE",
        help="JSON lines, as `slime-events rescore` writes them: rewards, verdicts, samples and groups dropped",
    )  # fmt: skip


def _tail(parser: CommandParser) -> None:
    parser.description = "The events of a run, as they come or as they came, one readable line each."
    parser.add_run()
    parser.add_argument(
        "--type", nargs="+", action="extend", default=[], metavar="TYPE",
        help="event types (rollout.completed) or nouns (rollout)",
    )  # fmt: skip
    parser.add_argument("--group", help="only what is about this group")
    parser.add_argument("--sample", help="only what is about this sample")
    parser.add_argument("--from", dest="start", type=int, default=1, metavar="N", help="first position [1]")
    parser.add_switch("--no-follow", "end at the last event there is")
    parser.add_switch("--json", "one JSON object per event; arrays as type and length")
    parser.add_switch("--full", "with --json: arrays in full")


def _show(parser: CommandParser) -> None:
    from slime_events.analysis.timetravel.log_position import FORMS

    parser.description = "A run, or a step, group, sample, weight version, trace or moment of it, from its log."
    parser.epilog = "Ids may be cut short where no other begins like that."
    parser.add_run()
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--step", type=int, metavar="N",
        help="one step, from 0: batch, samples, metrics, digests; with --at: so many events on (-1: back)",
    )  # fmt: skip
    what.add_argument("--group", metavar="G", help="one group: prompt, samples, filter decision, fate")
    what.add_argument("--sample", metavar="S", help="one rollout: tokens, log-probs, versions, reward, fate")
    what.add_argument("--version", type=int, metavar="V", help="one set of weights: origin, folder, engines, evals")
    what.add_argument("--trace", metavar="G", help="the spans of one group, from submit to activate")
    what.add_argument(
        "--verify", action="store_true", help="fold the log from position 0 and compare with how the live run ended"
    )
    parser.add_argument("--at", metavar="POS", help=f"the whole system at a position: {FORMS}")
    parser.add_argument("--diff", metavar="POS", help="with --at: what differs between the two positions")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="token rows, 0 for all [64]")
    parser.add_switch("--json", "JSON instead of text")


def _lineage(parser: CommandParser) -> None:
    parser.description = """\
What a weight version was made of, down to the lines of its prompts, and what became of a sample, up to the versions
that descend from it. Across the joins of branches, and from a live run, a finished one or an archive."""
    parser.add_run()
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--version", type=int, metavar="V", help="of these weights [the newest]")
    what.add_argument("--step", type=int, metavar="N", help="of one training step, from 0")
    what.add_argument("--sample", metavar="S", help="of one rollout")
    what.add_argument("--group", metavar="G", help="of one prompt and its samples")
    what.add_argument("--source", metavar="FILE[:LINE]", help="of a prompt file or a line of it, or inbox[:KEY]")
    parser.add_argument(
        "--depth", type=int, default=1, metavar="N", help="steps back from a version or step, 0 for all [1]"
    )
    parser.add_argument("--format", choices=("text", "json", "svg", "html"), help="[that of --out, else text]")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write it there")


def _query(parser: CommandParser) -> None:
    parser.description = "SQL over a run, live, finished or archived (docs/querying.md)."
    parser.add_run()
    parser.add_argument("sql", nargs="?", metavar="SELECT", help="one statement in DuckDB's SQL")
    parser.add_argument("--file", metavar="FILE", help="read it from a file, - for standard input")
    parser.add_argument(
        "--format", choices=("table", "csv", "json", "parquet"), default="table", help="of the rows [table]"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--rows", type=int, default=100, metavar="N", help="shown as a table, 0 for all [100]")
    parser.add_switch("--with-parent", "and the runs that it branched from, up to there")
    parser.add_switch("--tables", "list the tables, and ask nothing")
    parser.add_argument("--schema", metavar="TABLE", help="list a table's columns, and ask nothing")


def _retrain(parser: CommandParser) -> None:
    parser.description = """\
Train steps of a run again from its log, and compare them with what was committed. No engine, no NATS server and no
conductor takes part. On the run's own topology (ranks, tensor parallel size) every step must be equal bit for bit;
on another topology the report says by how much the weights differ. Exit code 0 where every digest is equal, 1 where
one is not: the first such step is named."""
    parser.add_run()
    parser.add_argument("--steps", metavar="A:B", help="steps A to B, both included; A:, :B and A too [all]")
    parser.add_switch("--from-base", "from the run's beginning: pass its checkpoints over")
    parser.add_argument(
        "--hf-checkpoint", metavar="FOLDER", help="the base checkpoint, where it is no longer where the run had it"
    )
    parser.add_argument("--tensor-model-parallel-size", type=int, metavar="N", help="of another topology")
    parser.add_argument("--actor-num-gpus-per-node", type=int, metavar="N", help="ranks of another topology")
    parser.add_argument("--save-version", type=int, metavar="V", help="write the weights of version V, with --out")
    parser.add_argument(
        "--out", metavar="FOLDER", help="where to: a folder of weight versions, such as a run's weights/"
    )
    parser.add_switch("--checkpoint", "a trainer checkpoint of that version too")
    parser.add_argument(
        "--branch", metavar="NAME", help="into a new run, with --drop SQL or --changes FILE (--branch --help says more)"
    )
    parser.add_switch("--json", "JSON instead of text")


def _replay(parser: CommandParser) -> None:
    parser.usage = "slime-events replay RUN [--all] [--most N] [--json] [--recorded-prompts] [settings flags]"
    parser.description = """\
The decisions of a run, made again. Exit code 0 where all are the same, 1 where one is not."""
    parser.epilog = """\
Settings flags, as slime-events train takes them, replace the run's own settings for the decisions:
  --dynamic-sampling-filter-path mine.py:keep, --over-sampling-batch-size 32, --advantage-estimator gspo, ..."""
    parser.add_run()
    parser.add_switch("--all", "continue after the first difference, given what was recorded")
    parser.add_argument("--most", type=int, default=20, metavar="N", help="verdicts shown with --all, 0 for all [20]")
    parser.add_switch("--json", "JSON instead of text")
    parser.add_switch("--recorded-prompts", "take prompts from the log, even where their files are there")


def _replay_rollout(parser: CommandParser) -> None:
    parser.description = """\
One rollout once more, from an engine with the weights that it had: where its tokens differ from the recorded ones,
and by how much log-probs differ. A rollout over several weight versions is made again span by span. Exit code 0
where it is equal, 1 where it is not."""
    parser.add_run()
    parser.add_argument("sample", metavar="SAMPLE", help="id of the sample, as `show` and `lineage` give it")
    parser.add_switch("--force", "feed the recorded tokens, and compare log-probs only")
    parser.add_argument(
        "--weights", action="append", default=[], metavar="DIR",
        help="look for weight versions here too; may be repeated",
    )  # fmt: skip
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="where the engine runs [as in the run]")
    parser.add_argument(
        "--tolerance", type=float, default=1e-3, metavar="X", help="log-probs may differ by X nats [0.001]"
    )
    parser.add_switch("--json", "JSON instead of text")


def _audit(parser: CommandParser) -> None:
    parser.description = """\
Every check of a run's whole history, with its counts. Exit code 0 where the history is clean, 1 where it is not."""
    parser.add_run()
    parser.add_argument("--archive", metavar="URL", help="the same as RUN = URL/RUN")
    parser.add_switch("--no-files", "the log alone: neither blobs nor weight folders")
    parser.add_argument("--most", type=int, default=20, metavar="N", help="findings shown per check, 0 for all [20]")
    parser.add_switch("--json", "JSON instead of text")


def _rescore(parser: CommandParser) -> None:
    parser.usage = "slime-events rescore RUN [--out FILE] [--json] [the run's flags]"
    parser.description = "Another reward, filter or advantage over the rollouts that a run has made."
    parser.epilog = """\
Any of the run's own flags that say how rollouts are graded, filtered and turned into advantages:
  --rm-type, --custom-rm-path, --reward-key, ...     another reward; rollouts are graded again
  --dynamic-sampling-filter-path                     another filter
  --advantage-estimator, --gamma, --normalize-advantages,
  --disable-rewards-normalization, --disable-grpo-std-normalization
What is not given is as it was. With no flag everything is graded and decided again as it was."""
    parser.add_run()
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write what would differ to a changes file (JSON lines)"
    )
    parser.add_argument("--most", type=int, default=5, metavar="N", help="examples shown of each kind [5]")
    parser.add_switch("--json", "JSON instead of text")


def _export(parser: CommandParser) -> None:
    from slime_events.analysis.export.export import Layout
    from slime_events.analysis.export.sample import Fate

    parser.description = "A run's samples as slime's dumps, JSON lines, Parquet, or a Hugging Face data set."
    parser.epilog = """\
--out is a file (for debug-rollout a template, as dumps/{rollout_id}.pt; for hf a folder), on any fsspec URL.
debug-rollout   one torch file a step, as slime's --save-debug-rollout-data writes; evaluations as eval_<version>
jsonl, parquet  one row a sample; with --prompts one a prompt, as --prompt-data reads it
hf              shards and a card that datasets.load_dataset(FOLDER) reads: train, rejected, test"""
    parser.add_run()
    parser.add_argument("--to", required=True, choices=[layout.value for layout in Layout], help="what is written")
    parser.add_argument("--out", required=True, metavar="PATH", help="where: see below")
    fates = ", ".join(fate.value for fate in Fate)
    parser.add_argument("--what", metavar="FATE,...", help=f"samples that were {fates} [trained; with hf all]")
    parser.add_argument("--steps", metavar="N-M", help="only those of these steps")
    parser.add_switch("--prompts", "a row for each prompt in place of one for each sample")


def _archive(parser: CommandParser) -> None:
    parser.description = "Bring a run's archive up to the end of its log, verify it, repair it."
    parser.add_run()
    parser.add_argument("url", nargs="?", metavar="URL", help="where to (fsspec URL) [the run's own archive]")
    parser.add_switch("--verify", "only read all of it back, and check every digest")
    parser.add_switch("--repair", "first make damaged segments again from the log")


def _restore(parser: CommandParser) -> None:
    from slime_events.core.run.run_folder import RUNS_DIR

    parser.description = "A run's folder and its log, from the archive alone."
    parser.add_argument("run", metavar="RUN", help="name of the run, as it was started")
    parser.add_argument("archive_url", metavar="ARCHIVE_URL", help="the --archive-url that it had (fsspec URL)")
    parser.add_argument("--runs-dir", default=RUNS_DIR, metavar="DIR", help=f"folder of all runs [{RUNS_DIR}]")
    parser.add_argument("--nats-url", metavar="URL", help="restore into this NATS [as the run was started]")
    parser.add_argument("--nats-replicas", type=int, default=1, metavar="N", help="copies in that cluster [1]")


def _produce(parser: CommandParser) -> None:
    parser.description = """\
Send prompts to a run that is on. One JSON object per line: prompt (text) or messages, and optionally key, label,
metadata, tools. Group ids go to standard output, refused lines to standard error. The same key is always the same
prompt, so a file can be sent again after any doubt."""
    parser.add_run()
    parser.add_argument("file", metavar="FILE", help="JSON Lines, or one JSON list; - is standard input")
    parser.add_argument(
        "--key-field", metavar="NAME", help="field that names a prompt [key; without one the line's sha256]"
    )
    parser.add_argument("--batch", type=int, default=50, metavar="N", help="prompts in one message [50]")
    parser.add_argument("--nats-url", metavar="URL", help="the run's NATS server, where its folder is not here")
    parser.add_argument("--timeout", type=float, default=30.0, metavar="S", help="seconds for a reply [30]")


def _doctor(parser: CommandParser) -> None:
    parser.description = "Whether everything that a run needs is on this machine, and what to do where it is not."
    parser.add_argument("--runs-dir", type=Path, default=Path("slime-runs"), metavar="DIR", help="folder of all runs")
    parser.add_argument(
        "--nats-url", metavar="URL",
        help="a NATS server of your own, or the nodes of a cluster with commas, instead of the binary",
    )  # fmt: skip
    parser.add_argument("--blob-url", metavar="URL", help="fsspec URL of large payloads")
    parser.add_argument("--archive-url", metavar="URL", help="fsspec URL of the archive")
    parser.add_argument(
        "--port", type=int, action="append", default=[], metavar="N", help="a port that should be free (repeatable)"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="look at versions only; import nothing")
    how.add_argument(
        "--imports", action="store_true", help="import SGLang and Megatron-core too, not only look at their files"
    )


COMMANDS: dict[str, Command] = {
    "demo": Command("demo", "a real run on a tiny model that learns visibly, in minutes", _demo, True),
    "train": Command("train", "train with slime's flags, or the same as TOML", _train, True),
    "resume": Command("resume", "continue a run that was interrupted, has failed or was killed", _resume, True),
    "branch": Command(
        "branch", "a new run that continues from a weight version of another, settings changed", _branch, True
    ),
    "learn": Command(
        "learn", "a second trainer on the rollouts of a run, with its own settings and changes", _learn, True
    ),
    "tail": Command("tail", "follow the events of a run, with filters", _tail),
    "show": Command("show", "a run, step, group, sample, weight version or trace, from the log", _show),
    "lineage": Command("lineage", "what a weight version was made of, and what became of a sample", _lineage),
    "query": Command("query", "SQL over a run: tables of samples, groups, steps, versions and more", _query),
    "retrain": Command("retrain", "train steps again from the log, and compare the digests", _retrain),
    "replay": Command("replay", "make the conductor's decisions again, and show the first difference", _replay, True),
    "replay-rollout": Command(
        "replay_rollout", "one rollout once more, from an engine with its weights", _replay_rollout
    ),
    "audit": Command("audit", "check a run's whole history: every check and its counts", _audit),
    "rescore": Command("rescore", "what another reward, filter or advantage would have made of a run", _rescore, True),
    "export": Command("export", "a run's samples as slime's dumps, JSON lines, Parquet or a data set", _export),
    "archive": Command("archive", "bring a run's archive up to the end of its log, verify it, repair it", _archive),
    "restore": Command("restore", "a run's folder and log again, from the archive alone", _restore),
    "produce": Command("produce", "send prompts from a file to a run that is on", _produce),
    "doctor": Command("doctor", "check that everything a run needs is here, and how to fix what is not", _doctor),
}
RETRAIN_BRANCH = "retrain --branch"
"""`retrain` into a new run: it takes what `learn` takes. Not listed as a command of its own."""
