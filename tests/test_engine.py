"""The Python face on the toy target: chunks, stop strings, batches, conversations, and rows that leave in time."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models

from betoken.drafters.plain import Plain
from betoken.engine import Engine
from betoken.errors import BetokenError, InputError
from betoken.models.target import Scores
from betoken.models.tokenizer import Tokenizer, byte_characters
from betoken.result import Result
from betoken.state import State
from betoken.testing import ToyCache, ToyTarget
from betoken.tree import RowTree, TokenTree
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.replay import Greedy, Replay

TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"


def toy_tokenizer() -> Tokenizer:
    """Ids: 0 end token, 1 a, 2 b, 3 newline, 4 and 5 the halves of é, 6 aba."""
    table = byte_characters()
    pieces = ["<|end|>", *(table[b] for b in (*b"ab\n", *"é".encode())), "aba"]
    core = tokenizers.Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[]))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken("<|end|>", special=True)])
    return Tokenizer(core, chat_template=TEMPLATE)


TOKENIZER = toy_tokenizer()


@dataclass
class Oracle(Plain):
    """Drafts a chain that the toy would write greedily, except for the last node."""

    target: ToyTarget
    name = "oracle"

    def propose(self, state: State, nodes: Sequence[int]) -> TokenTree:
        trees = []
        for row, most in zip(state.rows, nodes, strict=True):
            tree, text = RowTree.under(row.pending), list(row.tokens)
            for depth in range(most - 1):
                token = int(self.target.next_logits(text).argmax())
                text.append(token if depth < most - 2 else (token + 1) % self.target.vocab_size)
                tree.add(text[-1], depth)
            trees.append(tree)
        return TokenTree.stack(trees)


class Watched(ToyTarget):
    """Counts the nodes it scores and can be interrupted."""

    scored = 0
    interrupt_at = -1

    def forward(
        self, tree: TokenTree, cache: ToyCache, slots: Sequence[int], hidden_layers: Sequence[int] = ()
    ) -> Scores:
        if self.interrupt_at == 0:
            raise KeyboardInterrupt
        self.interrupt_at -= 1
        self.scored += int(tree.counts.sum())
        return super().forward(tree, cache, slots, hidden_layers)


def engine_of(seed: int = 0, *, nodes: int = 1, context: int = 512, sharpness: float = 2.0) -> Engine:
    """Plain decoding with one node, the oracle with more."""
    target = Watched(7, seed=seed, context=context, sharpness=sharpness)
    drafter = Plain() if nodes == 1 else Oracle(target)
    return Engine(target, TOKENIZER, drafter, Replay(), FixedNodes(nodes))


def reference(target: ToyTarget, prompt: list[int], limit: int) -> list[int]:
    """Greedy decoding straight from the toy's table."""
    text = list(prompt)
    while len(text) < len(prompt) + limit:
        text.append(int(target.next_logits(text).argmax()))
        if text[-1] == 0:
            break
    return text[len(prompt) :]


def idle(engine: Engine) -> bool:
    """Whether no row is left anywhere."""
    cache = engine.decoder.cache
    assert isinstance(cache, ToyCache)
    return not (engine.decoder.rows or engine.decoder.waiting or engine.decoder.prefill_s or cache.slots)


@given(st.integers(0, 400), st.integers(2, 6), st.sampled_from(["a", "ab", "b\n", "é", "aba", "\n\n"]))
def test_stop_string_in_the_middle_of_a_draft(seed: int, nodes: int, stop: str) -> None:
    plain, fast = engine_of(seed), engine_of(seed, nodes=nodes)
    prompt = TOKENIZER.encode("ab")
    expected = reference(plain.target, prompt, 24)  # type: ignore[arg-type]
    for end in range(1, len(expected) + 1):  # the first token that completes the stop string
        if stop in TOKENIZER.decode(expected[:end]):
            expected = expected[:end]
            break
    text = TOKENIZER.decode(expected)
    for engine in (plain, fast):
        [result] = engine.generate("ab", raw=True, max_new_tokens=24, stop=stop)
        assert result.tokens == expected
        assert result.text == text.split(stop)[0]
        assert result.finish_reason == ("stop" if stop in text or expected[-1] == 0 else "length")
        assert result.stats.committed == len(expected)
        assert idle(engine)


@given(st.integers(0, 200), st.integers(2, 5), st.sampled_from([0.0, 0.8, 1.5]), st.lists(st.just("ab"), max_size=1))
def test_chunks_do_not_depend_on_the_drafter(seed: int, nodes: int, temperature: float, stop: list[str]) -> None:
    streams = [
        list(engine.stream("aé", raw=True, max_new_tokens=20, temperature=temperature, seed=seed, stop=stop))
        for engine in (engine_of(seed), engine_of(seed, nodes=nodes))
    ]
    assert streams[0] == streams[1]
    assert [chunk.finish_reason is None for chunk in streams[0][:-1]] == [True] * (len(streams[0]) - 1)
    assert streams[0][-1].finish_reason is not None


