"""`TrainSettings`: all settings of a run, as resolved from flags or TOML and recorded in run.started."""

from typing import Annotated

from slime_events.core.config.agents import AgentSettings
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.base import Settings, doc
from slime_events.core.config.data import DataSettings
from slime_events.core.config.engine import EngineSettings
from slime_events.core.config.evaluation import EvalSettings
from slime_events.core.config.gateway import RunGatewaySettings
from slime_events.core.config.metrics import MetricsSettings
from slime_events.core.config.reward import RewardSettings
from slime_events.core.config.rollout import RolloutSettings
from slime_events.core.config.rules import Later, excludes, needs
from slime_events.core.config.trainer import TrainerSettings
from storage.file_access import OWNER, FileAccess


class RunSettings(Settings, frozen=True, kw_only=True):
    """Name, log, archive and files of the run. All its files are in one folder."""

    LATER = Settings.LATER | Later.LEARN

    run: Annotated[str, doc("name of the run: letters, digits, - and _")] = "train"
    runs_dir: Annotated[str, doc("parent folder of run folders")] = "slime-runs"
    nats_url: Annotated[
        str | None,
        doc(
            "NATS server to use, or the nodes of a cluster, comma-separated; default: an embedded server",
            also=Later.RESUME,
        ),
    ] = None
    nats_creds: Annotated[
        str | None,
        doc(
            "credentials for nats-url: JSON with user and password, a NATS .creds file, or an nkey's seed",
            also=Later.RESUME,
        ),
    ] = None
    nats_tls_ca: Annotated[
        str | None, doc("PEM certificates to verify the certificate of nats-url with", also=Later.RESUME)
    ] = None
    nats_tls_cert: Annotated[str | None, doc("PEM client certificate for nats-url", also=Later.RESUME)] = None
    nats_tls_key: Annotated[str | None, doc("PEM key of nats-tls-cert", also=Later.RESUME)] = None
    nats_replicas: Annotated[
        int,
        doc(
            "copies of the log, each on a different node of the NATS cluster: 3 survive the loss of one node",
            needs("nats_url", why="a run's own NATS is a single server", unless=("nats_replicas=1",)),
        ),
    ] = 1
    blob_url: Annotated[str | None, doc("fsspec URL of large payloads; default: the run folder")] = None
    archive_url: Annotated[str | None, doc("fsspec URL of the archive; default: the run folder")] = None
    weights_url: Annotated[
        str | None,
        doc("fsspec URL of weight versions, which each host reads through its cache; default: the run folder"),
    ] = None
    cache_dir: Annotated[
        str | None,
        doc(
            "folder on each host for copies of what is at weights-url and save; default: ~/.cache/slime-events",
            needs("weights_url", "save", why="only weights and checkpoints at a URL are copied"),
            also=Later.RESUME,
        ),
    ] = None
    cache_gb: Annotated[
        float | None,
        doc(
            "most gigabytes (1e9 bytes) of cache-dir; default: half of its disk",
            needs("weights_url", "save", why="only weights and checkpoints at a URL are copied"),
            above=0,
            also=Later.RESUME,
        ),
    ] = None
    archive_seconds: Annotated[
        float,
        doc(
            "seconds that the archive may lag behind the log; as many are lost if the log's disk is lost",
            above=0,
            also=Later.RESUME,
        ),
    ] = 10.0
    log_keep_steps: Annotated[
        int | None,
        doc(
            "keep the newest N steps in the log; earlier events are removed once the archive has them",
            needs("archive_url", why="only the archive keeps the events that are removed"),
            excludes("debug_train_only", why="events are removed as engines move on, and there are none"),
            above=0,
            also=Later.RESUME,
        ),
    ] = None
    ray_address: Annotated[str | None, doc("Ray cluster to join; default: a local one", also=Later.RESUME)] = None
    otlp_endpoint: Annotated[
        str | None,
        doc(
            "OTLP/HTTP endpoint for spans; default: none is made, and trace export makes them later", also=Later.RESUME
        ),
    ] = None
    trace_share: Annotated[
        float,
        doc(
            "share of groups that are traced, 0 to 1; above 0, failures always are; without --otlp-endpoint it only "
            "marks events as sampled",
            least=0,
            most=1,
            also=Later.RESUME,
        ),
    ] = 1.0
    max_deaths: Annotated[
        int, doc("deaths of a role's process without progress of the run after which the run fails", also=Later.RESUME)
    ] = 5
    tinker: Annotated[
        str | None,
        doc(
            "serve Tinker's protocol at HOST:PORT; its client drives the run instead of prompts",
            excludes(
                "debug_rollout_only",
                "debug_train_only",
                "log_keep_steps",
                "gateway",
                "agent_command",
                "advantage_estimator:needs_values",
                why="a client drives the run",
            ),
            needs("optimizer=adam", why="a client's optim_step is a step of Adam"),
            needs("store_before_commit", why="a client chooses the versions to store"),
        ),
    ] = None
    file_access: Annotated[
        FileAccess,
        doc(
            "users of this machine that may read the run's files: owner, group of the files, or as the umask allows",
            also=Later.RESUME,
        ),
    ] = OWNER
    console_port: Annotated[
        int | None,
        doc(
            "port of this machine at which a browser sees the run while it is on; 0: none; default: the first free one "
            "from 8601",
            least=0,
            most=65535,
            also=Later.RESUME,
        ),
    ] = None
    plain: Annotated[bool, doc("print a plain line per step even on a terminal", also=Later.RESUME)] = False

    @property
    def log_leaves_for(self) -> str | None:
        """URL of the archive that holds events removed from the log; None: no events are removed."""
        return None if self.log_keep_steps is None else self.archive_url


