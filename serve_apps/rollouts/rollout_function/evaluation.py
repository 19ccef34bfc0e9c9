"""The results of a user's evaluation function as `eval.completed` events."""

from collections.abc import Iterator, Mapping, Sequence

from schemas.evals import EvalCompleted
from schemas.rollouts import WeightSpan
from schemas.text import repr_text
from serve_apps.rollouts.rollout_function.function import RolloutFunction
from slime_events.algorithms.pass_rate import pass_rate
from slime_events.core.config.evaluation import name_problem
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.rewards.outcome import Graded, value_of
from slime_events.plugins.sample import Sample


def evaluated(
    data: object, version: int, function: RolloutFunction, spans: Sequence[WeightSpan], args: ArgsView
) -> Iterator[EvalCompleted]:
    """Yield one event for each data set of slime's `{name: {rewards, truncated, samples}}`.

    `spans` are those of the generations that the function requested. Raises PlugPointError for anything else.
    """
    if not isinstance(data, Mapping) or not data:
        raise function.error(version, f"returned {repr_text(data)}, not {{name: {{rewards, ...}}}}", evaluation=True)
    for name, of_set in data.items():
        rewards = of_set.get("rewards") if isinstance(of_set, Mapping) else None
        if problem := name_problem(str(name)):
            raise function.error(version, f"returned the data set {repr_text(name)}: {problem}", evaluation=True)
        if not isinstance(rewards, Sequence) or not rewards:
            raise function.error(version, f"returned no rewards of data set {repr_text(name)}", evaluation=True)
        samples = [sample for sample in of_set.get("samples") or () if isinstance(sample, Sample)]
        outcomes = [value_of(reward, args.eval_reward_key or args.reward_key) for reward in rewards]
        values = [outcome.value if isinstance(outcome, Graded) else 0.0 for outcome in outcomes]
        each, versions = args.n_samples_per_eval_prompt, [span.version for span in spans] or [version]
        groups = [each] * (len(values) // each) if len(values) % each == 0 else [1] * len(values)
        yield EvalCompleted(
            dataset=str(name),
            version=version,
            mean=sum(values) / len(values),
            samples=len(values),
            failed=sum(not isinstance(outcome, Graded) for outcome in outcomes),
            mean_length=sum(sample.response_length for sample in samples) / max(1, len(samples)),
            oldest_version=min(versions),
            newest_version=max(versions),
            pass_rates=pass_rate(values, groups),
            functions={function.name: function.digest},
            function=function.name,
            rewards=tuple(values),
            truncated=tuple(map(bool, of_set.get("truncated") or ())),
        )
