"""Forty texts that try to be more than text, and a run with each of them in every field that takes a text."""

from __future__ import annotations

import hashlib

from schemas.arrays import pack_log_probs, pack_tokens
from schemas.event import Event
from schemas.groups import RejectionCause
from schemas.prompts import PromptRejected, Source
from schemas.rollouts import WeightSpan
from schemas.turns import ToolCall, TurnRole
from tests import made

TEXTS = [
    # markup
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    '"><iframe src=http://elsewhere.example/></iframe>',
    '<link rel=stylesheet href="http://elsewhere.example/a.css">',
    "<img src='http://elsewhere.example/pixel.png'>",
    '<a href="javascript:alert(1)" autofocus onfocus=alert(1)>x</a>',
    "<style>*{display:none}</style>",
    "<base href=http://elsewhere.example/>",
    "<meta http-equiv=refresh content='0;url=http://elsewhere.example/'>",
    "<!-- --><![CDATA[ ]]><?xml?>",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
    "</pre></div></main><h1>not a heading</h1>",
    "&lt;b&gt; &amp;amp; &#60;script&#62; &nbsp;",
    # URLs and paths
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "http://elsewhere.example/?q=1",
    "//elsewhere.example/a",
    "../../../../etc/passwd",
    "a/b\"c'd e?f#g%2F&h=i+j",
    "file:///etc/passwd",
    "C:\\runs\\x.jsonl:7",
    # templates and queries
    "${alert(1)} {{7*7}} <%= 1 %> #{1}",
    "'; DROP TABLE samples; --",
    '{"__proto__": {"polluted": true}}',
    "constructor",
    "__proto__",
    "%s %d %n %00 %0d%0aSet-Cookie: a=b",
    # characters
    "\u202eevil\u202c \u2066a\u2069",
    "\u200b\u200c\u200d\u2060 nothing \u00ad to see \u061c",
    "\x1b[2J\x1b]0;title\x07\x1b[31mred",
    "nul \x00 in it",
    'quotes " and \\ and \n lines \r\n and \t tabs',
    "\ufffd \ufeff \u2028 \u2029 \ue000",
    "👩‍👩‍👧‍👦 e\u0301 ﷽ " + "Z" + "\u0353\u0348\u0316" * 40,
    "half a character, written out: \\ud800 \\udfff",
    "\U000e0041\U000e0042 tags \U0001f3f4",
    "",
    " \t ",
    "x" * 1_000_000,
]
NAME = 100
"""Characters of a text that go into a name, such as a file's or a grader's."""
HOSTILE = "hostile"
"""The run's name. Ids of runs, groups and samples have letters, digits, `-` and `_` alone: `schemas.subjects`."""


def group(number: int) -> str:
    """Return the group of a text."""
    return f"g{number}"


def events() -> list[Event]:
    """A step per text: its group is trained on, and a second one is rejected for a reason that is the text."""
    log: list[Event] = [made.started({"rollout": {"num_rollout": len(TEXTS)}}), made.published(url="weights/0")]
    for number, text in enumerate(TEXTS):
        log += _step(number, text, text[:NAME])
    return log


def _step(step: int, text: str, name: str) -> list[Event]:
    group_, sample = group(step), f"{group(step)}-s0"
    source = Source(path=f"/data/{name}.jsonl", line=step, row=step, offset=step, key=name)
    figures = {"reason": text, "filter": name, "figures": {name: 0.5}, "samples": (), "rewards": ()}
    return [
        PromptRejected(source=Source(path=name, line=1, offset=step), reason=text),
        made.submitted(
            group_, text=text, label=text, metadata={name: text}, source=source, dataset=name,
            messages=[{"role": name, "content": text}],
        ),
        made.submitted(f"r{step}", text=text, label={name: text}, source=Source(path="inbox", key=name)),
        made.rejected(f"r{step}", RejectionCause.FILTER, **figures),
        made.requested(sample),
        *_turns(sample, text, name),
        made.completed(sample, [1, 2], [-0.5, -3.0], text=text, engine=name, spans=(WeightSpan(0, 2, step),)),
        made.assigned(
            sample, value=float(step % 2), grader=name, grader_digest=hashlib.sha256(text.encode()).hexdigest(),
            detail={name: text},
        ),
        made.accepted(group_, samples=(sample,), rewards=(float(step % 2),), reason=text, figures={name: 0.5}),
        made.sealed(
            step, groups=(group_,), samples=(sample,), rewards=(1.0,), raw_rewards=(float(step % 2),), digest=name,
        ),
        made.committed(step, batch_digest=name, samples=1, tokens=2, metrics={name or "none": 1.0}),
        made.published(step + 1, parent=step, url=f"/weights/{name}"),
    ]  # fmt: skip


def _turns(sample: str, text: str, name: str) -> list[Event]:
    tokens = {"length": 2, "tokens": pack_tokens([1, 2]), "log_probs": pack_log_probs([-0.5, -3.0])}
    call = ToolCall(name=name, arguments={name: text})
    return [
        made.turn(sample, 0, text=text, **tokens),
        made.turn(sample, 1, role=TurnRole.TOOL, extends=0, call=call, result={name: text}),
        made.turn(sample, 2, role=TurnRole.TOOL, extends=0, call=call, error=text),
    ]
