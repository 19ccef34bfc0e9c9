"""The argument tree: every command of `slime-events`, its module and what it takes."""

import argparse
import functools
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.trust import FLAG as TRUST
from slime_events.app.cli.parser import CommandParser, changed_data, nats_options, option, switch, weight_version


@dataclass(frozen=True, slots=True)
class Command:
    """takes_flags: flags of a run's settings stand among its own. takes_run: `declare` comes behind `add_run`."""

    summary: str
    declare: Callable[[CommandParser], None]
    takes_flags: bool = False
    takes_run: bool = True


@functools.cache
def tree(chosen: str | None = None) -> argparse.ArgumentParser:
    """The parser of the chosen command, or of all: None with the arguments of each, "" without, for their summaries.

    What is not asked for is left out: to declare all takes a tenth of the time of a command that looks one record up.
    """
    width = max(100, shutil.get_terminal_size().columns - 2)  # a command and its summary on one line
    root = argparse.ArgumentParser(
        prog="slime-events",
        usage="slime-events COMMAND [...]",
        epilog="slime-events COMMAND --help shows the arguments of a command.",
        formatter_class=functools.partial(argparse.HelpFormatter, max_help_position=24, width=width),
    )
    root.add_argument("-V", "--version", action="store_true", help="show the version")
    commands = root.add_subparsers(
        title="commands", prog="slime-events", metavar="COMMAND", dest="command", parser_class=CommandParser
    )
    for name, command in (*COMMANDS.items(), (RETRAIN_BRANCH, _RETRAIN_BRANCH)):
        if chosen not in (None, "", name):
            continue
        listed: dict[str, Any] = {"help": command.summary} if name in COMMANDS else {"prog": "slime-events retrain"}
        parser = commands.add_parser(name, formatter_class=argparse.RawDescriptionHelpFormatter, **listed)
        parser.takes_flags = command.takes_flags
        if chosen in (None, name):
            if command.takes_run:
                parser.add_run()
            command.declare(parser)
    return root


def module_of(name: str) -> str:
    """Return the name of a command's module. Its `run`, a function or a coroutine, returns the exit code."""
    command = "learn" if name == RETRAIN_BRANCH else name
    return f"slime_events.app.cli.commands.{command.replace('-', '_')}"


def _demo(parser: CommandParser) -> None:
    parser.usage = "slime-events demo [--model tiny|smollm2-135m] [--steps N] [--force] [any flag of train ...]"
    parser.description = """\
A real run: SGLang rollouts, Megatron training, every event in the log. The tiny model comes with the package
and learns its task visibly; smollm2-135m is a pretrained model, for a few steps."""
    parser.epilog = """\
flags of slime-events train that are often given:
  --run NAME           name of the run [demo, or smollm2-135m]
  --runs-dir DIR       folder of all runs [slime-runs]
  --max-staleness N    versions that a rollout may be behind; 0 is synchronous"""
    option(parser, "--model M", "tiny or smollm2-135m [tiny]", default="tiny")
    option(parser, "--steps N", "training steps (--num-rollout)")
    switch(parser, "--force", "replace an earlier demo of that name (the default name is replaced without asking)")
    parser.add_argument("--config", help=argparse.SUPPRESS)  # refused with a sentence of its own


def _train(parser: CommandParser) -> None:
    from slime_events.algorithms.train_arguments import registered
    from slime_events.core.config.help_text import help_text

    parser.add_argument("--print-config", action="store_true", help="print the settings as TOML and start nothing")
    parser.whole_help = lambda: help_text(max(60, min(120, shutil.get_terminal_size().columns)), registered())


def _resume(parser: CommandParser) -> None:
    parser.usage = "slime-events resume RUN [--runs-dir DIR] [--accept-changed-data] [flags]"
    parser.description = """\
Continue a run that was interrupted, has failed or was killed: no acked token is lost, no sample is trained twice.
The settings are those that it was started with."""
    parser.epilog = """\
Flags may change what does not enter into what is trained:
  --num-rollout N      more steps; also after the run has finished
  --rollout-deadline, --max-attempts, --max-deaths, --rm-timeout, --rm-workers, --rm-memory-gb, --rm-env
  --distributed-timeout-minutes, --device, --rollout-num-gpus, --colocate, --sglang-server-concurrency,
  --chunk-tokens, --chunk-seconds
  --keep-weights, --keep-weights-every, --keep-checkpoints, --keep-checkpoints-every
  --nats-url, --nats-creds, --nats-tls-*, --archive-seconds, --log-keep-steps, --ray-address, --otlp-endpoint
  --trace-share, --plain, --use-tensorboard, --tb-*, --use-wandb, --wandb-*, --use-otlp, --log-*

A run that is on is not touched. A run that has finished is left as it is."""
    changed_data(parser)


