"""Failures of the command line: one sentence on stderr and an exit code that scripts can act on."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum, unique
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from polyfleet.cli.terminal.output import command_name
from polyfleet.process.unreached import tls_problem

if TYPE_CHECKING:
    from polyfleet.client import PolyfleetError


@unique
class ExitCode(IntEnum):
    """What the command's exit code tells."""

    OK = 0
    FAILED = 1  # it was tried and did not work
    BAD_INPUT = 2  # an argument, file or field is wrong; trying again as it is won't help (click's own code for usage)
    UNAVAILABLE = 3  # nobody answers, or not now; trying again may help
    NOT_ALLOWED = 4  # no key or token, or one that may not do this
    INTERRUPTED = 130  # Ctrl-C


_BY_STATUS = {
    "INVALID_ARGUMENT": ExitCode.BAD_INPUT,
    "NOT_FOUND": ExitCode.BAD_INPUT,
    "ALREADY_EXISTS": ExitCode.BAD_INPUT,
    "UNAVAILABLE": ExitCode.UNAVAILABLE,
    "RESOURCE_EXHAUSTED": ExitCode.UNAVAILABLE,
    "DEADLINE_EXCEEDED": ExitCode.UNAVAILABLE,
    "UNAUTHENTICATED": ExitCode.NOT_ALLOWED,
    "PERMISSION_DENIED": ExitCode.NOT_ALLOWED,
}


OPTIONS_OF = {  # by the names of fields, where options have others; the first one that is given is meant
    "structure": ("json_schema", "regex", "choices"),
    "messages": ("images", "text"),
    "text": ("prompt",),
    "token_ids": ("prompt_ids",),
    "inputs": ("texts",),
    "top_n": ("top",),
    "add_special_tokens": ("special_tokens",),
    "revision": ("to_revision",),
    "traffic": ("shares",),
}


class CliError(click.ClickException):
    """Ends the command: click prints `Error: <sentence>` and exits with `exit_code`."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.exit_code: int = int(code)  # type: ignore[misc]  # click declares it on the class


def status_error(
    status: str, message: str, address: str, secret_option: str, retry_after: float | None = None
) -> CliError:
    """The failure that a gRPC status of the server at `address` means; `secret_option` gives it its key or token."""
    code = _BY_STATUS.get(status, ExitCode.FAILED)
    if status == "UNAVAILABLE":
        message = _unreached(message, address)
    if status == "UNAUTHENTICATED":
        message = f"{message.rstrip('.')}; {secret_option} names the file that has it."
    if retry_after is not None:
        message = f"{message.rstrip('.')}. Try again in {retry_after:g} s."
    return CliError(message, code)


def _unreached(message: str, address: str) -> str:
    """What gRPC's words mean when it did not get through to a server; any other message as it is."""
    if problem := tls_problem(message, address):
        return problem
    if "failed to connect" in message.lower():
        return f"Nothing answers at {address}: start it with `{command_name()} serve`, or name another address."
    return message


@contextmanager
def calling(address: str, secret_option: str = "--api-key-file") -> Iterator[None]:
    """Turn the failures of calls to `address`, by the client or by a bare stub, into CliErrors."""
    import grpc

    from polyfleet.client import PolyfleetError
    from polyfleet.client.errors import from_rpc_error

    try:
        yield
    except (PolyfleetError, grpc.RpcError) as raised:
        error = raised if isinstance(raised, PolyfleetError) else from_rpc_error(raised)
        raise status_error(error.status, by_option(error), address, secret_option, error.retry_after) from None


def by_option(error: "PolyfleetError") -> str:
    """Its message, with what the user typed in place of the request's field that it became."""
    context = click.get_current_context(silent=True)
    field = error.field_violations[0].field if error.field_violations else ""
    if context is None or not field or not error.message.startswith(f"{field}: "):
        return error.message
    option = next(filter(None, (_option(context, word) for word in reversed(re.findall(r"[a-z]\w*", field)))), field)
    return option + error.message.removeprefix(field)


def _option(context: click.Context, name: str) -> str:
    """The option or argument of the command that gives a field; empty: none does."""
    options = {each.name: each for each in context.command.params}
    places = (each for each in (name, *OPTIONS_OF.get(name, ())) if each in options)
    given = [each for each in places if context.get_parameter_source(each) == ParameterSource.COMMANDLINE]
    option = options.get(given[0] if given else name)
    if option is None:
        return ""
    return max(option.opts, key=len) if isinstance(option, click.Option) else option.human_readable_name.upper()


@contextmanager
def sentences() -> Iterator[None]:
    """Turn the backends' refusals into CliErrors."""
    from polyfleet.backends.protocol import BackendUnavailable, UnknownBackend

    try:
        yield
    except UnknownBackend as error:
        raise CliError(sentence(error), ExitCode.BAD_INPUT) from None
    except BackendUnavailable as error:
        raise CliError(sentence(error), ExitCode.UNAVAILABLE) from None
    except ValueError as error:
        raise CliError(sentence(error), ExitCode.BAD_INPUT) from None
    except OSError as error:
        raise CliError(f"{error.filename or 'The output'} can't be written: {error.strerror}.") from None


def sentence(error: Exception) -> str:
    """What went wrong, with a capital and a full stop."""
    text = str(error)
    return text[:1].upper() + text[1:].rstrip(".") + "."
