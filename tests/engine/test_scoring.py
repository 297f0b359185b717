"""Translations that exist, scored: as a plain loop over the plain model
would, and as a search scores its own.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from annotated.alignment import alignment_error_rate
from annotated.engine.errors import DataError, RunError
from annotated.engine.packing import PackedTransformer, packed
from annotated.engine.runs import Run
from annotated.engine.scoring import (
    _words_of,
    forced_scores,
    word_alignment,
)
from annotated.engine.search import beam_search
from annotated.model import Transformer
from annotated.pocket import pocket_pairs
from annotated.search import (
    SearchConfig,
    length_penalty,
    log_p_after,
    source_rows,
)
from annotated.tokens import BOS, EOS, SPECIALS, UNK, Tokenizer
from tests.searching import KINDS, VOCAB, random_model, random_sentences

WORDS = [chr(ord("a") + i) for i in range(VOCAB - len(SPECIALS))]
TOKENIZER = Tokenizer.of_words(WORDS)
BOTH = TOKENIZER, TOKENIZER


def lines(sentences):
    """Sentences of ids as text."""
    return [
        " ".join(WORDS[i - len(SPECIALS)] for i in s) for s in sentences
    ]


def looped(models, src, tgt):
    """log p of each token of a pair: one call of the plain model each."""
    found, ids = [], [BOS]
    with torch.no_grad():
        for token in [*tgt, EOS]:
            source = source_rows(models[0], [src])
            p = [log_p_after(m, source, ids)[token].exp() for m in models]
            found.append(math.log(sum(p) / len(p)))
            ids.append(token)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("form", [Transformer, PackedTransformer])
def test_scores_are_those_of_a_plain_loop(kind, count, form) -> None:
    plain = [random_model(i, **KINDS[kind]).eval() for i in range(count)]
    models = plain if form is Transformer else [packed(m) for m in plain]
    srcs, tgts = random_sentences(9, seed=1), random_sentences(9, seed=2)
    srcs[2], tgts[5] = [], []  # one side blank
    pairs = [*zip(lines(srcs), lines(tgts), strict=True)]
    found = forced_scores(models, BOTH, pairs, 0.6, batch_tokens=20)
    for src, tgt, one in zip(srcs, tgts, found, strict=True):
        if not (src or tgt):
            assert (one.ids, one.log_p, one.score) == ([], [], 0.0)
            continue
        wanted = looped(plain, src, tgt)
        assert one.ids == [*tgt, EOS]
        assert one.log_p == pytest.approx(wanted, abs=1e-5)
        assert one.log_probability == pytest.approx(sum(wanted), abs=1e-4)
        penalty = length_penalty(len(tgt) + 1, 0.6)
        assert one.score == pytest.approx(sum(wanted) / penalty, abs=1e-4)


def test_a_search_says_the_same_of_what_it_has_found() -> None:
    model = packed(random_model(1, end=-8.0).eval())
    with torch.no_grad():
        model.embeddings.bias[UNK] -= 30  # no text has a token for it
    srcs = random_sentences(12, seed=3)
    best = [h for [h] in beam_search(model, srcs, SearchConfig(extra=9))]
    assert len({len(h.ids) for h in best}) > 2
    texts = lines(srcs), lines(h.ids for h in best)
    found = forced_scores([model], BOTH, [*zip(*texts)], 0.6)
    for src, h, one in zip(srcs, best, found, strict=True):
        if src or h.ids:
            assert one.log_probability == pytest.approx(
                h.log_probability, abs=1e-4
            )
            assert one.score == pytest.approx(h.score, abs=1e-4)


def test_logits_are_made_a_few_tokens_at_a_time(monkeypatch) -> None:
    model = packed(random_model().eval())
    pairs = [("a b", "c d e"), ("c", "a"), ("e d c b a", "a b c d e f g")]
    whole = forced_scores([model], BOTH, pairs, 0.6)
    seen, kind = [], type(model.embeddings)
    logits = kind.logits

    def counted(embeddings, x):
        seen.append(len(x))
        return logits(embeddings, x)

    monkeypatch.setattr(kind, "logits", counted)
    monkeypatch.setattr("annotated.engine.scoring._LOGITS", 3 * VOCAB)
    parts = forced_scores([model], BOTH, pairs, 0.6)
    assert max(seen) == 3 and sum(seen) == 4 + 2 + 8
    for one, other in zip(whole, parts, strict=True):
        assert one.log_p == pytest.approx(other.log_p, abs=1e-6)


def test_what_is_too_long_is_named() -> None:
    learned = random_model(positions="learned", max_len=6).eval()
    fits = ("a b c d e", "a b c d e")  # with EOS, or BOS, six
    [one] = forced_scores([learned], BOTH, [fits], 0.6)
    assert one.log_p == pytest.approx(
        looped([learned], *TOKENIZER.encode(fits)), abs=1e-5
    )
    for pair, what in (
        (("a b c d e f", "a"), "pair 8: its source has 6 tokens"),
        (("a", "a b c d e f"), "pair 8: its target has 6 tokens"),
    ):
        with pytest.raises(DataError, match=f"{what}, but at most 5"):
            forced_scores([learned], BOTH, [fits, pair], 0.6, first=7)
    far = random_model().eval()
    with pytest.raises(DataError, match="at most 4,096 can be scored"):
        forced_scores([far], BOTH, [("a", "a " * 4097)], 0.6)


def test_a_model_that_is_no_number_is_refused() -> None:
    model = random_model().eval()
    with torch.no_grad():
        model.embeddings.output[5] = math.nan
    with pytest.raises(RunError):
        forced_scores([model], BOTH, [("a", "b")], 0.6)


def test_a_packed_model_with_changed_parts_is_refused() -> None:
    model = packed(random_model(0).eval())
    model.embeddings.logits = lambda x: -x
    with pytest.raises(RunError, match="embeddings is .* another logits"):
        forced_scores([model], BOTH, [("a", "b")], 0.6)


# --- which word comes from which ------------------------------------------


@pytest.fixture
def known(monkeypatch):
    """Weights that are given, in place of a model's."""

    def give(weights):
        monkeypatch.setattr(
            "annotated.engine.scoring.alignment",
            lambda model, src, tgt: torch.tensor(weights)[None, None],
        )

    return give


