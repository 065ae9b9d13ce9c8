"""Deliberate faults that some test must catch: `make mutants`, or `python tools/mutants.py [--only NAME ...]`.

Each mutant is one textual change of a copy of the package; the tests named with it run against the copy and must
fail. A mutant whose text is not found (the source has moved on) counts as a fault of this list. Exits 1 unless every
mutant is caught and the untouched copy passes.
"""

# ruff: noqa: T201 - a report on the terminal is what this script is for

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from betoken.models.native.isa import isa

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 400
"""A mutant whose tests still run after this long hangs, which counts as caught. Compiling all kernels takes under a
minute on two idle cores."""

DRAFTED = "tests/test_conformance.py::test_drafters_conform"
VERIFIED = "tests/test_conformance.py::test_verifiers_conform"


class Mutant(NamedTuple):
    """One deliberate fault."""

    name: str
    file: str
    """Relative to the package."""
    before: str
    """Text that occurs exactly once in the file."""
    after: str
    tests: tuple[str, ...]
    """Tests of which at least one must fail."""


LOOP = [
    Mutant(
        "no cache compaction",
        "testing/toy.py",
        "[self.scratch[slot][node] for node in path]",
        "self.scratch[slot][: len(path)]",
        (f"{DRAFTED}[random tree]",),
    ),
    Mutant(
        "cache keeps the last node of another branch",
        "decode.py",
        "paths.append(verdict.rows[b].path[: len(kept[-1])])",
        "paths.append([max(verdict.rows[b].path[: len(kept[-1])])] * len(kept[-1]))",
        (f"{DRAFTED}[oracle]",),
    ),
    Mutant(
        "cache keeps nodes of tokens that were cut off",
        "decode.py",
        "path[: len(kept[-1])]",
        "path",
        ("tests/test_decode.py",),
    ),
    Mutant(
        "a row that takes one more token gets a draft",
        "decode.py",
        "return 1 if row.room <= 1 else max(",
        "return max(",
        ("tests/test_decode.py",),
    ),
    Mutant(
        "trees ignore the context",
        "decode.py",
        "max(1, min(limit, row.context - row.cached))",
        "max(1, limit)",
        ("tests/test_decode.py",),
    ),
    Mutant(
        "neighbour's row read in the loop",
        "decode.py",
        "row.commit(verdict.tokens(tree, b), ",
        "row.commit(verdict.tokens(tree, 0), ",
        (f"{DRAFTED}[oracle]",),
    ),
    Mutant(
        "stop token inside a draft ignored",
        "state.py",
        "            if int(token) in self.end_ids:\n",
        "            if int(token) in self.end_ids and token == tokens[-1]:\n",
        (f"{DRAFTED}[oracle]",),
    ),
    Mutant(
        "token limit inside a draft ignored",
        "state.py",
        "elif self.generated >= self.stop.max_new_tokens:",
        "elif self.generated >= self.stop.max_new_tokens and token == tokens[-1]:",
        ("tests/test_decode.py",),
    ),
]

TREE = [
    Mutant(
        "wrong position: siblings are counted instead of depth",
        "tree.py",
        "above + 1, 0)",
        "node, 0)",
        ("tests/test_tree.py",),
    ),
    Mutant(
        "wrong position reaches the text",
        "tree.py",
        "self.visible_cache(lengths) + self.offsets, 0)",
        "self.visible_cache(lengths) + np.minimum(self.offsets, 1), 0)",
        (f"{DRAFTED}[oracle]",),
    ),
    Mutant(
        "off by one in the visible cache",
        "tree.py",
        "np.where(anchors == WHOLE_CACHE, lengths[:, None],",
        "np.where(anchors == WHOLE_CACHE, np.maximum(lengths[:, None] - 1, 0),",
        ("tests/test_tree.py",),
    ),
    Mutant(
        "an anchored root sees the whole cache",
        "tree.py",
        "np.minimum(anchors, lengths[:, None]))",
        "lengths[:, None] + 0 * anchors)",
        ("tests/test_tree.py",),
    ),
    Mutant(
        "probe followed",
        "tree.py",
        "for index in self.children(row, node):",
        "for index in np.flatnonzero(self.parents[row] == node).tolist():",
        (f"{VERIFIED}[replay]",),
    ),
    Mutant(
        "only roots are shifted",
        "tree.py",
        "offsets[:, node] += np.where(parent >= 0, 1 + above, 0)",
        "offsets[:, node] = np.where(parent >= 0, 1 + above, offsets[:, node])",
        ("tests/test_tree.py",),
    ),
    Mutant(
        "an ancestor is not seen",
        "tree.py",
        "seen[:, node] = seen[rows, np.maximum(parent, 0)] & (parent >= 0)[:, None]",
        "seen[rows, node, np.maximum(parent, 0)] = parent >= 0",
        ("tests/test_tree.py",),
    ),
]

