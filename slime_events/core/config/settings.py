"""`TrainSettings`: all component settings of one run, as resolved from flags or TOML and recorded in run.started."""

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
from slime_events.core.config.trainer import TrainerSettings
from storage.file_access import OWNER, FileAccess


class RunSettings(Settings, frozen=True, kw_only=True):
    """One folder holds everything a run leaves behind."""

    run: Annotated[str, doc("name of the run: letters, digits, - and _")] = "train"
    runs_dir: Annotated[str, doc("folder of all runs")] = "slime-runs"
    nats_url: Annotated[
        str | None, doc("use this NATS server, or these nodes of a cluster, with commas; default: an embedded one")
    ] = None
    nats_creds: Annotated[
        str | None, doc("credentials for nats-url: JSON with user and password, a NATS .creds file, or an nkey's seed")
    ] = None
    nats_tls_ca: Annotated[str | None, doc("PEM certificates that nats-url's certificate is checked with")] = None
    nats_tls_cert: Annotated[str | None, doc("PEM certificate to show to nats-url")] = None
    nats_tls_key: Annotated[str | None, doc("PEM key of nats-tls-cert")] = None
    nats_replicas: Annotated[
        int, doc("copies of the log, each on another node of the NATS cluster: 3 survive the loss of one")
    ] = 1
    blob_url: Annotated[str | None, doc("fsspec URL of large payloads; default: the run folder")] = None
    archive_url: Annotated[str | None, doc("fsspec URL of the archive; default: the run folder")] = None
    archive_seconds: Annotated[
        float, doc("seconds that the archive may lag behind the log: what is lost with the log's disk")
    ] = 10.0
    log_keep_steps: Annotated[
        int | None,
        doc("keep the newest N steps in the log; earlier events leave it once the archive holds them", above=0),
    ] = None
    ray_address: Annotated[str | None, doc("join this Ray cluster; default: a local one")] = None
    otlp_endpoint: Annotated[str | None, doc("OTLP/HTTP endpoint for spans; default: a file in the run folder")] = None
    trace_share: Annotated[float, doc("share of groups that are traced, 0 to 1")] = 1.0
    max_deaths: Annotated[
        int, doc("times that a role's process may die without the run moving on, before the run fails")
    ] = 5
    tinker: Annotated[
        str | None, doc("host:port where a client of Tinker's protocol drives the trainer, in the place of prompts")
    ] = None
    file_access: Annotated[
        FileAccess,
        doc("users of the machine that may read the run's files: its owner, the group of its files, or as umask says"),
    ] = OWNER
    plain: Annotated[bool, doc("a plain line per step even on a terminal")] = False

    @property
    def log_leaves_for(self) -> str | None:
        """URL of the archive that events may leave the log for; None where all of them stay."""
        return None if self.log_keep_steps is None else self.archive_url


class DebugSettings(Settings, frozen=True, kw_only=True):
    """slime's debug flags. Dumps are slime's: torch files of plain values, one a step."""

    debug_rollout_only: Annotated[
        bool, doc("no trainer: every step is sealed and committed with the weights as they are")
    ] = False
    debug_train_only: Annotated[bool, doc("no engines and no graders: rollouts come from load-debug-rollout-data")] = (
        False
    )
    load_debug_rollout_data: Annotated[
        str | None, doc("train on dumps, a path with {rollout_id}; sets debug-train-only")
    ] = None
    load_debug_rollout_data_subsample: Annotated[
        float | None, doc("part of a dump's groups that is loaded, its first and its last ones; a step is what is left")
    ] = None
    save_debug_rollout_data: Annotated[
        str | None, doc("a dump of each step as it is sealed, a path with {rollout_id}")
    ] = None
    save_debug_train_data: Annotated[
        str | None, doc("a dump of what the trainer made of each step, a path with {rollout_id}")
    ] = None
    dump_details: Annotated[
        str | None,
        doc(
            "folder for dumps: rollout_data/ in it is for save-debug-rollout-data, train_data/ for "
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
"""Of the settings for rollouts and rewards: what engines, graders and other processes run, and a plain file."""


class TrainSettings(Settings, frozen=True, kw_only=True):
    """Each component gets its own struct, never all of this."""

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
        """Whether code of the user's runs in the conductor's process. What trainers run is left out as a whole."""
        named = ((part, name) for part in (self.data, self.rollout, self.reward) for name in part.__struct_fields__)
        return any(getattr(part, name) for part, name in named if name.endswith("_path") and name not in RUN_ELSEWHERE)
