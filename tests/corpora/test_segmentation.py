"""BPE-dropout: corpora.segmentation, page E16."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from annotated.batches import Corpus, Sentences
from annotated.corpora.segmentation import SegmentedCorpus, Segmenter
from annotated.engine.errors import UsageError
from annotated.tokens import SPECIALS, BytePairs, Tokenizer, byte_ids

LINES = [
    "the slow lowly lowest crowd follows the low road",
    "slower, lower: the crowds' widest roads aren't wide",
    "„größer“ – größte 12 45 412 1245 x² e\u0301",
    "  two  spaces,\ta tab and more   ",
    "it's 'tis isn't I'll they'd snake_case don't",
    "日本語のテキスト ０１２ ½ \u1c5a",
    "a",
    "   ",
]
TOKENIZER = Tokenizer.train(LINES * 3, 330)
PLAIN = BytePairs.train(LINES * 3, 330)
SEGMENTER = Segmenter(TOKENIZER)
ROWS = Sentences.of(TOKENIZER.encode(LINES))


def draw(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def texts(rows: Sentences) -> list[str]:
    return TOKENIZER.decode([rows[i].tolist() for i in range(len(rows))])


def in_plain_words(word, merges, p, draw):
    """BPE-dropout as the paper says it, merge by merge."""
    ids = list(word)
    while True:
        kept = draw.random(len(ids)) >= p
        possible = [
            (merges[pair], i)
            for i, pair in enumerate(zip(ids, ids[1:]))
            if pair in merges and kept[i]
        ]
        if not possible:
            return ids
        new, i = min(possible)
        ids[i : i + 2] = [new]


def test_without_dropout_the_tokens_are_the_tokenizers() -> None:
    same = SEGMENTER.redrawn(ROWS, 0.0, draw(0))
    assert np.array_equal(same.ids, ROWS.ids)
    assert np.array_equal(same.starts, ROWS.starts)
    assert same.ids.dtype == ROWS.ids.dtype


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9])
def test_a_word_is_cut_as_the_plain_form_cuts_it(p: float) -> None:
    assert PLAIN.encode(LINES[0]) == TOKENIZER.encode(LINES[:1])[0]
    for seed, word in enumerate(LINES[0].split() * 5):
        spelt = byte_ids(f" {word}")
        ours = SEGMENTER.redrawn(Sentences.of([spelt]), p, draw(seed))
        plain = in_plain_words(spelt, PLAIN.merges, p, draw(seed))
        assert ours.ids.tolist() == plain


def test_among_other_words_each_form_is_as_frequent_as_alone() -> None:
    """Six standard deviations of 4,000 draws, which a seed fixes."""
    word, many = byte_ids(" lowest"), 4000
    among = Sentences.of([[*byte_ids(" slow"), *word]] * many)
    found = SEGMENTER.redrawn(among, 0.3, draw(0))
    tokens = PLAIN.tokens()
    ends = Counter[str]()
    for i in range(many):
        spelt = "|".join(tokens[t].decode() for t in found[i])
        ends[spelt[spelt.rindex(" ") :]] += 1
    source, alone = draw(1), Counter[str]()
    for _ in range(many):
        ids = in_plain_words(word, PLAIN.merges, 0.3, source)
        alone["|".join(tokens[t].decode() for t in ids)] += 1
    assert len(alone) > 5
    for form, count in alone.items():
        assert abs(ends[form] - count) < 6 * (2 * count) ** 0.5 + 6


@pytest.mark.parametrize("p", [0.1, 0.5, 0.99])
def test_the_text_stays_the_same_and_gets_longer(p: float) -> None:
    other = SEGMENTER.redrawn(ROWS, p, draw(1))
    assert texts(other) == texts(ROWS) == LINES
    assert len(other.ids) > len(ROWS.ids)
    assert (other.lengths >= ROWS.lengths).all()
    letters = SEGMENTER.spelling.lengths[ROWS.ids].sum()
    assert len(other.ids) <= letters


def test_no_token_crosses_the_end_of_a_word() -> None:
    many = Sentences.of(TOKENIZER.encode([LINES[0]] * 50))
    words = [byte_ids(f" {word}") for word in LINES[0].split()]
    ends = set(np.cumsum([len(word) for word in words]).tolist())
    other = SEGMENTER.redrawn(many, 0.4, draw(2))
    for i in range(50):
        sizes = SEGMENTER.spelling.lengths[other[i]]
        assert ends <= set(np.cumsum(sizes).tolist())


def test_empty_sentences_stay_where_they_are() -> None:
    rows = Sentences.of([[], TOKENIZER.encode(["low"])[0], [], []])
    same = SEGMENTER.redrawn(rows, 0.0, draw(0))
    assert same.starts.tolist() == rows.starts.tolist()
    nothing = SEGMENTER.redrawn(Sentences.of([]), 0.5, draw(0))
    assert (len(nothing), len(nothing.ids)) == (0, 0)


@pytest.mark.parametrize("kind", ["word", "wordpiece"])
def test_other_tokens_are_refused_by_name(kind) -> None:
    other = Tokenizer.train(LINES, 330, kind)
    with pytest.raises(UsageError, match=f"byte pairs, not {kind}"):
        Segmenter(other)
    corpus = Corpus(ROWS, ROWS)
    with pytest.raises(UsageError, match=kind):
        SegmentedCorpus.of(corpus, (TOKENIZER, other))


def test_a_batch_is_a_function_of_its_seed() -> None:
    corpus = SegmentedCorpus.of(Corpus(ROWS, ROWS), (TOKENIZER, TOKENIZER))
    pairs = np.array([4, 0, 2])

    def sides(*seed: int) -> list[list[int]]:
        found = corpus.redrawn(pairs, 0.3, seed)
        assert texts(found.src) == [LINES[i] for i in pairs]
        return [found.src.ids.tolist(), found.tgt.ids.tolist()]

    first = sides(0, 0, 0)
    assert first == sides(0, 0, 0)
    assert first[0] != first[1]  # each side has draws of its own
    others = sides(0, 0, 1), sides(0, 1, 0), sides(1, 0, 0)
    assert all(other != first for other in others)
    assert min(corpus.src.ids) >= len(SPECIALS)


def test_where_nothing_was_merged_nothing_is_left_out() -> None:
    letters = Tokenizer.train(LINES, 260)
    rows = Sentences.of(letters.encode(LINES))
    same = Segmenter(letters).redrawn(rows, 0.5, draw(0))
    assert np.array_equal(same.ids, rows.ids)
    assert np.array_equal(same.starts, rows.starts)
