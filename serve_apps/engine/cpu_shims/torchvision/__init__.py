"""Placeholder for torchvision where there is no GPU: imported by SGLang, never called on the way of a dense text model."""

from slime_events_placeholder import install

__version__ = "0.0.0"
__getattr__ = install(__name__)
