"""A headless Chromium, driven through its DevTools protocol. Debian's package is `chromium`."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx2
from websockets.sync.client import ClientConnection, connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--autoplay-policy=no-user-gesture-required",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    "--remote-debugging-port=0",
    "--hide-scrollbars",
]


def find() -> str | None:
    """The browser's binary, if there is one."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """One tab."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self.problems: list[str] = []

    def send(self, method: str, **params: Any) -> Any:
        wanted = next(self._ids)
        self._socket.send(json.dumps({"id": wanted, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=20))
            self._note(message)
            if message.get("id") == wanted:
                assert "error" not in message, message
                return message["result"]

    def _note(self, message: dict[str, Any]) -> None:
        """Keep what the page complained about."""
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(message["params"]["exceptionDetails"]))
        if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.problems.append(str(message["params"]["entry"]))

    def open(self, url: str) -> None:
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of an expression; a promise is awaited."""
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < end, f"{condition} did not come true; {self.run('document.body.innerText')}"
            time.sleep(0.05)

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def press(self, key: str, code: int, *, ctrl: bool = False) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, modifiers=2 if ctrl else 0
            )

    def size(self, width: int, height: int) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2, mobile=False)

    def scheme(self, name: str) -> None:
        """light or dark."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser(binary: str, profile: Path) -> Iterator[Page]:
    """A browser with a fresh profile; it is gone when the block ends."""
    command = [binary, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            with connect(_tab(profile / "DevToolsActivePort", process), max_size=None) as socket:
                page = Page(socket)
                yield page
                page.send("Browser.close")
                process.wait(10)
        finally:
            process.kill()


def _tab(port_file: Path, process: subprocess.Popen[bytes]) -> str:
    """The address of the first tab, once the browser listens."""
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        if port_file.exists() and (lines := port_file.read_text().splitlines()):
            tabs = httpx2.get(f"http://127.0.0.1:{lines[0]}/json/list").json()
            pages = [tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"]
            if pages:
                return str(pages[0])
        time.sleep(0.05)
    raise RuntimeError("the browser did not start")
