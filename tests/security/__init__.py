"""Whoever is not to, cannot: what the threat model of docs/security.md says, line by line."""