@given(st.integers(0, 100), st.sampled_from([0.0, 1.0]))
@settings(deadline=None, max_examples=30)
def test_a_row_in_a_batch_equals_the_row_alone(seed: int, temperature: float) -> None:
    prompts = ["a", "ab" * 9, "é\n", "b", "aaa\n", "ab"]
    asked = {"raw": True, "max_new_tokens": 15, "temperature": temperature, "seed": seed}
    together = engine_of(seed, nodes=4).generate(prompts, **asked)  # type: ignore[arg-type]
    for prompt, result in zip(prompts, together, strict=True):
        [alone] = engine_of(seed, nodes=4).generate(prompt, **asked)  # type: ignore[arg-type]
        assert (alone.text, alone.tokens) == (result.text, result.tokens)


def test_more_prompts_than_rows_wait_their_turn() -> None:
    engine = engine_of(3)
    prompts = ["a" * n for n in range(1, 40)]
    for n, result in enumerate(engine.generate(prompts, raw=True, max_new_tokens=5), 1):
        assert result.tokens == reference(engine.target, [1] * n, 5)  # type: ignore[arg-type]
        assert result.prompt_tokens == n
    assert idle(engine)


def test_stats_have_the_documented_keys_and_plain_decoding_accepts_exactly_one() -> None:
    [result] = engine_of(1).generate("ab", raw=True, max_new_tokens=12)
    stats = asdict(result)["stats"]
    assert set(asdict(result)) == {
        *("text", "tokens", "prompt_tokens", "finish_reason", "stats", "sample", "logprobs", "exceptions"),
        *("budget_spent", "budget_left"),
    }
    assert set(stats) == {
        *("forwards", "committed", "acceptance_length", "nodes_per_forward", "draft_s", "target_s", "verify_s"),
        *("prefill_s", "tokens_per_s", "lossless", "exact", "reproducible", "drafter", "verifier", "model", "dtype"),
        "threads",
    }
    assert stats["acceptance_length"] == 1.0
    assert stats["forwards"] == stats["committed"] == len(result.tokens)
    assert stats["nodes_per_forward"] == 1.0
    assert (stats["drafter"], stats["verifier"], stats["lossless"], stats["exact"]) == ("none", "greedy", True, True)
    [sampled] = engine_of(1).generate("ab", raw=True, temperature=0.7, max_new_tokens=3)
    assert sampled.stats.verifier == "replay"


def test_speculation_commits_more_per_forward() -> None:
    engine = next(e for e in (engine_of(s, nodes=4) for s in range(50)) if _long(e))
    [result] = engine.generate("ab", raw=True, max_new_tokens=12)
    assert result.stats.forwards < result.stats.committed == 12
    assert result.stats.acceptance_length == 12 / result.stats.forwards


def _long(engine: Engine) -> bool:
    return len(reference(engine.target, TOKENIZER.encode("ab"), 40)) == 40  # type: ignore[arg-type]


def long_engine(nodes: int = 1) -> Engine:
    """An engine whose greedy answer to "ab" does not end early."""
    return next(e for e in (engine_of(s, nodes=nodes) for s in range(50)) if _long(e))


def test_a_closed_stream_releases_its_row_and_keeps_what_there_was() -> None:
    engine = long_engine()
    stream = engine.stream("ab", raw=True, max_new_tokens=30)
    with pytest.raises(BetokenError, match="not finished"):
        _ = stream.result
    seen = list(islice(stream, 4))
    stream.close()
    assert idle(engine)
    assert list(stream) == []
    assert stream.result.tokens == [chunk.token for chunk in seen]
    assert stream.result.text == TOKENIZER.decode(stream.result.tokens)
    assert stream.result.finish_reason is None


def test_a_dropped_stream_releases_its_row() -> None:
    engine = long_engine()
    stream = engine.stream("ab", raw=True, max_new_tokens=30)
    next(stream)
    del stream
    gc.collect()
    assert idle(engine)


def test_a_stream_that_was_never_read_takes_no_part() -> None:
    engine = long_engine()
    engine.stream("ab", raw=True)
    assert idle(engine)


@pytest.mark.parametrize("at", [0, 1, 5])
def test_an_interrupt_releases_all_rows(at: int) -> None:
    engine = long_engine()
    assert isinstance(engine.target, Watched)
    engine.target.interrupt_at = at
    with pytest.raises(KeyboardInterrupt):
        engine.generate(["ab", "ba"], raw=True, max_new_tokens=30)
    assert idle(engine)
    engine.target.interrupt_at = -1
    [result] = engine.generate("ab", raw=True, max_new_tokens=30)
    assert result.tokens == reference(engine.target, TOKENIZER.encode("ab"), 30)


