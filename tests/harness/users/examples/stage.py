"""`play`: an example's folder on a scripted model, with everything else as in a run: settings from a command line, the
demo's tokenizer and chat template, prompts from files, the user's functions, their graders, and the recorded log.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from schemas.arrays import unpack
from schemas.event import Event
from schemas.rollouts import RolloutCompleted, StopReason, WeightSpan
from serve_apps.engines.engine import Delta, GenerateRequest, Tokens
from serve_apps.rollouts.generate.function import generate_setup
from slime_events.algorithms.train_arguments import parse_train
from slime_events.app.demo.settings import BASE
from slime_events.core.config.settings import TrainSettings
from slime_events.core.tokens.trajectory import Trajectory, read_trajectory
from slime_events.loop.conductor.cycle import Policy
from slime_events.loop.conductor.prompts import PromptFeed
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.rewards.choice import choose
from slime_events.plugins.rewards.messages import Done, Job, Setup
from slime_events.plugins.rewards.outcome import Outcome
from slime_events.plugins.rewards.worker import Worker
from slime_events.plugins.sample import Sample
from slime_events.plugins.tokenizer import load_tokenizer
from tests.generate.scene import check_log, events
from tests.scripted_engine import ScriptedEngine
from tests.simulation import crash, roles
from tests.simulation.crash import Crashed, Fate, Scene

EXAMPLES = Path(__file__).parent
END = "<|im_end|>"
LEAST = f"""--hf-checkpoint {BASE} --num-rollout 1 --rollout-batch-size 2 --n-samples-per-prompt 2 --global-batch-size 4
--rollout-max-response-len 200 --rollout-max-context-len 2000"""
KEYS = "--input-key prompt --label-key label"
Says = Callable[[str], str]
"""What the model says after a text; without `END` at the end it is cut off there."""
EventT = TypeVar("EventT", bound=Event)


class TalkingEngine(ScriptedEngine):
    """Says what `says` answers to the prompt's text, token by token of the demo's tokenizer."""

    def __init__(self, *arguments: Any, says: Says, tokenizer: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._says, self._tokenizer = says, tokenizer

    def _next(self, request: GenerateRequest, response: Tokens) -> Delta:
        whole = self._tokenizer.encode(self._says(self.text(request.prompt)), add_special_tokens=False)
        limit, start = request.sampling.max_new_tokens, len(response)
        new = np.array(whole[start:limit][: self.script.chunk], np.int32)
        end = start + len(new)
        finish = (
            (StopReason.LENGTH if limit < len(whole) else StopReason.STOP) if end >= min(len(whole), limit) else None
        )
        return Delta(
            tokens=new,
            log_probs=np.array(
                [self.log_prob(request.seed, place, self.version) for place in range(start, end)], "<f4"
            ),
            spans=(WeightSpan(start, end, self.version),),
            finish=finish,
            text=self.text(np.concatenate([response, new])) if finish else None,
        )

    def text(self, response: Tokens) -> str:
        return str(self._tokenizer.decode(response.tolist(), skip_special_tokens=False))


class GradersHere:
    """A run's graders in this process: what a grader process runs, without its limits."""

    def __init__(self, settings: TrainSettings) -> None:
        args = ArgsView.of_run(settings).as_dict()
        self._choice = partial(choose, settings.reward)
        self._in_groups, self._one_at_a_time = settings.reward.group_rm, asyncio.Lock()
        self._worker = Worker(Setup(settings.reward, args, str(Path.cwd())), mark=lambda number: None)

    async def grade(self, samples: Sequence[Sample], *, evaluation: bool = False) -> list[Outcome]:
        return await self._all([Job([sample], self._choice(sample), False, evaluation) for sample in samples])

    async def grade_group(self, samples: Sequence[Sample], *, evaluation: bool = False) -> list[Outcome]:
        if not self._in_groups:
            return await self.grade(samples, evaluation=evaluation)
        return await self._all([Job(list(samples), self._choice(samples[0]), True, evaluation)])

    async def _all(self, jobs: Sequence[Job]) -> list[Outcome]:
        done: dict[int, Done] = {}
        async with self._one_at_a_time:
            await asyncio.to_thread(self._worker.grade, jobs, lambda answer: done.update({answer.job: answer}))
        return [outcome for number in range(len(jobs)) for outcome in done[number].outcomes]


@dataclass(frozen=True)
class Played:
    """A run that is over."""

    run: Crashed
    settings: TrainSettings
    tokenizer: Any

    def of(self, kind: type[EventT], **fields: Any) -> list[EventT]:
        """The events of one type."""
        return events(self.run, kind, **fields)

    async def trajectory(self, done: RolloutCompleted) -> Trajectory:
        """Tokens, log-probs and mask of a sample."""
        return await read_trajectory(self.run.log, done.sample, unpack)

    async def trained_text(self, done: RolloutCompleted) -> list[str]:
        """The runs of tokens that are trained on, as text."""
        whole = await self.trajectory(done)
        mask = [1] * whole.length if whole.loss_mask is None else whole.loss_mask.tolist()
        parts: list[list[int]] = []
        for token, trained, before in zip(whole.tokens.tolist(), mask, [0, *mask], strict=False):
            if trained and not before:
                parts.append([])
            if trained:
                parts[-1].append(token)
        return [self.tokenizer.decode(part, skip_special_tokens=False) for part in parts]


class Stage:
    """A folder and a process in which an example runs."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch

    async def play(
        self,
        example: str,
        flags: str,
        says: Says,
        rows: Sequence[Mapping[str, Any]],
        *,
        keys: str = KEYS,
        fate: Fate | None = None,
    ) -> Played:
        """One step of a run. rows: of the prompt file. keys: flags that say what is in them."""
        self._patch.chdir(EXAMPLES / example)
        self._folder.mkdir(exist_ok=True)
        data = self._folder / "prompts.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings = parse_train([*LEAST.split(), "--prompt-data", str(data), *keys.split(), *flags.split()]).settings
        tokenizer, policy = load_tokenizer(str(BASE)), Policy.of(settings)
        self._patch.setattr(roles, "Letters", lambda: tokenizer)
        self._patch.setattr(crash, "InstantPool", lambda: GradersHere(settings))
        self._patch.setattr(crash, "ScriptedEngine", partial(TalkingEngine, says=says, tokenizer=tokenizer))
        scene = Scene(
            plan=policy.plan,
            judge=policy.group_filter,
            texts=policy.texts,
            whole_groups=settings.reward.group_rm,
            generate=generate_setup(settings),
            feed=lambda _: PromptFeed.open(settings.data, settings.evaluation, settings.rollout, str(BASE)),
        )
        run = Crashed(scene, self._folder, fate)
        await run.run()
        check_log(run)
        return Played(run, settings, tokenizer)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path / "run", monkeypatch)
