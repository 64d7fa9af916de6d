"""A headless Chromium, told what to do over its own pipe: JSON messages that end in a NUL."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--remote-debugging-pipe"),
)
ANSWER_TIMEOUT_S = 60.0


class BrowserError(Exception):
    """The browser refused, or did not answer in time."""


class Tab:
    """One page in the browser, and everything it complained about."""

    def __init__(self, commands: int, answers: int) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._commands = commands
        self._answers = answers
        self._session: str | None = None
        self._number = 0
        self._unread = b""
        self._loaded = 0
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def resize(self, width: int, height: int, *, scale: float, is_dark: bool) -> None:
        """As a screen of so many CSS pixels would show it."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale}
        self._ask("Emulation.setDeviceMetricsOverride", **size, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, page: Path) -> None:
        loaded = self._loaded
        self._ask("Page.navigate", url=page.resolve().as_uri())
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while self._loaded == loaded:
            self._take(self._read(deadline))

    def evaluate(self, expression: str) -> Any:
        """The value of a piece of JavaScript."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']['text']}")
        return answer["result"].get("value")

    def picture(self, path: Path, *, whole: bool) -> None:
        """What the screen shows, or the whole page below it too."""
        answer = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            answer = self._read(deadline)
            if answer.get("id") != self._number:
                self._take(answer)
            elif "error" in answer:
                raise BrowserError(f"{method}: {answer['error']['message']}")
            else:
                return dict(answer["result"])

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._answers], [], [], left)[0]:
                raise BrowserError(f"no answer within {ANSWER_TIMEOUT_S:.0f} s")
            piece = os.read(self._answers, 1 << 16)
            if not piece:
                raise BrowserError("Chromium ended: try it by hand with --headless")
            self._unread += piece
        message, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(message))

    def _take(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Page.loadEventFired":
                self._loaded += 1
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(params["exceptionDetails"]["text"])
            case "Runtime.consoleAPICalled":
                self.complaints.append(json.dumps(params["args"]))
            case "Log.entryAdded":
                self.complaints.append(params["entry"]["text"])


@contextmanager
def browser(command: str) -> Iterator[Tab]:
    """A tab in a browser of its own, with an empty profile."""
    with ExitStack() as stack:
        profile = stack.enter_context(tempfile.TemporaryDirectory(prefix="ringcast-chromium-"))
        theirs_in, ours_out = _high_pipe()
        ours_in, theirs_out = _high_pipe()

        def take_places() -> None:
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)

        process = subprocess.Popen(
            [command, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=take_places,
        )
        stack.callback(_end, process)
        for end in (theirs_in, theirs_out):
            os.close(end)
        for end in (ours_in, ours_out):
            stack.callback(os.close, end)
        yield Tab(ours_out, ours_in)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _high_pipe() -> tuple[int, int]:
    """A pipe whose ends are not where the browser looks for its own."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]
