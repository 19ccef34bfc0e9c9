"""The argument tree: every command of `slime-events`, its module and its arguments."""

import argparse
import functools
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from schemas.doc import doc
from schemas.trust import FLAG as TRUST
from slime_events.app.cli.inspection_arguments import (
    declare_audit,
    declare_compare,
    declare_inspect,
    declare_lineage,
    declare_query,
    declare_show,
    declare_tail,
    declare_trace,
    declare_what_if,
)
from slime_events.app.cli.machine_arguments import declare_doctor, declare_plan
from slime_events.app.cli.parser import CommandParser, changed_data, nats_options, option, switch, weight_version
from slime_events.core.run.run_folder import RUNS_DIR


@dataclass(frozen=True, slots=True)
class Command:
    """A command in the list of commands, and how its parser is built."""

    summary: str
    declare: Callable[[CommandParser], None]
    takes_flags: Annotated[bool, doc("Flags of a run's settings may be mixed with the command's own")] = False
    takes_run: Annotated[bool, doc("RUN and --runs-dir are declared before `declare` is called")] = True


@functools.cache
def tree(chosen: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of one command. chosen: None declares all commands, "" their summaries alone.

    To declare all takes a tenth of the time of a command that looks up one record.
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
flags of slime-events train that are often used:
  --run NAME           name of the run [demo, or smollm2-135m]
  --runs-dir DIR       folder of all runs [slime-runs]
  --max-staleness N    weight versions that a rollout may be behind; 0 is synchronous"""
    option(parser, "--model M", "tiny or smollm2-135m [tiny]", default="tiny")
    option(parser, "--steps N", "training steps (--num-rollout)")
    switch(parser, "--force", "replace an earlier demo of that name (the default name is replaced without asking)")
    parser.add_argument("--config", help=argparse.SUPPRESS)  # refused with a message of its own


def _train(parser: CommandParser) -> None:
    from slime_events.algorithms.train_arguments import registered
    from slime_events.core.config.help_text import help_text

    parser.add_argument("--print-config", action="store_true", help="print the settings as TOML and start nothing")
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the plan, start nothing")
    parser.whole_help = lambda: help_text(max(60, min(120, shutil.get_terminal_size().columns)), registered())


def _resume(parser: CommandParser) -> None:
    parser.usage = "slime-events resume RUN [--runs-dir DIR] [--accept-changed-data] [flags]"
    parser.description = """\
Continue a run that was interrupted, has failed or was killed: no acked token is lost, no sample is trained twice.
The run keeps the settings that it was started with."""
    parser.epilog = """\
Flags may change settings that do not affect what is trained:
  --num-rollout N      more steps; also after the run has finished
  --rollout-deadline, --max-attempts, --max-deaths, --rm-timeout, --rm-workers, --rm-memory-gb, --rm-env
  --distributed-timeout-minutes, --device, --rollout-num-gpus, --colocate, --sglang-server-concurrency,
  --chunk-tokens, --chunk-seconds
  --keep-weights, --keep-weights-every, --keep-checkpoints, --keep-checkpoints-every
  --nats-url, --nats-creds, --nats-tls-*, --archive-seconds, --log-keep-steps, --ray-address, --otlp-endpoint
  --trace-share, --console-port, --plain, --use-tensorboard, --tb-*, --use-wandb, --wandb-*, --use-otlp, --log-*

A running run is not touched. A finished run stays as it is, unless --num-rollout adds steps."""
    changed_data(parser)


def _branch(parser: CommandParser) -> None:
    parser.usage = "slime-events branch RUN --from VERSION --run NAME [--reset-optimizer] [any flag of train ...]"
    parser.description = """\
Start a new run that continues from weight version VERSION of RUN. RUN may be running, finished, or an archive alone
(<--archive-url>/<name>). The new run shares RUN's log up to VERSION; nothing is copied."""
    parser.epilog = "Settings without a flag here are RUN's. --num-rollout counts the steps of RUN up to VERSION too."
    parser.add_run(beside=True)
    option(parser, "--from VERSION", "weight version to begin with", weight_version, dest="version")
    option(parser, "--run NAME", "name of the new run", dest="name")
    switch(parser, "--reset-optimizer", "begin with a new optimizer and schedule [both continue]")
    changed_data(parser)


def _learn(parser: CommandParser, naming: str = "--run") -> None:
    parser.usage = """\
slime-events learn RUN --run NAME [--from VERSION] [--follow] [--drop SQL] [--changes FILE] [flags]
       slime-events retrain RUN --branch NAME [--drop SQL] [--changes FILE] [flags]"""
    parser.description = """\
Start a new run that trains on the rollouts of RUN and generates nothing. RUN may be running, finished, or an archive
alone. The new run's own log records which samples it takes, with which rewards, and how it trains on them."""
    parser.epilog = """\
Flags of the algorithm and the trainer, --dynamic-sampling-filter-path and --num-rollout may differ from RUN's."""
    parser.add_run(beside=True)
    name = "name of the new run; a run of this name continues where it was stopped or killed"
    option(parser, f"{naming} NAME", name, dest="name")
    version = "weight version of RUN to begin with [learn: the first; retrain: the newest before the first change]"
    option(parser, "--from VERSION", version, weight_version, dest="version")
    switch(parser, "--follow", "continue until RUN ends [only what is in its log now]")
    option(parser, "--drop SQL", "train without these samples: a query over RUN with a column `sample` or `group_id`")
    changes = "JSON lines, as `slime-events rescore` writes them: rewards, verdicts, a credit rule, samples dropped"
    option(parser, "--changes FILE", changes)


def _retrain(parser: CommandParser) -> None:
    parser.description = """\
Train steps of a run again from its log and compare them with the committed steps. No engine, NATS server or conductor
is started. On the run's own topology (ranks, tensor and context parallel size) every step must be equal bit for bit; on
another topology the report shows how far the weights differ. Exit code: 0 if every digest is equal; 1 if one differs,
and the report names the first such step."""
    option(parser, "--steps A:B", "steps A to B, both included; A:, :B and A too [all]")
    switch(parser, "--from-base", "start from the base checkpoint and ignore the run's own checkpoints")
    option(parser, "--hf-checkpoint FOLDER", "the base checkpoint, if it has moved since the run")
    option(parser, "--tensor-model-parallel-size N", "tensor parallel size of another topology", int)
    option(parser, "--context-parallel-size N", "context parallel size of another topology", int)
    option(parser, "--actor-num-gpus-per-node N", "ranks of another topology", int)
    option(parser, "--save-version V", "write the weights of version V; needs --out", int)
    option(parser, "--out FOLDER", "a folder of weight versions to write to, such as a run's weights/")
    switch(parser, "--checkpoint", "write a trainer checkpoint of that version too")
    branch = "train into a new run, with --drop SQL or --changes FILE (see --branch --help)"
    option(parser, "--branch NAME", branch)
    switch(parser, "--json", "JSON instead of text")


def _replay(parser: CommandParser) -> None:
    parser.usage = "slime-events replay RUN [--all] [--most N] [--json] [--recorded-prompts] [settings flags]"
    parser.description = """\
Make the decisions of a run again and compare them. Exit code: 0 if all are the same, 1 if one differs."""
    parser.epilog = """\
Settings flags, as slime-events train takes them, replace the run's own settings for the decisions:
  --dynamic-sampling-filter-path mine.py:keep, --over-sampling-batch-size 32, --advantage-estimator gspo, ..."""
    switch(parser, "--all", "continue after the first difference, on the recorded events")
    option(parser, "--most N", "verdicts shown with --all, 0 for all [20]", int, 20)
    switch(parser, "--json", "JSON instead of text")
    switch(parser, "--recorded-prompts", "take prompts from the log, even if their files exist")


def _replay_rollout(parser: CommandParser) -> None:
    parser.description = """\
Generate one rollout again, on an engine with the same weights. Shows where its tokens differ from the recorded
tokens, and how far log-probs differ. A rollout over several weight versions is generated span by span. Exit code: 0
if it is equal, 1 if it differs."""
    parser.add_argument("sample", metavar="SAMPLE", help="id of the sample, as `show` and `lineage` print it")
    switch(parser, "--force", "feed the recorded tokens and compare log-probs only")
    option(parser, "--weights DIR", "look for weight versions here too (repeatable)", default=[], action="append")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="device of the engine [as in the run]")
    option(parser, "--tolerance X", "allowed difference of log-probs, in nats [0.001]", float, 1e-3)
    switch(parser, "--json", "JSON instead of text")


