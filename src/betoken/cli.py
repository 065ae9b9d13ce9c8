"""`betoken`: the command line. Commands live in modules of their own, each with a `register(app)`.

Importing a command module must stay cheap (no torch, no transformers), so that `betoken --help` answers at once:
heavy imports go inside the commands.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, NoReturn

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from betoken import __version__
from betoken.errors import BetokenError, InputError

COMMANDS = (
    "betoken.commands.generate",
    "betoken.commands.answer",
    "betoken.commands.chat",
    "betoken.commands.store",
    "betoken.commands.methods",
    "betoken.commands.bench",
    "betoken.commands.evaluate",
    "betoken.commands.audit",
    "betoken.commands.calibrate",
    "betoken.commands.train",
    "betoken.commands.reproduce",
    "betoken.commands.profile",
    "betoken.commands.inspect",
)
"""Modules whose `register(app: typer.Typer)` adds their commands, in the order of `--help`."""

_USER_ERRNO = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}
"""What the system refuses because of the user's disk or permissions, not because of us."""


def build() -> typer.Typer:
    """The application with all commands."""
    app = typer.Typer(
        name="betoken",
        help="Generate text with open-weight language models, faster, by speculating: the same text as plain decoding.",
        epilog='Start with: betoken generate --prompt "Write a haiku about the sea."',
        add_completion=False,
        rich_markup_mode="rich",
    )
    app.callback()(_root)
    for module in COMMANDS:
        import_module(module).register(app)
    return app


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: 0 done, 2 bad arguments or input, 130 interrupted, 1 a fault of ours."""
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    sys.exit(_run(arguments))


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"betoken {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_tell_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a fault.")] = False,
) -> None:
    pass


def _run(arguments: list[str]) -> int:
    """The exit code of a command line."""
    command = typer.main.get_group(build())
    _let_flow(command)
    debug = "--debug" in arguments[:1]
    try:
        with command.make_context("betoken", arguments) as context:
            command.invoke(context)
        sys.stdout.flush()
        return 0
    except typer.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except BrokenPipeError:  # whoever read our output has enough
        _drop_output()
        return 0
    except TyperException as error:
        return _fail(f"{error.format_message()} (see betoken --help)", error.exit_code)
    except InputError as error:
        return _fail(str(error), 2)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _USER_ERRNO:
            _drop_output()
            where = f": {error.filename}" if error.filename else ""
            return _fail(f"{error.strerror}{where}", 2)
        return _fault(error, debug)


def _let_flow(group: TyperGroup) -> None:
    """Let terminals of any width wrap what commands say of themselves, which Typer breaks where the source does.

    Lines that begin with a space, such as examples, stay lines of their own.
    """
    for command in (group, *group.commands.values()):
        command.help = re.sub(r"(?<!\n)\n(?![\n ])", " ", command.help or "")
        if command is not group and isinstance(command, TyperGroup):
            _let_flow(command)


def _fail(message: str, code: int) -> int:
    """One line on standard error."""
    print(f"betoken: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201 - the command line speaks
    return code


def _fault(error: Exception, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
        return 1
    what = str(error) if isinstance(error, BetokenError) else f"{type(error).__name__}: {error}"
    return _fail(f"a fault of ours: {what} - please report it with the output of `betoken --debug ...`", 1)


def _drop_output() -> None:
    """Let what standard output still holds go nowhere, or the interpreter would fail on it once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