VERIFIERS = [
    Mutant(
        "noise keyed by the step",
        "sampling.py",
        "noise.uniform(row.sampling.seed, row.sample, position)",
        "noise.uniform(row.sampling.seed, row.sample, row.steps)",
        (f"{VERIFIED}[replay]",),
    ),
    Mutant(
        "bonus from the wrong node",
        "verifiers/replay.py",
        "scores.logits(b, path[-1])",
        "scores.logits(b, path[max(0, len(path) - 2)])",
        ("tests/test_replay.py",),
    ),
    Mutant(
        "neighbour's logits read",
        "verifiers/replay.py",
        "scores.logits(b, path[-1])",
        "scores.logits(0, path[-1])",
        (f"{VERIFIED}[replay]",),
    ),
    Mutant(
        "penalties without the drafted tokens",
        "verifiers/replay.py",
        "path[-1]), row, drafted)",
        "path[-1]), row, [])",
        (f"{DRAFTED}[oracle]",),
    ),
    Mutant(
        "all nodes are accepted by the same number",
        "verifiers/drawn.py",
        "u[node] < chance",
        "u[0] < chance",
        (f"{VERIFIED}[rejection]",),
    ),
]

SAMPLING = [
    Mutant(
        "top-p drops the token that reaches p",
        "sampling.py",
        "surplus = tied[last + 1 - int(",
        "surplus = tied[max(0, last) - int(",
        ("tests/test_sampling.py",),
    ),
    Mutant(
        "top-k after top-p",
        "sampling.py",
        "kept = _top_k(adjusted, settings.top_k)",
        "kept = _top_k(adjusted, settings.top_k if settings.top_p == 1.0 else 0)",
        ("tests/test_sampling.py",),
    ),
    Mutant(
        "a tie at the edge goes to the greater id",
        "sampling.py",
        "surplus = tied[tied.size - (kept.size - k) :]",
        "surplus = tied[: kept.size - k]",
        ("tests/test_sampling.py",),
    ),
    Mutant(
        "u on the edge of the CDF picks the token before it",
        "sampling.py",
        'np.searchsorted(cumulative, u, side="right")',
        'np.searchsorted(cumulative, u, side="left")',
        ("tests/test_sampling.py",),
    ),
]

DRAFTERS = [
    Mutant(
        "rejected drafts stay in the draft model's cache",
        "drafters/reader.py",
        "            self.cache.truncate(memory.slot, memory.agreed)\n",
        "",
        ("tests/test_draft_model.py",),
    ),
    Mutant(
        "the draft model reads prompts when decoding has begun",
        "drafters/draft_model.py",
        "if verdict.rows[b].bonus < 0 and row.expects_draft and",
        "if False and",
        ("tests/test_draft_model.py",),
    ),
    Mutant(
        "what was read of another row is taken over too far",
        "drafters/reader.py",
        "memory.slot = self.cache.fork(slot, length)",
        "memory.slot = self.cache.fork(slot, length - 1)",
        ("tests/test_draft_model.py",),
    ),
    Mutant(
        "an earlier request's text is kept",
        "drafters/suffix.py",
        "is not None and self.global_tree and row.new_tokens",
        "is not None and row.new_tokens",
        (f"{DRAFTED}[suffix]",),
    ),
    Mutant(
        "a drawn token may be drawn again",
        "drafters/guesses.py",
        "        left[token] = 0.0\n",
        "",
        ("tests/test_draft_model.py",),
    ),
]

