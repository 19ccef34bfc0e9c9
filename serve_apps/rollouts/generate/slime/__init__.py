"""slime's names for generate functions: requests to its router, `sglang_rollout` and `GenerateState`."""
