"""The command `ringcast`. It lies beside the package: to import that takes a while, and Ctrl-C may
come meanwhile."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from ringcast.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.stderr.write("ringcast: interrupted\n")
        sys.exit(130)