BITS = "tests/test_native.py::test_every_bit_is_what_plain_numpy_computes"
INT4 = "tests/test_int4.py::test_products_are_exact_integers_on_both_instruction_sets"
TREES = "tests/test_native.py::test_a_tree_scores_bit_for_bit_as_one_node_at_a_time"
GOLDEN = "tests/test_native.py::test_float32_scores_trees_as_transformers_scores_their_text"
ROWS = "tests/test_native.py::test_rows_of_a_ragged_batch_score_bit_for_bit_as_alone"
SHIFTED = "tests/test_native.py::test_shifted_probes_score_bit_for_bit_as_a_forward_pass_of_their_own"
BRANCH = "tests/test_native.py::test_after_a_kept_branch_the_row_goes_on_bit_for_bit_as_if_decoded_plainly"
FORKS = "tests/test_native.py::test_a_forked_row_leaves_the_other_as_it_was"
SHARED = "tests/test_native.py::test_a_shared_page_is_copied_before_either_row_writes_to_it"
CLOSED = "tests/test_native.py::test_a_page_that_another_row_reads_is_not_handed_out"

PERFECT = "tests/test_ptp.py::test_a_perfect_student_fills_every_step"

STUDENTS = [
    Mutant(
        "ptp: inputs are one number late",
        "drafters/ptp.py",
        "return self._number(memory, row, first + place)",
        "return self._number(memory, row, first + place + 1)",
        (PERFECT,),
    ),
    Mutant(
        "ptp: a branch stands behind its draft, not beside the next",
        "drafters/ptp.py",
        "shift=0 if place else -1",
        "shift=0",
        (PERFECT,),
    ),
    Mutant(
        "ptp: the token that the target picked is drafted again",
        "drafters/ptp.py",
        "_branch_nodes(tree, b, under)[1:]",
        "_branch_nodes(tree, b, under)[:-1]",
        (PERFECT,),
    ),
    Mutant(
        "ptp: a law is drawn from with the next number",
        "drafters/ptp.py",
        "self._number(memory, row, row.generated + place)",
        "self._number(memory, row, row.generated + place + 1)",
        (PERFECT,),
    ),
    Mutant(
        "ptp: a branch counts as if its draft were the last right one for sure",
        "drafters/quadratic.py",
        "(1.0 - confidence[count]) * reached * gain",
        "reached * gain",
        ("tests/test_quadratic.py",),
    ),
    Mutant(
        "ptp: the adapter changes every node",
        "models/overlay.py",
        "y[at] += F.linear(F.linear(x[at], self.down), self.up)",
        "y += F.linear(F.linear(x, self.down), self.up)",
        ("tests/test_overlay.py",),
    ),
    Mutant(
        "ptp: a whole student's matrices change every node",
        "models/overlay.py",
        "y[at] = F.linear(x[at], self.weight, self.bias)",
        "y[:] = F.linear(x, self.weight, self.bias)",
        ("tests/test_overlay.py",),
    ),
    Mutant(
        "ptp: a whole student's norms change every node",
        "models/overlay.py",
        "y[self.at] = rms_norm(x[self.at], other, eps)",
        "y[:] = rms_norm(x, other, eps)",
        ("tests/test_overlay.py",),
    ),
]

ANSWERS = [
    Mutant(
        "parse: a boundary is a token early",
        "answers/boundaries.py",
        "places = [bisect_left(ends, begins[position]) for",
        "places = [max(0, bisect_left(ends, begins[position]) - 1) for",
        ("tests/test_boundaries.py",),
    ),
    Mutant(
        "parse: a boundary lies inside a character",
        "answers/boundaries.py",
        "if 0 < end < len(data) and end in characters]",
        "if 0 < end < len(data)]",
        ("tests/test_boundaries.py",),
    ),
    Mutant(
        "parse: a copy does not see the last token of its prefix",
        "answers/packed.py",
        "parent = node if place else end - done - 1\n",
        "parent = node if place else max(0, end - done - 2)\n",
        ("tests/test_packed.py",),
    ),
    Mutant(
        "parse: a copy sees the text up to a later boundary",
        "answers/packed.py",
        "parent = node if place else end - done - 1\n",
        "parent = node if place else min(end - done, tree.roles.count(Role.CANDIDATE))\n",
        ("tests/test_packed.py",),
    ),
    Mutant(
        "parse: a copy behind cached text sees all of it",
        "answers/packed.py",
        "node = tree.root(token, anchor=end, wanted=most == 0)",
        "node = tree.root(token, anchor=done, wanted=most == 0)",
        ("tests/test_packed.py",),
    ),
    Mutant(
        "parse: a prefix is kept though one before it failed",
        "answers/parse.py",
        'elif self.rule == "first-failure":',
        'elif self.rule == "last-pass":',
        ("tests/test_answers.py::test_rules",),
    ),
]

