"""Test what every engine does, real or scripted. Subclasses define the `engine` and `weights` fixtures."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from schemas.errors import EngineError
from schemas.rollouts import Sampling, StopReason, WeightSpan
from serve_apps.engines.engine import Engine, GenerateRequest, Tokens

DEADLINE_S = 60.0


@dataclass(frozen=True)
class Response:
    """All deltas of one response, put together."""

    tokens: npt.NDArray[np.int32]
    log_probs: npt.NDArray[np.float32]
    spans: tuple[WeightSpan, ...]
    finish: StopReason
    text: str
    deltas: int


def prompt(n: int = 0) -> Tokens:
    """13 tokens, other ones for another n."""
    return ((np.arange(13) * 3 + 7 * n) % 250).astype(np.int32)


def request(
    n: int = 0,
    new: int = 48,
    resume: Tokens | None = None,
    rid: str | None = None,
    seed: int | None = None,
    **sampling: object,
) -> GenerateRequest:
    """The n-th test request."""
    return GenerateRequest(
        rid or f"r{n}",
        prompt(n),
        Sampling(max_new_tokens=new, **sampling),  # type: ignore[arg-type]
        seed=1000 + n if seed is None else seed,
        resume=np.empty(0, np.int32) if resume is None else resume,
    )


async def collect(engine: Engine, asked_request: GenerateRequest) -> Response:
    """Run a response to its end, checking every delta on the way."""
    deltas = []
    done = len(asked_request.resume)
    async for delta in engine.generate(asked_request):
        assert delta.tokens.dtype == np.int32
        assert delta.log_probs.dtype == np.float32
        assert len(delta.tokens) == len(delta.log_probs)
        covered = [p for span in delta.spans for p in range(span.start, span.end)]
        assert covered == list(range(done, done + len(delta.tokens)))
        assert (delta.finish is None) == (delta.text is None)
        assert not deltas or deltas[-1].finish is None, "a delta after the last"
        done += len(delta.tokens)
        deltas.append(delta)
    last = deltas[-1]
    assert last.finish is not None
    assert last.text is not None
    return Response(
        np.concatenate([d.tokens for d in deltas]),
        np.concatenate([d.log_probs for d in deltas]),
        tuple(span for d in deltas for span in d.spans),
        last.finish,
        last.text,
        len(deltas),
    )


async def generated(engine: Engine, tokens: int) -> None:
    """Until the engine has handed out that many in all."""
    async with asyncio.timeout(DEADLINE_S):
        while engine.tokens_generated < tokens:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class EngineContract:
    """Run against every engine."""

    def running(self, engine: Any) -> int:
        """Responses in progress."""
        raise NotImplementedError

    async def test_a_response_is_its_deltas(self, engine: Engine) -> None:
        before = engine.tokens_generated
        response = await collect(engine, request())
        assert response.finish in (StopReason.STOP, StopReason.LENGTH)
        assert response.deltas > 1
        assert {span.version for span in response.spans} == {engine.version}
        assert engine.tokens_generated == before + len(response.tokens)
        assert self.running(engine) == 0

    async def test_tokens_and_log_probs_do_not_depend_on_the_company(self, engine: Engine) -> None:
        crowd = await asyncio.gather(*[collect(engine, request(n)) for n in range(16)])
        reverse = await asyncio.gather(*[collect(engine, request(n)) for n in reversed(range(16))])
        for n in range(16):
            others = [reverse[15 - n]] + ([await collect(engine, request(n))] if n < 3 else [])
            for other in others:
                assert other.tokens.tobytes() == crowd[n].tokens.tobytes()
                assert other.log_probs.tobytes() == crowd[n].log_probs.tobytes()

    async def test_nor_on_what_it_begins_like(self, engine: Engine) -> None:
        # Prompts that no test before has left in a cache of prefixes: those of a group are prefilled side by side.
        requests = [request(n, rid=f"r{n}-{seed}", seed=seed) for n in (31, 32) for seed in range(6)]
        together = await asyncio.gather(*[collect(engine, item) for item in requests])
        resumed = [
            dataclasses.replace(item, resume=response.tokens[:9])
            for item, response in zip(requests, together, strict=True)
        ]
        rest = await asyncio.gather(*[collect(engine, item) for item in resumed])
        for item, response, part in zip(requests, together, rest, strict=True):
            alone = await collect(engine, item)
            assert response.tokens.tobytes() == alone.tokens.tobytes()
            assert response.log_probs.tobytes() == alone.log_probs.tobytes()
            assert part.tokens.tobytes() == alone.tokens[9:].tobytes()
            assert part.log_probs.tobytes() == alone.log_probs[9:].tobytes()

    @pytest.mark.parametrize("temperature", [1.0, 0.7])
    async def test_told_the_tokens_it_gives_the_same_log_probs(self, engine: Engine, temperature: float) -> None:
        request_ = request(3, new=24, temperature=temperature)
        response = await collect(engine, request_)
        whole = await engine.score(request_, response.tokens)
        rest = await engine.score(dataclasses.replace(request_, resume=response.tokens[:10]), response.tokens[10:])
        assert whole.dtype == np.float32
        np.testing.assert_allclose(whole, response.log_probs, atol=1e-4, rtol=0)
        np.testing.assert_allclose(rest, response.log_probs[10:], atol=1e-4, rtol=0)
        assert len(await engine.score(request_, np.empty(0, np.int32))) == 0

    async def test_nor_on_how_the_company_is_sampled(self, engine: Engine) -> None:
        alone = [await collect(engine, request(n)) for n in range(6)]
        ways = ({"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.7}, {"temperature": 0.5})
        others = [request(n, rid=f"other{n}", **ways[n % len(ways)]) for n in range(20, 32)]
        mixed = await asyncio.gather(
            *[collect(engine, request(n)) for n in range(6)], *[collect(engine, other) for other in others]
        )
        for n in range(6):
            assert mixed[n].tokens.tobytes() == alone[n].tokens.tobytes()

    @pytest.mark.parametrize("cut", [1, 16, 33])
    async def test_a_resumed_response_goes_on_as_if_nothing_had_happened(self, engine: Engine, cut: int) -> None:
        whole = await asyncio.gather(*[collect(engine, request(n)) for n in range(8)])
        parts = [n for n in range(8) if len(whole[n].tokens) > cut]
        rest = await asyncio.gather(*[collect(engine, request(n, resume=whole[n].tokens[:cut])) for n in parts])
        assert parts
        for n, part in zip(parts, rest, strict=True):
            assert part.tokens.tobytes() == whole[n].tokens[cut:].tobytes()
            assert part.log_probs.tobytes() == whole[n].log_probs[cut:].tobytes()
            assert (part.finish, part.text) == (whole[n].finish, whole[n].text)

    async def test_a_response_that_is_already_full_ends_at_once(self, engine: Engine) -> None:
        whole = await collect(engine, request(new=20))
        again = await collect(engine, request(new=20, resume=whole.tokens))
        assert (len(again.tokens), again.finish, again.text) == (0, StopReason.LENGTH, whole.text)

    async def test_a_stop_token_ends_it_and_stays_in_the_tokens(self, engine: Engine) -> None:
        whole = await collect(engine, request())
        stop = int(whole.tokens[20])
        first = whole.tokens.tolist().index(stop)
        response = await collect(engine, request(stop_token_ids=(stop,)))
        assert response.finish is StopReason.STOP
        assert response.tokens.tolist() == whole.tokens[: first + 1].tolist()

    async def test_abort_gives_what_is_there(self, engine: Engine) -> None:
        async def aborted() -> Response:
            task = asyncio.create_task(collect(engine, request(new=900, rid="long")))
            await generated(engine, before + 1)
            await engine.abort("long")
            return await task

        before = engine.tokens_generated
        async with asyncio.timeout(DEADLINE_S):
            response = await aborted()
        assert response.finish is StopReason.ABORT
        assert 0 < len(response.tokens) < 900
        assert self.running(engine) == 0
        await engine.abort("nobody")

    async def test_leaving_early_ends_the_response(self, engine: Engine) -> None:
        stream = engine.generate(request(new=900))
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
        assert self.running(engine) == 0
        assert (await collect(engine, request())).deltas > 1

    async def test_new_weights_reach_running_responses(self, engine: Engine, weights: list[Path]) -> None:
        old = engine.version
        tasks = [asyncio.create_task(collect(engine, request(n, new=400))) for n in range(8)]
        await generated(engine, engine.tokens_generated + 8 * 32)
        async with asyncio.timeout(DEADLINE_S):
            seconds = await engine.update_weights(str(weights[old % 2]), old + 1)
        responses = await asyncio.gather(*tasks)
        assert 0 <= seconds < DEADLINE_S
        assert engine.version == old + 1
        versions = [[span.version for span in response.spans] for response in responses]
        assert all(v == sorted(v) for v in versions)
        assert any(set(v) == {old, old + 1} for v in versions)

    async def test_weights_that_are_not_there(self, engine: Engine, tmp_path: Path) -> None:
        old = engine.version
        with pytest.raises(EngineError, match=str(tmp_path)):
            await engine.update_weights(str(tmp_path / "none"), old + 1)
        assert engine.version == old
        assert await engine.healthy()
