"""Prompt lookup and suffix decoding against slow searches of the text."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from betoken.drafters.index import ROOT, NgramIndex, SuffixIndex
from betoken.drafters.prompt_lookup import PromptLookup
from betoken.drafters.suffix import END_OF_ANSWER, Suffix
from betoken.errors import InputError
from betoken.models.target import Scores
from betoken.state import Row, SamplingSettings, State, StopSettings
from betoken.tree import RowTree, TokenTree
from betoken.verifiers.verifier import RowVerdict, Verdict

texts = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def make_row(tokens: list[int], row_id: int = 0, prompt: int | None = None) -> Row:
    start = len(tokens) if prompt is None else prompt
    return Row(
        row_id, 0, np.array(tokens[:start]), SamplingSettings(), StopSettings(), frozenset(), 512, tokens=list(tokens)
    )


def drafted(tree: TokenTree, row: int = 0) -> list[int]:
    return tree.tokens[row, 1 : tree.counts[row]].tolist()


def occurrences(text: list[int], piece: list[int]) -> int:
    return sum(text[i : i + len(piece)] == piece for i in range(len(text) - len(piece) + 1))


@given(texts, st.integers(1, 6), st.integers(1, 5))
def test_suffix_index_counts_every_piece_as_a_scan_does(text: list[int], reach: int, chunk: int) -> None:
    index = SuffixIndex(reach)
    for at in range(0, len(text), chunk):
        index.extend(text[at : at + chunk])
    assert len(index.next) <= 2 * len(text) + 1
    for start in range(len(text)):
        state = ROOT
        for end in range(start + 1, len(text) + 1):
            piece = text[start:end]
            state = index.next[state][piece[-1]]
            assert index.longest[index.link[state]] < len(piece) <= index.longest[state]
            if len(piece) <= reach:
                assert index.count[state] == occurrences(text, piece), piece
    for token, state in index.next[ROOT].items():
        assert index.count[state] == Counter(text)[token]


@given(texts, st.integers(1, 6))
def test_suffix_index_matches_are_the_suffixes_that_differ_in_where_they_end(text: list[int], longest: int) -> None:
    index = SuffixIndex(8)
    index.extend(text)
    expected: dict[int, int] = {}
    for length in range(1, min(longest, len(text)) + 1):
        expected[occurrences(text, text[-length:])] = length
    found = [(index.count[state], length) for state, length in index.matches(longest)]
    assert found == sorted(expected.items(), key=lambda item: -item[1])


@given(texts, st.lists(st.integers(0, 3), max_size=8))
def test_suffix_index_finds_the_longest_tail_that_occurs(text: list[int], tail: list[int]) -> None:
    index = SuffixIndex(8)
    index.extend(text)
    longest = max(
        (n for n in range(1, len(tail) + 1) if occurrences(text, tail[-n:])),
        default=0,
    )
    state, length = index.find(tail)
    assert length == longest
    assert (state == ROOT) == (longest == 0)


def lookup_by_scan(text: list[int], shortest: int, longest: int, most: int, *, last: bool) -> list[int]:
    """The published rule, written as the scan it was published as."""
    for size in range(longest, shortest - 1, -1):
        starts = [i for i in range(len(text) - size) if text[i : i + size] == text[-size:]]
        if starts and size <= len(text):
            at = starts[-1 if last else 0] + size
            return text[at : at + most]
    return []


@given(texts, st.integers(1, 3), st.integers(0, 3), st.integers(1, 6), st.booleans(), st.integers(1, 7))
def test_prompt_lookup_copies_what_a_scan_finds(
    text: list[int], shortest: int, more: int, most: int, last: bool, chunk: int
) -> None:
    drafter = PromptLookup(shortest + more, shortest, most, prefer="last" if last else "first")
    row = make_row(text[:1])
    drafter.admit([row])
    for at in range(1, len(text) + chunk, chunk):
        row.tokens = text[:at]
        tree = drafter.propose(State((row,)), [most + 1])
        assert drafted(tree) == lookup_by_scan(row.tokens, shortest, shortest + more, most, last=last)


def test_ngram_index_never_matches_the_end_of_the_text_with_itself() -> None:
    index = NgramIndex(1, 2)
    index.extend([7, 8])
    assert index.lookup(1) is None
    assert index.lookup(3) is None
    index.extend([7])
    assert index.lookup(1) == 1


def suffix_by_scan(text: list[int], drafter: Suffix, most: int) -> tuple[list[int], float]:
    """Suffix decoding over plain lists: the best chain and its score."""
    best: list[int] = []
    best_score = 0.0
    for length in range(min(drafter.max_match, len(text)), 0, -1):
        match = text[-length:]
        if occurrences(text, match) < 2:
            continue
        draft: list[int] = []
        path, score = 1.0, 0.0
        while len(draft) < min(most, int(drafter.factor * length)):
            here = match + draft
            after = Counter(
                text[i + len(here)] for i in range(len(text) - len(here)) if text[i : i + len(here)] == here
            )
            if not after:
                break
            token, count = after.most_common(1)[0]  # ties: the first to occur
            path *= count / occurrences(text, here)
            if path < drafter.min_ratio:
                break
            draft.append(token)
            score += path
        if score > best_score:
            best, best_score = draft, score
    return best, best_score


@given(texts, st.sampled_from([0.1, 0.34, 0.6]), st.sampled_from([0.5, 1.0, 2.0]), st.integers(1, 6))
def test_suffix_drafts_a_chain_of_the_score_that_a_scan_finds(
    text: list[int], ratio: float, factor: float, most: int
) -> None:
    drafter = Suffix(min_ratio=ratio, factor=factor, max_draft=6, max_match=6)
    row = make_row(text)
    drafter.admit([row])
    tree = drafter.propose(State((row,)), [most + 1])
    path, score = 1.0, 0.0
    for confidence in tree.confidence[0, 1 : tree.counts[0]]:
        path *= confidence
        score += path
        assert path >= ratio
    expected, expected_score = suffix_by_scan(text, drafter, most)
    assert drafted(tree) == expected
    assert score == pytest.approx(expected_score)


def test_suffix_prefers_the_longer_match_when_contexts_disagree() -> None:
    text = [9, 1, 2, 3, 4, 5, 6, 8, 2, 3, 7, 7, 7, 7, 9, 1, 2, 3]
    row = make_row(text)
    drafter = Suffix()
    drafter.admit([row])
    tree = drafter.propose(State((row,)), [6])
    assert drafted(tree) == [4, 5, 6, 8]
    assert tree.confidence[0, 1:5].tolist() == [0.5, 1.0, 1.0, 1.0]


def test_suffix_tree_holds_both_continuations() -> None:
    text = [1, 2, 3, 4, 1, 2, 5, 6, 1, 2]
    row = make_row(text)
    drafter = Suffix(tree=True)
    drafter.admit([row])
    tree = drafter.propose(State((row,)), [8])
    assert sorted(tree.tokens[0, child] for child in tree.children(0, 0)) == [3, 5]
    assert tree.counts[0] == 3  # two matched tokens allow two drafted ones


def test_global_tree_is_off_unless_asked_for_and_never_drafts_across_answers() -> None:
    first = make_row([1, 2, 3, 4, 5], row_id=1, prompt=1)
    again = make_row([8, 3, 4], row_id=2)
    for drafter in (Suffix(), Suffix(global_tree=True)):
        drafter.admit([first, again])
        drafter.release([first])
        tree = drafter.propose(State((again,)), [9])
        assert drafter.shares_state == drafter.global_tree
        assert drafted(tree) == ([5] if drafter.global_tree else [])
        assert END_OF_ANSWER not in tree.tokens


def test_global_tree_forgets_the_oldest_output() -> None:
    drafter = Suffix(global_tree=True, global_tokens=20)
    for n in range(6):
        row = make_row([0, *range(10 * n, 10 * n + 6)], row_id=n, prompt=1)
        drafter.admit([row])
        drafter.release([row])
    old, new = make_row([0, 1, 2], row_id=91), make_row([50, 51, 52], row_id=92)
    drafter.admit([old, new])
    tree = drafter.propose(State((old, new)), [9, 9])
    assert drafted(tree, 0) == []
    assert drafted(tree, 1) == [53, 54, 55]


@pytest.mark.parametrize(
    ("cls", "settings"),
    [
        (PromptLookup, {"max_ngram": 0}),
        (PromptLookup, {"min_ngram": 4}),
        (PromptLookup, {"max_draft": 0}),
        (Suffix, {"min_ratio": 0.0}),
        (Suffix, {"min_ratio": float("nan")}),
        (Suffix, {"factor": 0.0}),
        (Suffix, {"max_match": 0}),
    ],
)
def test_settings_that_allow_no_draft_are_refused(cls: type, settings: dict[str, float]) -> None:
    with pytest.raises(InputError):
        cls(**settings)


@pytest.mark.parametrize("make", [Suffix, PromptLookup])
def test_prompts_are_read_in_prefill_where_a_draft_is_expected(make: type[Suffix] | type[PromptLookup]) -> None:
    """The first draft then costs what any other does; without prefill, or unexpected, it reads the prompt itself."""
    prompt = [1, 2, 3, 4] * 50
    drafts = []
    for expects, prefilled in ((True, True), (False, True), (True, False)):
        drafter, row = make(), make_row(prompt)
        row.expects_draft = expects
        drafter.admit([row])
        if prefilled:
            chunk = TokenTree.stack([RowTree.chain(prompt[0], prompt[1:-1])])
            drafter.observe(
                chunk,
                Scores(np.zeros((0, 8), np.float32), np.full((1, 199), -1)),
                Verdict((RowVerdict(tuple(range(199)), -1),)),
                State((row,)),
            )
        index = drafter._rows[row.id]
        size = index.size if isinstance(index, SuffixIndex) else len(index.text)
        assert size == (200 if expects and prefilled else 0)
        drafts.append(drafted(drafter.propose(State((row,)), [6])))
    assert drafts == [[1, 2, 3, 4, 1]] * 3
