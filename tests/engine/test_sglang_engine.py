"""The real engine: the contract, and what only a model can show. One SGLang start for all of it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pytest
import pytest_asyncio

from schemas.errors import EngineError
from schemas.rollouts import StopReason
from schemas.weights import WeightsCarrier
from serve_apps.engines.carriers.carrier import WeightPlaces
from serve_apps.engines.carriers.delivery import Delivery
from serve_apps.engines.sglang_engine import SglangEngine
from slime_events.core.child.process_table import runs
from slime_events.core.config.engine import EngineSettings
from storage.weights.delta_rule import DeltaRule
from storage.weights.files import open_checkpoint
from storage.weights.shared_versions import SharedVersions
from storage.weights.store import WeightStore
from storage.weights.whole_copies import WholeCopies
from tests import made
from tests.engine import tiny_model
from tests.engine.broadcasts import Stored
from tests.engine.contract import EngineContract, Response, collect, generated, request

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

START_S = 240.0
TEMPLATE = f"tests-{os.getpid()}"


def _litter(folder: Path) -> list[Path]:
    """Files of an engine with that temporary folder."""
    return [path for path in (folder, *Path("/dev/shm").glob(f"sglang_loads_{folder.name}_*")) if path.exists()]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three sets of weights for one architecture."""
    return [tiny_model.write(tmp_path_factory.mktemp(f"weights{seed}"), seed) for seed in range(3)]


@pytest.fixture(scope="module")
def weights(checkpoints: list[Path]) -> list[Path]:
    """The engine starts from checkpoint 0 as version 0; version v > 0 is weights[(v - 1) % 2]."""
    return checkpoints[1:]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(checkpoints: list[Path]) -> AsyncIterator[SglangEngine]:
    engine = SglangEngine(EngineSettings(hf_checkpoint=str(checkpoints[0]), device="cpu"), template=TEMPLATE)
    await engine.start(START_S)
    assert len(_litter(engine._folder.path)) == 2
    yield engine
    await engine.stop()
    assert not [pid for pid in engine.scheduler_pids if runs(pid)]
    assert not _litter(engine._folder.path)


def _model(checkpoints: list[Path], version: int) -> Any:
    from transformers import AutoModelForCausalLM

    folder = checkpoints[0] if version == 0 else checkpoints[1 + (version - 1) % 2]
    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()


def _reference(model: Any, prompt: npt.NDArray[np.int32], response: Response, temperature: float) -> npt.NDArray[Any]:
    """Log-probs of the response's tokens by transformers, of logits / temperature."""
    import torch

    ids = torch.from_numpy(np.concatenate([prompt, response.tokens]).astype(np.int64))[None]
    with torch.no_grad():
        log_probs = torch.log_softmax(model(ids).logits[0] / temperature, dim=-1)
    rows = torch.arange(len(prompt) - 1, ids.shape[1] - 1)
    return np.asarray(log_probs[rows, ids[0, len(prompt) :]].numpy())


