"""C16: escape sequences in prompts, labels, keys and names, and what commands print of them; C19: cells of a table."""

from __future__ import annotations

import asyncio
import csv
import io
import os
import subprocess
import sys
from functools import partial

from tests.harness.attacks.attack import Answer, Attack
from tests.harness.attacks.scene import Scene

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b31m\x08\x7f"
FORMULA = '=HYPERLINK("http://127.0.0.1:1","x")'
ROWS = (
    {
        "key": f"esc {ESCAPE}",
        "prompt": f"1+1 {ESCAPE}",
        "label": f"2{ESCAPE}",
        "metadata": {f"k{ESCAPE}": ESCAPE, "rm_type": "exact"},
    },
    {"key": "esc-2", "prompt": [{"role": "user", "content": ESCAPE}], "label": FORMULA, "metadata": {"source": ESCAPE}},
    {"key": "esc-3", "prompt": FORMULA, "label": "+1", "metadata": {"x": "@SUM(A1)"}},
    {"key": "esc-4", "prompt": "1", "metadata": {"rm_type": f"no{ESCAPE}such"}},
)
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("show",),
    ("show", "--group", "GROUP"),
    ("show", "--sample", "GROUP-s0"),
    ("lineage",),
    ("lineage", "--sample", "GROUP-s0"),
    ("tail", "--no-follow"),
    ("query", "SELECT * FROM prompts"),
    ("query", "SELECT * FROM rejections"),
    ("query", "SELECT * FROM turns"),
    ("audit",),
    ("replay",),
)
COMMAND_S = 200.0
ALLOWED = frozenset(map(ord, "\n\t"))


def slime_events(*words: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command, as on a terminal without colours."""
    command = [sys.executable, "-m", "slime_events.app.cli.main", *words]
    environment = os.environ | {"NO_COLOR": "1", "TERM": "dumb"}
    return subprocess.run(command, capture_output=True, timeout=COMMAND_S, check=False, env=environment)


def controls(data: bytes) -> list[str]:
    """Return the characters that a terminal acts on, by their code."""
    codes = {ord(character) for character in data.decode("utf-8", "surrogateescape")}
    codes = {code - 0xDC00 if 0xDC80 <= code < 0xDCA0 else code for code in codes}  # single bytes, to an old terminal
    return [f"{code:#04x}" for code in sorted(codes) if (code < 32 or 127 <= code < 160) and code not in ALLOWED]


async def _plant(scene: Scene) -> str:
    """Send the prompts; return the name of the group of the first."""
    groups = []
    for row in ROWS:
        sent = await scene.post("prompts", row)
        groups += [group["group"] for group in sent.json().get("groups", [])] if sent.status_code < 500 else []
    await asyncio.sleep(2)
    return groups[0] if groups else "none"


async def printed(scene: Scene, words: tuple[str, ...]) -> Answer:
    group = await _plant(scene)
    command, *more = (word.replace("GROUP", group) for word in words)
    done = await asyncio.to_thread(slime_events, command, str(scene.folder), *more)
    raw = controls(done.stdout + done.stderr)
    traced = b"Traceback" in done.stderr
    text = f"exit {done.returncode}, {len(done.stdout)} bytes, raw: {', '.join(raw) or 'none'}"
    last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return Answer(text + (f", a traceback: {last}" if traced else ""), not raw and not traced)


async def logged(scene: Scene) -> Answer:
    """Search the gateway's own output, after names and heads with escapes."""
    await _plant(scene)
    for value in (b"a\x1b[31mb", b"\x9b2J"):
        await scene.raw(
            b"GET /v1/%s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: %s\r\n\r\n" % (b"%1b%5b2J", scene.port, value)
        )
    files = [path for path in (scene.folder / "logs").glob("*.log") if not path.name.startswith("sglang")]
    by_name = {path.name: raw for path in files if (raw := controls(path.read_bytes()))}
    return Answer(f"{len(files)} files; raw: {by_name or 'none'}"[:100], not by_name)


async def cells(scene: Scene) -> Answer:
    await _plant(scene)
    done = await asyncio.to_thread(slime_events, "query", str(scene.folder), "SELECT * FROM prompts", "--format", "csv")
    csv.field_size_limit(1 << 26)
    rows = csv.reader(io.StringIO(done.stdout.decode("utf-8", "replace")))
    begins = [cell[:12] for row in rows for cell in row if cell[:1] in ("=", "+", "@")]
    return Answer(f"exit {done.returncode}; formulas: {begins[:3] or 'none'}", done.returncode == 0 and not begins)


ATTACKS: list[Attack] = [
    *(
        Attack(f"escapes in `{' '.join(words)}`", "terminal", "text alone", partial(printed, words=words), COMMAND_S)
        for words in COMMANDS
    ),
    Attack("escapes in files of logs", "logs", "text alone", logged),
    Attack("cells that begin with =", "query --format csv", "no formula", cells, COMMAND_S),
]
