"""The agents: programs of `examples/frameworks/`, each of them as the documentation of its package has it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples" / "frameworks"


@dataclass(frozen=True, slots=True)
class Agent:
    """file: in EXAMPLES. package: as Python imports it, or as Node's package is named."""

    file: str
    package: str

    @property
    def is_node(self) -> bool:
        return self.file.endswith(".mjs")


AGENTS = {
    "openai": Agent("openai_client.py", "openai"),
    "anthropic": Agent("anthropic_client.py", "anthropic"),
    "smolagents": Agent("smolagents_agent.py", "smolagents"),
    "mini-swe-agent": Agent("mini_swe_agent.py", "minisweagent"),
    "openai-agents": Agent("openai_agents.py", "agents"),
    "pydantic-ai": Agent("pydantic_ai_agent.py", "pydantic_ai"),
    "ai": Agent("vercel_ai.mjs", "ai"),
    "@openai/agents": Agent("openai_agents.mjs", "@openai/agents"),
}
