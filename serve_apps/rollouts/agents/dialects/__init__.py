"""The APIs that agents use, by name and by path."""

from serve_apps.rollouts.agents.agent_request import Dialect, DialectName
from serve_apps.rollouts.agents.dialects.chat import Chat
from serve_apps.rollouts.agents.dialects.generate import Generate
from serve_apps.rollouts.agents.dialects.messages import Messages
from serve_apps.rollouts.agents.dialects.responses import Responses

MESSAGES = Messages()
DIALECTS: dict[DialectName, Dialect] = {
    dialect.name: dialect for dialect in (Chat(), Responses(), MESSAGES, Generate())
}
PATHS: dict[str, Dialect] = {
    "/v1/chat/completions": DIALECTS[DialectName.CHAT],
    "/v1/responses": DIALECTS[DialectName.RESPONSES],
    "/v1/messages": DIALECTS[DialectName.MESSAGES],
    "/generate": DIALECTS[DialectName.GENERATE],
}
"""Paths of POST requests. `/v1/messages/count_tokens` uses `MESSAGES.read_count` and `MESSAGES.counted`."""
