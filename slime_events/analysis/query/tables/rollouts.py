"""Tables on how rollouts were made: attempts, chunks, turns, tokens."""

from slime_events.analysis.query.table import BOOL, FLOAT, IN_LOG, INT, INTS, JSON, RUN, TEXT, TIME, Column, Table

_SAMPLE = Column("sample", TEXT, "t.sample", "id of the sample")

ATTEMPTS = Table(
    "attempts",
    "A row per request of a rollout. Each failure or suspension is followed by another request.",
    """(SELECT r.*, e."time" AS ended, e.outcome, e.reason, e.message, e.engine FROM log.rollout_requested r
        LEFT JOIN (
            SELECT run, sample, attempt, "time", 'completed' AS outcome, stop AS reason, NULL AS message, engine
            FROM log.rollout_completed WHERE rollout IN ('', sample)
            UNION ALL
            SELECT run, sample, attempt, "time", 'suspended', reason, NULL, engine FROM log.rollout_suspended
            UNION ALL
            SELECT run, sample, attempt, "time", 'failed', kind, message, engine FROM log.rollout_failed
        ) e ON e.run = r.run AND e.sample = r.sample AND e.attempt = r.attempt) t""",
    (
        *IN_LOG,
        _SAMPLE,
        Column("group_id", TEXT, 't."group"', "group of the sample"),
        Column("attempt", INT, "t.attempt", "index of the attempt, from 0"),
        Column("requested", TIME, 't."time"', "time of the request, UTC"),
        Column("min_version", INT, "t.min_version", "oldest weight version that may generate it"),
        Column("seed", INT, "t.seed", "sampling seed"),
        Column("max_new_tokens", INT, "t.sampling_max_new_tokens", "limit on the response length [tokens]"),
        Column("temperature", FLOAT, "t.sampling_temperature", "sampling temperature"),
        Column("top_p", FLOAT, "t.sampling_top_p", "nucleus of sampling"),
        Column("ended", TIME, "t.ended", "time of the end, UTC; null while it runs"),
        Column("outcome", TEXT, "t.outcome", "`completed`, `suspended`, `failed`; null while it runs"),
        Column("reason", TEXT, "t.reason", "stop reason, reason of the suspension, or kind of failure"),
        Column("message", TEXT, "t.message", "description of a failure, one sentence"),
        Column("engine", TEXT, "t.engine", "worker that ended it"),
    ),
)

CHUNKS = Table(
    "chunks",
    "A row per chunk: tokens of a rollout that were logged before it ended.",
    "log.rollout_progressed t",
    (
        *IN_LOG,
        _SAMPLE,
        Column("attempt", INT, "t.attempt", "index of the attempt, from 0"),
        Column("time", TIME, 't."time"', "time of the event, UTC"),
        Column("start", INT, "t.start", "index of its first token in the response, or in the turn if `turn` is set"),
        Column("tokens", INT, "t.tokens", "number of tokens"),
        Column(
            "versions", INTS, "list_distinct(list_transform(t.spans, lambda s: s.version))", "weight versions in it"
        ),
        Column("engine", TEXT, "t.engine", "worker that generated it"),
        Column("turn", INT, "t.turn", "turn to which it belongs; null for a rollout without turns"),
    ),
)

