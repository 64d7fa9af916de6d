"""The same examples on every commit; `make proof` looks for new ones."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("commit", derandomize=True, deadline=None)
settings.register_profile("fresh", deadline=None, max_examples=1000)
settings.load_profile("commit")
