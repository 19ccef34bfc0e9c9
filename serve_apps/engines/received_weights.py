"""Receive weights in SGLang's own update session, and check their digests before SGLang loads them.

`receive` runs in the host process and leads the session. `verified` runs in each scheduler process, as a hook around
SGLang's receipt of a bucket, or of the whole version over gloo. Of a bucket with other bytes than the manifest says,
nothing is loaded.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from schemas.doc import doc
from schemas.errors import WeightsDamaged
from schemas.outside_json import read_json
from schemas.transfers import TransferBegun
from serve_apps.engines.streamed_weights import TORCH_TYPES, Stream, difference
from storage.digests import hashing, weights_digest
from storage.weights.broadcast import LOOKUP, all_tensors, bucket_bytes, buckets, group_name
from storage.weights.manifest import StoredTensor, WeightManifest

if TYPE_CHECKING:
    import torch
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    from serve_apps.engines.messages import ReceiveWeights

GROUP_S = 30.0
"""Seconds for a group to form, and for each of its operations. The engine does not generate meanwhile."""
STORE_S = 5.0
"""Seconds for the sender to answer, which listens already."""
FORMAT = "flattened_bucket"
"""SGLang's name for tensors that lie behind each other in one buffer."""
STREAM = "stream"
"""Name of the version as a whole, whose buckets arrive while others are checked and loaded."""


class Expected(msgspec.Struct, frozen=True):
    """The buckets of a version, in a file for the scheduler processes."""

    buckets: list[list[str]]
    tensors: Annotated[dict[str, StoredTensor], doc("By name, as in the manifest.")]


def group_ranks(arguments: Mapping[str, Any]) -> int:
    """Return how many processes of an engine receive weights; 0 if SGLang cannot with these arguments."""
    if int(arguments.get("dp_size") or 1) > 1 or int(arguments.get("pp_size") or 1) > 1:
        return 0
    return int(arguments.get("tp_size") or 1)


async def receive(manager: TokenizerManager, frame: ReceiveWeights) -> str | None:
    """Retract the running requests, receive all buckets, flush the cache, continue. Return why it failed, or None.

    After a failure requests do not continue: SGLang may have replaced a part of the weights.
    """
    from sglang.srt.managers import io_struct

    group, name = frame.group, group_name(frame.group.epoch)
    try:
        manifest = await asyncio.to_thread(_manifest, group, frame.digest)
    except (OSError, RuntimeError, WeightsDamaged) as error:  # torch raises RuntimeError if the sender is gone
        return str(error) or type(error).__name__
    await manager.pause_generation(io_struct.PauseGenerationReqInput(mode="retract"))
    joined, reason = await manager.init_weights_update_group(
        io_struct.InitWeightsUpdateGroupReqInput(
            master_address=group.address,
            master_port=group.port,
            rank_offset=frame.rank,
            world_size=group.world,
            group_name=name,
            backend=group.backend,
        )
    )
    if not joined:
        return str(reason)
    try:
        failed = await _session(manager, manifest, name, group.backend)
    finally:
        await manager.destroy_weights_update_group(io_struct.DestroyWeightsUpdateGroupReqInput(group_name=name))
    if failed is None:
        await manager.continue_generation(io_struct.ContinueGenerationReqInput(torch_empty_cache=False))
    return failed


def _manifest(group: TransferBegun, digest: str) -> WeightManifest:
    """Return the manifest that the sender has, which has the published digest. Raises WeightsDamaged."""
    from torch._C._distributed_c10d import TCPStore

    timeout = timedelta(seconds=STORE_S)
    store = TCPStore(group.address, group.port, None, False, timeout, wait_for_workers=False)
    try:
        manifest = read_json(store.get(LOOKUP), WeightManifest)
    except msgspec.DecodeError as error:
        raise WeightsDamaged(f"the sender's manifest is damaged: {error}") from error
    if manifest.digest != digest or weights_digest(manifest.tensors) != digest:
        raise WeightsDamaged(f"the sender has weights {manifest.digest}, and {digest} was published")
    return manifest


