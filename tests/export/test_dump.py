"""Foreign dumps: plain values are read, everything else is refused before it can do anything."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.errors import DataError
from slime_events.analysis.export.dump import load_dump

SAMPLE = {"tokens": [1, 2, 3], "response_length": 2, "status": "completed", "rollout_log_probs": [-0.5, -1.0]}


class Malicious:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


@pytest.mark.parametrize("plain", [False, True], ids=["torch file", "pickle"])
def test_code_in_a_dump_is_refused_and_not_run(tmp_path: Path, *, plain: bool) -> None:
    path, trace = tmp_path / "0.pt", tmp_path / "it-ran"
    pack = {"rollout_id": 0, "samples": [SAMPLE | {"metadata": Malicious(f"touch {trace}")}]}
    if plain:
        path.write_bytes(pickle.dumps(pack))
    else:
        torch.save(pack, path)
    with pytest.raises(DataError, match=r"0\.pt holds more than numbers.* it is refused") as caught:
        load_dump(str(path))
    assert plain or "it asks for posix.system" in str(caught.value)
    assert not trace.exists()
    torch.load(path, weights_only=False) if not plain else pickle.loads(path.read_bytes())
    assert trace.exists()


def test_fields_of_another_version_and_tensors(tmp_path: Path) -> None:
    path = tmp_path / "7.pt"
    foreign = SAMPLE | {"tokens": torch.tensor([1, 2, 3]), "spec_info": {"accepted": 3}, "loss_mask": None}
    torch.save({"rollout_id": 7, "samples": [foreign]}, path)
    rollout_id, (sample,) = load_dump(str(path))
    assert (rollout_id, sample.tokens, sample.loss_mask) == (7, [1, 2, 3], None)


@pytest.mark.parametrize(
    ("pack", "why"),
    [
        ([SAMPLE], "is not a rollout dump"),
        ({"samples": [7]}, "sample 0 is a int"),
        ({"samples": [SAMPLE, SAMPLE | {"response_length": 3}]}, "sample 1 has 3 tokens, and response_length 3"),
        ({"samples": [SAMPLE | {"rollout_log_probs": [1.0]}]}, "1 rollout_log_probs for 2 response tokens"),
        ({"samples": [SAMPLE | {"status": "asleep"}]}, "asleep"),
    ],
)
def test_what_is_no_dump(tmp_path: Path, pack: Any, why: str) -> None:
    torch.save(pack, tmp_path / "0.pt")
    with pytest.raises(DataError, match=why):
        load_dump(f"{tmp_path}/0.pt")


def test_no_file_and_no_torch_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        load_dump(f"{tmp_path}/0.pt")
    (tmp_path / "0.pt").write_bytes(b"{}")
    with pytest.raises(DataError):
        load_dump(f"{tmp_path}/0.pt")
