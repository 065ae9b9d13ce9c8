"""The process that compares mathematical answers: one JSON object a line in, one out."""

from __future__ import annotations

import json
import logging
import resource
import sys
from typing import Any

MEMORY = 4 << 30
"""Most bytes of address space; sympy needs a few hundred megabytes."""


def compare(gold: str, answer: str) -> dict[str, Any]:
    """{equal, extracted, reason} of one answer."""
    from math_verify import parse, verify

    expected = parse(f"\\boxed{{{gold}}}")
    found = parse(answer)
    if not found:
        return {"equal": False, "extracted": None, "reason": "no mathematical answer"}
    equal = bool(expected) and bool(verify(expected, found))
    extracted = str(found[-1])  # the text that the last answer was read from
    return {"equal": equal, "extracted": extracted, "reason": "equal" if equal else "not equal"}


def main() -> None:
    """Serve standard input until it ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    logging.disable(logging.CRITICAL)
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            reply = compare(asked["gold"], asked["answer"])
        except Exception as error:
            reply = {"equal": False, "extracted": None, "reason": f"{type(error).__name__} while comparing"}
        print(json.dumps(reply), file=out, flush=True)


if __name__ == "__main__":
    main()
