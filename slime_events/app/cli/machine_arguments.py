"""The arguments of commands about machines: `plan` and `doctor`."""

from pathlib import Path

from slime_events.app.cli.parser import CommandParser, nats_options, option, switch


def declare_plan(parser: CommandParser) -> None:
    """Declare the arguments of `plan`."""
    parser.usage = "slime-events plan --hf-checkpoint FOLDER [--nodes N] [...] [any flag of train ...]"
    parser.description = """\
Plan a run by arithmetic: machines, ranks and engines, memory of each GPU, seconds of a step, log and disk. Nothing is
started, and of the checkpoint only config.json is read. Exit code: 0 if the run fits, else 1."""
    parser.epilog = """\
Without a flag that describes machines, the plan is for the Ray of --ray-address or this machine's GPUs; without GPUs,
for as many machines as the run needs. docs/planning.md has the formulas and the names for --assume."""
    option(parser, "--nodes N", "machines [as many as the run needs]", int)
    option(parser, "--gpus-per-node N", "GPUs of a machine [8, or as many as the run needs]", int)
    option(parser, "--gpu-memory-gb G", "memory of a GPU, GiB [80]", float)
    option(parser, "--host-memory-gb G", "memory of a machine, GiB [not checked]", float)
    option(parser, "--assume NAME=VALUE", "another assumption (repeatable)", default=[], action="append")
    switch(parser, "--json", "JSON instead of text")


def declare_doctor(parser: CommandParser) -> None:
    """Declare the arguments of `doctor`."""
    parser.description = "Check that this machine has everything that a run needs, and say how to fix what is missing."
    url = "check a NATS server of your own, or the nodes of a cluster with commas, instead of the binary"
    option(parser, "--runs-dir DIR", "folder of all runs [slime-runs]", Path, Path("slime-runs"))
    nats_options(parser, url)
    option(parser, "--blob-url URL", "fsspec URL of large payloads")
    option(parser, "--archive-url URL", "fsspec URL of the archive")
    option(parser, "--port N", "a port that must be free (repeatable)", int, default=[], action="append")
    option(parser, "--ray-address HOST:PORT", "check all machines of this Ray too, and the network between them")
    shared = "with --ray-address: a folder or store that all machines must see (repeatable)"
    option(parser, "--shared URL", shared, default=[], action="append")
    servers = "SGLang servers that run already, compared with --hf-checkpoint"
    option(parser, "--rollout-external-engine-addrs HOST:PORT", servers, default=[], nargs="+")
    option(parser, "--hf-checkpoint DIR", "with --rollout-external-engine-addrs: the model of the run")
    how = parser.add_mutually_exclusive_group()
    switch(how, "--quick", "check versions only; import nothing")
    switch(how, "--imports", "import SGLang and Megatron-core, not only check their files")
