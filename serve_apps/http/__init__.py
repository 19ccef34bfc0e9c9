"""Servers that clients reach by HTTP, gateway and Tinker, and the role that runs agents against the gateway."""