async def _session(manager: TokenizerManager, manifest: WeightManifest, name: str, backend: str) -> str | None:
    """Receive all buckets, and return why it failed, or None."""
    from sglang.srt.managers import io_struct

    tensors, parts = all_tensors(manifest), list(buckets(manifest, bucket_bytes(backend)))
    has_draft = manager.server_args.speculative_algorithm is not None  # which loads the same tensors once more
    streams = backend == "gloo" and not has_draft
    requests, kind = ([list(tensors)], STREAM) if streams else (parts, FORMAT)
    with tempfile.NamedTemporaryFile(prefix=f"{name}-", suffix=".json") as expected:
        expected.write(msgspec.json.encode(Expected(parts, tensors)))
        expected.flush()
        begun, reason = await manager.begin_weight_update(io_struct.BeginWeightUpdateReqInput())
        if not begun:
            return str(reason)
        done = True
        for number, names in enumerate(requests, 1):
            done, reason = await manager.update_weights_from_distributed(
                io_struct.UpdateWeightsFromDistributedReqInput(
                    names=names,
                    dtypes=[TORCH_TYPES[tensors[tensor].dtype] for tensor in names],
                    shapes=[list(tensors[tensor].shape) for tensor in names],
                    group_name=name,
                    load_format=f"{kind}:{expected.name}",
                    flush_cache=number == len(requests),
                    weight_version=str(manifest.version),
                )
            )
            if not done:
                break
        ended, problem = await manager.end_weight_update(io_struct.EndWeightUpdateReqInput())
    failed = problem if done else reason
    return None if done and ended else str(failed)


@lru_cache(maxsize=1)
def _expected(path: str) -> Expected:
    return msgspec.json.decode(Path(path).read_bytes(), type=Expected)


def verified(
    receive: Callable[..., list[tuple[str, torch.Tensor]]], updater: Any, *, load_format: str | None, **fields: Any
) -> Iterable[tuple[str, torch.Tensor]]:
    """Around hook of SGLang's `receive_weights_from_distributed`: check each tensor of our transfers.

    If an engine has several ranks, all of them learn of a failure of any. Raises WeightsDamaged.
    """
    kind, _, path = (load_format or "").partition(":")
    if not path:
        return receive(updater, load_format=load_format, **fields)
    expected = _expected(path)
    if kind == STREAM:
        return Stream(updater._model_update_group[fields["group_name"]], expected.buckets, expected.tensors, _all_well)
    received, problem = list[tuple[str, Any]](), ""
    try:
        received = receive(updater, load_format=kind, **fields)
        problem = _difference(received, expected.tensors)
    except Exception as error:  # the other ranks must not wait for this one
        problem = f"{type(error).__name__}: {error}"
    if not _all_well(not problem):
        raise WeightsDamaged(problem or "another rank of this engine has received other weights")
    return received


def _difference(received: list[tuple[str, Any]], expected: Mapping[str, StoredTensor]) -> str:
    """Return how the tensors differ from the manifest; empty if they do not."""
    import torch

    problems = [
        hashing().submit(
            difference, name, expected[name], tensor.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().data
        )
        for name, tensor in received
    ]
    return next((text for problem in problems if (text := problem.result())), "")


def _all_well(is_well: bool) -> bool:
    """Return whether all ranks of this engine are well."""
    import torch
    from sglang.srt.runtime_context import get_parallel

    if get_parallel().tp_size == 1:
        return is_well
    well = torch.tensor([int(is_well)])
    torch.distributed.all_reduce(well, torch.distributed.ReduceOp.MIN, group=get_parallel().tp_group.cpu_group)
    return bool(well.item())


def within_limit(form: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Around hook of SGLang's `init_custom_process_group`: its operations end after `GROUP_S`, not half an hour."""
    return form(*args, **{**options, "timeout": timedelta(seconds=GROUP_S)})