class TestSglangEngine(EngineContract):
    """The contract holds for SGLang."""

    def running(self, engine: Any) -> int:
        return len(engine._answers)

    @pytest.mark.parametrize("temperature", [1.0, 0.7])
    async def test_log_probs_agree_with_transformers(
        self, engine: SglangEngine, checkpoints: list[Path], temperature: float
    ) -> None:
        """Before and after an update in the middle of the responses, each span under its own version's weights."""
        old = engine.version
        requests = [request(n, new=300, temperature=temperature) for n in range(8)]
        tasks = [asyncio.create_task(collect(engine, item)) for item in requests]
        await generated(engine, engine.tokens_generated + 8 * 32)
        await engine.update_weights(str(checkpoints[1 + old % 2]), old + 1)
        responses = await asyncio.gather(*tasks)
        models = {version: _model(checkpoints, version) for version in (old, old + 1)}
        compared = dict.fromkeys(models, 0)
        for item, response in zip(requests, responses, strict=True):
            references = {v: _reference(model, item.prompt, response, temperature) for v, model in models.items()}
            for span in response.spans:
                ours = response.log_probs[span.start : span.end]
                theirs = references[span.version][span.start : span.end]
                np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)
                compared[span.version] += len(ours)
        assert min(compared.values()) > 100

    async def test_a_rest_gives_memory_back_and_changes_no_token(
        self, engine: SglangEngine, checkpoints: list[Path]
    ) -> None:
        """Resting, waking, and the next version: the tokens of an engine that went straight to that version."""
        version = engine.version + 2  # the same weights as now
        folder = checkpoints[1 + (version - 1) % 2] if engine.version else checkpoints[0]
        requests = [request(n, new=100) for n in range(4)]
        expected = [await collect(engine, item) for item in requests]
        (scheduler,) = [psutil.Process(pid) for pid in engine.scheduler_pids]
        before = scheduler.memory_info().rss
        await engine.rest()
        await engine.rest()
        resting = scheduler.memory_info().rss
        assert await engine.healthy()
        with pytest.raises(EngineError, match="rests"):
            await engine.update_weights(str(folder), version)
        await engine.wake()
        await engine.wake()
        waiting = [asyncio.create_task(collect(engine, item)) for item in requests]
        done, _ = await asyncio.wait(waiting, timeout=0.5)
        assert not done, "weights without values were used"
        await engine.update_weights(str(folder), version)
        assert [list(r.tokens) for r in await asyncio.gather(*waiting)] == [list(r.tokens) for r in expected]
        assert before - resting > 100 << 20  # SGLang fills its cache with zeros at the start
        assert scheduler.memory_info().rss - resting < 20 << 20  # it comes back as it is used

    async def test_text_is_the_whole_response(self, engine: SglangEngine, checkpoints: list[Path]) -> None:
        from transformers import AutoTokenizer

        response = await collect(engine, request(3))
        tokenizer = AutoTokenizer.from_pretrained(checkpoints[0])
        assert response.text == tokenizer.decode(response.tokens, skip_special_tokens=False)

    async def test_a_stop_string_is_found_also_across_the_seam(self, engine: SglangEngine) -> None:
        whole = await collect(engine, request(5))
        text = "".join(chr(t) if t < 128 else "?" for t in whole.tokens)  # only to see it in a failure
        decoded = [(await collect(engine, request(5, new=n))).text for n in (20, 23)]
        stop = decoded[1][len(decoded[0]) - 2 :]
        straight = await collect(engine, request(5, stop=(stop,)))
        assert straight.finish is StopReason.STOP, text
        assert stop in straight.text
        cut = len(straight.tokens) - 1
        resumed = await collect(engine, request(5, stop=(stop,), resume=whole.tokens[:cut]))
        assert resumed.finish is StopReason.STOP
        assert resumed.tokens.tolist() == straight.tokens[cut:].tolist()
        assert resumed.text == straight.text

    async def test_a_request_that_cannot_be(self, engine: SglangEngine) -> None:
        with pytest.raises(EngineError, match="context length"):
            await collect(engine, request(new=5000, rid="too-long"))
        assert self.running(engine) == 0

    async def test_greedy_and_filtered_sampling(self, engine: SglangEngine, checkpoints: list[Path]) -> None:
        greedy = await collect(engine, request(1, temperature=0.0))
        again = await collect(engine, request(1, temperature=0.0, seed=7))
        assert greedy.tokens.tolist() == again.tokens.tolist()
        filtered = await collect(engine, request(1, top_k=5, top_p=0.9))
        resumed = await collect(engine, request(1, top_k=5, top_p=0.9, resume=filtered.tokens[:9]))
        assert resumed.tokens.tolist() == filtered.tokens[9:].tolist()

    async def test_what_top_p_and_top_k_left_is_told_and_changes_no_token(
        self, engine: SglangEngine, checkpoints: list[Path]
    ) -> None:
        import torch

        kept_request = dataclasses.replace(request(1, top_k=5, top_p=0.9, temperature=0.8), keeps=True)
        others = [asyncio.create_task(collect(engine, request(n, new=20))) for n in range(2, 5)]
        deltas = [delta async for delta in engine.generate(kept_request)]
        await asyncio.gather(*others)
        counts, ids, log_probs, full = (
            np.concatenate([getattr(delta, name) for delta in deltas])
            for name in ("kept_counts", "kept", "kept_log_probs", "log_probs")
        )
        plain = await collect(engine, dataclasses.replace(kept_request, keeps=False))
        assert np.concatenate([delta.tokens for delta in deltas]).tolist() == plain.tokens.tolist()
        np.testing.assert_array_equal(full, plain.log_probs)
        assert len(counts) == len(plain.tokens)
        assert 1 < counts.mean() <= 5
        ends = torch.from_numpy(np.concatenate([kept_request.prompt, plain.tokens]).astype(np.int64))[None]
        with torch.no_grad():
            logits = _model(checkpoints, engine.version)(ends).logits[0, len(kept_request.prompt) - 1 : -1] / 0.8
        for row, kept, token, log_prob in zip(
            logits, np.split(ids, np.cumsum(counts)[:-1]), plain.tokens, log_probs, strict=True
        ):
            assert token in kept
            assert sorted(kept) == kept.tolist()
            chosen = row[torch.from_numpy(kept.astype(np.int64))].log_softmax(0)[kept.tolist().index(token)]
            assert log_prob == pytest.approx(chosen.item(), abs=1e-4)
            assert sorted(row.topk(len(kept)).indices.tolist()) == kept.tolist()

    async def test_a_version_stored_as_deltas_generates_the_same_tokens(
        self, engine: SglangEngine, checkpoints: list[Path], tmp_path: Path
    ) -> None:
        """The second of two deltas, from a copy on this host, beside the same version stored whole."""
        store = WeightStore(str(tmp_path / "w"), checkpoints[0], durable=False, deltas=DeltaRule(full_every=50))
        whole = WeightStore(str(tmp_path / "whole"), checkpoints[0], durable=False)
        version, responses = engine.version, []
        for number, seed in enumerate((0, 1, 2)):
            for each in (store, whole):
                tensors = [(name, *tensor) for name, tensor in open_checkpoint(checkpoints[seed]).items()]
                manifest = each.write(number, tensors, number - 1 if number else None)
        with WholeCopies(tmp_path / "here").hold(Path(store.folder(2)), manifest.digest) as copy:
            for number, folder in enumerate((str(copy), whole.folder(2)), version + 1):
                await engine.update_weights(folder, number)
                responses.append(await collect(engine, request(5, new=100)))
        of_delta, of_whole = responses
        assert len(of_delta.tokens) == 100
        assert np.array_equal(of_delta.tokens, of_whole.tokens)
        assert of_delta.log_probs.tobytes() == of_whole.log_probs.tobytes()
        await engine.update_weights(str(checkpoints[1 + (version + 2) % 2]), version + 3)

    async def test_a_version_in_memory_generates_the_same_tokens(
        self, engine: SglangEngine, checkpoints: list[Path], tmp_path: Path
    ) -> None:
        """From the trainer's memory, after it was withdrawn there, beside the same version by its files."""
        run, version, responses = f"memory-{os.getpid()}", engine.version, []
        store = WeightStore(
            str(tmp_path / "w"), checkpoints[0], durable=False, offering=SharedVersions(run, lambda version: True)
        )
        tensors = [(name, *tensor) for name, tensor in open_checkpoint(checkpoints[2]).items()]
        manifest = store.write(7, tensors, 6)
        published = made.published(
            7, 6, url=store.folder(7), digest=manifest.digest, carrier=store.carrier(7, manifest.digest)
        )
        delivery = Delivery(WeightPlaces(run=run))
        for number, carrier in enumerate((WeightsCarrier.SHARED_MEMORY, WeightsCarrier.FILES), version + 1):
            with contextlib.ExitStack() as held:
                update = await delivery.bring(published, held, wait_s=0.0)
                assert update.carrier is carrier
                store.retire()
                await engine.update_weights(str(update.folder), number)
            responses.append(await collect(engine, request(5, new=100)))
        of_memory, of_files = responses
        assert len(of_memory.tokens) == 100
        assert np.array_equal(of_memory.tokens, of_files.tokens)
        assert of_memory.log_probs.tobytes() == of_files.log_probs.tobytes()
        await engine.update_weights(str(checkpoints[1 + (version + 2) % 2]), version + 3)

    async def test_received_weights_make_the_tokens_of_their_files(
        self, engine: SglangEngine, checkpoints: list[Path], tmp_path: Path
    ) -> None:
        """A response that runs meanwhile is not cut."""
        version, stored = engine.version, Stored(tmp_path, checkpoints[0], checkpoints[2], engine.version + 1)
        async with stored.sent() as sent:
            running = asyncio.create_task(collect(engine, request(8, new=300)))
            await generated(engine, engine.tokens_generated + 32)
            assert await sent.receive(engine) == (None, "")
        assert {span.version for span in (await running).spans} == {version, version + 1}
        assert (await running).finish is not StopReason.ABORT
        received = await collect(engine, request(5, new=100))
        await engine.update_weights(stored.folder, version + 2)
        of_files = await collect(engine, request(5, new=100))
        assert len(received.tokens) == 100
        assert np.array_equal(received.tokens, of_files.tokens)
        assert received.log_probs.tobytes() == of_files.log_probs.tobytes()
        await engine.update_weights(str(checkpoints[1 + (version + 2) % 2]), version + 3)

    @pytest.mark.parametrize("fault", ["other bytes", "killed before", "killed within"])
    async def test_weights_that_do_not_come_whole_are_taken_from_files(
        self, engine: SglangEngine, checkpoints: list[Path], tmp_path: Path, fault: str
    ) -> None:
        """A response that runs meanwhile waits for the files, and is not cut."""
        version, stored = engine.version, Stored(tmp_path, checkpoints[0], checkpoints[2], engine.version + 1)
        async with stored.sent(fault) as sent:
            running = asyncio.create_task(collect(engine, request(8, new=300)))
            await generated(engine, engine.tokens_generated + 32)
            reason, of_sender = await sent.receive(engine)
        assert reason
        assert engine.version == version
        assert (of_sender == "") == (fault == "other bytes"), "who sends cannot know what has arrived"
        await engine.update_weights(str(checkpoints[1 + version % 2]), version + 1)
        response = await running
        assert response.finish is not StopReason.ABORT
        assert {span.version for span in response.spans} <= {version, version + 1}
        model = _model(checkpoints, version + 1)
        item = request(9, new=50)
        response = await collect(engine, item)
        reference = _reference(model, item.prompt, response, 1.0)
        np.testing.assert_allclose(response.log_probs, reference, atol=1e-4, rtol=0)

    async def test_weights_of_another_shape_are_refused(self, engine: SglangEngine, tmp_path: Path) -> None:
        from safetensors.numpy import save_file

        save_file({"model.embed_tokens.weight": np.zeros((3, 3), np.float32)}, tmp_path / "model.safetensors")
        old = await collect(engine, request(2))
        version = engine.version
        with pytest.raises(EngineError, match=r"embed_tokens.*\[3, 3\].*\[264, 128\]"):
            await engine.update_weights(str(tmp_path), version + 1)
        assert engine.version == version
        assert (await collect(engine, request(2))).log_probs.tobytes() == old.log_probs.tobytes()


