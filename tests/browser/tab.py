"""`Tab`: a page in Chromium, used as a person does, which notes everything that a page of a console must not do."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from tests.browser.devtools import Browser, DevToolsError, Json

READY_S = 30.0
POLL_S = 0.02
KEYS = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40, "End": 35, "Space": 32}
READY = "document.querySelector('main h1, main .error') !== null && document.querySelector('.waits') === null"
PLACE = """(one) => {
  one.scrollIntoView({block: 'center'});
  const box = one.getClientRects()[0], x = box.x + box.width / 2, y = box.y + box.height / 2;
  const there = document.elementFromPoint(x, y);
  return {x, y, hit: one.contains(there) || (there?.contains(one) ?? false), what: there?.outerHTML.slice(0, 200)};
}"""
"""The place of an element, and what a mouse would hit there."""
FOLLOWS = "/changes"
"""A request that stays open while a page is shown."""
OWN = ("data:", "blob:", "about:", "chrome:", "devtools:")


class Tab:
    """A tab over one console. origin: its URL, to which every request of the page has to go. problems: errors in the
    page's console, exceptions, dialogs, failed answers, and requests to anybody else."""

    def __init__(self, browser: Browser, session: str, origin: str) -> None:
        self._browser, self._session, self.origin = browser, session, origin
        self.problems: list[str] = []
        self._in_flight: dict[str, str] = {}

    @staticmethod
    @contextlib.asynccontextmanager
    async def of(
        browser: Browser, origin: str, *, theme: str = "light", size: tuple[int, int] = (1280, 800)
    ) -> AsyncIterator[Tab]:
        """Open one."""
        heard: list[Tab] = []
        async with browser.session(lambda name, event: heard[0].hear(name, event)) as session:
            tab = Tab(browser, session, origin)
            heard.append(tab)
            for domain in ("Page", "Runtime", "Network", "Log"):
                await tab.call(f"{domain}.enable")
            await tab.sized(*size)
            scheme = {"name": "prefers-color-scheme", "value": theme}
            still = {"name": "prefers-reduced-motion", "value": "reduce"}
            await tab.call("Emulation.setEmulatedMedia", features=[scheme, still])
            yield tab

    async def call(self, method: str, **parameters: object) -> Json:
        return await self._browser.call(method, self._session, **parameters)

    def hear(self, name: str, event: Json) -> None:
        """Take an event of Chromium in."""
        match name:
            case "Network.requestWillBeSent":
                url = event["request"]["url"]
                if not url.startswith((f"{self.origin}/", *OWN)):
                    self.problems.append(f"a request to {url[:200]}")
                elif not url.endswith(FOLLOWS):
                    self._in_flight[event["requestId"]] = url
            case "Network.responseReceived" if event["response"]["status"] >= 400:
                self.problems.append(f"{event['response']['status']} for {event['response']['url'][:200]}")
            case "Network.loadingFinished" | "Network.loadingFailed":
                self._in_flight.pop(event["requestId"], None)
            case "Runtime.exceptionThrown":
                self.problems.append(f"an exception: {json.dumps(event['exceptionDetails'])[:500]}")
            case "Runtime.consoleAPICalled":
                self.problems.append(f"console.{event['type']}: {json.dumps(event['args'])[:300]}")
            case "Log.entryAdded" if event["entry"]["level"] in ("error", "warning"):
                self.problems.append(f"{event['entry']['source']}: {event['entry']['text'][:300]}")
            case "Page.javascriptDialogOpening":
                self.problems.append(f"a dialog: {event['message'][:100]}")

    async def sized(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def open(self, path: str) -> None:
        """Go to a path, and wait until its view is there."""
        await self.call("Page.navigate", url=path if path.startswith("file:") else self.origin + path)
        await self.ready()

    async def ready(self) -> None:
        """Wait until a view is shown and no request is in progress."""
        await self.until(READY, settled=True)

    async def until(self, condition: str, *, settled: bool = False) -> None:
        """Wait for a condition in JavaScript. Raises DevToolsError."""
        deadline, quiet = time.monotonic() + READY_S, 0
        while quiet < (2 if settled else 1):
            if time.monotonic() > deadline:
                text = await self.script("document.body.innerText.slice(0, 600)")
                raise DevToolsError(f"never: {condition} at {await self.path()}; {self._in_flight}; shown: {text!r}")
            await asyncio.sleep(POLL_S)
            there = not (settled and self._in_flight) and await self.script(condition)
            quiet = quiet + 1 if there else 0

    async def script(self, expression: str) -> Any:
        """Return the JSON value of an expression; a promise is awaited. Raises DevToolsError."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise DevToolsError(f"{expression[:200]}: {json.dumps(answer['exceptionDetails'])[:600]}")
        return answer["result"].get("value")

    async def path(self) -> str:
        """Path and query that are shown."""
        return str(await self.script("location.pathname + location.search"))

    async def text(self, selector: str = "main") -> str:
        return str(await self.script(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    async def click(self, selector: str, text: str = "") -> None:
        """Click the first element of a selector with a text, or if there is none that begins so, where a mouse hits it.

        Raises DevToolsError if something else is there.
        """
        every, wanted = f"[...document.querySelectorAll({json.dumps(selector)})]", json.dumps(text)
        found = (
            f"({every}.find((one) => one.textContent.trim() === {wanted}) ?? "
            f"{every}.find((one) => one.textContent.trim().startsWith({wanted})))"
        )
        await self.until(f"{found} !== undefined")
        place = await self.script(f"({PLACE})({found})")
        if not place["hit"]:
            raise DevToolsError(f"{selector} {text!r} is covered by {place['what']}")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            await self.call(
                "Input.dispatchMouseEvent", type=kind, x=place["x"], y=place["y"], button="left", clickCount=1
            )
        await self.ready()

    async def press(self, key: str, *, times: int = 1) -> None:
        """Press a key of KEYS."""
        code = KEYS[key]
        more = {"text": "\r"} if key == "Enter" else {}
        for _ in range(times):
            about = {"key": key, "code": key, "windowsVirtualKeyCode": code}
            await self.call("Input.dispatchKeyEvent", type="keyDown" if more else "rawKeyDown", **about, **more)
            await self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    async def back(self) -> None:
        """Go one page back in the history."""
        before = await self.path()
        await self.script("history.back()")
        await self.until(f"location.pathname + location.search !== {json.dumps(before)}")
        await self.ready()

    async def picture(self) -> bytes:
        """Return what is shown, as PNG."""
        answer = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(answer["data"])
