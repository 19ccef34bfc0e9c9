"""A model that may run Python between its thoughts; the reward counts right answers and the use of the tool."""

import json
import re

from jinja2 import Template
from slime.rollout.rm_hub.math_dapo_utils import compute_score as math_dapo_compute_score
from slime.rollout.sglang_rollout import GenerateState
from slime.utils.http_utils import post
from slime.utils.types import Sample
from tool_sandbox import SEMAPHORE, TOOL_CONFIGS, tool_registry

TEMPLATE = """<|im_start|>system
You may call functions within <tool_call></tool_call>:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{%- for message in messages %}
<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{%- endfor %}
<|im_start|>assistant
"""
BOXED = re.compile(r"Answer:\s*\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}", re.DOTALL)
CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


def action_of(response: str) -> tuple[str | None, str]:
    if match := BOXED.search(response):
        return "answer", match.group(1).strip()
    if match := CALL.search(response):
        try:
            call = json.loads(match.group(1))
        except json.JSONDecodeError:
            return None, ""
        if call.get("name") == "code_interpreter":
            return "code", call.get("arguments", {}).get("code", "")
    return None, ""


async def execute(response: str) -> tuple[str, bool]:
    action, content = action_of(response)
    if action == "answer":
        return "", True
    if action == "code":
        async with SEMAPHORE:
            result = await tool_registry.execute_tool("code_interpreter", {"code": content.strip()})
        return f"\n\n<interpreter>\n{result}\n</interpreter>\n\n", False
    return "\nMy previous action is invalid. Let me try again.\n", False


def begin_again(sample: Sample) -> None:
    """A sample that comes back has what it had before."""
    sample.rollout_log_probs = None
    sample.rollout_top_p_token_ids = None
    sample.rollout_top_p_token_offsets = None
    sample.response, sample.response_length, sample.loss_mask = "", 0, []


async def generate(args, sample: Sample, sampling_params) -> Sample:
    assert not args.partial_rollout, "Partial rollout is not supported for this function at the moment."
    begin_again(sample)
    state = GenerateState(args)
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    messages = [{"role": "user", "content": sample.prompt}]
    prompt = Template(TEMPLATE).render(messages=messages, tools=tool_registry.get_tool_specs())
    prompt_ids = state.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    sample.tokens = list(prompt_ids)
    response, response_ids, loss_masks, tool_call_count = "", [], sample.loss_mask, 0

    if args.rollout_max_context_len is not None:
        most = args.rollout_max_context_len
    else:
        most = args.context_parallel_size * args.max_tokens_per_gpu

    for _ in range(TOOL_CONFIGS["max_turns"]):
        left = most - len(prompt_ids) - len(response_ids)
        if left <= 0:
            sample.status = Sample.Status.TRUNCATED
            break
        params = dict(sampling_params)
        params["max_new_tokens"] = min(sampling_params.get("max_new_tokens", left), left)
        payload = {"input_ids": prompt_ids + response_ids, "sampling_params": params, "return_logprob": True}
        output = await post(url, payload)
        if output["meta_info"]["finish_reason"]["type"] == "abort":
            sample.status = Sample.Status.ABORTED
            return sample
        pairs = output["meta_info"]["output_token_logprobs"]
        new_ids = [pair[1] for pair in pairs]
        new_text = state.tokenizer.decode(new_ids)
        response += new_text
        response_ids += new_ids
        sample.append_response_tokens(
            args, tokens=new_ids, log_probs=[pair[0] for pair in pairs], trainable=True, meta_info=output["meta_info"]
        )
        if output["meta_info"]["finish_reason"]["type"] == "length":
            break
        observed, done = await execute(new_text)
        if done:
            break
        tool_call_count += "<interpreter>" in observed
        observed_ids = state.tokenizer(observed, add_special_tokens=False)["input_ids"]
        response += observed
        response_ids += observed_ids
        sample.append_response_tokens(args, tokens=observed_ids, trainable=False)
        assert len(response_ids) == len(sample.rollout_log_probs)
        if tool_call_count >= TOOL_CONFIGS["max_tool_calls"]:
            break

    sample.tokens = prompt_ids + response_ids
    sample.response_length, sample.response = len(response_ids), response
    sample.loss_mask = loss_masks
    sample.payload_text = prompt + response
    sample.payload_has_system = "<|im_start|>system" in prompt + response
    sample.tool_call_count = tool_call_count
    if sample.status is Sample.Status.PENDING:
        sample.status = Sample.Status.COMPLETED
    return sample


async def reward_func(args, sample, **kwargs):
    if not isinstance(sample, Sample):
        raise TypeError("Sample must be an instance of Sample class.")
    truth = sample.label if sample.label is not None else ""
    result = math_dapo_compute_score(sample.prompt + sample.response, truth, strict_box_verify=True)
    if result["score"] < 0:
        result["score"] = min(-0.6, result["score"] + (getattr(sample, "tool_call_count", 0) - 2) / 2 * 0.1)
    if result["pred"] is None:
        result["pred"] = ""
    return result
