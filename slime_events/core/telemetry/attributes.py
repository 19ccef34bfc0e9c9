"""`ATTRIBUTES`: all attributes of spans, and which of their names are OpenTelemetry's."""

from typing import Annotated, NamedTuple

from schemas.doc import doc

TEXT, WHOLE, NUMBER, FLAG, TEXTS, WHOLES = "text", "integer", "number", "boolean", "texts", "integers"
METRIC = "rl.metric."
"""Prefix of a step's metrics."""
STANDARD = ("gen_ai", "messaging")
"""First parts of the names that OpenTelemetry's conventions define. Other names are ours."""


class SpanAttribute(NamedTuple):
    """An attribute of spans."""

    name: Annotated[str, doc("name; a prefix if it ends with a point")]
    type: str
    spans: Annotated[str, doc("spans that have it")]
    meaning: str
    near: Annotated[str, doc("our name: the standard name that is nearest, and how it differs")] = ""


_ALL = "all"
_OF_SAMPLE = "generate, turn, tool, session, grade"
_MADE = "generate, turn"

ATTRIBUTES = (
    SpanAttribute("gen_ai.conversation.id", TEXT, "turn of an agent, session", "sample that the session makes"),
    SpanAttribute("gen_ai.evaluation.name", TEXT, "grade", "name or path of the grader"),
    SpanAttribute("gen_ai.evaluation.score.value", NUMBER, "grade", "reward as graded"),
    SpanAttribute(
        "gen_ai.operation.name",
        TEXT,
        "generate, turn, tool, session",
        "`text_completion`; `chat`: a turn of an agent; `execute_tool`; `invoke_agent`: a session",
    ),
    SpanAttribute("gen_ai.provider.name", TEXT, _MADE, "`sglang`"),
    SpanAttribute("gen_ai.response.finish_reasons", TEXTS, _MADE, "`stop`, `length` or `abort`, one value"),
    SpanAttribute("gen_ai.response.id", TEXT, "generate", "sample"),
    SpanAttribute("gen_ai.tool.name", TEXT, "tool", "name of the tool"),
    SpanAttribute("gen_ai.usage.input_tokens", WHOLE, "submit, generate", "length of the prompt"),
    SpanAttribute("gen_ai.usage.output_tokens", WHOLE, _MADE, "generated tokens; in `generate`, of the whole response"),
    SpanAttribute("messaging.client.id", TEXT, _ALL, "worker that appended the event"),
    SpanAttribute("messaging.destination.name", TEXT, _ALL, "subject of the event"),
    SpanAttribute("messaging.message.id", TEXT, _ALL, "id of the event"),
    SpanAttribute("messaging.operation.type", TEXT, _ALL, "`send`"),
    SpanAttribute("messaging.system", TEXT, _ALL, "`nats`"),
    SpanAttribute("rl.accepted", FLAG, "decide", "the group is trained on"),
    SpanAttribute("rl.attempt", WHOLE, "generate, session", "attempt of the sample, from 0"),
    SpanAttribute(
        "rl.dataset",
        TEXT,
        "submit",
        "data set of the prompt",
        "`gen_ai.data_source.id`, which is for documents that are retrieved",
    ),
    SpanAttribute(
        "rl.engine.id",
        TEXT,
        "generate, turn, tool, activate",
        "worker that generated",
        "`service.instance.id`, of the process that sends the span: it may be a gateway",
    ),
    SpanAttribute("rl.event.type", TEXT, _ALL, "type of the event that ends the span"),
    SpanAttribute("rl.filter.name", TEXT, "decide", "path of the filter; `none` without one"),
    SpanAttribute("rl.group.id", TEXT, "all of a group", "group of the prompt"),
    SpanAttribute(METRIC, NUMBER, "train", "a metric of the step, by its name"),
    SpanAttribute("rl.purpose", TEXT, "submit", "`train` or `eval`"),
    SpanAttribute("rl.queued.seconds", NUMBER, "generate", "time from the request until an engine took it [s]"),
    SpanAttribute("rl.reason", TEXT, "decide", "reason of the filter, or the failure"),
    SpanAttribute("rl.reward.mean", NUMBER, "decide, batch", "mean reward of the samples, as graded"),
    SpanAttribute(
        "rl.reward.value", NUMBER, "grade", "reward as graded", "`gen_ai.evaluation.score.value`, which has it too"
    ),
    SpanAttribute("rl.run.id", TEXT, _ALL, "run"),
    SpanAttribute("rl.sample.count", WHOLE, "decide, batch, train", "number of samples"),
    SpanAttribute(
        "rl.sample.id", TEXT, _OF_SAMPLE, "sample", "`gen_ai.response.id`, which only the span of a response has"
    ),
    SpanAttribute("rl.session.end", TEXT, "session", "why it ended: `reward`, `exit`, `time`, `idle`, `over`"),
    SpanAttribute(
        "rl.session.exit_code",
        WHOLE,
        "session",
        "exit code of the agent's program",
        "`process.exit.code`, of the process that sends the span",
    ),
    SpanAttribute("rl.source.path", TEXT, "submit", "file of the prompt, or `inbox`"),
    SpanAttribute("rl.step", WHOLE, "batch, train", "step, from 0"),
    SpanAttribute("rl.token.count", WHOLE, "train", "trained tokens, prompts included"),
    SpanAttribute("rl.turn.count", WHOLE, "session", "recorded turns"),
    SpanAttribute("rl.turn.dialect", TEXT, "turn of an agent", "API of the request, such as `chat`"),
    SpanAttribute("rl.turn.extends", WHOLE, "turn", "turn whose tokens begin the prompt"),
    SpanAttribute("rl.turn.index", WHOLE, "turn, tool", "index in the sample, in the order of requests"),
    SpanAttribute(
        "rl.turn.new_input_tokens",
        WHOLE,
        "turn",
        "prompt tokens that `rl.turn.extends` does not have",
        "`gen_ai.usage.input_tokens`, which counts the whole prompt",
    ),
    SpanAttribute("rl.turn.overlapping", FLAG, "turn, tool", "another turn of the sample was in flight"),
    SpanAttribute("rl.updating.seconds", NUMBER, "generate", "time held up by weight updates [s]"),
    SpanAttribute("rl.weights.bytes", WHOLE, "publish", "size of the weights [bytes]"),
    SpanAttribute("rl.weights.digest", TEXT, "train, publish, activate", "sha256 of the weights (hex)"),
    SpanAttribute("rl.weights.lag.seconds", NUMBER, "activate", "time since the version was published [s]"),
    SpanAttribute("rl.weights.parent.version", WHOLE, "train", "version that was trained"),
    SpanAttribute("rl.weights.version", WHOLE, "train, publish, activate", "weight version"),
    SpanAttribute("rl.weights.versions", WHOLES, _MADE, "weight versions that generated tokens"),
)