def _branch(parser: CommandParser) -> None:
    parser.usage = "slime-events branch RUN --from VERSION --run NAME [--reset-optimizer] [any flag of train ...]"
    parser.description = """\
A new run that continues from weight version VERSION of RUN: one that is on, has finished, or of which only the
archive is left (<--archive-url>/<name>). Its past is RUN's log up to there, which is shared, not copied."""
    parser.epilog = "Settings that no flag changes are RUN's. --num-rollout counts the steps of RUN up to VERSION too."
    parser.add_run(beside=True)
    option(parser, "--from VERSION", "the weight version that it begins with", weight_version, dest="version")
    option(parser, "--run NAME", "name of the new run", dest="name")
    switch(parser, "--reset-optimizer", "begin with a new optimizer and schedule; else both continue")
    changed_data(parser)


def _learn(parser: CommandParser, naming: str = "--run") -> None:
    parser.usage = """\
slime-events learn RUN --run NAME [--from VERSION] [--follow] [--drop SQL] [--changes FILE] [flags]
       slime-events retrain RUN --branch NAME [--drop SQL] [--changes FILE] [flags]"""
    parser.description = """\
A run of its own that is trained on the rollouts of RUN: one that is on, has finished, or of which only the archive is
left. It generates nothing. Which samples it takes, with which rewards, and how it trains on them is in its own log."""
    parser.epilog = """\
Flags of the algorithm and the trainer, --dynamic-sampling-filter-path and --num-rollout may differ from RUN's."""
    parser.add_run(beside=True)
    name = "name of the new run. If it is there, it continues where it was stopped or killed"
    option(parser, f"{naming} NAME", name, dest="name")
    version = (
        "weight version of RUN to begin with [learn: the first; retrain: the newest that nothing is changed before]"
    )
    option(parser, "--from VERSION", version, weight_version, dest="version")
    switch(parser, "--follow", "continue until RUN ends [only what is in its log now]")
    option(parser, "--drop SQL", "train without these samples: a query over RUN with a column `sample` or `group_id`")
    changes = "JSON lines, as `slime-events rescore` writes them: rewards, verdicts, a credit rule, samples dropped"
    option(parser, "--changes FILE", changes)


def _tail(parser: CommandParser) -> None:
    parser.description = "The events of a run, as they come or as they came, one readable line each."
    types = "event types (rollout.completed) or nouns (rollout)"
    option(parser, "--type TYPE", types, default=[], nargs="+", action="extend")
    option(parser, "--group GROUP", "only what is about this group")
    option(parser, "--sample SAMPLE", "only what is about this sample")
    option(parser, "--from N", "first position [1]", int, 1, dest="start")
    switch(parser, "--no-follow", "end at the last event there is")
    switch(parser, "--json", "one JSON object per event; arrays as type and length")
    switch(parser, "--full", "with --json: arrays in full")


def _show(parser: CommandParser) -> None:
    from slime_events.analysis.timetravel.log_position import FORMS

    parser.description = "A run, or a step, group, sample, weight version, trace or moment of it, from its log."
    parser.epilog = "Ids may be cut short where no other begins like that."
    what = parser.add_mutually_exclusive_group()
    step = "one step, from 0: batch, samples, metrics, digests; with --at: so many events on (-1: back)"
    option(what, "--step N", step, int)
    option(what, "--group G", "one group, by its id or by a producer's key: prompt, samples, filter decision, fate")
    option(what, "--sample S", "one rollout, or an agent's session: turns, tokens, versions, reward, fate")
    option(what, "--version V", "one set of weights: origin, folder, engines, evals", int)
    option(what, "--trace G", "the spans of one group, from submit to activate")
    switch(what, "--verify", "fold the log from position 0 and compare with how the live run ended")
    option(parser, "--at POS", f"the whole system at a position: {FORMS}")
    option(parser, "--diff POS", "with --at: what differs between the two positions")
    option(parser, "--tokens N", "token rows, 0 for all [64]", int, 64)
    switch(parser, "--json", "JSON instead of text")


