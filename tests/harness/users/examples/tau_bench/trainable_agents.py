"""An agent that calls one tool or speaks to its user at each turn, and keeps the tokens of both apart."""

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

from slime.rollout.sglang_rollout import GenerateState
from slime.utils.http_utils import post
from tau_env import RESPOND_ACTION_NAME, Action

CALL = re.compile(r"<tool_call>\s*(\{.*\})\s*</tool_call>", re.DOTALL)


class Status(Enum):
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"


@dataclass
class InteractionResult:
    prompt: str
    reward: float
    messages: list[dict[str, Any]]
    info: dict[str, Any]
    response: str = ""
    loss_mask: list[int] | None = None
    tokens: list[int] | None = None
    status: Status = Status.COMPLETED
    response_length: int = 0


def get_token_delta(tokenizer, messages: list[dict]) -> tuple[list[int], list[int]]:
    """Tokens that the last message adds to those before, and whether they are the model's."""
    now = tokenizer.apply_chat_template(messages, add_generation_prompt=False, tokenize=False)
    own = messages[-1]["role"] == "assistant"
    before = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=own, tokenize=False)
    tokens = tokenizer.encode(now[len(before) :], add_special_tokens=False)
    return tokens, [int(own)] * len(tokens)


class TrainableAgent:
    def __init__(self, tools_info, wiki, rollout_args=None, sampling_params=None) -> None:
        self.tools_info, self.wiki = tools_info, wiki
        self.rollout_args = rollout_args or {"sglang_router_ip": "127.0.0.1", "sglang_router_port": 30000}
        self.sampling_params = sampling_params or {"temperature": 0.0}

    async def _call_llm(self, url: str, payload: dict[str, Any]) -> dict[str, Any]:
        return await post(url, payload)

    async def asolve(self, env, rollout_args, sampling_params, task_index=None, max_num_steps=5) -> InteractionResult:
        state = GenerateState(rollout_args)
        url = f"http://{rollout_args.sglang_router_ip}:{rollout_args.sglang_router_port}/generate"
        begun = env.reset(task_index=task_index)
        info = begun.info.model_dump()
        messages = [{"role": "system", "content": self.wiki}, {"role": "user", "content": begun.observation}]
        prompt = self._text(state, messages)
        prompt_ids = state.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        res = InteractionResult(prompt=prompt, reward=0.0, messages=[], info={})
        response_ids, loss_masks, answer = [], [], None
        for _ in range(max_num_steps):
            payload = {"text": self._text(state, messages), "sampling_params": sampling_params}
            output = await self._call_llm(url, payload)
            if output["meta_info"]["finish_reason"]["type"] == "abort":
                res.status = Status.ABORTED
                break
            text = output["text"]
            if text.endswith("<|im_end|>"):
                text = text[:-10]
            messages.append({"role": "assistant", "content": text})
            for ids, mask in (get_token_delta(state.tokenizer, messages),):
                response_ids.extend(ids)
                loss_masks.extend(mask)
            action = Action(RESPOND_ACTION_NAME, {"content": text})
            if match := CALL.search(text):
                call = json.loads(match.group(1))
                action = Action(call["name"], call["arguments"])
            answer = env.step(action)
            role = "user" if action.name == RESPOND_ACTION_NAME else "tool"
            messages.append({"role": role, "content": answer.observation})
            ids, mask = get_token_delta(state.tokenizer, messages)
            response_ids.extend(ids)
            loss_masks.extend(mask)
            res.reward, info = answer.reward, {**info, **answer.info.model_dump()}
            if answer.done:
                break
        if answer is not None and not answer.done:
            res.status = Status.TRUNCATED
        res.info, res.messages, res.loss_mask = info, messages, loss_masks
        res.tokens = prompt_ids + response_ids
        res.response = "".join(message["content"] for message in messages if message["role"] == "assistant")
        res.response_length = len(loss_masks)
        return res

    def _text(self, state, messages) -> str:
        return state.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, tools=self.tools_info
        )
