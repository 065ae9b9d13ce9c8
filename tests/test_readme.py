"""What the README shows is true: its code runs, its command lines parse, its targets exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

import betoken
from betoken.cli import build
from betoken.testing import check_drafter

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = [line.split("#")[0].strip() for line in README.splitlines() if line.startswith("    betoken ")]


def test_the_drafter_example_passes_the_conformance_suite() -> None:
    [example] = [block for block in BLOCKS if "class Echo" in block]
    assert len(example.splitlines()) <= 27
    names: dict[str, object] = {"__name__": "readme"}
    exec(compile(example, "README.md", "exec", dont_inherit=True), names)
    echo = names["Echo"]
    assert callable(echo)
    check_drafter(echo)
    check_drafter(lambda: echo(length=2))


def test_the_python_example_runs(smollm2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [example] = [block for block in BLOCKS if "betoken.load" in block]
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    out = capsys.readouterr().out
    assert len(out.splitlines()) >= 4


@pytest.mark.parametrize("line", COMMANDS)
def test_command_lines_parse(line: str) -> None:
    _, *arguments = shlex.split(line)
    command = typer.main.get_command(build())
    context = command.make_context("betoken", list(arguments))
    assert isinstance(context.command, typer.core.TyperGroup)
    name, sub, rest = context.command.resolve_command(context, list(arguments))
    assert sub is not None
    sub.make_context(name, rest, parent=context)


def test_public_names_exist() -> None:
    for name in betoken.__all__:
        assert getattr(betoken, name) is not None
    with pytest.raises(AttributeError, match="laod"):
        _ = betoken.laod  # type: ignore[attr-defined]


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for text in (README, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        for target in re.findall(r"^    make (\w+)", text, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert link.startswith("https://") or (ROOT / link).exists(), link


def test_design_notes_that_the_code_names_exist() -> None:
    named = [
        (path.name, note)
        for path in (ROOT / "src").rglob("*.py")
        for note in re.findall(r"docs/design/[\w.-]*\w", path.read_text(encoding="utf-8"))
    ]
    assert len(named) >= 5
    for path, note in named:
        assert (ROOT / note).is_file(), f"{path} names {note}"


def test_the_place_for_measurements_is_marked() -> None:
    assert re.search(r"<!-- bench:start -->\n.*\n<!-- bench:end -->", README, re.DOTALL)