def _lineage(parser: CommandParser) -> None:
    parser.description = """\
What a weight version was made of, down to the lines of its prompts, and what became of a sample, up to the versions
that descend from it. Across the joins of branches, and from a live run, a finished one or an archive."""
    what = parser.add_mutually_exclusive_group()
    option(what, "--version V", "of these weights [the newest]", int)
    option(what, "--step N", "of one training step, from 0", int)
    option(what, "--sample S", "of one rollout")
    option(what, "--group G", "of one prompt and its samples")
    option(what, "--source FILE[:LINE]", "of a prompt file or a line of it, or inbox[:KEY]")
    option(parser, "--depth N", "steps back from a version or step, 0 for all [1]", int, 1)
    parser.add_argument("--format", choices=("text", "json", "svg", "html"), help="[that of --out, else text]")
    option(parser, "--out FILE", "write it there", Path)


def _query(parser: CommandParser) -> None:
    parser.description = "SQL over a run, live, finished or archived (docs/querying.md)."
    parser.add_argument("sql", nargs="?", metavar="SELECT", help="one statement in DuckDB's SQL")
    formats = ("table", "csv", "json", "parquet")
    option(parser, "--file FILE", "read it from a file, - for standard input")
    parser.add_argument("--format", choices=formats, default="table", help="of the rows [table]")
    option(parser, "--out FILE", "write the rows there", Path)
    option(parser, "--rows N", "shown as a table, 0 for all [100]", int, 100)
    switch(parser, "--with-parent", "and the runs that it branched from, up to there")
    switch(parser, "--tables", "list the tables, and ask nothing")
    option(parser, "--schema TABLE", "list a table's columns, and ask nothing")


def _retrain(parser: CommandParser) -> None:
    parser.description = """\
Train steps of a run again from its log, and compare them with what was committed. No engine, no NATS server and no
conductor takes part. On the run's own topology (ranks, tensor parallel size) every step must be equal bit for bit;
on another topology the report says by how much the weights differ. Exit code 0 where every digest is equal, 1 where
one is not: the first such step is named."""
    option(parser, "--steps A:B", "steps A to B, both included; A:, :B and A too [all]")
    switch(parser, "--from-base", "from the run's beginning: pass its checkpoints over")
    option(parser, "--hf-checkpoint FOLDER", "the base checkpoint, where it is no longer where the run had it")
    option(parser, "--tensor-model-parallel-size N", "of another topology", int)
    option(parser, "--actor-num-gpus-per-node N", "ranks of another topology", int)
    option(parser, "--save-version V", "write the weights of version V, with --out", int)
    option(parser, "--out FOLDER", "where to: a folder of weight versions, such as a run's weights/")
    switch(parser, "--checkpoint", "a trainer checkpoint of that version too")
    branch = "into a new run, with --drop SQL or --changes FILE (--branch --help says more)"
    option(parser, "--branch NAME", branch)
    switch(parser, "--json", "JSON instead of text")


def _replay(parser: CommandParser) -> None:
    parser.usage = "slime-events replay RUN [--all] [--most N] [--json] [--recorded-prompts] [settings flags]"
    parser.description = "The decisions of a run, made again. Exit code 0 where all are the same, 1 where one is not."
    parser.epilog = """\
Settings flags, as slime-events train takes them, replace the run's own settings for the decisions:
  --dynamic-sampling-filter-path mine.py:keep, --over-sampling-batch-size 32, --advantage-estimator gspo, ..."""
    switch(parser, "--all", "continue after the first difference, given what was recorded")
    option(parser, "--most N", "verdicts shown with --all, 0 for all [20]", int, 20)
    switch(parser, "--json", "JSON instead of text")
    switch(parser, "--recorded-prompts", "take prompts from the log, even where their files are there")


def _replay_rollout(parser: CommandParser) -> None:
    parser.description = """\
One rollout once more, from an engine with the weights that it had: where its tokens differ from the recorded ones,
and by how much log-probs differ. A rollout over several weight versions is made again span by span. Exit code 0
where it is equal, 1 where it is not."""
    parser.add_argument("sample", metavar="SAMPLE", help="id of the sample, as `show` and `lineage` give it")
    switch(parser, "--force", "feed the recorded tokens, and compare log-probs only")
    option(parser, "--weights DIR", "look for weight versions here too; may be repeated", default=[], action="append")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="where the engine runs [as in the run]")
    option(parser, "--tolerance X", "log-probs may differ by X nats [0.001]", float, 1e-3)
    switch(parser, "--json", "JSON instead of text")


