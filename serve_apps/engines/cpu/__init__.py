"""Hooks for features that SGLang 0.5.23 lacks or runs slowly on a CPU; `serve_apps.engines.plugin` registers them."""
