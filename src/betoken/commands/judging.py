"""`betoken calibrate parse`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from betoken.commands import options
from betoken.commands.groups import Measured, grouped
from betoken.commands.progress import counting
from betoken.commands.scoring import warn_of_gaps
from betoken.errors import InputError

if TYPE_CHECKING:
    from betoken.answers.judge import Judge
    from betoken.tuning.choosing import Found

HELP = """Choose a judge's threshold from questions with known answers.

The draft model answers, --model judges the drafts and their prefixes. The threshold is the lowest at which, of all
answers, at most --bound are wrong and accepted whole, with --confidence. Where that cannot be had, or brings no time,
the file says so, and `betoken answer` with it lets the target answer alone.

The file is for --set answer.config=FILE. It names its rows, so that they are refused for judging it (betoken eval
--without FILE leaves them out). Answers are kept as they come: the same command goes on where it was interrupted.

[bold]Examples[/bold]

  betoken calibrate parse --model qwen2.5-coder-1.5b --draft-model qwen2.5-coder-0.5b --suite gsm8k:100

  betoken calibrate parse --model T --draft-model D --suite gsm8k:50 --suite mmlu:50 --bound 0.1 --with-target"""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Where questions come from, and how many."""

    suite: Annotated[list[str], typer.Option("--suite", help="File or name, with :N for N rows of it. Repeat it.")]
    data: options.Data = None

    def counts(self) -> tuple[tuple[Path, int | None], ...]:
        """The files, and how many rows of each. Raises InputError for a suite that is not there."""
        from betoken.bench.suites import find_counted

        return tuple(find_counted(text, self.data) for text in self.suite)


@dataclass(frozen=True, kw_only=True)
class Judged(Measured):
    """Which model judges which."""

    model: Annotated[
        str, typer.Option("--model", help="Judges. Store name (see betoken models), folder, GGUF file, or Hub id.")
    ] = options.DEFAULT_MODEL
    draft_model: Annotated[
        str, typer.Option("--draft-model", help="Writes the drafts; may have another tokenizer.")
    ] = field()


@grouped
def parse(
    suites: Counted,
    models: Judged,
    bound: Annotated[float, typer.Option(help="Most wrong accepted answers, as a share of all answers.")] = 0.05,
    confidence: Annotated[float, typer.Option(help="With which the bound holds, on questions like these.")] = 0.9,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="answer.KEY=VALUE: layout, instruction, correct, incorrect, boundaries, every, chunk."
        ),
    ] = None,
    likelihood: Annotated[
        bool, typer.Option("--likelihood", help="Weigh the target's mean log-probability of the draft too.")
    ] = False,
    with_target: Annotated[
        bool, typer.Option("--with-target", help="Let the target answer too: how long and how right it is.")
    ] = False,
    max_new_tokens: Annotated[int, typer.Option(help="Most new tokens of an answer.")] = 512,
    batch: Annotated[int, typer.Option(help="Questions answered together.")] = 4,
    drafter: Annotated[str, typer.Option(help="Speeds up what both models write.")] = "suffix",
    nodes: options.Nodes = "auto",
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    raw: options.PlainText = False,
    out: Annotated[Path, typer.Option(help="Where to freeze the settings.")] = Path("parse.json"),
    records: Annotated[Path | None, typer.Option(help="File of all answers. Default: beside --out, .jsonl.")] = None,
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Reliability and ROC as PNG beside --out.")] = True,
    as_json: options.AsJson = False,
) -> None:
    from betoken.bench import pair
    from betoken.bench.subject import Method
    from betoken.tuning import judging

    own = options.parse_set(setting or (), ("answer",))["answer"]
    judge, rest = _judge(own, likelihood=likelihood)
    settings = judging.JudgingSettings(
        model=models.spec(),
        method=Method(drafter, drafter, nodes=1 if drafter == "none" else options.parse_nodes(nodes)),
        suites=suites.counts(),
        judge=judge,
        bound=bound,
        confidence=confidence,
        max_new_tokens=max_new_tokens,
        batch=batch,
        seed=seed,
        raw=raw,
        with_target=with_target,
        **rest,
    )
    warn_of_gaps([path for path, _ in settings.suites])
    kept = records or out.with_suffix(".jsonl")
    with counting(f"the same command continues {kept}") as progress:
        frozen, found = judging.calibrate(settings, pair.load_pair, out, kept, progress)
    typer.echo(json.dumps(frozen, ensure_ascii=False) if as_json else told(frozen, found, out))
    if plots:
        _plot(found, out, f"{frozen['draft']} judged by {frozen['target']}")


