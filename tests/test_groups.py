"""Options that commands share: a group's fields become options, with the defaults of the command's own group."""

import inspect
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer

from betoken.commands.groups import grouped

Depth = Annotated[int, typer.Option("--depth", help="How deep.")]


@dataclass(frozen=True, kw_only=True)
class Shared:
    name: Annotated[str, typer.Option("--name")]
    depth: Depth = 3


@dataclass(frozen=True, kw_only=True)
class Deeper(Shared):
    depth: Depth = 9


said: list[tuple[str, int, bool]] = []


@grouped
def command(loud: Annotated[bool, typer.Option("--loud")] = False, *, group: Deeper) -> None:
    said.append((group.name, group.depth, loud))


def run(*arguments: str) -> list[tuple[str, int, bool]]:
    said.clear()
    app = typer.Typer(add_completion=False)
    app.command()(command)
    typer.main.get_command(app).main(list(arguments), standalone_mode=False)
    return list(said)


def test_the_fields_of_a_group_are_options() -> None:
    assert run("--name", "a") == [("a", 9, False)]
    assert run("--loud", "--depth", "4", "--name", "b") == [("b", 4, True)]


@pytest.mark.parametrize("arguments", [(), ("--name", "a", "--depht", "4"), ("--name", "a", "--depth", "deep")])
def test_a_missing_or_misspelt_option_is_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(Exception, match=r"(?i)name|depht|integer"):
        run(*arguments)


def test_a_call_with_a_name_that_is_no_option_is_refused() -> None:
    with pytest.raises(TypeError, match="nmae"):
        command(name="a", nmae="b")


def test_one_name_in_two_groups_is_refused() -> None:
    def twice(one: Shared, two: Deeper) -> None: ...

    with pytest.raises(ValueError, match="duplicate"):
        grouped(twice)


def test_the_group_itself_is_no_option() -> None:
    assert list(inspect.signature(command).parameters) == ["loud", "name", "depth"]
