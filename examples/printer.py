"""One printer, many who print: `python printer.py NAME FILE`. Type what is to be printed.

A lock says whose turn it is. The printer (here a file) is what makes it safe: it looks at the token
of each page, and refuses one that is lower than the last, because whoever sends it had the lock
once and does not know that it has lost it.
"""

import asyncio
import fcntl
import sys
from pathlib import Path

from ringcast import replicated


def print_page(printer: Path, text: str, token: bytes) -> bool:
    """What the printer does. False: this token is not the latest."""
    with printer.open("a+") as pages:
        fcntl.flock(pages, fcntl.LOCK_EX)
        pages.seek(0)
        *_, last = ("", *pages)
        if token.hex() < last.partition(" ")[0]:
            return False
        pages.write(f"{token.hex()} {text}\n")
        return True


async def main(name: str, printer: Path) -> None:
    space = replicated.Space()
    turn = space.lock("printer")
    async with space.join("printer", name=name):
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            async with turn as token:
                is_printed = print_page(printer, f"{name}: {line.strip()}", bytes(token))
            print("printed" if is_printed else "refused", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
