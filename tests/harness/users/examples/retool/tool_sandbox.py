"""A registry of tools, with one that runs Python in a process of its own."""

import asyncio
import sys

TOOL_CONFIGS = {"max_turns": 4, "max_tool_calls": 4, "tool_concurrency": 4}
SEMAPHORE = asyncio.Semaphore(TOOL_CONFIGS["tool_concurrency"])


class ToolRegistry:
    def get_tool_specs(self) -> list[dict]:
        code = {"type": "string", "description": "The Python code to execute"}
        parameters = {"type": "object", "properties": {"code": code}, "required": ["code"]}
        return [{"type": "function", "function": {"name": "code_interpreter", "parameters": parameters}}]

    async def execute_tool(self, name: str, arguments: dict) -> str:
        if name != "code_interpreter":
            return f"Error: Tool {name} not found"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", arguments["code"],
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate()
        return out.decode().strip() if process.returncode == 0 else f"Error: {err.decode().strip().splitlines()[-1]}"


tool_registry = ToolRegistry()
