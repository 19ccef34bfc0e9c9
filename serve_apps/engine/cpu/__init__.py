"""Hooks for what SGLang 0.5.23 lacks, or does slowly, on a CPU; registered by `serve_apps.engine.plugin`."""