NATIVE = [
    Mutant(
        "native: cache compaction skipped",
        "models/native/pages.py",
        "            if start < len(path):\n",
        "            if start < 0:\n",
        (BRANCH,),
    ),
    Mutant(
        "native: a forked row writes into the partial page of the other",
        "models/native/pages.py",
        "            page = self._page()\n            self._view(page)[:] = self._view(source.pages[full])\n",
        "            page = source.pages[full]\n            self._uses[page] += 1\n",
        (FORKS,),
    ),
    Mutant(
        "native: a truncated row writes into a shared page",
        "models/native/pages.py",
        "        if self._uses[page] > 1:\n",
        "        if self._uses[page] < 0:\n",
        (SHARED,),
    ),
    Mutant(
        "native: a page is handed out while another row reads it",
        "models/native/pages.py",
        "        if self._uses[page] == 0:\n",
        "        if self._uses[page] >= 0:\n",
        (CLOSED,),
    ),
    Mutant(
        "native: a row reads its neighbour's pages",
        "models/native/reading.py",
        "committed + node, rows[1, row], committed\n",
        "committed + node, rows[1, 0], committed\n",
        (ROWS,),
    ),
    Mutant(
        "native: query heads of a group are equalised apart",
        "models/native/equalise.py",
        ".amax(dim=1, keepdim=True).expand(shape).flatten()",
        ".flatten()",
        ("tests/test_native.py::test_equalisation_changes_nothing_in_float32",),
    ),
    Mutant(
        "native: a student's value rows are not equalised as the target's are",
        "models/native/student.py",
        '            up[-values:] /= _of_values(scale("out"), config)[:, None]\n',
        "",
        ("tests/test_native_student.py::test_branches_score_as_two_passes_in_transformers",),
    ),
    Mutant(
        "native: a student's change of another node",
        "models/native/adapters.py",
        "here, scales = given + place * stride",
        "here, scales = given + (begin + row) * stride",
        ("tests/test_native_student.py::test_branches_score_as_two_passes_in_transformers",),
    ),
    Mutant(
        "native: compaction moves keys without their values",
        "models/native/compact.py",
        "                floats(v_to, head_padded)[:] = floats(v_from, head_padded)\n",
        "",
        (BRANCH,),
    ),
    Mutant(
        "native: a node does not see the last token of its text",
        "models/native/reading.py",
        "= cached[node] + straight[node], entries\n",
        "= max(1, cached[node] + straight[node] - 1), entries\n",
        (BITS,),
    ),
    Mutant(
        "native: ancestors are visited upwards",
        "models/native/reading.py",
        "branch[entry], above =",
        "branch[begin + entries - 1 - entry], above =",
        (TREES,),
    ),
    Mutant(
        "native: slots of another branch are read",
        "models/native/reading.py",
        "above = committed + above, parents[row, above]\n",
        "above = committed + min(depth[node] + 1 + entry - entries, node), parents[row, above]\n",
        (TREES,),
    ),
    Mutant(
        "native: position is the slot",
        "models/native/reading.py",
        "cached[node] + offset[node])",
        "cached[node] + node + shifts[row, node])",
        (TREES,),
    ),
    Mutant(
        "native: only roots are shifted",
        "models/native/reading.py",
        "offset[parent] + 1 + shifts[row, node]\n",
        "offset[parent] + 1\n",
        (SHIFTED,),
    ),
    Mutant(
        "native: position ignores the shifts",
        "models/native/reading.py",
        "cached[node] + offset[node])",
        "cached[node] + depth[node])",
        (GOLDEN,),
    ),
    Mutant(
        "native: the last keys of a text are not scored",
        "models/native/attention.py",
        "range(begin // LANES, (end + LANES - 1) // LANES)",
        "range(begin // LANES, max(begin // LANES + 1, end // LANES))",
        (BITS,),
    ),
    Mutant(
        "native: the last value of a page is left out",
        "models/native/attention.py",
        "min(PAGE, seen - page), padded, sums)",
        "min(PAGE - 1, seen - page), padded, sums)",
        (BITS,),
    ),
    Mutant(
        "native: what pads the scores has weight",
        "models/native/attention.py",
        "        s[i] = _MINUS_INF\n",
        "        s[i] = _ZERO\n",
        (BITS,),
    ),
    Mutant(
        "native: logits of the first nodes instead of the wanted ones",
        "models/native/forward.py",
        "run.x + nodes[place] * model.hidden_padded * 4",
        "run.x + place * model.hidden_padded * 4",
        (GOLDEN,),
    ),
    Mutant(
        "native: one scale for all rows of a tile",
        "models/native/sums.py",
        "            s = row_scale[row]\n",
        "            s = row_scale[0]\n",
        (TREES,),
    ),
    Mutant(
        "native: rows beyond the first tile take its scales",
        "models/native/kernels.py",
        "x + begin * stride, stride, scales + begin * 4, rows, block, scratch)",
        "x + begin * stride, stride, scales, rows, block, scratch)",
        (TREES,),
    ),
    Mutant(
        "native: lanes are added to their neighbours",
        "models/native/emit.py",
        "[[I32(first + lane) for lane in range(width)] for first in (0, width)]",
        "[[I32(2 * lane + first) for lane in range(width)] for first in (0, 1)]",
        (BITS,),
    ),
    Mutant(
        "native: float products are fused",
        "models/native/emit.py",
        "b.fadd(sums[2 * row + half], b.fmul(inputs, weights[half]))",
        "b.fma(inputs, weights[half], sums[2 * row + half])",
        (BITS,),
    ),
    Mutant(
        "native: a float product keeps one running sum",
        "models/native/emit.py",
        "FLOAT_SPLIT = 128\n",
        "FLOAT_SPLIT = 1 << 20\n",
        (BITS,),
    ),
    Mutant(
        "native: AVX2 products lose the sign of the input",
        "models/native/emit.py",
        '"llvm.x86.avx2.psign.b", V32B, [w, x])',
        '"llvm.x86.avx2.psign.b", V32B, [w, magnitude])',
        ("tests/test_native.py::test_int8_products_are_exact_integers_on_both_instruction_sets",),
    ),
    Mutant(
        "native: high nibbles of 4-bit weights take the low ones' multipliers",
        "models/native/nibbles.py",
        "multipliers[half], zeros[half])",
        "multipliers[0], zeros[half])",
        (INT4,),
    ),
    Mutant(
        "native: inputs beside the last whole group are not cleared",
        "models/native/rounding.py",
        "    for i in range(width, whole):\n",
        "    for i in range(whole, whole):\n",
        (BITS,),
    ),
    Mutant(
        "native: threads part whenever a pass slept, however fast it was",
        "models/native/crew.py",
        "(seconds > known if known else",
        "(True if known else",
        ("tests/test_crew.py::test_threads_stay_together_where_that_is_faster_in_spite_of_sleeps",),
    ),
]
"""Faults of the native kernels and their cache."""

