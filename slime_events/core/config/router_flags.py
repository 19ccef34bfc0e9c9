"""Flags of SGLang's router, which slime has as `--router-*`: what each means in a run without a router."""

from slime_events.core.config.engine_groups import NOT_DIVIDED

NO_ROUTER = "there is no router: engines take work from the log when they have capacity"
_NO_DISCOVERY = (
    "no router looks for servers: name servers that run already with --rollout-external-engine-addrs "
    "(docs/external-engines.md)"
)

_REFUSED = {
    NOT_DIVIDED: (
        "pd-disaggregation mini-lb prefill decode prefill-policy decode-policy prefill-selector decode-selector "
        "bootstrap-port-annotation"
    ),
    _NO_DISCOVERY: "service-discovery service-discovery-port service-discovery-namespace selector",
    "the trained model's engines are SGLang's, and no router passes requests to another service": (
        "backend history-backend enable-igw mcp-config-path"
    ),
}
ROUTER_REFUSED: dict[str, str] = {f"--router-{name}": why for why, names in _REFUSED.items() for name in names.split()}
"""Flag to the reason: without its effect the run would be another one."""

_NAMES = """
    policy cache-threshold balance-abs-threshold balance-rel-threshold bucket-adjust-interval-secs
    eviction-interval eviction-interval-secs max-tree-size max-idle-secs assignment-mode redis-url redis-key-prefix
    max-payload-size dp-aware worker-startup-timeout-secs worker-startup-check-interval log-dir log-level
    prometheus-port prometheus-host prometheus-duration-buckets request-id-headers request-timeout-secs
    shutdown-grace-period-secs cors-allowed-origins max-concurrent-requests queue-size queue-timeout-secs
    rate-limit-tokens-per-second retry-max-retries retry-initial-backoff-ms retry-max-backoff-ms
    retry-backoff-multiplier retry-jitter-factor disable-retries cb-failure-threshold cb-success-threshold
    cb-timeout-duration-secs cb-window-duration-secs disable-circuit-breaker health-failure-threshold
    health-success-threshold health-check-timeout-secs health-check-interval-secs health-check-endpoint
    disable-health-check api-key model-path tokenizer-path chat-template tokenizer-cache-enable-l0
    tokenizer-cache-l0-max-entries tokenizer-cache-enable-l1 tokenizer-cache-l1-max-memory reasoning-parser
    tool-call-parser oracle-wallet-path oracle-tns-alias oracle-connect-descriptor oracle-username oracle-password
    oracle-pool-min oracle-pool-max oracle-pool-timeout-secs postgres-db-url postgres-pool-max redis-pool-max
    redis-retention-days client-cert-path client-key-path ca-cert-path ca-cert-paths server-cert-path server-key-path
    tls-cert-path tls-key-path enable-trace otlp-traces-endpoint control-plane-api-keys control-plane-audit-enabled
    jwt-issuer jwt-audience jwt-jwks-uri jwt-role-mapping
"""
ROUTER_INERT = frozenset(f"--router-{name}" for name in _NAMES.split())
"""Flags with which a run is the same: they say how requests reach engines. Those of sglang-router 0.2 and 0.3."""
ROUTER_PREFIX = "--router-"
