"""A headless Chromium: asked what a page measures, or driven over a pipe by its own DevTools protocol (no
port, no driver)."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import wait_until

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
OPTIONS = (
    *(*QUIET, "--no-proxy-server", "--mute-audio"),
    *("--disable-dev-shm-usage", "--remote-debugging-pipe"),
)


def measured(page: Path, width: int, measure: str) -> str:
    """What a script makes of a page of that width: it finds the page in the frame `f`, and puts what it has
    to say into the title. The frame is there since a headless window has a least width of its own."""
    assert BROWSER is not None
    outer = page.with_name("outer.html")
    frame = f'<iframe id="f" src="{page.name}" style="width:{width}px;height:900px;border:0"></iframe>'
    outer.write_text(f"<!doctype html><title>?</title>{frame}<script>{measure}</script>")
    profile = f"--user-data-dir={page.with_name('profile')}"
    command = [BROWSER, *QUIET, "--allow-file-access-from-files", profile, "--dump-dom", outer.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    title = re.search("<title>(.*?)</title>", done.stdout)
    assert title is not None, done.stdout
    return unescape(title[1])


# The pipe has to be on the descriptors 3 and 4.
_EXEC = """
import os, sys
kept = [os.dup(int(sys.argv[each])) for each in (1, 2, 1, 2, 1, 2)][-2:]  # not 3 or 4 themselves
os.dup2(kept[0], 3)
os.dup2(kept[1], 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


class Page:
    """One tab. `complaints` are what its console was told, and the exceptions that nobody caught."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = os.fdopen(reads, "rb"), os.fdopen(writes, "wb")
        self._count = 0
        self._session: str | None = None
        self._buffer = b""
        self.complaints: list[str] = []
        self.requested: list[str] = []
        target = self._do("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._do(f"{domain}.enable")

    def _do(self, method: str, **params: Any) -> Any:
        self._count += 1
        asked: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session:
            asked["sessionId"] = self._session
        self._writes.write(json.dumps(asked).encode() + b"\0")
        self._writes.flush()
        while True:
            told = self._read()
            if told.get("id") == self._count:
                assert "error" not in told, (method, told["error"])
                return told["result"]
            self._note(told)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._reads.fileno(), 1 << 16)
            assert more, "the browser has gone"
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        told: dict[str, Any] = json.loads(message)
        return told

    def _note(self, told: dict[str, Any]) -> None:
        params = told.get("params", {})
        match told.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"])[:800])
            case "Log.entryAdded":
                self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Runtime.consoleAPICalled":
                self.complaints.append(json.dumps(params["args"])[:800])
            case "Network.requestWillBeSent":
                self.requested.append(params["request"]["url"])

    def close(self) -> None:
        self._reads.close()
        self._writes.close()

    # --- what people do

    def open(self, url: str) -> None:
        self._do("Page.navigate", url=url)

    def look(self, width: int, height: int, scheme: str = "light") -> None:
        """How the page is looked at."""
        phone = width < 600
        self._do(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        self._do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def evaluate(self, expression: str) -> Any:
        result = self._do(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, expression: str, seconds: float = 20) -> None:
        """Until something is true of the page."""
        wait_until(lambda: bool(self.evaluate(f"Boolean({expression})")), seconds)

    def text(self, selector: str) -> str:
        found = self.evaluate(
            f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.innerText).join('\\n')"
        )
        assert isinstance(found, str)
        return found

    def write(self, text: str) -> None:
        self._do("Input.insertText", text=text)

    def press(self, key: str, code: int, modifiers: int = 0, text: str = "") -> None:
        """A key, with its Windows code; `modifiers` 2 is Control, 8 Shift."""
        given: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self._do("Input.dispatchKeyEvent", type="keyDown", text=text, **given)
        self._do("Input.dispatchKeyEvent", type="keyUp", **given)

    def tab(self) -> None:
        self.press("Tab", 9)

    def click(self, selector: str) -> None:
        """With the mouse, in its middle."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        box = self.evaluate(
            f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()"
        )
        at = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
        for kind in ("mousePressed", "mouseReleased"):
            self._do("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        shot = self._do("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browsing(profile: Path) -> Iterator[Page]:
    assert BROWSER is not None
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    command = [BROWSER, *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(
        [sys.executable, "-c", _EXEC, str(theirs_in), str(theirs_out), *command],
        pass_fds=(theirs_in, theirs_out),
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    page = Page(ours_in, ours_out)
    try:
        yield page
    finally:
        page.close()
        process.kill()
        process.wait(30)
