"""Generate the tables of `docs/agent-apis.md`: `python -m tools.agent_apis_page docs/agent-apis.md`."""

from __future__ import annotations

from serve_apps.rollouts.agents.dialects import chat, generate, messages, responses
from serve_apps.rollouts.agents.dialects.fields import SGLANG, Field, Fields, Use
from tools.page_command import update_page
from tools.settings_page import section

BEGIN, END = "<!-- made by tools.agent_apis_page -->\n", "<!-- end -->\n"


def _without(table: Fields, shown: Fields) -> Fields:
    return {name: field for name, field in table.items() if name not in shown}


TABLES: dict[str, Fields] = {
    "OpenAI's chat completions": _without(chat.FIELDS, chat.OPENAI),
    "OpenAI's Responses": _without(responses.FIELDS, chat.OPENAI),
    "Both of OpenAI's": _without(chat.OPENAI, SGLANG),
    "Anthropic's Messages": _without(messages.FIELDS, SGLANG),
    "SGLang's own, in the three above": SGLANG,
    "SGLang's /generate": generate.FIELDS,
    "sampling_params of /generate": generate.SAMPLING,
}


def document(page: str) -> str:
    """Return the page with new tables from the dialects."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    tables = [section(title, "", ("field", "here"), rows(table)) for title, table in TABLES.items()]
    return "\n".join([before + BEGIN, *tables, END + after])


def rows(table: Fields) -> list[tuple[str, ...]]:
    """Return the table's fields, supported fields first and refused fields last."""
    order = list(Use)
    return [
        (f"`{name}`", _here(field)) for name, field in sorted(table.items(), key=lambda item: order.index(item[1].use))
    ]


def _here(field: Field) -> str:
    return f"**{field.use.value}**" + (f": {field.note}" if field.note else "")


if __name__ == "__main__":
    update_page(__doc__, document)