def _rescore(parser: CommandParser) -> None:
    parser.usage = "slime-events rescore RUN [--out FILE] [--json] [the run's flags]"
    parser.description = "Apply another reward, filter or advantage estimator to the recorded rollouts of a run."
    parser.epilog = """\
Flags of the run that control how rollouts are graded, filtered and turned into advantages:
  --rm-type, --custom-rm-path, --reward-key, ...     another reward; rollouts are graded again
  --dynamic-sampling-filter-path                     another filter
  --advantage-estimator, --gamma, --normalize-advantages,
  --disable-rewards-normalization, --disable-grpo-std-normalization
Other settings keep the run's values. Without flags, everything is graded and decided again under the run's settings."""
    option(parser, "--out FILE", "write the differences to a changes file (JSON lines)", Path)
    option(parser, "--most N", "examples shown of each kind [5]", int, 5)
    switch(parser, "--json", "JSON instead of text")


def _export(parser: CommandParser) -> None:
    from slime_events.analysis.export.export import WEIGHTS, Layout
    from slime_events.analysis.export.sample import Fate

    parser.description = """\
Export a run's samples as slime's dumps, JSON lines, Parquet, or a Hugging Face data set; or weights of one version."""
    parser.epilog = """\
--out is a file (for debug-rollout a template, as dumps/{rollout_id}.pt; for hf a folder), on any fsspec URL.
debug-rollout   one torch file per step, as slime's --save-debug-rollout-data writes; evaluations as eval_<version>
jsonl, parquet  one row per sample; with --prompts one row per prompt, as --prompt-data reads it
hf              shards and a card that datasets.load_dataset(FOLDER) reads: train, rejected, test
weights         a whole Hugging Face folder of --version, also of one that is stored as a delta; --out is a folder"""
    formats = [*(layout.value for layout in Layout), WEIGHTS]
    parser.add_argument("--to", required=True, choices=formats, help="output format")
    option(parser, "--out PATH", "output path: see below", required=True)
    fates = ", ".join(fate.value for fate in Fate)
    option(parser, "--what FATE,...", f"samples that were {fates} [trained; with hf all]")
    option(parser, "--steps N-M", "only samples of these steps")
    switch(parser, "--prompts", "write one row per prompt, not per sample")
    option(parser, "--version N", "with --to weights: the weight version", type=int)


