"""Arguments of the commands that inspect a run: `tail`, `show`, `lineage`, `query`, `compare`, `audit`,
`inspect`.
"""

from pathlib import Path
from typing import Any

from slime_events.app.cli.parser import CommandParser, option, switch


def declare_tail(parser: CommandParser) -> None:
    """Declare the arguments of `tail`."""
    parser.description = "Print the events of a run, one line each. Follows a running run."
    types = "event types (rollout.completed) or nouns (rollout)"
    option(parser, "--type TYPE", types, default=[], nargs="+", action="extend")
    option(parser, "--group GROUP", "only events about this group")
    option(parser, "--sample SAMPLE", "only events about this sample")
    option(parser, "--from N", "first position [1]", int, 1, dest="start")
    switch(parser, "--no-follow", "exit after the last event in the log")
    switch(parser, "--json", "one JSON object per event; arrays as type and length")
    switch(parser, "--full", "with --json: arrays in full")


def declare_show(parser: CommandParser) -> None:
    """Declare the arguments of `show`."""
    from slime_events.analysis.timetravel.log_position import FORMS

    parser.description = "Show a run, or one step, group, sample, weight version, trace or moment of it, from its log."
    parser.epilog = "An id may be shortened to any prefix that is unique."
    what = parser.add_mutually_exclusive_group()
    step = "one step, from 0: batch, samples, metrics, digests; with --at: move N events forward (-N: back)"
    option(what, "--step N", step, int)
    option(what, "--group G", "one group, by its id or its producer's key: prompt, samples, filter decision, fate")
    option(what, "--sample S", "one rollout, or an agent's session: turns, tokens, versions, reward, fate")
    option(what, "--version V", "one weight version: origin, folder, engines, evals", int)
    option(what, "--trace G", "the spans of one group, from submit to activate")
    switch(what, "--verify", "fold the log from position 0 and compare with the final state of the live run")
    option(parser, "--at POS", f"the whole system at a position: {FORMS}")
    option(parser, "--diff POS", "with --at: what differs between the two positions")
    option(parser, "--tokens N", "token rows to show, 0 for all [64]", int, 64)
    switch(parser, "--json", "JSON instead of text")


def declare_lineage(parser: CommandParser) -> None:
    """Declare the arguments of `lineage`."""
    parser.description = """\
Show where a weight version comes from, down to the lines of its prompts, and the weight versions that descend from a
sample. Follows branches into their parent runs. RUN may be running, finished, or an archive."""
    what = parser.add_mutually_exclusive_group()
    option(what, "--version V", "lineage of this weight version [the newest]", int)
    option(what, "--step N", "lineage of one training step, from 0", int)
    option(what, "--sample S", "lineage of one rollout")
    option(what, "--group G", "lineage of one prompt and its samples")
    option(what, "--source FILE[:LINE]", "lineage of a prompt file, of one line of it, or of inbox[:KEY]")
    option(parser, "--depth N", "steps back from a version or step, 0 for all [1]", int, 1)
    formats = ("text", "json", "svg", "html")
    parser.add_argument("--format", choices=formats, help="output format [the suffix of --out, or text]")
    option(parser, "--out FILE", "write the output to this file", Path)


def declare_query(parser: CommandParser) -> None:
    """Declare the arguments of `query`."""
    parser.description = "Run an SQL query over a run, live, finished or archived (docs/querying.md)."
    parser.add_argument("sql", nargs="?", metavar="SELECT", help="one statement in DuckDB's SQL")
    formats = ("table", "csv", "json", "parquet")
    option(parser, "--file FILE", "read the statement from a file, - for standard input")
    parser.add_argument("--format", choices=formats, default="table", help="format of the rows [table]")
    option(parser, "--out FILE", "write the rows to this file", Path)
    option(parser, "--rows N", "rows of a table to show, 0 for all [100]", int, 100)
    switch(parser, "--with-parent", "include the runs that RUN branched from, up to the branch point")
    switch(parser, "--tables", "list the tables and run no query")
    option(parser, "--schema TABLE", "list the columns of a table and run no query")


def declare_compare(parser: CommandParser) -> None:
    """Declare the arguments of `compare`."""
    parser.description = """\
Find the first difference of two runs (prompt, token, reward, decision, batch, gradient norm or digest), with the
inputs of both sides, and compare their steps. Each run may be running, finished, or an archive. Exit code: 0 if both
are equal in the steps that they share, 1 if they differ."""
    parser.add_argument("other", metavar="OTHER", help="the run to compare it with")
    switch(parser, "--json", "JSON instead of text")


