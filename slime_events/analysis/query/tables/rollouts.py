"""How rollouts came about: attempts, chunks, turns, tokens."""

from slime_events.analysis.query.table import BOOL, FLOAT, IN_LOG, INT, INTS, JSON, RUN, TEXT, TIME, Column, Table

_SAMPLE = Column("sample", TEXT, "t.sample", "the sample")

ATTEMPTS = Table(
    "attempts",
    "A row per request of a rollout: one, and one more after each failure or suspension.",
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
        Column("group_id", TEXT, 't."group"', "its group"),
        Column("attempt", INT, "t.attempt", "from 0"),
        Column("requested", TIME, 't."time"', "UTC"),
        Column("min_version", INT, "t.min_version", "the engine had to run at least these weights"),
        Column("seed", INT, "t.seed", "of sampling"),
        Column("max_new_tokens", INT, "t.sampling_max_new_tokens", "of the whole response"),
        Column("temperature", FLOAT, "t.sampling_temperature", "of sampling"),
        Column("top_p", FLOAT, "t.sampling_top_p", "of sampling"),
        Column("ended", TIME, "t.ended", "UTC; null while it is under way"),
        Column("outcome", TEXT, "t.outcome", "`completed`, `suspended`, `failed`; null while it is under way"),
        Column("reason", TEXT, "t.reason", "stop reason, reason of the suspension, or kind of failure"),
        Column("message", TEXT, "t.message", "one sentence on a failure"),
        Column("engine", TEXT, "t.engine", "the worker that ended it"),
    ),
)

CHUNKS = Table(
    "chunks",
    "A row per chunk: tokens of a rollout that were in the log before it ended.",
    "log.rollout_progressed t",
    (
        *IN_LOG,
        _SAMPLE,
        Column("attempt", INT, "t.attempt", "from 0"),
        Column("time", TIME, 't."time"', "UTC"),
        Column("start", INT, "t.start", "index of its first token in the response"),
        Column("tokens", INT, "t.tokens", "how many"),
        Column("versions", INTS, "list_distinct(list_transform(t.spans, lambda s: s.version))", "weights that made it"),
        Column("engine", TEXT, "t.engine", "the worker that made it"),
        Column("turn", INT, "t.turn", "the turn that it belongs to, whose tokens `start` then counts"),
    ),
)

TURNS = Table(
    "turns",
    "A row per turn of a rollout that a generate function or an agent makes: one generation, or one call of a tool.",
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
        Column("index", INT, 't."index"', "of the sample's turns, in the order that they were asked for"),
        Column("role", TEXT, "t.role", "`assistant` or `tool`"),
        Column("started", TIME, "t.begun", "UTC"),
        Column("ended", TIME, "t.ended", "UTC; null where it is under way, or was when its engine was lost"),
        Column("seconds", FLOAT, "t.seconds", "s"),
        Column("engine", TEXT, "t.engine", "the worker"),
        Column("extends", INT, "t.extends", "the turn whose prompt and tokens it goes on from"),
        Column("observed_tokens", INT, "t.observed", "tokens from tools or the environment before it"),
        Column("tokens", INT, "t.length", "generated, how many"),
        Column("stop_reason", TEXT, "t.stop", "how a generation ended"),
        Column("text", TEXT, "t.text", "of the generated tokens"),
        Column("tool", TEXT, "t.call_name", "the tool that was called"),
        Column("arguments", JSON, "t.call_arguments", "it was called with"),
        Column("result", JSON, "t.result", "what it gave"),
        Column("error", TEXT, "nullif(t.error, '')", "what it raised"),
        Column("overlapping", BOOL, "t.overlapping", "whether another turn of the sample was under way"),
        Column("session", TEXT, "t.session", "of an agent's turn: its session; the columns below are null for others"),
        Column("dialect", TEXT, "t.agent_dialect", "the API that it was asked in: chat, responses, messages, generate"),
        Column("client", TEXT, "nullif(t.agent_client, '')", "what the agent's HTTP client calls itself"),
        Column("root", TEXT, "t.agent_root", "why it continues no turn; null where it extends one"),
        Column("nearest", INT, "t.agent_nearest", "of a root: the turn that it has most tokens in common with"),
        Column("drift", INT, "t.agent_drift", "of a root: the first token that differs from that turn's path"),
        Column("rule", TEXT, "nullif(t.agent_rule, '')", "what made the ids of its prompt"),
        Column("generation", TEXT, "t.agent_call", "the sample that its generation was requested as"),
        Column("orphan", BOOL, "t.orphan", "whether its answer was lost and asked for again; null before the end"),
    ),
)

TOKENS = Table(
    "tokens",
    "A row per response token. The arrays are read for a query that names this table, and for no other: name the "
    "samples too where the log is long.",
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
        Column("token_index", INT, "t.token_index", "in the response, from 0"),
        Column("token", INT, "t.token", "its id"),
        Column("log_prob", FLOAT, "t.log_prob", "natural, of logits / temperature, by the engine"),
        Column("version", INT, "t.version", "the weights that made it; null for a tool's output"),
        Column("credit", FLOAT, "t.credit", "what its advantage is multiplied by (`--agent-credit discounted`)"),
        Column("loss_mask", BOOL, "t.loss_mask = 1", "whether it is trained on; true where the log has no mask yet"),
    ),
)
