"""Placeholder for torchvision on machines without a GPU: SGLang imports it, a dense text model never calls it."""

from slime_events_placeholder import install  # type: ignore[import-not-found]

__version__ = "0.0.0"
__getattr__ = install(__name__)
