"""ringcast keygen."""

from __future__ import annotations

from pathlib import Path

import click

from ringcast.aio.sources import check_system
from ringcast.cli.words import is_told, json_file_option


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_file_option
def keygen(file: Path, json_file: Path | None) -> None:
    """Make a key for a group, in a new FILE that only you can read.

    All members of the group need it: copy the file to where they run, over a channel that you
    trust. Whoever has it can read the group's messages, and join.

    \b
    Examples:
      ringcast keygen orders.key
      ringcast join orders --key-file orders.key
    """
    from ringcast.aio.keys import write_key_file  # no other command needs it

    check_system()
    id = write_key_file(file).id.hex()
    if not is_told({"file": str(file), "id": id}, json_file):
        click.echo(f"{file}: key id {id}")
