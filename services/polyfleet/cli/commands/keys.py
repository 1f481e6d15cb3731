"""`polyfleet keys`: API keys for a gateway. The file holds their hashes only."""

import os
import re
import secrets
from datetime import datetime, timedelta, timezone
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.options import FILE, examples, json_option
from polyfleet.cli.terminal.output import err, print_json, print_table
from polyfleet.process.config import ConfigError
from polyfleet.process.keys import Key, KeysFile, Role, Tenant, hash_of, read_keys
from polyfleet.wire.limits import MAX_PRIORITY

KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@click.group()
def keys() -> None:
    """Make, limit and revoke API keys for the gateway, which reads their file again within a second."""


keys_file_option = click.option("--keys-file", type=FILE, required=True, help="File of the gateway's keys.")


@keys.command(epilog=examples("polyfleet keys create team-a --keys-file keys.yaml > team-a.key"))
@click.argument("key_id", metavar="ID")
@click.option("--keys-file", type=FILE, required=True, help="File of the gateway's keys; made when there is none.")
@click.option("--role", type=click.Choice([role.value for role in Role]), default="tenant", show_default=True)
@click.option(
    "--tenant",
    default="",
    help="Whom it belongs to: keys of one tenant share cached prefixes and quotas.  [default: ID]",
)
@click.option("--max-priority", type=int, default=MAX_PRIORITY, show_default=True, help="Highest that it may ask for.")
@click.option("--deployment", "deployments", multiple=True, help="A worker's: what it may register with; repeatable.")
@click.option("--days", type=click.IntRange(1, 36_500), help="How long it is valid.  [default: until it is revoked]")
@json_option
def create(
    key_id: str,
    keys_file: Path,
    role: str,
    tenant: str,
    max_priority: int,
    deployments: tuple[str, ...],
    days: int | None,
    as_json: bool,
) -> None:
    """Make a key named ID, add its hash to the keys file and print the key, once.

    Running processes read the file again within a second. A tenant's key calls models; an operator's may also change
    the fleet. A worker's, gateway's or scheduler's is what such a process shows to the others (fleet_token_file), whose
    fleet_keys_file has its hash.
    """
    for what, name in (("key id", key_id), ("tenant", tenant or key_id)):
        if not KEY_ID.fullmatch(name):
            raise CliError(f"{name!r} is no {what}: 1 to 64 of A-Z a-z 0-9 . _ -", ExitCode.BAD_INPUT)
    if deployments and role != Role.WORKER.value:
        raise CliError("--deployment is for keys of workers.", ExitCode.BAD_INPUT)
    if not -MAX_PRIORITY <= max_priority <= MAX_PRIORITY:
        raise CliError(f"--max-priority: must be within {-MAX_PRIORITY} and {MAX_PRIORITY}.", ExitCode.BAD_INPUT)
    key = f"pf-{secrets.token_hex(32)}"
    expires = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(days=days) if days else None
    add_key(keys_file, Key(key_id, hash_of(key), Role(role), tenant, max_priority, expires, deployments))
    if as_json:
        print_json({"id": key_id, "key": key, "role": role, "tenant": tenant or key_id})
        return
    click.echo(key)
    err.print(f"Added {key_id} to {keys_file}. The key above is shown once: only its hash is kept.", markup=False)


@keys.command("list", epilog=examples("polyfleet keys list --keys-file keys.yaml"))
@keys_file_option
@json_option
def list_keys(keys_file: Path, as_json: bool) -> None:
    """List the keys, whom they belong to, and what each tenant may use."""
    found = _present(keys_file)
    limits = {each.id: each for each in found.tenants}
    rows = []
    for key in found.keys:
        tenant = limits.get(key.owner, Tenant(key.owner))
        expires = key.expires.isoformat() if key.expires else ""
        rows.append(
            {
                "id": key.id,
                "role": key.role.value,
                "tenant": key.owner,
                "max_priority": key.max_priority,
                "expires": expires,
                "weight": tenant.weight,
                "tokens_per_minute": tenant.tokens_per_minute,
                "max_concurrent": tenant.max_concurrent,
            }
        )
    if as_json:
        print_json(rows)
    elif rows:
        columns = tuple(name.upper().replace("_", " ") for name in rows[0])
        print_table(columns, [tuple(_shown(value) for value in row.values()) for row in rows])


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value) or "-"


@keys.command(epilog=examples("polyfleet keys limit team-a --tokens-per-minute 200000 --keys-file keys.yaml"))
@click.argument("tenant")
@keys_file_option
@click.option("--weight", type=float, help="Of its share where the fleet is short; 1 unless given.")
@click.option("--tokens-per-minute", type=int, help="Of prompts, but for cached ones, and answers; 0: no limit.")
@click.option("--max-concurrent", type=int, help="Requests that run or wait at once; 0: no limit.")
def limit(
    tenant: str, keys_file: Path, weight: float | None, tokens_per_minute: int | None, max_concurrent: int | None
) -> None:
    """Say what a tenant may use of the whole fleet; what is left out stays as it is."""
    found = _present(keys_file)
    before = next((each for each in found.tenants if each.id == tenant), Tenant(tenant))
    given = {"weight": weight, "tokens_per_minute": tokens_per_minute, "max_concurrent": max_concurrent}
    after = replace(before, **{name: value for name, value in given.items() if value is not None})
    others = tuple(each for each in found.tenants if each.id != tenant)
    _write(keys_file, KeysFile(found.keys, (*others, after)))
    err.print(f"Tenant {tenant} has other limits now.", markup=False)


@keys.command(epilog=examples("polyfleet keys revoke team-a --keys-file keys.yaml"))
@click.argument("key_id", metavar="ID")
@keys_file_option
def revoke(key_id: str, keys_file: Path) -> None:
    """Remove a key from the file: within a second no gateway takes it. What it runs goes on."""
    found = _present(keys_file)
    kept = tuple(key for key in found.keys if key.id != key_id)
    if len(kept) == len(found.keys):
        raise CliError(f"{keys_file} has no key {key_id}.", ExitCode.BAD_INPUT)
    owners = {key.owner for key in kept}
    _write(keys_file, KeysFile(kept, tuple(each for each in found.tenants if each.id in owners)))
    err.print(f"Removed {key_id} from {keys_file}.", markup=False)


def add_key(path: Path, key: Key) -> None:
    """Append one key to the file, which is made when there is none. Raises CliError."""
    found = _present(path) if path.exists() else KeysFile(())
    if any(each.id == key.id for each in found.keys):
        raise CliError(f"{path} has a key {key.id} already: choose another id.", ExitCode.BAD_INPUT)
    _write(path, KeysFile((*found.keys, key), found.tenants))


def _present(path: Path) -> KeysFile:
    try:
        return read_keys(path)
    except ConfigError as error:
        raise CliError(str(error), ExitCode.BAD_INPUT) from None


def _write(path: Path, file: KeysFile) -> None:
    """The file, whole or not at all, readable by its owner only. Raises CliError where it would not be valid."""
    document = msgspec.yaml.encode(file)
    draft = path.with_name(path.name + ".new")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(document)
        _check(draft, path)
        draft.replace(path)
    except OSError as error:
        raise CliError(f"The keys file {path} can't be written: {error.strerror}.") from None


def _check(draft: Path, path: Path) -> None:
    try:
        read_keys(draft)
    except ConfigError as error:
        draft.unlink()
        raise CliError(str(error).replace(str(draft), str(path)), ExitCode.BAD_INPUT) from None
