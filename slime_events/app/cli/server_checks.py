"""Check of `slime-events doctor --rollout-external-engine-addrs`: an SGLang server that runs already."""

from __future__ import annotations

import contextlib
from pathlib import Path

from msgspec.structs import replace

from schemas.errors import SlimeEventsError
from slime_events.app.cli.checks import Check, Outcome
from slime_events.app.launch.external_preflight import FLAG, check_external, check_reads_weights
from slime_events.core.config.engine import Device
from slime_events.core.config.settings import TrainSettings

MEND = "see docs/external-engines.md, what a server needs"


def check_server(address: str, checkpoint: str, runs_dir: Path, device: Device) -> Check:
    """Look at a server as `train` does: compare its model, and let it load no weights from below `runs_dir`.

    checkpoint: value of --hf-checkpoint. device: of the run, which decides the precision.
    """
    settings = TrainSettings()
    engine = replace(settings.engine, hf_checkpoint=checkpoint, device=device, rollout_external_engine_addrs=[address])
    settings, name, is_new = replace(settings, engine=engine), f"server {address}", not runs_dir.exists()
    try:
        check_external(settings)
        check_reads_weights(settings, str(runs_dir.absolute()))
    except SlimeEventsError as error:
        return Check(name, Outcome.FAIL, str(error).removeprefix(f"{FLAG}: "), MEND)
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # it was not created, or a run has begun there
                runs_dir.rmdir()
    return Check(name, Outcome.OK, f"has the model of {checkpoint}, and loads weights from {runs_dir}")