async def test_a_batch_is_quick(engine: SglangEngine) -> None:
    """128 responses of 24 tokens; a batch takes 0.3 s of a core, so five times that is something broken."""

    def seconds() -> float:
        return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in engine.scheduler_pids)

    await asyncio.gather(*[collect(engine, request(n, new=24)) for n in range(128)])
    before = seconds()
    await asyncio.gather(*[collect(engine, request(n, new=24)) for n in range(128)])
    assert seconds() - before < 1.5


async def test_a_killed_scheduler_is_noticed(checkpoints: list[Path], engine: SglangEngine, tmp_path: Path) -> None:
    """Last here: it ends the shared engine. Its successor needs no imports and makes the same tokens.

    Weights that SGLang fails to load end the successor: nobody knows which weights it has then.
    """
    first = await collect(engine, request(0))
    tasks = [asyncio.create_task(collect(engine, request(n, new=900))) for n in range(4)]
    await generated(engine, engine.tokens_generated + 1)
    os.kill(engine.scheduler_pids[0], signal.SIGKILL)
    async with asyncio.timeout(20):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert ["exit code -9" in str(result) for result in results] == [True] * 4, results
    assert all(isinstance(result, EngineError) for result in results)
    assert not await engine.healthy()
    assert engine.was_killed
    assert not engine._answers
    await engine.stop()

    same = checkpoints[1 + (engine.version - 1) % 2] if engine.version else checkpoints[0]
    successor = SglangEngine(EngineSettings(hf_checkpoint=str(same), device="cpu"), template=TEMPLATE)
    await successor.start(START_S)
    try:
        assert successor._host is not None
        assert successor._host.child is None, "it is no child, but made of the template"
        again = await collect(successor, request(0))
        broken = shutil.copytree(same, tmp_path / "broken")
        (broken / "model.safetensors.index.json").write_text("{")
        running = asyncio.create_task(collect(successor, request(1, new=900)))
        await generated(successor, successor.tokens_generated + 1)
        with pytest.raises(EngineError, match=str(broken)):
            await successor.update_weights(str(broken), 1)
        with pytest.raises(EngineError):
            await running
        assert (successor.version, await successor.healthy()) == (0, False)
    finally:
        await successor.stop()
    assert again.tokens.tolist() == first.tokens.tolist()


