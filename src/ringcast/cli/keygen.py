"""ringcast keygen."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def keygen(file: Path, as_json: bool) -> None:
    """Make a key for a group, in a new FILE that only you can read.

    All members of the group need it: copy the file to where they run, over a channel that you
    trust. Whoever has it can read the group's messages, and join.

    \b
    Examples:
      ringcast keygen orders.key
      ringcast join orders --key-file orders.key
    """
    from ringcast.aio.keys import write_key_file  # no other command needs it

    id = write_key_file(file).id.hex()
    click.echo(json.dumps({"file": str(file), "id": id}) if as_json else f"{file}: key id {id}")