def _metrics(parser: CommandParser) -> None:
    parser.description = """\
Print slime's metrics of a run; or write them to a logger, with --use-wandb, --use-tensorboard or --use-otlp."""
    switch(parser, "--follow", "continue until the run ends [only what is in its log now]")
    switch(parser, "--json", "one JSON object for each event that gives metrics")


def _convert(parser: CommandParser) -> None:
    parser.usage = """\
slime-events convert SRC DST [--to hf|torch_dist] [--origin-hf-dir MODEL] [--ckpt-step N] [slime's MODEL_ARGS]"""
    parser.description = """\
Write a model's weights in another format, one tensor at a time: a Hugging Face folder as torch_dist, a torch_dist
folder or a trainer checkpoint as a Hugging Face folder. DST appears when it is complete."""
    parser.epilog = """\
The flags of slime's converters name the same folders: --hf-checkpoint SRC --save DST, and
--input-dir SRC --output-dir DST --origin-hf-dir MODEL. Flags that describe the model are compared with config.json."""
    parser.add_argument("folders", nargs="*", metavar="SRC DST", help="the folder to read, and a new folder")
    option(parser, "--to FORMAT", "hf or torch_dist [torch_dist for a Hugging Face folder, else hf]", dest="to")
    option(parser, "--origin-hf-dir MODEL", "Hugging Face folder whose config, tokenizer and file layout DST has [SRC]")
    option(parser, "--ckpt-step N", "iteration of a torch_dist folder [the newest]", int)
    option(parser, "--hf-checkpoint FOLDER", "SRC; with another SRC, the same as --origin-hf-dir")
    option(parser, "--input-dir SRC", "folder to read")
    option(parser, "--load SRC", "folder to read")
    option(parser, "--save DST", "new folder")
    option(parser, "--output-dir DST", "new folder")