def test_streams_read_in_turns_decode_together() -> None:
    engine, alone = long_engine(3), long_engine(3)
    first, second = (engine.stream(text, raw=True, max_new_tokens=9) for text in ("ab", "a"))
    pairs = [next(first), next(second), *islice(first, 3), *second, *first]
    assert len(pairs) == first.result.stats.committed + second.result.stats.committed
    for text, stream in (("ab", first), ("a", second)):
        assert stream.result.tokens == alone.generate(text, raw=True, max_new_tokens=9)[0].tokens
    assert idle(engine)


def test_the_context_ends_an_answer() -> None:
    target = Watched(7, seed=long_seed(), context=8)
    [result] = Engine(target, TOKENIZER, Plain(), Replay(), FixedNodes(1)).generate("ab", raw=True)
    assert (result.finish_reason, len(result.tokens)) == ("context", 6)


def long_seed() -> int:
    """The seed of `long_engine`."""
    return next(s for s in range(50) if _long(engine_of(s)))


def test_conversation_prefills_only_what_is_new_and_changes_nothing() -> None:
    engine = long_engine(3)
    assert isinstance(engine.target, Watched)
    chat = engine.chat([{"role": "system", "content": "ab" * 50}])
    first = chat.send("aba", max_new_tokens=20)
    so_far = engine.target.scored
    second = chat.send("b", max_new_tokens=20)
    cost = engine.target.scored - so_far
    messages = [
        {"role": "system", "content": "ab" * 50},
        {"role": "user", "content": "aba"},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "b"},
    ]
    fresh: Result = long_engine(3).generate(messages, max_new_tokens=20)[0]
    assert second.tokens == fresh.tokens
    assert fresh.prompt_tokens > 100
    decoding = second.stats.nodes_per_forward * second.stats.forwards
    assert cost - decoding < 40
    assert [m["role"] for m in chat.messages] == ["system", "user", "assistant", "user", "assistant"]
    chat.close()
    assert idle(engine)


def test_a_broken_off_answer_stays_in_the_conversation() -> None:
    chat = long_engine().chat()
    answer = chat.stream("ab", max_new_tokens=30)
    heard = "".join(str(chunk) for chunk in islice(answer, 3))
    answer.close()  # type: ignore[attr-defined]
    assert chat.messages[-1] == {"role": "assistant", "content": chat.result.text}
    assert chat.result.text.startswith(heard)
    assert chat.send("a", max_new_tokens=4).finish_reason is not None


def test_a_stop_string_keeps_the_cache_right_for_the_next_turn() -> None:
    for seed in range(30):
        engine, other = engine_of(seed, nodes=5), engine_of(seed)
        chat, plain = engine.chat(), other.chat()
        for text in ("ab" * 20, "b", "aba"):
            sent = [c.send(text, max_new_tokens=16, stop=["b\n", "é"]) for c in (chat, plain)]
            assert sent[0].tokens == sent[1].tokens
        cache = engine.decoder.cache
        assert isinstance(cache, ToyCache)
        [prefix] = engine.decoder.prefixes
        assert tuple(cache.slots[prefix.slot]) == prefix.tokens


@pytest.mark.parametrize(
    ("prompt", "asked", "told"),
    [
        ("", {}, "prompt is empty"),
        (" \n", {}, "prompt is empty"),
        ("", {"raw": True}, "prompt is empty"),
        ([], {}, "no prompt"),
        ("a", {"temperature": float("nan")}, "temperature"),
        ("a", {"top_p": 0.0}, "top_p"),
        ("a", {"max_new_tokens": 0}, "max_new_tokens"),
        ("a", {"stop": ""}, "stop"),
        ("a" * 600, {"raw": True}, "600 tokens and the model's context is 512"),
        ([{"role": "user"}], {}, "content"),
        ([{"role": "user", "content": "a"}], {"raw": True}, "raw prompt"),
    ],
)
def test_input_that_cannot_be_used(prompt: str, asked: dict[str, float], told: str) -> None:
    engine = engine_of()
    with pytest.raises(InputError, match=told):
        engine.generate(prompt, **asked)  # type: ignore[arg-type]
    assert idle(engine)


def test_a_typo_in_a_setting_is_an_error() -> None:
    engine = engine_of()
    for call in (engine.generate, engine.stream, engine.chat().send, engine.chat().stream):
        with pytest.raises(TypeError, match="temperatur"):
            call("a", temperatur=0.5)  # type: ignore[call-arg, operator]


def test_a_verifier_that_cannot_serve_a_prompt_says_so() -> None:
    target = ToyTarget(7)
    engine = Engine(target, TOKENIZER, Plain(), Greedy(), FixedNodes(1))
    with pytest.raises(InputError, match="use replay"):
        engine.generate("a", temperature=0.5)
    assert idle(engine)
