"""A lineage as one HTML page that needs nothing else: the picture, and the same in words."""

from __future__ import annotations

from html import escape

from slime_events.analysis.lineage.lineage import Lineage
from slime_events.analysis.lineage.svg import heading, svg

STYLE = "body{font:14px system-ui,sans-serif;margin:2em;color:#222}pre{font-size:12px;overflow-x:auto}"


def html(answer: Lineage, text: str) -> str:
    """text: the answer for a terminal."""
    title = escape(f"Lineage of {heading(answer)}")
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head>\n<body>\n{svg(answer)}\n<pre>{escape(text)}</pre>\n</body>\n</html>\n"
    )
