"""`SpanTree`: the spans of a prompt as a tree, and as text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc
from slime_events.core.telemetry.span import Span

_SHOWN = (
    *("rl.sample.id", "rl.dataset", "rl.source.path", "rl.engine.id", "gen_ai.usage.output_tokens"),
    *("gen_ai.response.finish_reasons", "rl.weights.versions", "rl.reward.value", "rl.accepted", "rl.reason"),
    *("rl.step", "rl.sample.count", "rl.weights.version"),
    *("rl.turn.index", "gen_ai.tool.name", "rl.session.end", "rl.turn.count"),
)


@dataclass(frozen=True, slots=True)
class SpanTree:
    """A span and its children."""

    span: Span
    children: tuple[SpanTree, ...]
    linked: Annotated[bool, doc("it is in another trace, and links to the parent of this tree")] = False


def trace_of(spans: Iterable[Span], trace: int) -> tuple[SpanTree, ...]:
    """Return the spans of a trace as trees, with linked spans of further traces: a prompt with its weight version.

    There are several trees if a parent is missing: work that is not finished has no span.
    """
    of_trace, children, linking = [], defaultdict(list), defaultdict(list)
    contexts = set()
    for span in sorted(spans, key=lambda span: (span.start_ns, span.end_ns)):
        contexts.add(span.context)
        if span.trace == trace:
            of_trace.append(span)
        if span.parent is not None:
            children[(span.trace, span.parent)].append(span)
        for link in span.links:
            if link.trace != span.trace:
                linking[tuple(link)].append(span)

    def grow(span: Span, linked: bool) -> SpanTree:
        own = [grow(child, False) for child in children[span.context]]
        # Follow only links to the requested trace, or a version's tree would contain all its groups.
        others = [grow(other, True) for other in linking[span.context]] if span.trace == trace else []
        return SpanTree(span, tuple(own + others), linked)

    roots = (span for span in of_trace if span.parent is None or (trace, span.parent) not in contexts)
    return tuple(grow(span, False) for span in roots)


def render(trees: Sequence[SpanTree]) -> str:
    """Return the trees as text: seconds since the first span began, duration, main attributes."""
    if not trees:
        return "no spans"
    begin = min(tree.span.start_ns for tree in trees)
    return "\n".join(line for tree in trees for line in _lines(tree, begin, "", ""))


def _lines(tree: SpanTree, begin: int, first: str, rest: str) -> Iterator[str]:
    span = tree.span
    took = (span.end_ns - span.start_ns) / 1e9
    shown = " ".join(
        f"{key.split('.', 1)[1]}={_plain(span.attributes[key])}" for key in _SHOWN if key in span.attributes
    )
    error = f" FAILED {span.error}" if span.error is not None else ""
    other = f" (trace {span.trace:032x})" if tree.linked else ""
    label = f"{first}{span.name}"
    yield f"{label:<24} +{(span.start_ns - begin) / 1e9:9.3f} s {took:8.3f} s  {shown}{error}{other}".rstrip()
    for child in tree.children:
        last, branch = child is tree.children[-1], "⇢ " if child.linked else "─ "
        yield from _lines(child, begin, f"{rest}{'└' if last else '├'}{branch}", f"{rest}{'   ' if last else '│  '}")


def _plain(value: object) -> str:
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