class DebugSettings(Settings, frozen=True, kw_only=True):
    """slime's debug flags. Dumps are in slime's format: one torch file of plain values per step."""

    debug_rollout_only: Annotated[
        bool,
        doc(
            "run without a trainer: each step is sealed and committed with unchanged weights",
            excludes("debug_train_only", why="one leaves out the trainer, the other the engines"),
        ),
    ] = False
    debug_train_only: Annotated[
        bool,
        doc(
            "run without engines and graders: rollouts come from load-debug-rollout-data",
            needs(
                "load_debug_rollout_data",
                "supervised",
                "rollout_function_path",
                why="without engines, rollouts must come from dumps, rows of prompt_data or your function",
            ),
        ),
    ] = False
    load_debug_rollout_data: Annotated[
        str | None, doc("path with {rollout_id}: train on these dumps; sets debug-train-only")
    ] = None
    load_debug_rollout_data_subsample: Annotated[
        float | None,
        doc(
            "share of each dump's groups to load, from its start and its end; a step has only these groups",
            needs("load_debug_rollout_data", why="it selects a share of those dumps"),
            above=0,
            most=1,
        ),
    ] = None
    save_debug_rollout_data: Annotated[
        str | None, doc("path with {rollout_id}: dump the samples of each step when it is sealed")
    ] = None
    save_debug_train_data: Annotated[
        str | None, doc("path with {rollout_id}: dump the trainer's data of each step")
    ] = None
    dump_details: Annotated[
        str | None,
        doc(
            "folder for both dumps: rollout_data/ in it for save-debug-rollout-data, train_data/ for "
            "save-debug-train-data"
        ),
    ] = None


RUN_ELSEWHERE = frozenset(
    {
        "custom_config_path",
        "custom_generate_function_path",
        "custom_rm_path",
        "rollout_function_path",
        "rollout_sample_hook_path",
    }
)
"""Settings of data, rollouts and rewards that name no function of the conductor: engines or graders call these."""


class TrainSettings(Settings, frozen=True, kw_only=True):
    """The settings of a run. A component gets only its own struct."""

    run: RunSettings = RunSettings()
    data: DataSettings = DataSettings()
    rollout: RolloutSettings = RolloutSettings()
    reward: RewardSettings = RewardSettings()
    evaluation: EvalSettings = EvalSettings()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    engine: EngineSettings = EngineSettings()
    trainer: TrainerSettings = TrainerSettings()
    debug: DebugSettings = DebugSettings()
    metrics: MetricsSettings = MetricsSettings()
    agents: AgentSettings = AgentSettings()
    gateway: RunGatewaySettings = RunGatewaySettings()

    @property
    def conductor_runs_functions(self) -> bool:
        """Whether the conductor's process runs a user's function. Functions of the trainer do not count."""
        named = ((part, name) for part in (self.data, self.rollout, self.reward) for name in part.__struct_fields__)
        return any(getattr(part, name) for part, name in named if name.endswith("_path") and name not in RUN_ELSEWHERE)
