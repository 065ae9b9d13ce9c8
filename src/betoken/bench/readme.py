"""The benchmark block of a README, replaced by what a result file says."""

from __future__ import annotations

from pathlib import Path

from betoken.bench.provenance import replace
from betoken.errors import InputError

START = "<!-- bench:start -->"
END = "<!-- bench:end -->"


def update_readme(path: Path, block: str) -> None:
    """Put `block` between the two markers of the file, whole or not at all.

    Raises InputError if the file cannot be read or written, or does not have both markers once, in order.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    start, end = text.find(START), text.find(END)
    if not 0 <= start < end or text.count(START) + text.count(END) != 2:
        raise InputError(f"{path}: write {START} and {END} once each, where the table belongs")
    replace(path, f"{text[: start + len(START)]}\n{block.strip()}\n{text[end:]}")
