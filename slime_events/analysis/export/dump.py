"""slime's rollout dumps: `--save-debug-rollout-data`'s files, written and read.

A dump is `torch.save` of `{"rollout_id": N, "samples": [...]}`, a sample as the plain dict of its fields. Reading one
runs no code of its writer: torch's weights-only loader takes plain values and tensors, and refuses everything else.
"""

import dataclasses
import io
import pickle
import re
import string
import warnings
from collections.abc import Sequence
from typing import Any

from schemas.errors import DataError, InvalidValue
from slime_events.analysis.export.files import read_file, write_file
from slime_events.analysis.export.sample import ExportedSample, as_slime
from slime_events.plugins.sample import Sample


def check_template(template: str) -> None:
    """Raises InvalidValue for a path that is not `...{rollout_id}...`."""
    names = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    if names != {"rollout_id"}:
        raise InvalidValue(
            f"{template}: it needs {{rollout_id}}, and nothing else in braces, as in dumps/{{rollout_id}}.pt"
        )


def dump_path(template: str, rollout_id: int, *, evaluation: bool = False) -> str:
    """The file of a rollout. Raises as `check_template`."""
    check_template(template)
    return template.format(rollout_id=f"{'eval_' if evaluation else ''}{rollout_id}")


def train_dump_path(template: str, rollout_id: int) -> str:
    """The file of what was trained in a step. A {rank} is of the one that writes it, which is the first."""
    return dump_path(template.replace("{rank}", "0"), rollout_id)


def save_dump(path: str, rollout_id: int, samples: Sequence[ExportedSample]) -> None:
    """Write one file, whole or not at all."""
    import torch

    plain = [sample.to_dict() for sample in as_slime(samples)]
    buffer = io.BytesIO()
    torch.save({"rollout_id": rollout_id, "samples": plain}, buffer)
    write_file(path, buffer.getvalue())


def load_dump(path: str) -> tuple[int, list[Sample]]:
    """(rollout id, samples in order). Raises DataError for what is no dump, or holds more than plain values."""
    import torch

    data = read_file(path)
    try:
        with warnings.catch_warnings(action="ignore"):  # of a pickle protocol: it is read or refused all the same
            pack = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        asks = f" (it asks for {named[1]})" if named else ""
        raise DataError(
            f"{path} holds more than numbers, text, lists and dicts. Loading it could run code of whoever wrote it, so "
            f"it is refused{asks}"
        ) from error
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        raise DataError(f"{path} is no torch file: {str(error).splitlines()[0]}") from error
    if not isinstance(pack, dict) or not isinstance(pack.get("samples"), list):
        raise DataError(f"{path} is no rollout dump: it should be a dict with rollout_id and a list of samples")
    rollout_id = pack.get("rollout_id")
    samples = [_from_slime(path, place, plain) for place, plain in enumerate(pack["samples"])]
    return rollout_id if isinstance(rollout_id, int) else -1, samples


def _from_slime(path: str, place: int, plain: Any) -> Sample:
    """A sample of which the training parts are known to fit together; fields that this version lacks are left out."""
    where = f"{path}, sample {place}"
    if not isinstance(plain, dict):
        raise DataError(f"{where} is a {type(plain).__name__}, and should be a dict of a sample's fields")
    known = {field.name for field in dataclasses.fields(Sample)}
    values = {name: value for name, value in plain.items() if name in known and value is not None}
    values |= {name: value.tolist() for name, value in values.items() if hasattr(value, "tolist")}  # foreign tensors
    try:
        sample = Sample.from_dict(values)
        tokens, length = list(map(int, sample.tokens)), int(sample.response_length)
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(f"{where}: {error}") from error
    if not 0 < length < len(tokens):
        raise DataError(f"{where} has {len(tokens)} tokens, and says that {length} of them are the response")
    for name, given in (("rollout_log_probs", sample.rollout_log_probs), ("loss_mask", sample.loss_mask)):
        if given is not None and len(given) != length:
            raise DataError(f"{where} has {len(given)} {name} for {length} response tokens")
    sample.tokens = tokens
    return sample