def _archive(parser: CommandParser) -> None:
    parser.description = "Extend a run's archive to the end of its log, verify it, or repair it."
    parser.add_argument("url", nargs="?", metavar="URL", help="archive to write (fsspec URL) [the run's own archive]")
    switch(parser, "--verify", "only read the archive and check every digest")
    switch(parser, "--repair", "first rebuild damaged segments from the log")


def _restore(parser: CommandParser) -> None:
    from slime_events.core.run.run_folder import RUNS_DIR

    parser.description = "Restore a run's folder and its log from the archive alone."
    parser.add_argument("run", metavar="RUN", help="name of the run, as it was started")
    parser.add_argument("archive_url", metavar="ARCHIVE_URL", help="--archive-url of the run (fsspec URL)")
    option(parser, "--runs-dir DIR", f"folder of all runs [{RUNS_DIR}]", default=RUNS_DIR)
    nats_options(parser, "restore into this NATS server [a server of the run's own]")
    option(parser, "--blob-url URL", "where its large payloads are (fsspec URL) [the archive, and the run's folder]")
    option(parser, "--weights-url URL", "where its weight versions are, if not in its folder (fsspec URL)")
    switch(parser, TRUST, "the archive is your own: use all addresses, functions and commands in its settings")
    option(parser, "--nats-replicas N", "replicas in the NATS cluster [1]", int, 1)


def _produce(parser: CommandParser) -> None:
    parser.description = """\
Send prompts to a run. One JSON object per line: prompt (text) or messages, and optionally key, label, metadata,
tools. Prints group ids to standard output and refused lines to standard error. The same key is always the same
prompt, so it is safe to send a file again."""
    parser.add_argument("file", metavar="FILE", help="JSON Lines, or one JSON list; - is standard input")
    option(parser, "--key-field NAME", "field with the key of a prompt [key, or the line's sha256]")
    option(parser, "--batch N", "prompts per message [50]", int, 50)
    nats_options(parser, "the run's NATS server, if its folder is not here [the server that the credentials name]")
    option(parser, "--timeout S", "seconds to wait for a reply [30]", float, 30.0)
    option(parser, "--wait S", "seconds to wait for a run that takes no prompts yet [60]", float, 60.0)


def _gateway(parser: CommandParser) -> None:
    parser.description = """\
Serve HTTP for producers: they send prompts and read the results. Each source of prompts has its own token."""
    option(parser, "--listen HOST:PORT", "address to listen on [127.0.0.1:8500]", default="127.0.0.1:8500")
    option(parser, "--issue NAME", "only print a new token for a source; its earlier token stops working")
    may = "with --issue: what the token allows [as the earlier token, or everything]: "
    may += "prompts, trajectories, rewards, sessions or tinker (repeatable)"
    option(parser, "--may WHAT", may, default=[], action="append")
    option(parser, "--per-minute N", "with --issue: requests per minute of the source [as before, or no limit]", int)
    option(parser, "--revoke NAME", "only revoke the token of a source")
    switch(parser, "--sources", "only list the sources that have a token")
    option(parser, "--nats-creds FILE", "credentials of a gateway, if the run's log is on a NATS server of your own")
    option(parser, "--tls-cert FILE", "PEM certificate: serve HTTPS")
    option(parser, "--tls-key FILE", "PEM key of that certificate")
    switch(parser, "--insecure", "listen beyond this machine without TLS, behind a proxy that adds it")
    repeatable: dict[str, Any] = {"default": [], "action": "append"}
    option(parser, "--allow-origin URL", "origin of web pages that may use the gateway (repeatable)", **repeatable)
    option(parser, "--host-name NAME", "host name of the gateway (repeatable)", **repeatable)


def _console(parser: CommandParser) -> None:
    parser.usage = "slime-events console [RUN | ARCHIVE-URL | FOLDER] [--runs-dir DIR] [--listen HOST:PORT] [...]"
    parser.description = """\
Serve pages over runs, live, finished or archived: metrics, samples, groups, rollouts, steps. It only reads."""
    parser.epilog = """\
On this machine alone no token is needed. To listen elsewhere, issue a token first, and give a certificate."""
    what = "a run, the URL of its archive, or a folder of runs [all runs in --runs-dir]"
    parser.add_argument("run", nargs="?", metavar="RUN", help=what)
    option(parser, "--runs-dir DIR", f"folder of all runs [{RUNS_DIR}]", default=RUNS_DIR)
    parser.add_argument(TRUST, action="store_true", help=argparse.SUPPRESS)
    option(parser, "--listen HOST:PORT", "address to listen on [127.0.0.1:8600]", default="127.0.0.1:8600")
    option(
        parser, "--issue NAME", "only print a new token for NAME, with the right `view`; an earlier one stops working"
    )
    option(parser, "--revoke NAME", "only revoke the token of NAME")
    option(parser, "--tls-cert FILE", "PEM certificate: serve HTTPS", default="")
    option(parser, "--tls-key FILE", "PEM key of that certificate", default="")
    switch(parser, "--insecure", "listen beyond this machine without TLS, behind a proxy that adds it")
    option(parser, "--host-name NAME", "host name of the console (repeatable)", default=[], action="append")