def test_the_last_layer_of_a_trained_run_aligns() -> None:
    run = Run.open(Path("pocket"))
    both = run.source, run.target
    pairs = pocket_pairs(200, "test")
    gold, found, level = set(), set(), set()
    for n, pair in enumerate(pairs):
        src, tgt = pair.source, pair.target
        gold |= {(n, *link) for link in pair.alignment}
        links = word_alignment([run.model], both, src, tgt)
        assert [j for _, j in links] == [*range(len(tgt.split()))]
        found |= {(n, *link) for link in links}
        last = len(src.split()) - 1
        level |= {(n, min(j, last), j) for j in range(len(links))}
    assert alignment_error_rate(gold, found) < 0.2
    assert alignment_error_rate(gold, level) > 0.4


def test_the_tokens_of_a_word_are_taken_together(known) -> None:
    letters = Tokenizer.train(["ab c d"], 260)  # each byte is a token
    both = letters, letters
    x = [
        # " "  a    b   " "   c   EOS
        [0.9, 0.0, 0.0, 0.1, 0.0, 0.0],  # the space before all
        [0.0, 0.3, 0.3, 0.0, 0.4, 0.0],  # c
        [0.0, 0.0, 0.0, 0.0, 1.0, 0.0],  # the space, taken with c
        [0.0, 0.1, 0.0, 0.0, 0.2, 0.7],  # d
        [0.0, 0.0, 0.2, 0.0, 0.5, 0.3],  # a
        [0.0, 0.0, 0.0, 0.0, 0.0, 1.0],  # EOS
    ]
    known(x)
    links = word_alignment([random_model()], both, "ab c", "c da")
    assert links == [(1, 0), (1, 1)]
    x[2] = [0.0, 0.5, 0.5, 0.0, 0.0, 0.0]
    known(x)
    links = word_alignment([random_model()], both, "ab c", "c da")
    assert links == [(0, 0), (1, 1)]


@pytest.mark.parametrize("kind", ["word", "wordpiece", "bpe"])
def test_every_word_has_its_number(kind) -> None:
    text = ["abc abd abe a b c d e ab"] * 3
    tokenizer = Tokenizer.train(text, 300, kind)
    for line in ("abc abd", "zz a", "abc z abd z", "ae  b", " ab  ☃ c "):
        words = _words_of(tokenizer, tokenizer.encode([line])[0])
        assert sorted({*words} - {-1}) == [*range(len(line.split()))]
        assert words == sorted(words)


def test_what_has_no_words_has_no_links() -> None:
    model = random_model().eval()
    for pair in (("", "a"), ("a", ""), ("", "")):
        assert word_alignment([model], BOTH, *pair) == []
    links = word_alignment([model, model], BOTH, "a ☃ b", "☃")
    assert len(links) == 1 and links[0][1] == 0
    learned = random_model(positions="learned", max_len=6).eval()
    assert word_alignment([learned], BOTH, "a b c d e", "a") != []
    assert word_alignment([learned], BOTH, "a b c d e f", "a") == []
    # whose maps would take gigabytes
    assert word_alignment([model], BOTH, "a " * 1024, "a") == []
    assert word_alignment([model], BOTH, "a " * 1023, "a") != []