def told(frozen: dict[str, Any], found: Found, out: Path) -> str:
    """What was found, with the table."""
    low, high = found.auc.interval
    lines = [
        f"{frozen['questions']} drafts, {frozen['draft_right']} right"
        + ("" if frozen["target_right"] is None else f"; the target's own: {frozen['target_right']} right"),
        f"AUC {found.auc.value:.3f}, 95% interval {low:.3f} to {high:.3f} (n = {found.auc.right} right + "
        f"{found.auc.wrong} wrong)",
        *_signals(found),
        *_table(found),
        _speed(found),
    ]
    if found.threshold is not None:
        one = found.threshold
        lines.append(
            f"threshold {one.value:.4f}: {one.accepted} of {one.answers} drafts accepted, {one.accepted_wrong} of them "
            f"wrong; with {frozen['confidence']:.0%} confidence at most {one.risk:.1%} of all answers"
        )
    if found.fitted is not None:
        lines.append(
            f"temperature {found.fitted.temperature:.3f}, bias {found.fitted.bias:+.3f}"
            + (f", likelihood {found.fitted.likelihood:.3f}" if found.fitted.likelihood else "")
        )
    if found.fallback is not None:
        lines.append(f"The target will answer alone: {found.fallback}")
    lines.append(f"{out}: use it with --set answer.config={out}, on other rows (betoken eval --without {out})")
    return "\n".join(lines)


def _signals(found: Found) -> list[str]:
    if len(found.signals) < 2:
        return []
    alone = ", ".join(f"{name} {area.value:.3f}" for name, area in found.signals.items())
    return [f"alone, over all drafts: {alone}"]


def _table(found: Found) -> list[str]:
    head = "threshold  boundaries  spacing  accepted  false accept  false reject  right again  wrong kept  speed-up"
    rows = [
        f"{row.threshold:9.4f}  {row.most:10d}  {row.spacing:7.1f}  {row.accepted:8.1%}  {row.false_accept:12.1%}  "
        f"{row.false_reject:12.1%}  {row.right_thrown_away:11.1%}  {row.wrong_kept:10.1%}  {row.speed_up:8.2f}"
        for row in found.table
    ]
    return [head, *rows]


def _speed(found: Found) -> str:
    if found.expected is None:
        return f"expected speed-up with a perfect judge: {found.ceiling:.2f}"
    return f"expected speed-up with a perfect judge: {found.ceiling:.2f}; with this one: {found.expected:.2f}"


def _judge(own: dict[str, object], *, likelihood: bool) -> tuple[Judge, dict[str, Any]]:
    """The judge, and the other settings of a calibration. Raises InputError for settings that it has not."""
    from betoken.answers.judge import Judge
    from betoken.answers.parse import Parse
    from betoken.registry import create

    known = ("layout", "instruction", "correct", "incorrect", "boundaries", "every", "chunk")
    unknown = sorted(set(own) - set(known))
    if unknown:
        raise InputError(f"--set answer.{unknown[0]}: a calibration takes {', '.join(known)}")
    parsed: Parse = create("method", {"parse": Parse}, "parse", own, option="answer")
    judge = Judge(
        parsed.layout, parsed.instruction, parsed.correct, parsed.incorrect, likelihood=1.0 if likelihood else 0.0
    )
    return judge, {"boundaries": parsed.boundaries, "every": parsed.every, "chunk": parsed.chunk}


def _plot(found: Found, out: Path, title: str) -> None:
    from betoken.bench.judge_plots import plot_judge

    whole, right = [case.whole for case in found.cases], [case.right for case in found.cases]
    try:
        for path in plot_judge(whole, right, found.auc, found.threshold, out, title):
            typer.echo(f"{path}", err=True)
    except InputError as error:
        typer.echo(f"note: {error}", err=True)
