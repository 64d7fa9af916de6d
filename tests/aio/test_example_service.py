"""The web services of examples/ with real uvicorn workers, of which one is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

for needed in ("fastapi", "uvicorn"):
    pytest.importorskip(needed, reason="comes with ringcast[dev]")
httpx = pytest.importorskip("httpx", reason="comes with ringcast[dev]")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class Service:
    """A program with three uvicorn workers, behind one port."""

    def __init__(self, program: str, **environment: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        server = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), f"{program}:app"]
        self.process = subprocess.Popen(
            [*server, "--workers", "3", "--port", str(port), "--log-level", "warning"],
            env={**os.environ, **environment},
        )

    def ask(self, method: str, path: str, content: str | None = None) -> tuple[str, str]:
        """Whichever worker takes the connection, and what it says."""
        answer = httpx.request(method, self.url + path, content=content, timeout=30.0)
        assert answer.status_code == 200, answer
        return answer.headers["X-Worker"], answer.text

    def status(self, method: str, path: str) -> int:
        code: int = httpx.request(method, self.url + path, timeout=30.0).status_code
        return code

    def wait_for_three(self, *, without: str = "") -> None:
        """Until a worker is in a view of three, and this one is not."""
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            with suppress(httpx.TransportError):  # nobody listens yet
                view = self.ask("GET", "/ready")[1]
                if view.count("worker-") == 3 and (not without or without not in view):
                    return
            time.sleep(0.1)
        raise AssertionError("no view of three workers")

    def told(self, path: str) -> dict[str, str]:
        """What each of three workers says, the first time that it is asked."""
        found: dict[str, str] = {}
        for _ in range(1000):
            worker, answer = self.ask("GET", path)
            found.setdefault(worker, answer)
            if len(found) == 3:
                return found
        raise AssertionError(f"only {list(found)} answer")


@pytest.mark.proof
def test_web_workers_never_answer_with_an_old_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it
    prices = tmp_path / "prices"
    prices.mkdir()
    service = Service("service", PRICES=str(prices))
    try:
        service.wait_for_three()
        assert service.ask("PUT", "/price/tea", "3")[1] == "set"
        workers = service.told("/price/tea")
        assert set(workers.values()) == {"3 (read)"}
        assert set(service.told("/price/tea").values()) == {"3 (cached)"}
        service.ask("PUT", "/price/tea", "4")
        assert set(service.told("/price/tea").values()) == {"4 (read)"}
        killed = min(workers)
        os.kill(int(killed.removeprefix("worker-")), signal.SIGKILL)
        for price in range(5, 25):  # while it is missed, and another one starts in its place
            with suppress(httpx.TransportError):  # the connection was the killed one's
                service.ask("PUT", "/price/tea", str(price))
                assert service.ask("GET", "/price/tea")[1].split()[0] == str(price)
        service.wait_for_three(without=killed)
        assert killed not in service.told("/price/tea")
        assert len({price.split()[0] for price in service.told("/price/tea").values()}) == 1
        service.process.terminate()
        assert service.process.wait(30) == 0
    finally:
        service.process.kill()
        service.process.wait()


@pytest.mark.proof
def test_web_workers_know_all_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it
    service = Service("web_sessions")
    try:
        service.wait_for_three()
        users: dict[str, str] = {}
        for number in range(10):
            session = service.ask("POST", f"/login/user{number}")[1]
            assert service.ask("GET", f"/who/{session}")[1] == f"user{number}"  # at once
            users[session] = f"user{number}"
        first, ended, *_ = users
        killed = min(service.told(f"/who/{first}"))
        os.kill(int(killed.removeprefix("worker-")), signal.SIGKILL)
        for session, user in users.items():  # while it is missed, and another one starts
            with suppress(httpx.TransportError):  # the connection was the killed one's
                assert service.ask("GET", f"/who/{session}")[1] == user
        service.wait_for_three(without=killed)
        for session, user in users.items():
            told = service.told(f"/who/{session}")
            assert killed not in told
            assert set(told.values()) == {user}
        assert service.ask("DELETE", f"/session/{ended}")[1] == "bye"
        assert service.ask("DELETE", f"/session/{ended}")[1] == "nobody"
        assert service.status("GET", f"/who/{first}") == 200
        while service.status("GET", f"/who/{ended}") == 200:
            pass  # a worker hears of it a moment later
        service.process.terminate()
        assert service.process.wait(30) == 0
    finally:
        service.process.kill()
        service.process.wait()
