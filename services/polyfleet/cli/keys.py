"""`polyfleet keys create`: API keys for a gateway. The file holds their hashes only."""

import os
import re
import secrets
from pathlib import Path

import click
import msgspec

from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.options import FILE, examples, json_option
from polyfleet.cli.output import err, print_json
from polyfleet.process.config import ConfigError
from polyfleet.process.keys import Key, KeysFile, Role, hash_of, read_keys

KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@click.group()
def keys() -> None:
    """Make API keys for the gateway."""


@keys.command(epilog=examples("polyfleet keys create team-a --keys-file keys.yaml > team-a.key"))
@click.argument("key_id", metavar="ID")
@click.option("--keys-file", type=FILE, required=True, help="File of the gateway's keys; made when there is none.")
@click.option("--role", type=click.Choice(["tenant", "operator"]), default="tenant", show_default=True)
@click.option(
    "--tenant", default="", help="Whom it belongs to: keys of one tenant share cached prefixes.  [default: ID]"
)
@json_option
def create(key_id: str, keys_file: Path, role: str, tenant: str, as_json: bool) -> None:
    """Make a key named ID, add its hash to the keys file and print the key, once.

    A running gateway reads the file again within a second. A tenant's key calls models; an operator's may also change
    the fleet.
    """
    for what, name in (("key id", key_id), ("tenant", tenant or key_id)):
        if not KEY_ID.fullmatch(name):
            raise CliError(f"{name!r} is no {what}: 1 to 64 of A-Z a-z 0-9 . _ -", ExitCode.BAD_INPUT)
    key = f"pf-{secrets.token_hex(32)}"
    add_key(keys_file, key_id, hash_of(key), role, tenant)
    if as_json:
        print_json({"id": key_id, "key": key, "role": role, "tenant": tenant or key_id})
        return
    click.echo(key)
    err.print(f"Added {key_id} to {keys_file}. The key above is shown once: only its hash is kept.", markup=False)


def add_key(path: Path, key_id: str, key_hash: str, role: str, tenant: str = "") -> None:
    """Append one key to the file, whole or not at all, readable by its owner only. Raises CliError."""
    try:
        present = read_keys(path) if path.exists() else ()
    except ConfigError as error:
        raise CliError(str(error), ExitCode.BAD_INPUT) from None
    if any(key.id == key_id for key in present):
        raise CliError(f"{path} has a key {key_id} already: choose another id.", ExitCode.BAD_INPUT)
    added = Key(id=key_id, hash=key_hash, role=Role(role), tenant=tenant)
    document = msgspec.yaml.encode(KeysFile(keys=(*present, added)))
    draft = path.with_name(path.name + ".new")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(document)
        draft.replace(path)
    except OSError as error:
        raise CliError(f"The keys file {path} can't be written: {error.strerror}.") from None
