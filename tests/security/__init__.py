"""Test the threat model of docs/security.md, line by line: forbidden actions fail."""
