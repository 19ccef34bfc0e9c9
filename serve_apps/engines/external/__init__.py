"""Rollout engines that this project did not start: SGLang servers, reached by HTTP."""
