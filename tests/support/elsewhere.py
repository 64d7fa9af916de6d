"""Make this process look like one of another system: `python elsewhere.py win32 PROGRAM …`.

What others import beforehand knows where it really runs; ringcast finds what it would find there.
"""

from __future__ import annotations

import asyncio  # noqa: F401 (as are the following: they ask for the system while it is the real one)
import os
import runpy
import select
import signal
import socket
import subprocess  # noqa: F401
import sys
import tempfile  # noqa: F401
from concurrent.futures import ProcessPoolExecutor  # noqa: F401
from contextlib import suppress

import click.testing  # noqa: F401
import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401
import xxhash  # noqa: F401

with suppress(ImportError):
    import pyarrow.parquet  # noqa: F401

LINUX = {
    os: ("O_PATH", "sched_getaffinity"),
    socket: ("MSG_ERRQUEUE", "SO_PEERCRED"),
    select: ("epoll",),
}
UNIX = {
    os: (
        *("getuid", "geteuid", "fork", "register_at_fork", "fchmod", "pread", "killpg"),
        *("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_DIRECTORY"),
    ),
    socket: ("CMSG_SPACE", "CMSG_LEN", "SO_REUSEPORT"),
    signal: ("SIGHUP", "SIGUSR1", "SIGALRM", "setitimer", "pthread_sigmask"),
    select: ("poll",),
}
MODULES = ("fcntl", "resource", "pwd", "grp", "termios")


def become(platform: str) -> None:
    for missing in (LINUX, UNIX) if platform == "win32" else (LINUX,):
        for module, names in missing.items():
            for name in names:
                delattr(module, name)
    if platform == "win32":
        sys.modules.update(dict.fromkeys(MODULES))  # type: ignore[arg-type]
    sys.platform = platform


if __name__ == "__main__":
    become(sys.argv[1])
    del sys.argv[:2]
    runpy.run_path(sys.argv[0], run_name="__main__")
