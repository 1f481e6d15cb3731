"""`polyfleet keys`: API keys for a gateway. The file holds their hashes only."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.options import FILE, examples, json_option
from polyfleet.cli.terminal.output import err, print_json, print_table
from polyfleet.process.config import ConfigError
from polyfleet.process.key_changes import KeysUnwritable, create_key, in_days, limit_tenant, revoke_key
from polyfleet.process.keys import Role, Tenant, read_keys
from polyfleet.wire.limits import MAX_PRIORITY, FieldError


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
    with _sentences():
        key = create_key(
            keys_file,
            key_id,
            Role(role),
            tenant,
            max_priority=max_priority,
            expires=in_days(days),
            deployments=deployments,
        )
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
    with _sentences():
        found = read_keys(keys_file)
    rows = []
    for key in found.keys:
        tenant = found.by_tenant.get(key.owner, Tenant(key.owner))
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
    with _sentences():
        limit_tenant(
            keys_file,
            tenant,
            weight=weight,
            tokens_per_minute=tokens_per_minute,
            max_concurrent=max_concurrent,
        )
    err.print(f"Tenant {tenant} has other limits now.", markup=False)


@keys.command(epilog=examples("polyfleet keys revoke team-a --keys-file keys.yaml"))
@click.argument("key_id", metavar="ID")
@keys_file_option
def revoke(key_id: str, keys_file: Path) -> None:
    """Remove a key from the file: within a second no gateway takes it. What it runs goes on."""
    with _sentences():
        revoke_key(keys_file, key_id)
    err.print(f"Removed {key_id} from {keys_file}.", markup=False)


@contextmanager
def _sentences() -> Iterator[None]:
    """What is wrong with a key or its file ends the command with a sentence."""
    try:
        yield
    except FieldError as error:
        named = "" if error.field in ("id", "tenant") else f"--{error.field.replace('_', '-')}: "
        raise CliError(f"{named}{error.problem}.", ExitCode.BAD_INPUT) from None
    except KeysUnwritable as error:
        raise CliError(str(error)) from None
    except ConfigError as error:
        raise CliError(str(error), ExitCode.BAD_INPUT) from None
