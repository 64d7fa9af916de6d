"""Reading from disks that are busy: what fails for a moment is tried again, a few times."""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")

PAUSES_S = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Between tries: two seconds in all. A disk that takes longer is not busy but broken."""

TRANSIENT = frozenset(
    {
        *(errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS),
        *(errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ETIMEDOUT, errno.ESTALE),
        *(errno.ECONNRESET, errno.ECONNABORTED, errno.EHOSTDOWN, errno.EHOSTUNREACH),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.ENOTCONN, errno.EPIPE, errno.EREMOTEIO),
    }
)
"""Errors of a system or a network file system that may be over at the next try."""


def patiently(work: Callable[[], Result]) -> Result:
    """What `work` returns; an OSError that may pass is raised only if it does not."""
    for pause_s in PAUSES_S:
        try:
            return work()
        except OSError as error:
            if error.errno not in TRANSIENT:
                raise
        time.sleep(pause_s)
    return work()
