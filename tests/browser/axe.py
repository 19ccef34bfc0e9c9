"""axe-core, which names what a screen reader cannot read, run in a page."""

from __future__ import annotations

import subprocess

from tests.browser.tab import Tab
from tools.console_build import CLIENT

RUN = (
    "axe.run(document, {resultTypes: ['violations']}).then(({violations}) => violations.flatMap((rule) =>"
    "rule.nodes.map((node) => [rule.impact, rule.id, node.html.slice(0, 200), node.any[0]?.message ?? ''])))"
)


def axe_script() -> str:
    """Return the script, which the client's locked packages have."""
    script = CLIENT / "node_modules/axe-core/axe.min.js"
    if not script.exists():
        subprocess.run(("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"), cwd=CLIENT, check=True)
    return script.read_text(encoding="utf-8")


async def violations(tab: Tab, axe: str) -> str:
    """Return what is wrong with the page that is shown, a line each, also in what is folded up."""
    await tab.script("for (const one of document.querySelectorAll('details')) one.open = true")
    await tab.script(f"{axe}; 0")
    return "\n".join(map(str, await tab.script(RUN)))
