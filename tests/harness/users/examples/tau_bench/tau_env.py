"""A stand-in for tau-bench: a shop with two tools, and a user who says what they want and then goodbye."""

from dataclasses import dataclass, field
from typing import Any

RESPOND_ACTION_NAME = "respond"


@dataclass
class Action:
    name: str
    kwargs: dict[str, Any]


@dataclass
class Info:
    task: dict[str, Any]
    source: str = "user"
    reward_info: dict[str, Any] | None = None

    def model_dump(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass
class Response:
    observation: str
    reward: float
    done: bool
    info: Info


@dataclass
class Env:
    task_index: int
    wiki: str = "You work in a shop. Change an order only by a tool."
    orders: dict[str, str] = field(default_factory=dict)
    steps: int = 0

    @property
    def tools_info(self) -> list[dict[str, Any]]:
        parameters = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
        return [
            {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}
            for name in ("cancel", "look")
        ]

    def reset(self, task_index: int) -> Response:
        self.orders = {f"A{task_index}": "open"}
        return Response(f"cancel my order A{task_index}", 0.0, False, self._info())

    def step(self, action: Action) -> Response:
        self.steps += 1
        if action.name == RESPOND_ACTION_NAME:
            right = self.orders.get(f"A{self.task_index}") == "cancelled"
            return Response("###STOP###", float(right), True, self._info({"actions": self.steps}))
        if action.name not in ("cancel", "look") or action.kwargs.get("order") not in self.orders:
            return Response(f"Error: no {action.name} of {action.kwargs}", 0.0, False, self._info())
        if action.name == "cancel":
            self.orders[action.kwargs["order"]] = "cancelled"
        return Response(str(self.orders), 0.0, False, self._info())

    def _info(self, reward: dict[str, Any] | None = None) -> Info:
        return Info({"user_id": f"user{self.task_index}", "actions": [{"name": "cancel"}]}, reward_info=reward)


def get_env(env_name: str, task_split: str, task_index: int) -> Env:
    assert (env_name, task_split) == ("retail", "train")
    return Env(task_index)