def _audit(parser: CommandParser) -> None:
    parser.description = """\
Every check of a run's whole history, with its counts. Exit code 0 where the history is clean, 1 where it is not."""
    option(parser, "--archive URL", "the same as RUN = URL/RUN")
    switch(parser, "--no-files", "the log alone: neither blobs nor weight folders")
    option(parser, "--most N", "findings shown per check, 0 for all [20]", int, 20)
    switch(parser, "--json", "JSON instead of text")


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
    option(parser, "--out FILE", "write what would differ to a changes file (JSON lines)", Path)
    option(parser, "--most N", "examples shown of each kind [5]", int, 5)
    switch(parser, "--json", "JSON instead of text")


def _export(parser: CommandParser) -> None:
    from slime_events.analysis.export.export import Layout
    from slime_events.analysis.export.sample import Fate

    parser.description = "A run's samples as slime's dumps, JSON lines, Parquet, or a Hugging Face data set."
    parser.epilog = """\
--out is a file (for debug-rollout a template, as dumps/{rollout_id}.pt; for hf a folder), on any fsspec URL.
debug-rollout   one torch file a step, as slime's --save-debug-rollout-data writes; evaluations as eval_<version>
jsonl, parquet  one row a sample; with --prompts one a prompt, as --prompt-data reads it
hf              shards and a card that datasets.load_dataset(FOLDER) reads: train, rejected, test"""
    parser.add_argument("--to", required=True, choices=[layout.value for layout in Layout], help="what is written")
    option(parser, "--out PATH", "where: see below", required=True)
    fates = ", ".join(fate.value for fate in Fate)
    option(parser, "--what FATE,...", f"samples that were {fates} [trained; with hf all]")
    option(parser, "--steps N-M", "only those of these steps")
    switch(parser, "--prompts", "a row for each prompt in place of one for each sample")


def _metrics(parser: CommandParser) -> None:
    parser.description = "slime's metrics of a run, shown; or written, with --use-wandb and such flags of train."
    switch(parser, "--follow", "continue until the run ends [only what is in its log now]")
    switch(parser, "--json", "one JSON object for each event that gives metrics")


def _archive(parser: CommandParser) -> None:
    parser.description = "Bring a run's archive up to the end of its log, verify it, repair it."
    parser.add_argument("url", nargs="?", metavar="URL", help="where to (fsspec URL) [the run's own archive]")
    switch(parser, "--verify", "only read all of it back, and check every digest")
    switch(parser, "--repair", "first make damaged segments again from the log")


def _restore(parser: CommandParser) -> None:
    from slime_events.core.run.run_folder import RUNS_DIR

    parser.description = "A run's folder and its log, from the archive alone."
    parser.add_argument("run", metavar="RUN", help="name of the run, as it was started")
    parser.add_argument("archive_url", metavar="ARCHIVE_URL", help="the --archive-url that it had (fsspec URL)")
    option(parser, "--runs-dir DIR", f"folder of all runs [{RUNS_DIR}]", default=RUNS_DIR)
    nats_options(parser, "restore into this NATS [one of the run's own]")
    option(parser, "--blob-url URL", "where its large payloads are (fsspec URL) [the archive, and the run's folder]")
    switch(parser, TRUST, "it is your own: use all addresses, functions and commands that its settings name")
    option(parser, "--nats-replicas N", "copies in that cluster [1]", int, 1)


def _produce(parser: CommandParser) -> None:
    parser.description = """\
Send prompts to a run that is on. One JSON object per line: prompt (text) or messages, and optionally key, label,
metadata, tools. Group ids go to standard output, refused lines to standard error. The same key is always the same
prompt, so a file can be sent again after any doubt."""
    parser.add_argument("file", metavar="FILE", help="JSON Lines, or one JSON list; - is standard input")
    option(parser, "--key-field NAME", "field that names a prompt [key; without one the line's sha256]")
    option(parser, "--batch N", "prompts in one message [50]", int, 50)
    nats_options(parser, "the run's NATS server, where its folder is not here [that of the credentials]")
    option(parser, "--timeout S", "seconds for a reply [30]", float, 30.0)
    option(parser, "--wait S", "seconds to wait for a run that takes no prompts yet [60]", float, 60.0)


