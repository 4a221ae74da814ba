"""A headless Chromium, driven by the DevTools protocol over two pipes; without one, these tests are skipped."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 60  # seconds
# Chromium reads commands from descriptor 3 and writes answers to 4; each ends with a NUL.
LAUNCH = """import os, sys
reading, writing = int(sys.argv[1]), int(sys.argv[2])
os.dup2(reading, 103); os.dup2(writing, 104)
os.dup2(103, 3); os.dup2(104, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
OPTIONS = ["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
           "--no-first-run", "--disable-background-networking", "--disable-extensions", "--disable-sync",
           "--force-device-scale-factor=1", "--hide-scrollbars"]  # fmt: skip
KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35, "Tab": 9, "Enter": 13,
        "Escape": 27, "Backspace": 8}  # fmt: skip


class Browser:
    """One window that opens pages, evaluates JavaScript, and takes mouse and key events."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        command = [sys.executable, "-c", LAUNCH, str(to_browser), str(from_browser), program, *OPTIONS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_browser, from_browser),
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._received, self._number = b"", 0
        self._target: str | None = None
        self._session: str | None = None
        self._new_tab()

    def open(self, path: Path, *, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        """Opens a file, in light or dark mode, and waits until it has loaded."""
        self.visit(path.as_uri(), width=width, height=height, dark=dark)

    def visit(self, address: str, *, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        """Opens an address in a new tab, in light or dark mode, and waits until it has loaded."""
        self._new_tab()
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        opened = self._call("Page.navigate", url=address)
        assert "errorText" not in opened, (address, opened["errorText"])
        self._visited = opened["loaderId"]
        self._wait_until(lambda: self._visited in self._loaded, f"{address} has not loaded")
        self.ask("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")

    def wait_for_reload(self) -> None:
        """Waits until the page that was visited has loaded itself again."""
        self._wait_until(lambda: self._loaded[-1] != self._visited, "the page has not loaded itself again")

    def _new_tab(self) -> None:
        """Opens an empty tab and closes the one before.

        In the same tab, a page that loads itself again at this moment would take the place of the next page.
        """
        before, self._session = self._target, None
        self._target = self._call("Target.createTarget", url="about:blank")["targetId"]
        if before is not None:
            self._call("Target.closeTarget", targetId=before)
        session = self._call("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        self._session = session
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self.errors: list[str] = []  # errors and console messages of the tab
        self.requests: list[str] = []
        self._loaded: list[str] = []  # the loader identifiers of the documents that have loaded
        self._visited = ""
        self._call("Page.setLifecycleEventsEnabled", enabled=True)
        self._call("Page.bringToFront")  # a hidden page does not draw, and the live page does not change

    def resize(self, width: int, height: int = 1000) -> None:
        """Changes the size of the window."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def frame(self) -> Callable[[str], Any]:
        """A function that gives the value of a JavaScript expression in the page's first iframe."""
        tree = self._call("Page.getFrameTree")["frameTree"]
        world = self._call("Page.createIsolatedWorld", frameId=tree["childFrames"][0]["frame"]["id"])

        def ask(expression: str) -> Any:
            context = world["executionContextId"]
            answer = self._call("Runtime.evaluate", expression=expression, contextId=context, returnByValue=True)
            assert "exceptionDetails" not in answer, answer
            return answer["result"].get("value")

        return ask

    def go_offline(self, offline: bool = True) -> None:
        """Switches the network of the page off, or on again."""
        conditions = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self._call("Network.emulateNetworkConditions", offline=offline, **conditions)

    def point(self, x: float, y: float, *, click: bool = False) -> None:
        """Moves the mouse to a point in the window; with `click`, clicks there."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, *, control: bool = False) -> None:
        """Presses a key by its name. Enter presses the button that has the focus."""
        named = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": 2 * control}
        text = {"text": "\r"} if key == "Enter" and not control else {}
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, **named, **text)

    def type(self, text: str) -> None:
        """Writes a text where the focus is."""
        self._call("Input.insertText", text=text)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Saves the window, or the whole page, as a PNG."""
        found = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        """Ends the browser."""
        self._session = None
        os.write(self._out, b'{"id": 0, "method": "Browser.close"}\0')  # it may end before it answers
        os.close(self._out)
        os.close(self._in)
        self._process.wait(timeout=20)

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def _wait_until(self, condition: Callable[[], bool], otherwise: str) -> None:
        """Receives events until the condition is true."""
        until = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < until, otherwise
            if b"\0" in self._received or select.select([self._in], [], [], 1)[0]:
                self._receive()

    def _receive(self) -> dict[str, Any]:
        """The next message; records the events that it holds."""
        while b"\0" not in self._received:
            more = os.read(self._in, 1 << 20)
            assert more, "the browser has ended"
            self._received += more
        raw, self._received = self._received.split(b"\0", 1)
        message: dict[str, Any] = json.loads(raw)
        if message.get("sessionId") != self._session:  # of a tab that is closed
            return message
        match message.get("method"), message.get("params", {}):
            case "Page.lifecycleEvent", {"name": "load", "frameId": self._target, "loaderId": loader}:
                self._loaded.append(loader)
            case "Runtime.exceptionThrown", params:
                self.errors.append(params["exceptionDetails"].get("exception", {}).get("description", "an error"))
            case "Runtime.consoleAPICalled", params:
                self.errors.append(str(params["args"]))
            case "Log.entryAdded", params:
                self.errors.append(params["entry"]["text"])
            case "Network.requestWillBeSent", params:
                self.requests.append(params["request"]["url"])
        return message


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The browser, started once."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the PATH")
    opened = Browser(program, tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()
