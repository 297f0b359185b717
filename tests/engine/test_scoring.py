"""Translations that exist, scored: as a plain loop over the plain model
would, and as a search scores its own.
"""

from __future__ import annotations

import math

import pytest
import torch

from annotated.engine.errors import DataError, RunError
from annotated.engine.packing import PackedTransformer, packed
from annotated.engine.scoring import forced_scores
from annotated.engine.search import beam_search
from annotated.model import Transformer
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
