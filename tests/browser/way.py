"""The way of a person from a run to its weights and back."""

from __future__ import annotations

from tests.browser.tab import Tab
from tests.browser.views import Sights


async def there_and_back(tab: Tab, sights: Sights) -> tuple[str, str]:
    """Go by clicks alone from the list of runs over a step, group, rollout, token and lineage to a weight version.

    Then go back by the history. Returns what the page said of the rollout's first token and of the version.
    """
    there = f"/runs/{sights.run}"
    await tab.open("/")
    seen = ["/"]

    async def to(path: str, selector: str, text: str) -> None:
        await tab.click(selector, text)
        assert await tab.path() == path
        seen.append(path)

    await to(f"{there}/metrics", "table a", sights.run)
    await to(f"{there}/steps", "header nav a", "Steps")
    await to(f"{there}/steps/{sights.step}", "table a", str(sights.step))
    await to(f"{there}/groups/{sights.group}", "table a", sights.group)
    await to(f"{there}/rollouts/{sights.sample}", ".siblings a", sights.sample)
    await tab.click("p.tokens span")
    about = await tab.text(".about")
    await to(f"{there}/versions?sample={sights.sample}", "main a", "what it touched")
    await to(f"{there}/versions/{sights.version}", "table a", f"v{sights.version}")
    facts = await tab.text(".facts")
    for path in reversed(seen[:-1]):
        await tab.back()
        assert await tab.path() == path
    return about, facts