NATIVE_VNNI = [
    Mutant(
        "native: 128 * column sum stays in the product",
        "models/native/sums.py",
        "np.int32(sums[row * BLOCK + channel] - shift[channel])",
        "np.int32(sums[row * BLOCK + channel])",
        (BITS,),
    ),
]
"""Faults that change nothing where inputs are signed, on AVX2."""

POLICY = [
    Mutant(
        "policy: plain steps of a rest are not accounted for",
        "tuning/account.py",
        "self.credit += steps * self.allowance * prize",
        "self.credit += self.allowance * prize",
        ("tests/test_auto.py::test_plain_steps_are_accounted_for_when_something_is_decided_again",),
    ),
    Mutant(
        "policy: rows of a batch wake one by one",
        "tuning/auto.py",
        "account.sleep(self._step, together)",
        "account.sleep(self._step, 1)",
        ("tests/test_auto.py::test_rows_that_come_to_rest_one_after_the_other_wake_together",),
    ),
    Mutant(
        "policy: a lone draft in a batch costs its row what its share would be",
        "tuning/cost.py",
        "self.share = self.plain / rows",
        "self.share = self.plain",
        ("tests/test_auto.py::test_what_can_be_won_is_what_a_right_node_a_row_would_bring",),
    ),
    Mutant(
        "policy: a row starts with what the batch before it could win",
        "tuning/account.py",
        "self.credit *= prize / self.prize",
        "pass",
        ("tests/test_auto.py::test_what_a_row_starts_with_goes_by_the_batch_it_decodes_in",),
    ),
    Mutant(
        "policy: a look is taken without a node in it",
        "tuning/arms.py",
        "best = account.look(stakes, node)",
        "best = account.look(stakes, 0.0)",
        ("tests/test_auto.py::test_rows_of_a_batch_rest_and_come_back",),
    ),
    Mutant(
        "policy: a drafter without anything to send is asked at every step",
        "tuning/account.py",
        "min(self.empty - _FIRST_EMPTY, _PAUSE)",
        "min(self.empty - _FIRST_EMPTY, 0)",
        ("tests/test_auto.py::test_a_drafter_that_invests_and_has_nothing_to_send_is_left_alone",),
    ),
]
"""Faults of the automatic node count."""

