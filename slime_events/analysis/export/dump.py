"""slime's rollout dumps, the files of `--save-debug-rollout-data`: writing and reading.

A dump is `torch.save` of `{"rollout_id": N, "samples": [...]}`, each sample as the plain dict of its fields. Reading a
dump never runs its writer's code: torch's weights-only loader accepts plain values and tensors, and refuses everything
else.
"""

import dataclasses
import io
import pickle
import re
import string
import warnings
from collections.abc import Sequence

from schemas.errors import DataError, InvalidValue
from slime_events.analysis.export.files import read_file, write_file
from slime_events.analysis.export.sample import ExportedSample, as_slime
from slime_events.plugins.sample import Sample


def check_template(template: str) -> None:
    """Raise InvalidValue for a path that is not `...{rollout_id}...`."""
    names = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    if names != {"rollout_id"}:
        raise InvalidValue(
            f"{template}: the path must have {{rollout_id}} and nothing else in braces, as in dumps/{{rollout_id}}.pt"
        )


def dump_path(template: str, rollout_id: int, *, evaluation: bool = False) -> str:
    """Return the file of a rollout. Raises the errors of `check_template`."""
    check_template(template)
    return template.format(rollout_id=f"{'eval_' if evaluation else ''}{rollout_id}")


def train_dump_path(template: str, rollout_id: int) -> str:
    """Return the file of a step's training data. A {rank} is the first rank, which writes it."""
    return dump_path(template.replace("{rank}", "0"), rollout_id)


def save_dump(path: str, rollout_id: int, samples: Sequence[ExportedSample]) -> None:
    """Write one file, completely or not at all."""
    import torch

    plain = [sample.to_dict() for sample in as_slime(samples)]
    buffer = io.BytesIO()
    torch.save({"rollout_id": rollout_id, "samples": plain}, buffer)
    write_file(path, buffer.getvalue())


def load_dump(path: str) -> tuple[int, list[Sample]]:
    """Return (rollout id, samples in order). Raises DataError if it is not a dump, or holds more than plain values."""
    import torch

    data = read_file(path)
    try:
        with warnings.catch_warnings(
            action="ignore"
        ):  # about a pickle protocol: the file is read or refused in any case
            pack = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        asks = f" (it asks for {named[1]})" if named else ""
        raise DataError(
            f"{path} holds more than numbers, text, lists and dicts. Loading it could run its writer's code, so "
            f"it is refused{asks}"
        ) from error
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        raise DataError(f"{path} is not a torch file: {str(error).splitlines()[0]}") from error
    if not isinstance(pack, dict) or not isinstance(pack.get("samples"), list):
        raise DataError(f"{path} is not a rollout dump: it must be a dict with rollout_id and a list of samples")
    rollout_id = pack.get("rollout_id")
    samples = [_from_slime(path, index, plain) for index, plain in enumerate(pack["samples"])]
    return rollout_id if isinstance(rollout_id, int) else -1, samples


def _from_slime(path: str, index: int, plain: object) -> Sample:
    """Return a sample whose training parts fit together. Fields that this version does not have are left out."""
    where = f"{path}, sample {index}"
    if not isinstance(plain, dict):
        raise DataError(f"{where} is a {type(plain).__name__}, but must be a dict of a sample's fields")
    names = {field.name for field in dataclasses.fields(Sample)}
    values = {name: value for name, value in plain.items() if name in names and value is not None}
    values |= {
        name: value.tolist() for name, value in values.items() if hasattr(value, "tolist")
    }  # tensors of other libraries
    try:
        sample = Sample.from_dict(values)
        tokens, length = list(map(int, sample.tokens)), int(sample.response_length)
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(f"{where}: {error}") from error
    if not 0 < length < len(tokens):
        raise DataError(f"{where} has {len(tokens)} tokens, and response_length {length}")
    for name, entries in (("rollout_log_probs", sample.rollout_log_probs), ("loss_mask", sample.loss_mask)):
        if entries is not None and len(entries) != length:
            raise DataError(f"{where} has {len(entries)} {name} for {length} response tokens")
    sample.tokens = tokens
    return sample
