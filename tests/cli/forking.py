"""Runs commands, each in a child of its own: to start an interpreter and to import the command line
takes longer than most of them take.

A line of JSON asks for one: its arguments, environment and directory, and files for what it prints.
The answer is a line with its status.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from ringcast.cli import main


def become(asked: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["directory"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate((asked["out"], asked["err"]), 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = ["ringcast", *asked["arguments"]]
    main(prog_name="ringcast")


if __name__ == "__main__":  # and not where a command starts workers
    for line in sys.stdin:
        child = os.fork()
        if not child:
            become(json.loads(line))
            sys.exit()
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()