KERNELS = {"none": [], "avx2": NATIVE, "vnni": [*NATIVE, *NATIVE_VNNI]}[isa()]
MUTANTS = [*LOOP, *TREE, *VERIFIERS, *SAMPLING, *DRAFTERS, *STUDENTS, *ANSWERS, *POLICY, *KERNELS]


def apply(mutant: Mutant, package: Path) -> str | None:
    """Put the fault into the copy; why that is not possible, else None."""
    path = package / mutant.file
    text = path.read_text(encoding="utf-8")
    found = text.count(mutant.before)
    if found != 1:
        return f"its text occurs {found} times in {mutant.file}, not once"
    path.write_text(text.replace(mutant.before, mutant.after), encoding="utf-8")
    return None


def outcome_of(source: Path, tests: tuple[str, ...], seconds: int) -> str:
    """Whether the tests "passed", "failed" or "hung" against the package in `source`.

    Compiled kernels are kept beside it: numba keeps them by source file, whatever else they call, so that a copy with
    a fault must never find those of another.
    """
    environment = os.environ | {
        "PYTHONPATH": str(source),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_CACHE_DIR": str(source / "numba"),
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return "hung"
    if run.returncode not in (0, 1):  # neither passed nor failed: pytest could not run these tests at all
        print(run.stdout.decode()[-2000:], run.stderr.decode()[-2000:], sep="\n")
        raise SystemExit(f"pytest could not run {' '.join(tests)}")
    return "failed" if run.returncode else "passed"


def copy_package(source: Path) -> None:
    """The package, without anything compiled from it."""
    shutil.copytree(ROOT / "src" / "betoken", source / "betoken", ignore=shutil.ignore_patterns("__pycache__"))


def try_mutant(mutant: Mutant) -> str:
    """ "caught", "caught (hung)", or what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        copy_package(source)
        problem = apply(mutant, source / "betoken")
        if problem:
            return f"NOT APPLIED: {problem}"
        outcomes = {"passed": "SURVIVED", "failed": "caught", "hung": "caught (hung)"}
        return outcomes[outcome_of(source, mutant.tests, SECONDS)]


def untouched_passes(tests: tuple[str, ...]) -> bool:
    """Whether a copy without any fault passes: only then does a failure say anything."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        copy_package(source)
        return outcome_of(source, tests, 4 * SECONDS) == "passed"


def main() -> int:
    """0 if every mutant is caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="try these mutants only")
    only = parser.parse_args().only
    unknown = set(only or ()) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in MUTANTS if not only or mutant.name in only]
    tests = tuple(sorted({test for mutant in chosen for test in mutant.tests}))
    if not untouched_passes(tests):
        print("the tests fail without any mutant: nothing can be said", " ".join(tests))
        return 1
    missed = 0
    for mutant in chosen:
        began = time.perf_counter()
        outcome = try_mutant(mutant)
        missed += not outcome.startswith("caught")
        print(f"{outcome:13} {time.perf_counter() - began:5.1f} s  {mutant.name}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} mutants caught")
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
