"""The APIs that agents speak, by name and by path."""

from serve_apps.agents.asked import Dialect, DialectName
from serve_apps.agents.dialects.chat import Chat
from serve_apps.agents.dialects.generate import Generate
from serve_apps.agents.dialects.messages import Messages
from serve_apps.agents.dialects.responses import Responses

MESSAGES = Messages()
DIALECTS: dict[DialectName, Dialect] = {one.name: one for one in (Chat(), Responses(), MESSAGES, Generate())}
PATHS: dict[str, Dialect] = {
    "/v1/chat/completions": DIALECTS[DialectName.CHAT],
    "/v1/responses": DIALECTS[DialectName.RESPONSES],
    "/v1/messages": DIALECTS[DialectName.MESSAGES],
    "/generate": DIALECTS[DialectName.GENERATE],
}
"""Each is asked by POST. `/v1/messages/count_tokens` is `MESSAGES.read_count` and `.counted`."""