TURNS = Table(
    "turns",
    "A row per turn of a rollout by a generate function or an agent: one generation, or one tool call.",
    """(SELECT w.*, CASE WHEN w.is_agents THEN o.sample || '.' || o.attempt END AS session,
               list_contains(s.orphans, w."index") AS orphan
        FROM (SELECT b.run, b.position, b."time" AS begun, r."time" AS ended, b.sample, b."index", b.role, b.engine,
               b.call_name, b.call_arguments, r.extends, r.observed, r.length, r.stop, r.text, r.result, r.error,
               r.overlapping, r.seconds, b.nonce <> '' AS is_agents, r.agent_dialect, r.agent_client, r.agent_root,
               r.agent_nearest, r.agent_drift, r.agent_rule, r.agent_call
        FROM log.turn_begun b
        ANTI JOIN log.turn_recorded x ON x.run = b.run AND x.sample = b.sample AND x."index" = b."index"
        LEFT JOIN log.turn_recorded r ON false
        UNION ALL
        SELECT run, position, to_timestamp(epoch("time") - seconds)::TIMESTAMP, "time", sample, "index", role, engine,
               call_name, call_arguments, extends, observed, length, stop, text, result, error, overlapping, seconds,
               agent_dialect IS NOT NULL, agent_dialect, agent_client, agent_root, agent_nearest, agent_drift,
               agent_rule, agent_call
        FROM log.turn_recorded) w
        ASOF LEFT JOIN log.session_opened o ON o.run = w.run AND o.sample = w.sample AND w.position >= o.position
        LEFT JOIN log.session_sealed s ON s.run = o.run AND s.sample = o.sample AND s.attempt = o.attempt) t""",
    (
        *IN_LOG,
        _SAMPLE,
        Column("index", INT, 't."index"', "index of the turn in the sample, in the order of requests"),
        Column("role", TEXT, "t.role", "role: `assistant` or `tool`"),
        Column("started", TIME, "t.begun", "time of the beginning, UTC"),
        Column("ended", TIME, "t.ended", "time of the end, UTC; null while it runs, or if its engine was lost"),
        Column("seconds", FLOAT, "t.seconds", "duration [s]"),
        Column("engine", TEXT, "t.engine", "worker that generated it"),
        Column("extends", INT, "t.extends", "turn whose prompt and tokens it continues"),
        Column("observed_tokens", INT, "t.observed", "number of tokens from tools or the environment before it"),
        Column("tokens", INT, "t.length", "number of generated tokens"),
        Column("stop_reason", TEXT, "t.stop", "how the generation ended"),
        Column("text", TEXT, "t.text", "generated text"),
        Column("tool", TEXT, "t.call_name", "name of the called tool"),
        Column("arguments", JSON, "t.call_arguments", "arguments of the tool"),
        Column("result", JSON, "t.result", "result of the tool"),
        Column("error", TEXT, "nullif(t.error, '')", "error that the tool raised"),
        Column("overlapping", BOOL, "t.overlapping", "whether another turn of the sample was running"),
        Column(
            "session", TEXT, "t.session", "for an agent's turn, its session; without one, the columns below are null"
        ),
        Column("dialect", TEXT, "t.agent_dialect", "API of the request: chat, responses, messages, generate"),
        Column("client", TEXT, "nullif(t.agent_client, '')", "name of the agent's HTTP client (User-Agent)"),
        Column("root", TEXT, "t.agent_root", "why it continues no turn; null if it extends one"),
        Column("nearest", INT, "t.agent_nearest", "for a root, the turn with which it shares most tokens"),
        Column(
            "drift", INT, "t.agent_drift", "for a root, index of the first token that differs from that turn's path"
        ),
        Column("rule", TEXT, "nullif(t.agent_rule, '')", "rule that made the token ids of its prompt"),
        Column("generation", TEXT, "t.agent_call", "sample as which its generation was requested"),
        Column(
            "orphan",
            BOOL,
            "t.orphan",
            "whether its answer was lost and requested again; null while the session is open",
        ),
    ),
)

TOKENS = Table(
    "tokens",
    "A row per response token. Arrays are read only for queries that name this table. In a long log, restrict the "
    "query to some samples.",
    """(SELECT r.run, r.sample, r.start + i AS token_index, r.tokens[i + 1] AS token, r.log_probs[i + 1] AS log_prob,
               r.versions[i + 1] AS version, coalesce(m.loss_mask[r.start + i + 1], 1) AS loss_mask,
               coalesce(m.credit[r.start + i + 1], 1) AS credit
        FROM (SELECT *, unnest(range(len(tokens))) AS i FROM log.token_run) r
        LEFT JOIN (SELECT run, sample, loss_mask, credit FROM log.token_run
                   WHERE loss_mask IS NOT NULL OR credit IS NOT NULL) m
        ON m.run = r.run AND m.sample = r.sample) t""",
    (
        RUN,
        _SAMPLE,
        Column("token_index", INT, "t.token_index", "index in the response, from 0"),
        Column("token", INT, "t.token", "id of the token"),
        Column(
            "log_prob",
            FLOAT,
            "t.log_prob",
            "log-probability [nats] under logits / temperature, by the engine",
        ),
        Column("version", INT, "t.version", "weight version that generated it; null for a tool's output"),
        Column("credit", FLOAT, "t.credit", "factor of its advantage (`--agent-credit discounted`)"),
        Column("loss_mask", BOOL, "t.loss_mask = 1", "whether it is trained on; true until the log has a mask"),
    ),
)
