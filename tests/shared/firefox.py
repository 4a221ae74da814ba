"""A headless Firefox, driven by the protocol that geckodriver speaks with it (Marionette)."""

import contextlib
import json
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("firefox-esr", "firefox")
_SECONDS = 300  # that the browser may take to start, or to answer
# Port 0 is any free one, which is in a file of the profile then. Proxies that do not exist switch the network off.
_PREFERENCES = {
    "marionette.port": 0, "network.proxy.type": 1, "network.proxy.http": "127.0.0.1", "network.proxy.http_port": 9,
    "network.proxy.ssl": "127.0.0.1", "network.proxy.ssl_port": 9, "app.normandy.enabled": False,
    "datareporting.policy.dataSubmissionEnabled": False, "toolkit.telemetry.reportingpolicy.firstRun": False,
    "browser.shell.checkDefaultBrowser": False, "privacy.reduceTimerPrecision": False,
}  # fmt: skip
_ERRORS = """return Services.console.getMessageArray()
  .filter((entry) => entry instanceof Ci.nsIScriptError && /^(file|blob):/.test(entry.sourceName))
  .map((entry) => entry.errorMessage)"""


def find_firefox() -> str | None:
    """The program, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Firefox:
    """One window that opens pages and evaluates JavaScript, as `Browser` does with Chromium."""

    def __init__(self, program: str, profile: Path) -> None:
        profile.mkdir(parents=True)
        lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in _PREFERENCES.items()]
        (profile / "user.js").write_text("\n".join(lines), encoding="utf-8")
        self._process = subprocess.Popen(
            [
                program,
                "--headless",
                "--no-remote",
                "--marionette",
                "--remote-allow-system-access",
                "--profile",
                str(profile),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._number, self._received = 0, b""
        self._socket = self._connect(profile / "MarionetteActivePort")
        self._receive()  # its greeting
        self._call("WebDriver:NewSession", capabilities={"alwaysMatch": {"pageLoadStrategy": "normal"}})
        self._call("WebDriver:SetTimeouts", script=_SECONDS * 1000, pageLoad=_SECONDS * 1000)

    def open(self, path: Path, *, width: int = 1400, height: int = 1000) -> None:
        """Opens a file and waits until it has loaded."""
        self._call("WebDriver:SetWindowRect", width=width, height=height)
        self.visit(path.as_uri())

    def visit(self, address: str) -> None:
        """Opens an address and waits until it has loaded."""
        self._call("WebDriver:Navigate", url=address)

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        return self._call("WebDriver:ExecuteScript", script=f"return ({expression})", args=[])["value"]

    @property
    def errors(self) -> list[str]:
        """Errors and warnings of pages since the browser started."""
        self._call("Marionette:SetContext", value="chrome")
        found: list[str] = self._call("WebDriver:ExecuteScript", script=_ERRORS, args=[])["value"]
        self._call("Marionette:SetContext", value="content")
        return found

    def close(self) -> None:
        """Ends the browser."""
        with contextlib.suppress(OSError, AssertionError):
            self._call("Marionette:Quit", flags=["eForceQuit"])
        self._socket.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _connect(self, port: Path) -> socket.socket:
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            with contextlib.suppress(OSError, ValueError):
                return socket.create_connection(("127.0.0.1", int(port.read_text())), timeout=_SECONDS)
            time.sleep(0.05)
        raise AssertionError("Firefox did not start")

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = json.dumps([0, self._number, method, params]).encode()
        self._socket.sendall(b"%d:%b" % (len(message), message))
        _, number, error, result = self._receive()
        assert number == self._number
        assert error is None, (method, error)
        answer: dict[str, Any] = result or {}
        return answer

    def _receive(self) -> Any:
        """The next message: its length in bytes, a colon, and JSON."""
        while b":" not in self._received:
            self._more()
        length, self._received = self._received.split(b":", 1)
        while len(self._received) < int(length):
            self._more()
        message, self._received = self._received[: int(length)], self._received[int(length) :]
        return json.loads(message)

    def _more(self) -> None:
        received = self._socket.recv(1 << 20)
        assert received, "Firefox has ended"
        self._received += received
