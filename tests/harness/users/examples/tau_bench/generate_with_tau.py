"""The number of a task is the prompt; the agent solves it in its environment, which knows the reward."""

from types import SimpleNamespace

from slime.utils.types import Sample
from tau_env import get_env
from trainable_agents import InteractionResult, Status, TrainableAgent

tau_config = SimpleNamespace(env="retail", task_split="train")


def res_to_sample(res: InteractionResult, task_index: int) -> Sample:
    status = {Status.COMPLETED: "completed", Status.TRUNCATED: "truncated", Status.ABORTED: "aborted"}[res.status]
    sample = Sample(
        index=task_index,
        prompt=res.prompt,
        tokens=res.tokens,
        response=res.response,
        reward=res.reward,
        loss_mask=res.loss_mask,
        status=status,
        metadata=res.info,
    )
    sample.response_length = res.response_length
    return sample


async def generate(args, sample: Sample, sampling_params: dict) -> Sample:
    assert not args.partial_rollout, "Partial rollout is not supported for tau-bench interactions."
    task_index = int(sample.prompt)
    env = get_env(env_name=tau_config.env, task_split=tau_config.task_split, task_index=task_index)
    agent = TrainableAgent(env.tools_info, env.wiki, rollout_args=args, sampling_params=sampling_params)
    result = await agent.asolve(env, agent.rollout_args, agent.sampling_params, task_index)
    return res_to_sample(result, task_index)
