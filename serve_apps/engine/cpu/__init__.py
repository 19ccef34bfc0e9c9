"""What SGLang 0.5.23 lacks, or does slowly, on a CPU; put in by `serve_apps.engine.plugin`."""
