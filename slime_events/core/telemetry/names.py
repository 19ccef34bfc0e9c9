"""Names of spans and attributes (their meaning: docs/traces.md).

`gen_ai.*` and `messaging.*` are OpenTelemetry's. They are incubating there, so they are spelled out here, and tests
compare them with the pinned package. `rl.*` are our own, where OpenTelemetry has no name.
"""

import enum


class SpanName(enum.StrEnum):
    """Stages of a prompt in order, then of the weights that it helped to make."""

    SUBMIT = "submit"
    GENERATE = "generate"
    GRADE = "grade"
    DECIDE = "decide"
    BATCH = "batch"
    TRAIN = "train"
    PUBLISH = "publish"
    ACTIVATE = "activate"


GEN_AI_OPERATION_NAME = "gen_ai.operation.name"
GEN_AI_PROVIDER_NAME = "gen_ai.provider.name"
GEN_AI_RESPONSE_ID = "gen_ai.response.id"
GEN_AI_RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
GEN_AI_USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
GEN_AI_EVALUATION_NAME = "gen_ai.evaluation.name"
GEN_AI_EVALUATION_SCORE_VALUE = "gen_ai.evaluation.score.value"

MESSAGING_SYSTEM = "messaging.system"
MESSAGING_OPERATION_TYPE = "messaging.operation.type"
MESSAGING_DESTINATION_NAME = "messaging.destination.name"
MESSAGING_MESSAGE_ID = "messaging.message.id"
MESSAGING_CLIENT_ID = "messaging.client.id"

RL_RUN = "rl.run.id"
RL_EVENT_TYPE = "rl.event.type"
RL_GROUP = "rl.group.id"
RL_SAMPLE = "rl.sample.id"
RL_ATTEMPT = "rl.attempt"
RL_DATASET = "rl.dataset"
RL_PURPOSE = "rl.purpose"
RL_SOURCE = "rl.source.path"
RL_ENGINE = "rl.engine.id"
RL_QUEUED_SECONDS = "rl.queued.seconds"
RL_UPDATING_SECONDS = "rl.updating.seconds"
RL_WEIGHTS_VERSION = "rl.weights.version"
RL_WEIGHTS_VERSIONS = "rl.weights.versions"
RL_WEIGHTS_PARENT = "rl.weights.parent.version"
RL_WEIGHTS_DIGEST = "rl.weights.digest"
RL_WEIGHTS_BYTES = "rl.weights.bytes"
RL_WEIGHTS_LAG_SECONDS = "rl.weights.lag.seconds"
RL_REWARD = "rl.reward.value"
RL_REWARD_MEAN = "rl.reward.mean"
RL_ACCEPTED = "rl.accepted"
RL_FILTER = "rl.filter.name"
RL_REASON = "rl.reason"
RL_STEP = "rl.step"
RL_SAMPLES = "rl.sample.count"
RL_TOKENS = "rl.token.count"
RL_METRIC = "rl.metric."
"""Prefix of a step's metrics."""

RENAMED: dict[str, str] = {
    "rl.run": RL_RUN,
    "rl.group": RL_GROUP,
    "rl.sample": RL_SAMPLE,
    "rl.engine": RL_ENGINE,
    "rl.source": RL_SOURCE,
    "rl.weights.parent": RL_WEIGHTS_PARENT,
    "rl.reward": RL_REWARD,
    "rl.filter": RL_FILTER,
    "rl.samples": RL_SAMPLES,
    "rl.tokens": RL_TOKENS,
}
"""Names in span files of earlier releases, which no attribute may have again: a namespace is no attribute."""
