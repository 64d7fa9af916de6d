"""A member that writes down what it takes: `sink_member.py NAME CONFIG LOG`.

All messages are of one length, so that the length of the log tells how many it has taken.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ringcast import join, load_config

if TYPE_CHECKING:
    from typing import BinaryIO


async def main(name: str, config: str, log: BinaryIO) -> None:
    async with join(config=load_config(Path(config), group="rows", name=name)) as group:
        async for delivered in group.batches():
            log.write(b"".join(delivered.run.payloads))


if __name__ == "__main__":
    with Path(sys.argv[3]).open("wb", buffering=0) as log:
        asyncio.run(main(*sys.argv[1:3], log))