def declare_audit(parser: CommandParser) -> None:
    """Declare the arguments of `audit`."""
    parser.description = """\
Check a run's whole history and print each check with its counts. Exit code: 0 if there are no findings, 1 if there
are any."""
    option(parser, "--archive URL", "audit the archive URL/RUN")
    switch(parser, "--no-files", "check the log alone, without blobs and weight folders")
    option(parser, "--most N", "findings shown per check, 0 for all [20]", int, 20)
    switch(parser, "--json", "JSON instead of text")


def declare_inspect(parser: CommandParser) -> None:
    """Declare the arguments of `inspect`."""
    parser.usage = "slime-events inspect RUN [--only NAME ...] [--changes FILE] [--json] [the run's flags]"
    parser.description = """\
Find reward hacking and failures in a run, live, finished or archived. Each detector is an SQL view of
slime-events query (docs/inspecting.md). Exit code: 0 if nothing is found, 1 if anything is."""
    parser.epilog = """\
Flags of the run that name a second grader (--rm-type, --custom-rm-path, --reward-key, ...) grade all recorded answers
again, as slime-events rescore does, and compare the two graders."""
    option(parser, "--only NAME", "run only these detectors", default=[], nargs="+", action="extend")
    switch(parser, "--alarms", "run only the detectors of failures, for a run that is on")
    option(parser, "--changes FILE", "compare with the rewards in a file of slime-events rescore --out")
    switch(parser, "--list", "list the detectors with their thresholds and read no run")
    switch(parser, "--json", "JSON instead of text")


def declare_what_if(parser: CommandParser) -> None:
    """Declare the arguments of `what-if`."""
    parser.description = """\
Predict a recorded run under other settings: step time, idle shares, staleness and length bias, beside what was seen.
The run's own timings and answers are used, and the conductor's own decisions are made in virtual time. Give several
values to a flag for a row each; several flags give all combinations. RUN may be running, finished, or an archive."""
    several: dict[str, Any] = {"default": [], "nargs": "+"}
    option(parser, "--max-staleness N", "versions that a sample may be behind", int, **several)
    option(parser, "--over-sampling-batch-size N", "groups requested at each top-up", int, **several)
    orders = ("auto", "prompt", "completion")
    parser.add_argument("--accept-order", choices=orders, help="order in which groups are accepted", **several)
    option(parser, "--rollout-batch-size N", "groups of a step", int, **several)
    option(parser, "--update-weights-interval N", "steps between two published versions", int, **several)
    option(parser, "--engines N", "number of engines", int, dest="rollout_num_engines", **several)
    option(parser, "--rm-workers N", "grader processes", int, **several)
    option(parser, "--chunk-tokens N", "tokens of a sample between two appends of its progress", int, **several)
    option(parser, "--seed N", "seed of the random choices [0]", int, 0)
    switch(parser, "--json", "JSON instead of text")


def declare_trace(parser: CommandParser) -> None:
    """Declare the arguments of `trace`."""
    from slime_events.analysis.timetravel.log_position import FORMS

    parser.usage = "slime-events trace export RUN (--otlp URL | --out FILE | --perfetto FILE) [--from POS] [--to POS]"
    parser.description = """\
Send or write the spans of a run, or of a stretch of it, with the ids and times that the live processes gave them. RUN
may be running, finished, or an archive. Each span is exported once, however often a receiver has already got it."""
    parser.add_argument("action", choices=("export",), help="export: send or write the spans")
    parser.add_run()
    option(parser, "--otlp URL", "OTLP/HTTP endpoint to send the spans to, as http://localhost:4318")
    option(parser, "--out FILE", "file to write the spans to, a JSON line each (docs/metrics.md)", Path)
    option(parser, "--perfetto FILE", "file to write the console's timeline to, for https://ui.perfetto.dev", Path)
    option(parser, "--from POS", f"begin at this position [the first]: {FORMS}", dest="begin")
    option(parser, "--to POS", "end at this position [the last]", dest="end")
    option(parser, "--share X", "share of groups, 0 to 1, by the rule of --trace-share [1]", float, 1.0)
    switch(parser, "--json", "JSON instead of text")
