"""Generate `docs/span-attributes.md`: `python -m tools.attributes_page docs/span-attributes.md`."""

from __future__ import annotations

from collections.abc import Iterable

from slime_events.core.telemetry.attributes import ATTRIBUTES, METRIC, STANDARD, SpanAttribute
from tools.page_command import write_page

_INTRO = """\
# Attributes of spans

This page is generated from `slime_events/core/telemetry/attributes.py`:
`python -m tools.attributes_page docs/span-attributes.md`.

[Traces](metrics.md#traces) use OpenTelemetry's names where its semantic conventions have one, and `rl.*` elsewhere:
there is no convention for reinforcement learning. Both conventions that we use are in development, so a later release
may change their names.

- [Generative AI](https://github.com/open-telemetry/semantic-conventions-genai), `gen_ai.*`. After release 1.41 of the
  general conventions these moved to a repository of their own. Spans have none of the attributes with contents, such as
  `gen_ai.input.messages` and `gen_ai.tool.call.arguments`: contents are in the log.
- [Messaging](https://opentelemetry.io/docs/specs/semconv/messaging/), `messaging.*`: each span ends with a message, its
  event.

Spans differ from the conventions in two points, because spans of earlier releases stay equal. Their names are ours
(`generate`, `tool`), without the name of a model or tool. They do not have `messaging.operation.name` and `error.type`;
the status of a failed span has the reason.
"""


def document() -> str:
    """Return the whole page in Markdown."""
    standard = [attribute for attribute in ATTRIBUTES if is_standard(attribute)]
    ours = [attribute for attribute in ATTRIBUTES if not is_standard(attribute)]
    return "\n".join(
        (
            _INTRO,
            "## OpenTelemetry's\n",
            *_table(("attribute", "type", "spans", "value"), map(_row, standard)),
            "\n## Ours\n",
            *_table(
                ("attribute", "type", "spans", "value", "nearest standard name"),
                ((*_row(attribute), attribute.near or "-") for attribute in ours),
            ),
            "",
        )
    )


def is_standard(attribute: SpanAttribute) -> bool:
    """Return whether a convention of OpenTelemetry defines the name."""
    return attribute.name.partition(".")[0] in STANDARD


def _row(attribute: SpanAttribute) -> tuple[str, ...]:
    name = f"{attribute.name}<name>" if attribute.name == METRIC else attribute.name
    return (f"`{name}`", attribute.type, attribute.spans, attribute.meaning)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)]


if __name__ == "__main__":
    write_page(__doc__, document)