def _gateway(parser: CommandParser) -> None:
    parser.description = "HTTP for producers: prompts in, and what became of them. Each source has a token of its own."
    option(parser, "--listen HOST:PORT", "where [127.0.0.1:8500]", default="127.0.0.1:8500")
    option(parser, "--issue NAME", "only print a new token of a source; an earlier one of it ends")
    option(
        parser,
        "--may WHAT",
        "with --issue: all that the token is for [everything, or what the earlier one was]: prompts, trajectories, "
        "rewards, sessions or tinker (repeatable)",
        default=[],
        action="append",
    )
    option(parser, "--per-minute N", "with --issue: requests a minute of the source [any, or as before]", int)
    option(parser, "--revoke NAME", "only end a source's token")
    switch(parser, "--sources", "only list the sources that have a token")
    option(parser, "--nats-creds FILE", "credentials of a gateway, where the run's log is on a server of your own")
    option(parser, "--tls-cert FILE", "PEM certificate: answer by HTTPS")
    option(parser, "--tls-key FILE", "PEM key of that certificate")
    switch(parser, "--insecure", "listen beyond this machine without TLS, behind something that does it")
    repeatable: dict[str, Any] = {"default": [], "action": "append"}
    option(parser, "--allow-origin URL", "web pages of this origin may use it (repeatable)", **repeatable)
    option(parser, "--host-name NAME", "a name that it is reached by (repeatable)", **repeatable)


def _nats_config(parser: CommandParser) -> None:
    parser.description = """\
Accounts and permissions for a NATS server of your own, to paste into its configuration: one user for a run's roles, one
for producers, one for a gateway, one for viewers. With --out it makes their passwords, in files for --nats-creds."""
    option(parser, "--run NAME", "the run that producers and viewers may use [any]", default="*", dest="name")
    option(parser, "--out DIR", "a new folder for accounts.conf and a file of credentials for each", Path)
    option(parser, "--nats-url URL", "the server's address, to be noted in those files")
    switch(parser, "--agents", "gateways may make sessions of agents, of runs with --agents")


def _doctor(parser: CommandParser) -> None:
    parser.description = "Whether everything that a run needs is on this machine, and what to do where it is not."
    url = "a NATS server of your own, or the nodes of a cluster with commas, instead of the binary"
    option(parser, "--runs-dir DIR", "folder of all runs [slime-runs]", Path, Path("slime-runs"))
    nats_options(parser, url)
    option(parser, "--blob-url URL", "fsspec URL of large payloads")
    option(parser, "--archive-url URL", "fsspec URL of the archive")
    option(parser, "--port N", "a port that should be free (repeatable)", int, default=[], action="append")
    how = parser.add_mutually_exclusive_group()
    switch(how, "--quick", "look at versions only; import nothing")
    switch(how, "--imports", "import SGLang and Megatron-core too, not only look at their files")


COMMANDS: dict[str, Command] = {
    "demo": Command("a real run on a tiny model that learns visibly, in minutes", _demo, True, False),
    "train": Command("train with slime's flags, or the same as TOML", _train, True, False),
    "resume": Command("continue a run that was interrupted, has failed or was killed", _resume, True),
    "branch": Command(
        "a new run that continues from a weight version of another, settings changed", _branch, True, False
    ),
    "learn": Command(
        "a second trainer on the rollouts of a run, with its own settings and changes", _learn, True, False
    ),
    "tail": Command("follow the events of a run, with filters", _tail),
    "show": Command("a run, step, group, sample, weight version or trace, from the log", _show),
    "lineage": Command("what a weight version was made of, and what became of a sample", _lineage),
    "query": Command("SQL over a run: tables of samples, groups, steps, versions and more", _query),
    "retrain": Command("train steps again from the log, and compare the digests", _retrain),
    "replay": Command("make the conductor's decisions again, and show the first difference", _replay, True),
    "replay-rollout": Command("one rollout once more, from an engine with its weights", _replay_rollout),
    "audit": Command("check a run's whole history: every check and its counts", _audit),
    "rescore": Command("what another reward, filter or advantage would have made of a run", _rescore, True),
    "export": Command("a run's samples as slime's dumps, JSON lines, Parquet or a data set", _export),
    "metrics": Command("slime's metrics of a run, printed or for TensorBoard and W&B", _metrics, True),
    "archive": Command("bring a run's archive up to the end of its log, verify it, repair it", _archive),
    "restore": Command("a run's folder and log again, from the archive alone", _restore, takes_run=False),
    "produce": Command("send prompts from a file to a run", _produce),
    "gateway": Command("HTTP for producers of a run: prompts in, and what became of them", _gateway),
    "nats-config": Command("accounts and permissions for a NATS server of your own", _nats_config, takes_run=False),
    "doctor": Command("check that everything a run needs is here, and how to fix what is not", _doctor, False, False),
}
_RETRAIN_BRANCH = Command("", functools.partial(_learn, naming="--branch"), True, False)
RETRAIN_BRANCH = "retrain --branch"
"""`retrain` into a new run: it takes what `learn` takes. Not listed as a command of its own."""