async def test_a_failed_start_says_why(tmp_path: Path) -> None:
    """The reason is the child's own, and this process is still here to read it."""
    folder = tiny_model.write(tmp_path, 0)
    (folder / "config.json").write_text(
        (folder / "config.json").read_text().replace('"head_dim": 32', '"head_dim": 16')
    )
    engine = SglangEngine(EngineSettings(hf_checkpoint=str(folder), device="cpu"))
    with pytest.raises(EngineError, match="Attempted to load weight"):
        await engine.start(START_S)
    assert not [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


ORPHAN = """
import asyncio, sys
from serve_apps.engines.sglang_engine import SglangEngine
from slime_events.core.config.engine import EngineSettings

engine = SglangEngine(EngineSettings(hf_checkpoint=sys.argv[1], device="cpu"))
asyncio.run(engine.start(60))
"""


async def test_the_host_ends_with_its_owner(checkpoints: list[Path]) -> None:
    """Killed while it starts, which is when it cannot listen."""
    owner = psutil.Popen([sys.executable, "-c", ORPHAN, str(checkpoints[0])], stdin=subprocess.DEVNULL)
    async with asyncio.timeout(60):
        while not owner.children():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        host = owner.children()[0]
        await asyncio.sleep(1.0)
        folder = Path(host.cmdline()[-1])
        assert folder.is_dir()
        owner.kill()
        owner.wait()
        while runs(host.pid):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert not _litter(folder)
