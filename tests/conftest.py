"""The same examples on every commit; `make proof` looks for new ones."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from hypothesis import settings

import benchmarks  # noqa: F401 (programs that tests start find it then)

if TYPE_CHECKING:
    import pytest

settings.register_profile("commit", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("fresh", deadline=None, max_examples=1000)
settings.load_profile("commit")

# A shell's background job ignores it, and so would the processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="fill in the answers of tests/scripts; read the diff"
    )