def _nats_config(parser: CommandParser) -> None:
    parser.description = """\
Print accounts and permissions to paste into the configuration of a NATS server of your own: one user for a run's roles,
one for producers, one for a gateway, one for viewers. With --out, make their passwords, in files for --nats-creds."""
    option(parser, "--run NAME", "the run that producers and viewers may use [any]", default="*", dest="name")
    option(parser, "--out DIR", "a new folder for accounts.conf and a file of credentials for each", Path)
    option(parser, "--nats-url URL", "address of the server, written into those files")
    switch(parser, "--agents", "gateways may open agents' sessions, for runs with --agents")


COMMANDS: dict[str, Command] = {
    "demo": Command("train a tiny model that learns visibly, in minutes", _demo, True, False),
    "train": Command("train with slime's flags, or with the same settings as TOML", _train, True, False),
    "plan": Command("plan a run by arithmetic: GPUs, memory, seconds, disk; start nothing", declare_plan, True, False),
    "resume": Command("continue a run that was interrupted, has failed or was killed", _resume, True),
    "branch": Command(
        "start a new run from a weight version of another run, with other settings", _branch, True, False
    ),
    "learn": Command(
        "train a new run on the rollouts of another run, with its own settings and changes", _learn, True, False
    ),
    "tail": Command("follow the events of a run, with filters", declare_tail),
    "show": Command("show a run, step, group, sample, weight version or trace, from the log", declare_show),
    "lineage": Command("show where a weight version comes from, and where a sample went", declare_lineage),
    "query": Command("run SQL over a run: tables of samples, groups, steps, versions and more", declare_query),
    "retrain": Command("train steps again from the log, and compare the digests", _retrain),
    "replay": Command("make the conductor's decisions again, and show the first difference", _replay, True),
    "replay-rollout": Command("generate one rollout again, on an engine with the same weights", _replay_rollout),
    "compare": Command("find the first difference of two runs, with the inputs of both sides", declare_compare),
    "what-if": Command("predict a run's step time, idle shares and staleness under other settings", declare_what_if),
    "audit": Command("check a run's whole history: every check and its counts", declare_audit),
    "inspect": Command("find reward hacking and failures in a run, by SQL views", declare_inspect, True),
    "rescore": Command("apply another reward, filter or advantage to a run's rollouts", _rescore, True),
    "export": Command("export a run's samples as slime's dumps, JSON lines, Parquet or a data set", _export),
    "convert": Command("write a model's weights in another format: Hugging Face, torch_dist", _convert, True, False),
    "metrics": Command("print slime's metrics of a run, or write them to TensorBoard and W&B", _metrics, True),
    "trace": Command("send or write the traces of a past run, with their ids", declare_trace, takes_run=False),
    "archive": Command("extend a run's archive to the end of its log, verify it, repair it", _archive),
    "restore": Command("restore a run's folder and log from the archive alone", _restore, takes_run=False),
    "produce": Command("send prompts from a file to a run", _produce),
    "gateway": Command("serve HTTP for producers of a run: they send prompts and read the results", _gateway),
    "console": Command("serve pages over runs: metrics, samples, groups, rollouts, steps", _console, takes_run=False),
    "nats-config": Command("print accounts and permissions for your own NATS server", _nats_config, takes_run=False),
    "doctor": Command("check that this machine has everything that a run needs", declare_doctor, False, False),
}
_RETRAIN_BRANCH = Command("", functools.partial(_learn, naming="--branch"), True, False)
RETRAIN_BRANCH = "retrain --branch"
"""Key of `retrain` into a new run, which takes the arguments of `learn`. The list of commands leaves it out."""
