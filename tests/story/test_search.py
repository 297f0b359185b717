"""Chapters 16 and 17, engine room 6: greedy search, beam search, caches."""

import copy
import itertools
import math
import os
import pickle
import signal
import sys
import time
from dataclasses import replace
from multiprocessing import active_children, parent_process

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated import search as story
from annotated.attention import MultiHeadAttention
from annotated.batches import Sentences, pad_rows
from annotated.engine import search as decoding
from annotated.engine.errors import RunError
from annotated.engine.machine import evaluating
from annotated.engine.packing import packed
from annotated.engine.parsing import OnlyTrees
from annotated.engine.search import (
    BeamSearch,
    SlotCache,
    beam_search,
    best_continuations,
    closing,
    converted,
    search_in_order,
)
from annotated.masks import causal_mask
from annotated.model import Transformer, TransformerConfig
from annotated.search import (
    CachedCrossAttention,
    CachedSelfAttention,
    Hypothesis,
    KVCache,
    SearchConfig,
    alignment,
    cache_of,
    cached_beam_search,
    greedy,
    grow_beams,
    length_penalty,
    log_p_after,
    output_limit,
    plain_beam_search,
    settled,
)
from annotated.tokens import BOS, EOS, PAD, SPECIALS
from annotated.training import Trainer, TrainingConfig, copy_corpus
from tests.helpers import SHAPE

VOCAB = 11
KINDS = {
    "paper": {"tie": "all"},
    "pre-norm": {"norm": "pre"},
    "learned": {"positions": "learned", "max_len": 30},
    "window": {"window": 4},
    "sizes": {"d_k": 3, "d_v": 7},
    "deep": {"num_decoder_layers": 3, "num_heads": 4, "norm": "pre"},
    "silu": {"activation": "silu", "output_bias": True},
}


def push_end(model, by):
    """Make the model like EOS more, or less."""
    if by == 0.0:
        return model
    bias = model.embeddings.bias
    pushed = torch.zeros(VOCAB) if bias is None else bias.detach()
    pushed = pushed[: model.config.tgt_vocab].clone()
    pushed[EOS] += by
    model.embeddings.bias = torch.nn.Parameter(pushed)
    return model


def random_model(seed=0, sure=2.0, end=-2.0, **changes):
    """A model with random tastes: the surer, the more they differ; end
    is added to the logit of EOS, so that not every best output is empty.
    """
    torch.manual_seed(seed)
    shape = {
        "src_vocab": VOCAB,
        "tgt_vocab": VOCAB,
        "num_encoder_layers": 1,
        "num_decoder_layers": 2,
        "d_model": 16,
        "d_ff": 32,
        "num_heads": 2,
        "dropout": 0.5,  # search must switch it off
        "tie": "none",
    }
    model = Transformer(TransformerConfig(**(shape | changes)))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "bias" in name or "gain" in name:
                p += 0.1 * torch.randn_like(p)
        model.embeddings.output *= sure
        model.embeddings.output[EOS] *= 2
    return push_end(model, end)


def random_sentences(count, seed=0, longest=7, vocab=VOCAB):
    draw = np.random.default_rng(seed)
    return [
        draw.integers(len(SPECIALS), vocab, draw.integers(0, longest + 1))
        .astype(int)
        .tolist()
        for _ in range(count)
    ]


def by_the_book(models, src, config, prefix=()):
    """Chapter 16's search, asking several models, with a beginning given."""
    source = torch.tensor([[*src, EOS]])

    def after(ids):
        each = [log_p_after(model, source, ids) for model in models]
        log_p = torch.stack(each).logsumexp(dim=0) - math.log(len(each))
        if len(ids) <= len(prefix):
            only = torch.full_like(log_p, -math.inf)
            token = prefix[len(ids) - 1]
            only[token] = log_p[token]
            return only
        return log_p

    limit = min(output_limit(model, len(src), config) for model in models)
    for model in models:
        model.eval()
    with torch.no_grad():
        if config.beam == 1:
            return [greedy(after, limit, config)]
        return story.beam(after, limit, config)


def assert_equal(one, other, tolerance=1e-4):
    """The same hypotheses in the same order, with the same numbers."""
    assert [h.ids for h in one] == [h.ids for h in other]
    for a, b in zip(one, other, strict=True):
        for x, y in (
            (a.score, b.score),
            (a.log_probability, b.log_probability),
        ):
            assert x == pytest.approx(y, abs=tolerance, rel=1e-6)


@pytest.fixture(scope="module")
def half_trained():
    """A copier that has begun to copy: it ends its outputs, mostly."""
    model = random_model(0, sure=1.0, end=0.0, dropout=0.1)
    corpus = copy_corpus(1000, vocab=VOCAB, length=5, seed=1)
    config = TrainingConfig(batch_tokens=300, warmup=100, max_steps=120)
    list(Trainer(model, corpus, config).steps())
    return model


# --- by hand --------------------------------------------------------------

WORDS = [
    *SPECIALS,
    *["it", "the", "dogs", "is", "was", "dog", "barks", "loud"],
]
CHANCES = {
    "<s>": {"it": 0.45, "the": 0.40, "dogs": 0.15},
    "it": {"is": 0.6, "was": 0.4},
    "is": {"loud": 1.0},
    "was": {"loud": 1.0},
    "the": {"dog": 1.0},
    "dogs": {"</s>": 1.0},
    "dog": {"barks": 0.9, "</s>": 0.1},
    "barks": {"</s>": 1.0},
    "loud": {"</s>": 1.0},
}


class Table(torch.nn.Module):
    """A model whose next word depends on the last one alone."""

    def __init__(self):
        super().__init__()
        size = len(WORDS)
        self.config = TransformerConfig(src_vocab=size, tgt_vocab=size)
        rows = torch.zeros(size, size)
        rows[:, PAD] = 1e-9
        for last, following in CHANCES.items():
            for word, chance in following.items():
                rows[WORDS.index(last), WORDS.index(word)] = chance
        self.logits = torch.nn.Parameter(rows.log())

    def forward(self, src, tgt):
        return self.logits[tgt]


def texts(hypotheses):
    return [" ".join(WORDS[i] for i in h.ids) for h in hypotheses]


def test_greedy_search_decides_too_early():
    found = plain_beam_search(Table(), [], SearchConfig(beam=1))
    assert texts(found) == ["it is loud"]
    p = 0.45 * 0.6
    assert found[0].log_probability == pytest.approx(math.log(p), abs=1e-5)
    penalty = (9 / 6) ** 0.6  # three words and the end
    assert found[0].score == pytest.approx(math.log(p) / penalty, abs=1e-5)


def test_a_beam_of_two_finds_what_greedy_search_does_not():
    found = plain_beam_search(Table(), [], SearchConfig(beam=2))
    assert texts(found) == ["the dog barks"]
    p = 0.40 * 0.9
    assert found[0].log_probability == pytest.approx(math.log(p), abs=1e-5)


def test_alpha_decides_between_short_and_long():
    """ "dogs": 0.15 in 2 tokens, "it was loud": 0.45 · 0.3 in 4."""
    table = Table()
    with torch.no_grad():
        for word, chance in (("is", 0.7), ("was", 0.3)):
            table.logits[WORDS.index("it"), WORDS.index(word)] = math.log(
                chance
            )
    wide = SearchConfig(beam=8, nbest=8)
    ranks = {}
    for alpha in (0.0, 1.0):
        found = texts(
            plain_beam_search(table, [], replace(wide, alpha=alpha))
        )
        ranks[alpha] = found.index("dogs"), found.index("it was loud")
    assert ranks[0.0][0] < ranks[0.0][1]
    assert ranks[1.0][0] > ranks[1.0][1]


def test_impossible_sentences_are_not_given_back():
    found = plain_beam_search(Table(), [], SearchConfig(beam=12, nbest=12))
    assert set(texts(found)) == {
        "dogs",
        "it is loud",
        "it was loud",
        "the dog",
        "the dog barks",
    }


@pytest.mark.parametrize(
    ("length", "alpha", "penalty"),
    [
        (1, 0.6, 1.0),
        (7, 1.0, 2.0),
        (7, 0.5, 2**0.5),
        (19, 0.5, 2.0),
        (9, 0, 1),
    ],
)
def test_the_length_penalty_is_what_one_computes_by_hand(
    length, alpha, penalty
):
    assert length_penalty(length, alpha) == pytest.approx(penalty)


@pytest.mark.parametrize(
    ("scores", "best", "stops"),
    [
        # alpha 1 and a limit of 7: a live one can come to best / 2
        ([-1.0, -1.2, -1.5], -3.0, True),
        ([-1.0, -1.2, -1.5], -2.9, False),
        ([-1.0, -1.2], -30.0, False),
        ([], -30.0, False),
        ([], -math.inf, True),
        ([-1.0, -1.2], -math.inf, True),
    ],
)
def test_search_stops_where_the_last_of_the_best_is_out_of_reach(
    scores, best, stops
):
    ended = [Hypothesis([], 0.0, score) for score in scores]
    config = SearchConfig(alpha=1.0, nbest=3)
    assert settled(ended, best, 7, config) == stops


def test_a_search_of_the_plain_form_stops_early_too():
    model, steps = random_model(2, end=1e4), []
    model.register_forward_hook(lambda *_: steps.append(1))
    plain_beam_search(model, [4, 5], SearchConfig(beam=2, extra=30))
    assert len(steps) == 1


# --- where things lie -----------------------------------------------------


def test_what_a_search_makes_lies_where_the_model_does():
    """Not on the default device, which here is one without numbers."""
    model, config = random_model(3), SearchConfig(beam=2, extra=4)
    src = pad_rows([np.array([4, 5, 6])], after=EOS)
    limit = torch.tensor([7])
    expected = plain_beam_search(model, [4, 5, 6], config)
    weights = alignment(model, [4, 5, 6], [7])
    with torch.device("meta"):
        assert plain_beam_search(model, [4, 5, 6], config) == expected
        with evaluating(model):
            cache = KVCache(model, src.repeat_interleave(2, dim=0))
            [found] = grow_beams(cache, limit, config)
        assert torch.equal(alignment(model, [4, 5, 6], [7]), weights)
    assert_equal(found, expected)


def test_an_attention_may_bring_its_own_cache():
    class Halved(CachedSelfAttention):
        def queries(self, x):
            return super().queries(x) / 2

    class Own(MultiHeadAttention):
        def weights(self, x, memory=None, mask=None):
            return super().weights(
                x / 2, x if memory is None else memory, mask
            )

        def cache(self, memory):
            return Halved(self, memory)

    block = Own(16, 2, bias=False).double()
    x = torch.randn(2, 4, 16, dtype=torch.float64)
    past = cache_of(block, x[:, :1])
    rows = [past(x[:, i : i + 1]) for i in range(1, 4)]
    expected = block(x, mask=causal_mask(4))[:, 1:]
    torch.testing.assert_close(torch.cat(rows, dim=1), expected)
    plain = cache_of(MultiHeadAttention(16, 2), torch.randn(1, 3, 16))
    assert type(plain) is CachedSelfAttention and plain.k.size(2) == 3


def test_keys_of_the_source_are_made_once():
    model, made = random_model(3, end=-1e4), []
    for layer in model.decoder.layers:
        for part in (layer.cross_attention.w_k, layer.cross_attention.w_v):
            part.register_forward_hook(lambda *_: made.append(1))
    with evaluating(model):
        cache = KVCache(model, torch.tensor([[4, 5, EOS]]))
        for _ in range(6):
            cache.next_logits(torch.tensor([4]))
    assert len(made) == 2 * 2


class Own(MultiHeadAttention):
    def weights(self, x, memory=None, mask=None):
        return super().weights(0 * x, memory, mask)


def test_what_weighs_in_a_way_of_its_own_has_to_bring_its_cache():
    block, memory = Own(16, 2), torch.randn(1, 3, 16)
    for kind in (cache_of, CachedSelfAttention, CachedCrossAttention):
        with pytest.raises(TypeError, match="no cache for Own: translate"):
            kind(block, memory)
    block.cache = lambda memory: memory
    assert cache_of(block, memory) is memory


def test_the_fast_search_has_to_be_told_how_an_attention_turns():
    block, x = Own(16, 2), torch.randn(1, 2, 3, 8)
    with pytest.raises(TypeError, match="no cache for Own: translate with"):
        decoding.turning(block)
    block.turn = lambda heads, first: heads + first
    assert torch.equal(decoding.turning(block)(x, 2), x + 2)
    plain = MultiHeadAttention(16, 2)
    assert torch.equal(decoding.turning(plain)(x, 2), x)


@pytest.mark.parametrize("search", [beam_search, cached_beam_search])
@pytest.mark.parametrize("place", ["attention", "cross_attention"])
def test_no_block_of_a_decoder_is_cached_that_no_cache_knows(place, search):
    config = TransformerConfig(**SHAPE)
    model = Transformer(config)
    setattr(model.decoder.layers[0], place, Own(16, 2))
    with pytest.raises(TypeError, match="no cache for Own"):
        search(model, [[5, 6]], SearchConfig(limit=3))


def test_a_batch_goes_where_the_model_is():
    class Reached(Exception):
        pass

    def encode(src):
        raise Reached(src.device.type)

    model = random_model(3).to("meta")
    model.encode = encode
    with pytest.raises(Reached, match="^meta$"):
        cached_beam_search(model, [[4, 5]])


# --- the fast search is the plain one -------------------------------------


class Patient(decoding.BeamSearch):
    """Looks for finished sentences as seldom as on a GPU."""

    def __init__(self, *args):
        super().__init__(*args)
        self.patience = 8


@pytest.mark.parametrize("patience", [1, 8])
@pytest.mark.parametrize("beam", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_fast_and_plain_agree(kind, beam, patience, monkeypatch):
    """4 sentences on each of 30 models."""
    if patience == 8:
        monkeypatch.setattr(decoding, "BeamSearch", Patient)
    seed = 100 * beam + list(KINDS).index(kind)
    model = random_model(
        seed, sure=(1.0, 2.0, 4.0)[seed % 3], **KINDS[kind]
    )
    config = SearchConfig(
        beam=beam,
        alpha=(0.0, 0.6, 1.2)[beam % 3],
        extra=4,
        nbest=(beam + 1) // 2,
    )
    sentences = random_sentences(4, seed)
    fast = beam_search(model, sentences, config)
    cached = cached_beam_search(model, sentences, config)
    for sentence, one, two in zip(sentences, fast, cached, strict=True):
        plain = plain_beam_search(model, sentence, config)
        assert_equal(one, plain)
        assert_equal(two, plain)


def test_the_scores_are_those_of_the_whole_model():
    """log P by one pass over the output, and P / penalty, EOS counted."""
    model = random_model(3).eval()
    config = SearchConfig(extra=5, nbest=3)
    for sentence in random_sentences(6, 1):
        for h in beam_search(model, [sentence], config)[0]:
            src = torch.tensor([[*sentence, EOS]])
            with torch.no_grad():
                logits = model(src, torch.tensor([[BOS, *h.ids]]))
            log_p = logits.log_softmax(dim=-1)[0]
            total = sum(
                log_p[i, token].item()
                for i, token in enumerate([*h.ids, EOS])
            )
            assert h.log_probability == pytest.approx(total, abs=1e-4)
            penalty = ((5 + len(h.ids) + 1) / 6) ** 0.6
            assert h.score == pytest.approx(total / penalty, abs=1e-4)


def test_the_n_best_are_different_and_in_order():
    model = random_model(4, sure=1.0)
    config = SearchConfig(beam=6, nbest=6, extra=5)
    for hypotheses in beam_search(model, random_sentences(10, 2), config):
        assert len(hypotheses) == 6
        assert len({tuple(h.ids) for h in hypotheses}) == 6
        scores = [h.score for h in hypotheses]
        assert scores == sorted(scores, reverse=True)


def test_the_best_does_not_depend_on_how_many_are_asked_for():
    model, sentences = random_model(5), random_sentences(10, 3)
    one, three = (
        beam_search(model, sentences, SearchConfig(nbest=n, extra=5))
        for n in (1, 3)
    )
    for best, several in zip(one, three, strict=True):
        assert_equal(best, several[:1])


def patient_beam_search(model, src, config):
    """Beam search that never stops before the limit; no line is shared."""
    model.eval()
    source = torch.tensor([[*src, EOS]])
    limit = len(src) + config.extra
    beams = {(): 0.0}
    ended = {}
    for length in range(1, limit + 1):
        rows = torch.tensor([[BOS, *ids] for ids in beams])
        with torch.no_grad():
            logits = model(source.expand(len(rows), -1), rows)
        grown = {}
        chances = logits[:, -1].softmax(-1).tolist()
        for (ids, so_far), row in zip(beams.items(), chances, strict=True):
            for token, p in enumerate(row):
                if token not in (PAD, BOS):
                    grown[(*ids, token)] = so_far + math.log(p)
        order = sorted(grown, key=grown.get, reverse=True)
        first = order[: 2 * config.beam]
        if length == limit:
            first = order
        for ids in first:
            if ids[-1] == EOS:
                penalty = ((5 + length) / 6) ** config.alpha
                ended[ids[:-1]] = grown[ids] / penalty
        best = [ids for ids in order if ids[-1] != EOS][: config.beam]
        beams = {ids: grown[ids] for ids in best}
    best = sorted(ended, key=ended.get, reverse=True)[: config.nbest]
    return [(list(ids), ended[ids]) for ids in best]


EARLY = range(4, 8)  # among them are models that want to end


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
def test_stopping_early_loses_nothing(alpha):
    early = 0
    for seed in EARLY:
        model = random_model(seed, sure=3.0, end=-3.0)
        config = SearchConfig(
            beam=3, alpha=alpha, extra=12, nbest=1 + seed % 3
        )
        for sentence in random_sentences(2, seed):
            found, steps = watched(model, sentence, config)
            patient = patient_beam_search(model, sentence, config)
            assert [h.ids for h in found] == [ids for ids, _ in patient]
            scores = [score for _, score in patient]
            assert [h.score for h in found] == pytest.approx(
                scores, abs=1e-4
            )
            early += steps < len(sentence) + 12
    assert early > 0  # else nothing was tested


def watched(model, sentence, config):
    """What beam_search finds and how many steps it took."""
    steps = 0
    before = BeamSearch.next_log_p

    def count(search):
        nonlocal steps
        steps += 1
        return before(search)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BeamSearch, "next_log_p", count)
        found = beam_search(model, [sentence], config)[0]
    return found, steps


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_a_beam_as_wide_as_the_language_finds_the_best_of_all(alpha):
    """All 364 sentences of at most 5 tokens out of 3."""
    every = [
        list(ids)
        for n in range(6)
        for ids in itertools.product(range(3, 6), repeat=n)
    ]
    tgt = pad_rows([np.array(ids, dtype=int) for ids in every], before=BOS)
    labels = pad_rows(
        [np.array(ids, dtype=int) for ids in every], after=EOS
    )
    real = labels != PAD
    missed = 0
    for seed in range(6):
        model = random_model(
            seed, 3.0, -4.0, src_vocab=6, tgt_vocab=6
        ).eval()
        sentence = random_sentences(1, seed, longest=2, vocab=6)[0]
        source = torch.tensor([[*sentence, EOS]]).expand(len(every), -1)
        with torch.no_grad():
            log_p = model(source, tgt).log_softmax(dim=-1)
        log_p = log_p.gather(2, labels[:, :, None]).squeeze(2) * real
        penalty = ((5 + real.sum(1)) / 6) ** alpha
        scores = log_p.sum(1) / penalty
        config = SearchConfig(
            beam=3**5, alpha=alpha, extra=6 - len(sentence), nbest=5
        )
        found = beam_search(model, [sentence], config)[0]
        best = scores.topk(5)
        assert [h.ids for h in found] == [every[i] for i in best.indices]
        values = best.values.tolist()
        assert [h.score for h in found] == pytest.approx(values, abs=1e-4)
        narrow = replace(config, beam=1, nbest=1)
        greedy = beam_search(model, [sentence], narrow)[0][0]
        missed += greedy.ids != found[0].ids
    assert missed > 0  # else the task is too easy to test anything


def test_fast_and_plain_agree_on_a_model_that_has_learned(half_trained):
    sentences = random_sentences(20, 6)
    lengths = set()
    for width in (1, 2, 5):
        config = SearchConfig(beam=width, nbest=(width + 1) // 2, extra=10)
        found = beam_search(half_trained, sentences, config)
        for sentence, hypotheses in zip(sentences, found, strict=True):
            plain = plain_beam_search(half_trained, sentence, config)
            assert_equal(hypotheses, plain)
            lengths.add(len(hypotheses[0].ids) - len(sentence))
    assert 0 in lengths  # it has learned to end
    assert len(lengths) > 1  # and is not perfect


# --- greedy ---------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_beam_of_one_is_the_argmax_loop(kind):
    model = random_model(7, end=2.0, **KINDS[kind]).eval()
    sentences = random_sentences(12, 5)
    found = beam_search(model, sentences, SearchConfig(beam=1, extra=6))
    for sentence, [h] in zip(sentences, found, strict=True):
        src, out = torch.tensor([[*sentence, EOS]]), [BOS]
        while len(out) < len(sentence) + 6:
            with torch.no_grad():
                logits = model(src, torch.tensor([out]))[0, -1]
            logits[[PAD, BOS]] = -math.inf
            if int(logits.argmax()) == EOS:
                break
            out.append(int(logits.argmax()))
        assert h.ids == out[1:]
        plain = plain_beam_search(model, sentence, SearchConfig(1, 0.6, 6))
        assert_equal([h], plain)


# --- the cache ------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_with_a_cache_gives_the_logits_of_the_whole_model(kind):
    model = random_model(11, **KINDS[kind]).eval()
    src = pad_rows(
        [np.array(s) for s in ([5, 6, 7, 8], [9], [4, 4])], after=EOS
    )
    tgt = torch.randint(3, VOCAB, (3, 9))
    tgt[:, 0] = BOS
    with torch.no_grad():
        slots, cache = SlotCache(model, src, slots=9), KVCache(model, src)
        for step in range(9):
            seen = torch.ones(3, 1, step + 1, dtype=torch.bool)
            fast = slots.next_logits(tgt[:, [step]], seen)[:, 0]
            plain = cache.next_logits(tgt[:, step])
            whole = model(src, tgt[:, : step + 1])[:, -1]
            for logits in (fast, plain):
                torch.testing.assert_close(
                    logits, whole, atol=1e-5, rtol=1e-5
                )


@pytest.mark.parametrize("window", [None, 5])
def test_a_hypothesis_sees_the_slots_it_came_through(window):
    """Two hypotheses per sentence, that cross, and sentences that leave."""
    model = random_model(12, window=window).eval()
    src = pad_rows(
        [np.array(s) for s in ([5, 6, 7], [9], [4, 4])], after=EOS
    )
    left = [0, 1, 2]
    past = torch.full((3, 2, 1), BOS)  # what each has written
    seen = torch.ones(3, 1, 1, dtype=torch.bool)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        cache = SlotCache(model, src, slots=1 + 2 * 7)
        for step in range(8):
            width = seen.size(1)
            ids = past[:, :width, -1]
            logits = cache.next_logits(ids, seen).flatten(0, 1)
            rows = past[:, :width].flatten(0, 1)
            whole = model(src[left].repeat_interleave(width, 0), rows)
            torch.testing.assert_close(
                logits, whole[:, -1], atol=1e-5, rtol=1e-5
            )
            if step == 4:  # sentence 0 is done: the last takes its place
                done = torch.tensor([True, False, False])
                cache.keep(closing(done))
                left, past, seen = [2, 1], past[[2, 1]], seen[[2, 1]]
            parent = torch.randint(width, (len(left), 2), generator=draw)
            rows = parent[:, :, None]
            past = past[:, :width].gather(1, rows.expand(-1, -1, step + 1))
            new = torch.randint(3, VOCAB, (len(left), 2, 1), generator=draw)
            past = torch.cat([past, new], dim=2)
            seen = seen.gather(1, rows.expand(-1, -1, seen.size(2)))
            itself = torch.eye(2, dtype=torch.bool).expand(len(left), 2, 2)
            seen = torch.cat([seen, itself], dim=2)


def test_the_source_is_remembered_once_per_sentence():
    model = random_model(0)
    src = torch.full((3, 5), 7)
    cache = SlotCache(model, src, slots=33)
    for kept in cache.source:
        assert kept.k.shape == kept.v.shape == (3, 2, 5, 8)
    for kept in cache.target:
        assert kept.k.shape == kept.v.shape == (3, 2, 33, 8)


# --- independence ---------------------------------------------------------

MODEL = random_model(21)
lines = st.lists(
    st.lists(st.integers(len(SPECIALS), VOCAB - 1), max_size=9),
    min_size=1,
    max_size=8,
)


@settings(max_examples=8, deadline=None)
@given(sentences=lines, beam=st.integers(1, 4), data=st.data())
def test_a_sentence_does_not_feel_its_neighbours(sentences, beam, data):
    """Whatever their order, their number and their length."""
    config = SearchConfig(beam=beam, extra=4, nbest=beam)
    together = beam_search(MODEL, sentences, config)
    order = data.draw(st.permutations(range(len(sentences))))
    shuffled = beam_search(MODEL, [sentences[i] for i in order], config)
    size = data.draw(st.integers(1, 30))
    batched = search_in_order(MODEL, sentences, config, batch_tokens=size)
    for place, i in enumerate(order):
        alone = beam_search(MODEL, [sentences[i]], config)[0]
        assert_equal(together[i], alone)
        assert_equal(shuffled[place], alone)
        assert_equal(batched[i], alone)


def test_results_come_back_in_the_order_given():
    sentences = random_sentences(20, 8, longest=20)
    config = SearchConfig(beam=2, extra=3)
    found = search_in_order(MODEL, sentences, config, batch_tokens=50)
    expected = [beam_search(MODEL, [s], config)[0] for s in sentences]
    for one, other in zip(found, expected, strict=True):
        assert_equal(one, other)


@pytest.fixture
def two_cores(monkeypatch):
    """Wherever the test runs."""
    monkeypatch.setattr(decoding, "cores", lambda: 2)


def test_it_does_not_matter_who_searches(two_cores):
    sentences = random_sentences(90, 8, longest=20)
    config = SearchConfig(beam=2, extra=3, nbest=2)
    wish = [[4]] * len(sentences)
    expected = search_in_order(MODEL, sentences, config, prefixes=wish)
    before = torch.get_rng_state(), torch.get_num_threads()
    found = search_in_order(
        MODEL, sentences, config, prefixes=wish, workers=2
    )
    for one, other in zip(found, expected, strict=True):
        assert_equal(one, other)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.get_num_threads() == before[1]


class Mortal(Transformer):
    """Works where it was made, and dies elsewhere."""

    def encode(self, src):
        if parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(src)


class Sleeper(Transformer):
    """Works where it was made, and hangs elsewhere."""

    def encode(self, src):
        if parent_process() is not None:
            time.sleep(600)
        return super().encode(src)


def test_a_worker_that_dies_is_noticed(two_cores):
    model = Mortal(MODEL.config).eval()
    few = random_sentences(5, 8)
    search_in_order(model, few, workers=2)  # not worth a process
    many = few * 40
    with pytest.raises(
        RuntimeError, match="process died with exit code -9"
    ):
        search_in_order(model, many, workers=2)


def test_a_worker_that_hangs_is_noticed(two_cores, monkeypatch):
    monkeypatch.setattr(decoding, "HANGS", 0.5)
    model = Sleeper(MODEL.config).eval()
    before = active_children()  # torch.compile keeps some of its own
    with pytest.raises(RuntimeError, match="no answer in"):
        search_in_order(model, random_sentences(200, 8), workers=2)
    assert set(active_children()) <= set(before)


class Complains(Transformer):
    """Works where it was made, and fails elsewhere."""

    def encode(self, src):
        if parent_process() is not None:
            raise MemoryError("all of it is full")
        return super().encode(src)


def test_why_a_worker_failed_is_told(two_cores):
    model = Complains(MODEL.config).eval()
    with pytest.raises(MemoryError, match="all of it is full") as told:
        search_in_order(model, random_sentences(200, 8), workers=2)
    # where it happened
    assert "in encode" in str(told.value.__cause__)


@pytest.mark.slow
def test_processes_may_be_spawned(two_cores, monkeypatch):
    """As on macOS and Windows, where nothing is inherited."""
    monkeypatch.setattr(sys, "platform", "darwin")
    names = [*SPECIALS, "(S", ")S", "DT", "NN", *"abc"]
    model = Transformer(MODEL.config).eval()
    sentences = random_sentences(90, 8, longest=8)
    search = SearchConfig(beam=2, extra=4)
    guide = OnlyTrees(names)
    expected = search_in_order(model, sentences, search, guide=guide)
    found = search_in_order(
        model, sentences, search, guide=guide, workers=2
    )
    for one, other in zip(found, expected, strict=True):
        assert_equal(one, other)


def test_what_cannot_be_sent_to_a_process_is_told(two_cores, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(
        (AttributeError, pickle.PicklingError), match="pickle"
    ):
        search_in_order(
            Transformer(MODEL.config),
            random_sentences(200, 8),
            workers=2,
            guide=lambda *_: None,
        )


def test_a_model_on_another_device_gets_no_copies_of_this_process(
    two_cores, monkeypatch
):
    """A context of CUDA does not survive a fork."""
    monkeypatch.setattr(decoding, "in_processes", None)
    model = Transformer(MODEL.config).to("meta")
    with pytest.raises(RuntimeError, match="(?i)meta tensors"):
        search_in_order(model, random_sentences(200, 8), workers=2)


def test_arrays_and_corpora_can_be_searched():
    sentences = random_sentences(5, 9)
    expected = beam_search(MODEL, sentences)
    for form in (Sentences.of(sentences), [np.array(s) for s in sentences]):
        for one, other in zip(
            beam_search(MODEL, form), expected, strict=True
        ):
            assert_equal(one, other)


# --- the best of many -----------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 3),
    width=st.integers(1, 5),
    vocab=st.integers(5, 200),
    ranks=st.integers(1, 10),
    seed=st.integers(0, 999),
)
def test_the_best_continuations_are_found(batch, width, vocab, ranks, seed):
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randn(batch, width, generator=draw)
    log_p = torch.randn(batch, width, vocab, generator=draw)
    log_p[torch.rand(log_p.shape, generator=draw) < 0.3] = -math.inf
    best, parent, token = best_continuations(scores, log_p, ranks)
    totals = scores[:, :, None] + log_p
    most = min(ranks, width * vocab)
    assert torch.equal(best, totals.flatten(1).topk(most)[0])
    rows = torch.arange(batch)[:, None]
    assert torch.equal(best, totals[rows, parent, token])
    for row, real in zip(parent * vocab + token, best > -math.inf):
        assert len(row[real].unique()) == int(real.sum())


# --- prefixes, ensembles, attention ---------------------------------------


@pytest.mark.parametrize("beam", [1, 3])
def test_an_output_begins_with_its_prefix(beam):
    """Prefixes of different lengths, one of them none, in one batch."""
    model = random_model(3)
    sentences = random_sentences(8, 2, longest=5)
    draw = np.random.default_rng(1)
    prefixes = [draw.integers(3, VOCAB, n % 4).tolist() for n in range(8)]
    config = SearchConfig(beam=beam, extra=6, nbest=beam)
    found = beam_search(model, sentences, config, prefixes)
    ordered = search_in_order(
        model, sentences, config, batch_tokens=9, prefixes=prefixes
    )
    for src, prefix, one, two in zip(
        sentences, prefixes, found, ordered, strict=True
    ):
        assert_equal(one, by_the_book([model], src, config, prefix))
        assert_equal(one, two)
        for h in one:
            assert h.ids[: len(prefix)] == prefix


def test_a_prefix_is_paid_for_like_any_words():
    """What search found, given as a prefix, has the score it had."""
    model = random_model(5)
    config = SearchConfig(extra=8)
    [best] = beam_search(model, [[4, 5, 6]], config)[0]
    config = SearchConfig(limit=len(best.ids) + 1)
    begun = beam_search(model, [[4, 5, 6]], config, [best.ids])
    assert_equal(begun[0], [best])


@pytest.mark.parametrize(
    ("prefix", "complaint"),
    [
        ([4] * 9, "prefix of 9 tokens"),
        ([4, EOS], "token 2 is not a word"),
        ([PAD], "token 0 is not a word"),
        ([VOCAB], f"token {VOCAB} is not a word"),
        ([-1], "token -1 is not a word"),
    ],
)
@pytest.mark.parametrize("beam", [1, 2])
def test_a_prefix_that_cannot_be_is_refused(prefix, complaint, beam):
    config = SearchConfig(beam=beam, extra=7)
    with pytest.raises(ValueError, match=complaint):
        beam_search(MODEL, [[4, 5]], config, [prefix])


@pytest.mark.parametrize("beam", [1, 3])
def test_several_models_vote(beam):
    models = [random_model(seed) for seed in range(3)]
    config = SearchConfig(beam=beam, extra=5, nbest=beam)
    sentences = random_sentences(6, 12, longest=5)
    found = beam_search(models, sentences, config)
    for sentence, one in zip(sentences, found, strict=True):
        assert_equal(one, by_the_book(models, sentence, config))
    differ = [
        [h.ids for h in one] != [h.ids for h in two]
        for one, two in zip(
            found, beam_search(models[0], sentences, config), strict=True
        )
    ]
    assert any(differ)


def test_a_model_agrees_with_itself():
    config = SearchConfig(extra=5, nbest=2)
    sentences = random_sentences(6, 13, longest=5)
    twice = beam_search([MODEL, MODEL], sentences, config)
    for one, two in zip(beam_search(MODEL, sentences, config), twice):
        assert_equal(one, two)


def test_the_vote_is_the_mean_of_probabilities():
    models = [random_model(seed, end=0.0).eval() for seed in (1, 2)]
    [h] = beam_search(models, [[4, 5]], SearchConfig(beam=1, limit=1))[0]
    src, tgt = torch.tensor([[4, 5, EOS]]), torch.tensor([[BOS]])
    with torch.no_grad():
        p = [m(src, tgt)[0, 0].softmax(-1)[EOS].item() for m in models]
    assert h.ids == []
    found = math.exp(h.log_probability)
    assert found == pytest.approx(sum(p) / 2, rel=1e-5)  # both float32


def test_the_attention_of_an_output_is_the_models():
    model = random_model(4).eval()
    found = alignment(model, [4, 5, 6], [7, 8])
    assert found.shape == (2, 2, 3, 4)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 2, 3))
    maps = model.attention_maps(
        torch.tensor([[4, 5, 6, EOS]]), torch.tensor([[BOS, 7, 8]])
    )
    assert torch.equal(found[1], maps["cross.1"][0])


# --- limits and edges -----------------------------------------------------


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("search", ["fast", "cached", "plain"])
def test_no_output_is_longer_than_allowed(beam, search):
    """A model that never wants to end: source + extra tokens with EOS."""
    model = random_model(2, end=-1e4)
    config = SearchConfig(beam=beam, extra=3)
    for sentence in ([], [4], [4, 5, 6, 7, 8]):
        if search == "fast":  # together with a longer one
            found = beam_search(model, [sentence, [5] * 12], config)[0]
        elif search == "cached":
            pair = [sentence, [5] * 12]
            found = cached_beam_search(model, pair, config)[0]
        else:
            found = plain_beam_search(model, sentence, config)
        assert len(found[0].ids) == len(sentence) + 3 - 1


@pytest.mark.parametrize("beam", [1, 3])
def test_a_model_that_ends_at_once_says_nothing(beam):
    model = random_model(2, end=1e4)
    found = beam_search(model, [[4, 5], []], SearchConfig(beam=beam))
    assert [h[0].ids for h in found] == [[], []]
    assert found[0][0].score == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("beam", [1, 4])
def test_an_output_has_words_only(beam):
    """Even where padding and the start symbol are the likeliest."""
    model = random_model(6)
    with torch.no_grad():
        model.embeddings.bias[[PAD, BOS]] += 10.0
    config = SearchConfig(beam=beam, extra=6, nbest=beam)
    for hypotheses in beam_search(model, random_sentences(6, 4), config):
        for h in hypotheses:
            assert not {PAD, BOS, EOS} & set(h.ids)


def test_where_nothing_goes_in_nothing_comes_out():
    assert beam_search(MODEL, []) == []
    assert search_in_order(MODEL, []) == []


def test_an_empty_sentence_has_an_answer():
    [found] = beam_search(MODEL, [[]], SearchConfig(extra=4))
    assert_equal(found, plain_beam_search(MODEL, [], SearchConfig(extra=4)))
    assert len(found[0].ids) < 4


@pytest.mark.parametrize("beam", [3, 9, 40])
def test_a_beam_may_be_wider_than_the_vocabulary(beam):
    model = random_model(8, src_vocab=5, tgt_vocab=5)
    config = SearchConfig(beam=beam, extra=2, nbest=beam)
    for sentence in ([], [4], [4, 4, 3]):
        [found] = beam_search(model, [sentence], config)
        assert_equal(found, plain_beam_search(model, sentence, config))
        assert_equal(
            found, cached_beam_search(model, [sentence], config)[0]
        )
        # with two words: all sentences of at most length + 1 of them
        sentences = 2 ** (len(sentence) + 2) - 1
        assert len(found) == min(beam, sentences)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_limit_is_for_all(beam):
    model = random_model(2, end=-1e4)
    config = SearchConfig(beam=beam, extra=30, limit=6)
    for [h] in beam_search(model, [[4] * 9, []], config):
        assert len(h.ids) == 5
    assert_equal(
        beam_search(model, [[4]], config)[0],
        plain_beam_search(model, [4], config),
    )


@pytest.mark.parametrize("kind", ["paper", "window"])
def test_a_long_output_is_the_same_after_many_compactions(kind):
    """Slots that no hypothesis needs any more are thrown away."""
    model = random_model(9, sure=1.0, end=-6.0, **KINDS[kind])
    config = SearchConfig(beam=3, extra=40, nbest=2)
    sentences = [[4, 5, 6], [], [7] * 9]
    found = beam_search(model, sentences, config)
    assert max(len(best[0].ids) for best in found) > 30
    for sentence, one in zip(sentences, found, strict=True):
        assert_equal(one, plain_beam_search(model, sentence, config))


def test_an_end_has_to_be_among_the_best():
    """As in the paper's code: an unlikely end is not looked at, though
    the empty output would have had the best score of all.
    """
    model = random_model(2, sure=4.0, end=-4.0)
    config = SearchConfig(beam=2, alpha=0.0, extra=6)
    [h] = beam_search(model, [[4, 5, 6]], config)[0]
    src, tgt = torch.tensor([[4, 5, 6, EOS]]), torch.tensor([[BOS]])
    with torch.no_grad():
        first = model.eval()(src, tgt)[0, 0].log_softmax(-1)
    assert int((first > first[EOS]).sum()) >= 4
    assert first[EOS] > h.log_probability
    assert h.ids != []


def test_learned_positions_end_the_output():
    model = random_model(1, end=-1e4, positions="learned", max_len=8)
    config = SearchConfig(beam=2, extra=50)
    assert output_limit(model, 5, config) == 8
    [found] = beam_search(model, [[4] * 5], config)
    assert len(found[0].ids) == 7
    assert_equal(found, plain_beam_search(model, [4] * 5, config))
    assert_equal(found, cached_beam_search(model, [[4] * 5], config)[0])


@pytest.mark.parametrize("search", [beam_search, plain_beam_search])
def test_a_source_beyond_learned_positions_is_refused(search):
    model = random_model(1, positions="learned", max_len=8)
    source = [4] * 8  # and EOS
    with pytest.raises(ValueError, match="9 tokens, but max_len is 8"):
        search(
            model,
            [source] if search is beam_search else source,
            SearchConfig(),
        )


def test_sinusoids_grow_and_the_model_still_trains():
    """An output beyond the table of positions, then a step of training."""
    model = random_model(1, end=-1e4, dropout=0.0)
    known = len(model.tgt_positions.table)
    config = SearchConfig(beam=1, extra=known)
    [found] = beam_search(model, [[4] * 20], config)
    assert len(found[0].ids) == known + 19
    assert len(model.tgt_positions.table) > known
    corpus = copy_corpus(20, vocab=VOCAB)
    config = TrainingConfig(batch_tokens=100, max_steps=3, warmup=5)
    assert len(list(Trainer(model, corpus, config).steps())) == 3


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("beam", [1, 2])
def test_search_leaves_the_model_as_it_was(training, beam):
    model = random_model(1).train(training)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    random_state = torch.get_rng_state()
    config = SearchConfig(beam=beam, extra=3)
    one = beam_search(model, [[4, 5]], config)[0]
    assert_equal(one, plain_beam_search(model, [4, 5], config))
    assert all(m.training is training for m in model.modules())
    assert torch.equal(torch.get_rng_state(), random_state)
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
        assert p.grad is None


def test_float64_models_can_be_searched():
    model = random_model(3).double()
    config = SearchConfig(extra=4, nbest=2)
    for sentence in random_sentences(4, 3):
        [found] = beam_search(model, [sentence], config)
        assert_equal(found, plain_beam_search(model, sentence, config))


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.qint8])
def test_in_fewer_bits_the_easy_answers_are_the_same(
    half_trained, beam, dtype
):
    """The weights are converted, the caller's stay; scores are float32."""
    model = Transformer(half_trained.config)
    model.load_state_dict(half_trained.state_dict())
    before = model.embeddings.target.detach().clone()
    sentences = random_sentences(40, 6)
    config = SearchConfig(beam=beam, extra=10)
    exact = search_in_order(model, sentences, config)
    rough = search_in_order(converted(model, dtype), sentences, config)
    after = model.embeddings.target
    assert after.dtype == torch.float32 and torch.equal(before, after)
    pairs = [(a[0], b[0]) for a, b in zip(exact, rough, strict=True)]
    assert [a.ids for a, _ in pairs] != [[] for _ in pairs]
    # of these answers some hang by a hair; by how many, the rounding of a
    # processor decides, with which the model was trained: 35 to 40 seen
    same = [(a, b) for a, b in pairs if a.ids == b.ids]
    assert len(same) >= 0.75 * len(pairs)
    gaps = [abs(a.score - b.score) for a, b in same]
    # other numbers, and not by much; how far off a single score can be
    # depends on the weights, and these on torch's version
    assert 0 < sum(gaps) / len(gaps) < 0.15
    # a number of bfloat16 ends with sixteen zeros
    scores = torch.tensor([b.score for _, b in pairs])
    assert (scores.view(torch.int32) % 2**16 != 0).any()


def test_in_float32_only_the_place_of_the_weights_changes(half_trained):
    model = Transformer(half_trained.config)
    model.load_state_dict(half_trained.state_dict())
    turned = converted(model, torch.float32)
    layer = model.encoder.layers[0].feed_forward
    other = turned.encoder.layers[0].feed_forward
    pairs = [(a, getattr(other, n)) for n, a in layer.named_children()]
    linear = [pair for pair in pairs if type(pair[0]) is torch.nn.Linear]
    assert linear
    for a, b in linear:
        assert a.weight.is_contiguous() and b.weight.t().is_contiguous()
    for name, weight in turned.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name])
    sentences = random_sentences(20, 6)
    config = SearchConfig(extra=10)
    for sentence in sentences:
        [exact], [found] = (
            beam_search(m, [sentence], config) for m in (model, turned)
        )
        assert_equal(exact, found)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, 0) for field in ("beam", "extra", "nbest", "limit")),
        *((field, 1.5) for field in ("beam", "extra", "nbest", "limit")),
        ("alpha", -0.1),
        ("alpha", math.inf),
        ("alpha", math.nan),
    ],
)
def test_a_wrong_field_is_named(field, value):
    with pytest.raises(ValueError, match=rf"^{field} must "):
        SearchConfig(**{field: value})


def test_more_cannot_be_given_back_than_were_kept():
    with pytest.raises(ValueError, match="nbest 5 is more than beam 4"):
        SearchConfig(nbest=5)


def test_the_defaults_are_the_papers():
    assert SearchConfig() == SearchConfig(
        beam=4, alpha=0.6, extra=50, nbest=1
    )


def test_a_finished_sentence_changes_no_more():
    """On a GPU it stays in the batch for a while."""
    search = decoding.BeamSearch(
        [Transformer(MODEL.config)], [[4, 5]], SearchConfig(beam=2), [()]
    )
    search.length = 1
    one = torch.tensor([[-0.1]]), torch.tensor([[0]]), torch.tensor([[EOS]])
    search.beams.done[:] = True
    search.end(*one)
    assert search.beams.ended.tolist() == [[-math.inf]]
    search.beams.done[:] = False
    search.end(*one)
    assert search.beams.ended.item() == pytest.approx(-0.1)


# --- the engine's search, one part at a time ------------------------------


def begun(beam=2, count=1, **config):
    """A search before its first step, as many words in each sentence."""
    given = [[4, 5]] * count
    search = SearchConfig(beam=beam, **config)
    model = Transformer(MODEL.config).eval()
    return decoding.BeamSearch([model], given, search, [()] * count)


def test_what_the_fast_search_makes_lies_where_the_model_does(monkeypatch):
    """Not on the default device, which here is one without numbers."""

    def rows_of_numpy(*args, **more):
        return torch.from_numpy(pad_rows(*args, **more).numpy())

    monkeypatch.setattr(decoding, "pad_rows", rows_of_numpy)
    model = random_model(3)
    for beam in (1, 2):
        config = SearchConfig(beam=beam, extra=10, nbest=beam)
        sentences = [[4, 5, 6], [7]]
        wish = [[5], []]
        expected = beam_search(model, sentences, config, wish)
        with torch.device("meta"):
            found = beam_search(model, sentences, config, wish)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)


def test_the_fast_search_tells_what_turns_a_key_where_it_stands():
    told = []

    def turn(heads, first):
        told.append((heads.shape[2:4], first))
        return heads

    block = random_model(3).decoder.layers[0].attention
    block.turn = turn
    past = decoding._SlotAttention(block, torch.zeros(1, 4, 16), slots=5)
    past(torch.randn(1, 1, 16), None)
    past(torch.randn(1, 2, 16), None)
    past(torch.randn(1, 2, 16), None)
    # a key and a query of each hypothesis; one position for all of them
    one, two, three = ((1, 1), 0), ((2, 1), 1), ((2, 1), 2)
    assert told == [one, one, two, two, three, three]
    assert past.used == 5


def test_there_is_a_slot_for_each_token_but_the_last():
    search = begun(beam=3, limit=7)
    [cache] = search.caches
    assert [part.k.size(2) for part in cache.target] == [1 + 6 * 3] * 2
    assert [part.v.size(2) for part in cache.target] == [1 + 6 * 3] * 2


def test_where_nothing_is_padding_nothing_is_masked():
    model = Transformer(MODEL.config)
    full, mixed = (
        pad_rows([np.array(s) for s in sentences], after=EOS)
        for sentences in ([[4, 5], [6, 7]], [[4, 5], [6]])
    )
    assert SlotCache(model, full, slots=1).words is None
    assert SlotCache(model, mixed, slots=1).words is not None


def test_a_gpu_is_asked_less_often_who_has_finished(monkeypatch):
    asked = []
    monkeypatch.setattr(decoding, "SlotCache", lambda _, src, slots: src)
    for place, patience in (("cpu", 1), ("meta", 8)):
        model = Transformer(MODEL.config).to(place)
        search = decoding.BeamSearch(
            [model], [[4]], SearchConfig(), [()],
            lambda some, where: asked.append((some, where.type)) or "it",
        )  # fmt: skip
        assert search.patience == patience and search.allowed == "it"
        some = *search.caches, *vars(search.beams).values()
        assert {tensor.device.type for tensor in some} == {place}
    assert asked == [([[4]], "cpu"), ([[4]], "meta")]


def test_slots_are_looked_through_every_eighth_step(monkeypatch):
    looked = []

    def note(search, seen):
        looked.append(search.length)
        return seen

    monkeypatch.setattr(decoding.BeamSearch, "compacted", note)
    model = random_model(2, end=-1e4)
    beam_search(model, [[4]], SearchConfig(beam=2, limit=26))
    assert looked == [8, 16, 24]


@pytest.mark.parametrize(
    ("used", "kept"),
    [
        ([[1, 0, 1, 1], [1, 0, 0, 0]], [[0, 2, 3], [0, 1, 2]]),
        ([[1, 0, 1, 1, 1]], None),  # four of five are too many
        ([[0, 0, 1, 0, 1, 0]], [[2, 4]]),
    ],
)
def test_slots_that_nobody_uses_are_dropped_in_order(used, kept):
    """Where a quarter of them can go: of all sentences as many."""
    search, asked = begun(count=len(used)), []
    monitor = [type("Cache", (), {"compact": asked.append})]
    search.caches = monitor
    seen = torch.tensor(used).bool()[:, None].expand(-1, 2, -1).clone()
    seen[:, 1] = False  # of two hypotheses, one has come through them
    found = search.compacted(seen)
    if kept is None:
        assert not asked and found is seen
        return
    assert [places.tolist() for places in asked] == [kept]
    assert found.shape == (len(used), 2, len(kept[0]))
    assert found[:, 0].sum(1).tolist() == [sum(row) for row in used]
    assert not found[:, 1].any()


@pytest.mark.parametrize(
    ("ended", "hope", "done"),
    [(-1.0, -1.0, True), (-1.1, -1.0, False), (-0.9, -1.0, True)],
)
def test_a_sentence_is_done_that_nothing_can_improve(ended, hope, done):
    search = begun(beam=2, alpha=0.0)
    search.length = 1
    search.beams.ended[:] = ended
    search.beams.scores[:] = hope
    search.retire()
    assert len(search.beams.number) == (0 if done else 1)
    assert len(search.results[0]) == (1 if done else 0)


def test_a_guide_decides_which_words_may_follow():
    """Here only one that is larger than the last, or the end."""

    def guide(sentences, device):
        def allowed(ids, numbers):
            assert [sentences[i] for i in numbers.tolist()]
            words = torch.arange(VOCAB, device=device)
            return (words > ids[:, :, -1:]) | (words == EOS)

        return allowed

    model, sentences = random_model(3), random_sentences(6, 4)
    config = SearchConfig(beam=3, nbest=2, extra=9)
    guided = beam_search(model, sentences, config, guide=guide)
    for hypotheses in guided:
        assert all(h.ids == sorted(set(h.ids)) for h in hypotheses)
    free = beam_search(model, sentences, config)
    assert any(a[0].ids != b[0].ids for a, b in zip(guided, free))
    ordered = search_in_order(
        model, sentences, config, batch_tokens=9, guide=guide
    )
    for one, other in zip(guided, ordered, strict=True):
        assert_equal(one, other)


def test_a_prefix_for_each_sentence_or_none():
    with pytest.raises(ValueError, match="argument 2"):
        beam_search(MODEL, [[4]], SearchConfig(), [[], []])
    [[best]] = beam_search(MODEL, [[4]], SearchConfig(), [[3]])
    assert best.ids[0] == 3  # the unknown word is one


# --- batches, and who searches them ---------------------------------------


@pytest.mark.parametrize(
    ("tokens", "size", "batches"),
    [
        (100, 10, [[4, 2, 0, 3, 1]]),
        (12, 10, [[4, 2], [0, 3, 1]]),  # 6 + 6, 4 + 4 + 4
        (11, 10, [[4], [2, 0], [3, 1]]),
        (100, 2, [[4, 2], [0, 3], [1]]),
        (3, 10, [[4], [2], [0], [3], [1]]),  # none is left out
    ],
)
def test_batches_are_cut_from_the_longest_on(tokens, size, batches):
    """By hand: lengths 3, 0, 4, 2, 5, and an end; padding counts."""
    sentences = [[4] * n for n in (3, 0, 4, 2, 5)]
    found = decoding.batches_by_length(sentences, tokens, size)
    assert found == batches


@pytest.fixture
def planned(two_cores, monkeypatch):
    """What search_in_order plans, where nothing is searched."""
    found = []

    def batches(sentences, tokens, size):
        found.append((tokens, size))
        return [[i] for i in range(len(sentences))]

    def processes(job, batches, workers):
        found.append(workers)
        return []

    monkeypatch.setattr(decoding, "batches_by_length", batches)
    monkeypatch.setattr(decoding, "in_processes", processes)
    monkeypatch.setattr(
        decoding, "beam_search", lambda *args: [[] for _ in args[1]]
    )
    return found


@pytest.mark.parametrize(
    ("lengths", "options", "plan"),
    [
        ([5], {}, [(2000, 128)]),
        ([5] * 3, {"batch_tokens": 7, "batch_size": 2}, [(7, 2)]),
        # 1,200 tokens with the ends: half of them for each of two …
        ([5] * 200, {"workers": 2}, [(600, 128), 2]),
        ([5] * 201, {"workers": 9}, [(603, 128), 2]),
        ([5] * 200 + [0], {"workers": 2}, [(601, 128), 2]),
        ([5] * 200, {"workers": 2, "batch_tokens": 9}, [(9, 128), 2]),
        # … or as many as are worth a process, and one batch for one
        ([5] * 9, {"workers": 2}, [(300, 128), 2]),
        ([5], {"workers": 2}, [(300, 128)]),
        ([5] * 9, {"workers": 1}, [(2000, 128)]),
    ],
)
def test_each_process_gets_its_share(planned, lengths, options, plan):
    sentences = [[4] * n for n in lengths]
    search_in_order(MODEL, sentences, **options)
    assert planned == plan


def test_batches_are_handed_out_in_order_to_processes_that_obey(two_cores):
    """On one thread each, deaf to Ctrl-C, gone when their parent goes."""

    def job(batch):
        handler = signal.getsignal(signal.SIGINT)
        return batch, torch.get_num_threads(), handler == signal.SIG_IGN

    before = set(active_children())
    batches = [[3], [2], [1]]
    found = decoding.in_processes(job, batches, 1)
    first = next(found)
    own = set(active_children()) - before
    assert [child.daemon for child in own] == [True]
    assert [first, *found] == [
        (i, (batch, 1, True)) for i, batch in enumerate(batches)
    ]
    assert not set(active_children()) & own


class Line:
    """What a process hears and says; it is never in a hurry."""

    def __init__(self, *heard):
        self.heard, self.said = list(heard), []

    def recv(self):
        return self.heard.pop(0)

    def send(self, answer):
        self.said.append(answer)


def test_a_process_works_while_its_parent_lives(monkeypatch):
    """It ends with its parent, and tells what a job returns or raises."""
    set_to = []
    tie = lambda: set_to.append("tied")  # noqa: E731
    monkeypatch.setattr(decoding, "end_with_parent", tie)
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    monkeypatch.setattr(signal, "signal", lambda *what: set_to.append(what))
    line = Line([8], [0])
    with pytest.raises(IndexError):  # it hears nothing more
        decoding._work(lambda batch: 1 / batch[0], line)
    assert set_to == ["tied", 1, (signal.SIGINT, signal.SIG_IGN)]
    one, (nothing, error, where) = line.said
    assert one == (0.125, None, "")
    assert nothing is None and isinstance(error, ZeroDivisionError)
    assert "Traceback" in where


def test_several_models_vote_on_any_number_of_sentences():
    models, sentences = [random_model(n) for n in (1, 2)], [[4, 5], [6]]
    config = SearchConfig(extra=5)
    found = search_in_order(models, sentences, config, batch_tokens=3)
    for one, sentence in zip(found, sentences, strict=True):
        assert_equal(one, beam_search(models, [sentence], config)[0])


def test_a_linear_map_in_16_bits_takes_and_gives_what_the_others_do():
    layer = torch.nn.Linear(5, 3).to(torch.bfloat16)
    layer.__class__ = decoding.HalfLinear
    x = torch.randn(2, 5)
    rounded = torch.nn.functional.linear(
        x.bfloat16(), layer.weight, layer.bias
    )
    found = layer(x)
    assert found.dtype == torch.float32 and rounded.dtype == torch.bfloat16
    assert torch.equal(found, rounded.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_elsewhere_than_on_a_processor_a_whole_model_is_converted(dtype):
    model = Transformer(MODEL.config).to("meta")
    found = decoding.converted(model, dtype)
    assert {p.dtype for p in found.parameters()} == {dtype}
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.qint8]
)
@pytest.mark.parametrize("training", [True, False])
def test_a_conversion_leaves_the_model_as_it_was(dtype, training):
    model = Transformer(MODEL.config).train(training)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    found = decoding.converted(model, dtype)
    assert all(part.training is training for part in model.modules())
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
        assert p.is_contiguous()
    layer = model.encoder.layers[0].feed_forward
    other = found.encoder.layers[0].feed_forward
    assert any(type(part) is torch.nn.Linear for part in layer.children())
    changed = {
        torch.float32: lambda part: part.weight.t().is_contiguous(),
        torch.bfloat16: lambda part: part.weight.dtype == torch.bfloat16,
        torch.qint8: lambda part: part.weight().dtype == torch.qint8,
    }[dtype]
    for (name, part), (_, new) in zip(
        layer.named_children(), other.named_children(), strict=True
    ):
        if type(part) is torch.nn.Linear:
            assert changed(new), name


def test_a_torch_without_int8_is_said_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.ao.quantization", None)
    with pytest.raises(RunError, match="has no torch.ao.quantization"):
        converted(Transformer(MODEL.config), torch.qint8)


# --- a model that is not the paper's --------------------------------------


class Copies(Transformer):
    """May copy a word of the source: a pointer network in every search."""

    def logits(self, x, memory, src):
        scores = x @ memory.mT  # (batch, tgt_len, src_len)
        scores = scores.masked_fill((src == PAD)[:, None], -math.inf)
        words = torch.nn.functional.one_hot(src, self.config.tgt_vocab)
        chances = scores.softmax(-1) @ words.to(x.dtype)
        return super().logits(x, memory, src) + 3 * chances


def other(change, *args):
    """random_model of another class, or with one thing changed."""
    model = random_model(5)
    if isinstance(change, type):
        model.__class__ = change
    else:
        change(model, *args)
    return model


def test_a_model_that_copies_is_searched_as_it_is():
    model, config = other(Copies), SearchConfig(beam=3, extra=5, nbest=2)
    sentences = random_sentences(6, 3)
    ours = [plain_beam_search(model, s, config) for s in sentences]
    plain = [
        plain_beam_search(random_model(5), s, config) for s in sentences
    ]
    assert [h[0].ids for h in ours] != [h[0].ids for h in plain]
    for search in (cached_beam_search, beam_search):
        for found, expected in zip(
            search(model, sentences, config), ours, strict=True
        ):
            assert_equal(found, expected)


class Forward(Transformer):
    def forward(self, src, tgt):
        return super().forward(src, tgt).roll(1, dims=-1)


class LateForward(Transformer):
    def forward(self, src, tgt):
        logits = super().forward(src, tgt)
        return logits.roll(1, dims=-1) if src.size(1) > 9 else logits


class Decode(Transformer):
    def decode(self, tgt, memory, src):
        return super().decode(tgt, memory, src) + 1.0


class Encode(Transformer):
    def encode(self, src):
        return super().encode(src).flip(-1)


def past(x):
    """Each position looks at those before it, as a convolution does."""
    return x.cumsum(dim=1)


class Mixing(torch.nn.LayerNorm):
    def forward(self, x):
        return super().forward(past(x))


class Halved(torch.nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) / 2


class Attends(MultiHeadAttention):
    def forward(self, x, memory=None, mask=None):
        return super().forward(x, memory, mask) * 2


def of_class(path, kind):
    def change(model):
        model.get_submodule(path).__class__ = kind

    return change


def replaced(path, name, function):
    def change(model):
        part = model.get_submodule(path)
        before = getattr(part, name)
        setattr(part, name, lambda *args: function(before(*args)))

    return change


def hooked(path, function):
    def change(model):
        part = model.get_submodule(path)
        part.register_forward_hook(lambda _, args, out: function(out))

    return change


LAYER = "decoder.layers.1"
LOST = {  # what a cache would pass over, or cannot see
    "forward": Forward,
    "forward, of long sources only": LateForward,
    "decode": Decode,
    "forward of one object": replaced("", "forward", lambda x: x.flip(-1)),
    "decode of one object": replaced("", "decode", torch.sin),
    "hook of the model": hooked("", lambda x: x.flip(-1)),
    "hook of an attention": hooked(f"{LAYER}.attention", torch.sin),
    "hook of a cross-attention": hooked(
        f"{LAYER}.cross_attention", torch.sin
    ),
    "attention": of_class(f"{LAYER}.attention", Attends),
    "norm over time": of_class(f"{LAYER}.norm1", Mixing),
    "network over time": replaced(f"{LAYER}.feed_forward", "forward", past),
    "layer over time": replaced(LAYER, "forward", past),
    "decoder over time": hooked("decoder", past),
    "dropout": replaced("dropout", "forward", torch.sin),
    "embeddings over time": replaced("embeddings", "read_target", past),
}
KEPT = {  # what it calls as it is
    "encode": Encode,
    "encode of one object": replaced("", "encode", torch.sin),
    "encoder's layer": replaced("encoder.layers.0", "forward", past),
    "norm": of_class(f"{LAYER}.norm1", Halved),
    "hook of a layer": hooked(LAYER, torch.sin),
    "hook that looks": hooked("decoder", lambda x: None),
    "projection": hooked(f"{LAYER}.attention.w_q", torch.sin),
    "output": replaced("embeddings", "logits", lambda x: x * 2),
    "positions": replaced("tgt_positions", "forward", torch.sin),
}


@pytest.mark.parametrize("search", [cached_beam_search, beam_search])
@pytest.mark.parametrize("change", LOST.values(), ids=LOST)
def test_what_a_cache_would_get_wrong_is_refused(change, search):
    model = other(change)
    plain_beam_search(model, [4, 5, 6], SearchConfig(beam=2, extra=4))
    told = "is .*: translate with plain_beam_search, or override logits"
    with pytest.raises(TypeError, match=told):
        search(model, [[4, 5, 6]], SearchConfig(beam=2, extra=4))


@pytest.mark.parametrize("search", [cached_beam_search, beam_search])
@pytest.mark.parametrize("change", KEPT.values(), ids=KEPT)
def test_what_a_cache_calls_as_it_is_it_gets_right(change, search):
    model, config = other(change), SearchConfig(beam=2, extra=4)
    for sentence in random_sentences(3, 2):
        expected = plain_beam_search(model, sentence, config)
        assert_equal(search(model, [sentence], config)[0], expected)


@pytest.mark.parametrize(
    "change", [*LOST.values(), *KEPT.values()], ids=[*LOST, *KEPT]
)
def test_what_is_built_anew_is_built_from_the_papers_parts_alone(change):
    """A packed model, which training and exports begin with."""
    model = other(change)
    with pytest.raises(RunError, match="is .* only the plain model"):
        packed(model)


def test_the_papers_own_models_are_searched_without_a_comparison(
    monkeypatch,
):
    monkeypatch.setattr(Transformer, "forward", None)
    for kind in KINDS.values():
        model = random_model(5, **kind)
        for each in (model, converted(model, torch.bfloat16)):
            assert beam_search(each, [[4, 5]], SearchConfig(extra=3))


# --- in which numbers, and with none --------------------------------------


def score_in_float64(model, src, ids, alpha):
    """By NumPy alone from the logits on; sinusoids are computed here."""
    place = np.arange(40)[:, None] / 10_000 ** (np.arange(0, 16, 2) / 16)
    waves = np.stack([np.sin(place), np.cos(place)], -1).reshape(40, 16)
    for positions in (model.src_positions, model.tgt_positions):
        table = torch.from_numpy(waves)
        positions.forward = lambda length, table=table: table[:length]
    with torch.no_grad():
        x = model(torch.tensor([[*src, EOS]]), torch.tensor([[BOS, *ids]]))
    logits = x[0].numpy()
    assert logits.dtype == np.float64
    logits = logits - logits.max(-1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    total = sum(log_p[i, token] for i, token in enumerate([*ids, EOS]))
    return total, total / ((6 + len(ids)) / 6) ** alpha


SEARCHES = {
    "plain": lambda *args: plain_beam_search(*args),
    "cached": lambda m, s, c: cached_beam_search(m, [s], c)[0],
    "fast": lambda m, s, c: beam_search(m, [s], c)[0],
    "packed": lambda m, s, c: beam_search(packed(m), [s], c)[0],
    "voting": lambda m, s, c: beam_search([m, m], [s], c)[0],
}


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_a_float64_model_is_searched_in_float64(search, beam):
    config = SearchConfig(beam=beam, extra=12)
    for seed in range(3):
        model = random_model(seed).double().eval()
        for src in random_sentences(3, seed):
            best = search(model, src, config)[0]
            whole = copy.deepcopy(model)
            expected = score_in_float64(whole, src, best.ids, config.alpha)
            found = best.log_probability, best.score
            assert found == pytest.approx(expected, abs=1e-12, rel=1e-13)


def spoilt(how):
    model = random_model(3)
    with torch.no_grad():
        if how == "float16":  # a norm's outputs are too large for it
            model.decoder.layers[0].norm1.weight *= 1e5
            return model.half()
        for p in model.parameters():
            p[(0,) * p.dim()] = {"NaN": math.nan, "inf": math.inf}[how]
    return model


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("how", ["NaN", "inf", "float16"])
@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_numbers_that_are_none_are_one_sentence(search, how, beam):
    with pytest.raises(RunError, match="numbers are not finite.*float32"):
        search(spoilt(how), [4, 5], SearchConfig(beam=beam, extra=20))


def test_a_gpu_hears_of_it_at_the_next_look(monkeypatch):
    def patient(self, *args):
        before(self, *args)
        self.patience = 8

    before = BeamSearch.__init__
    monkeypatch.setattr(BeamSearch, "__init__", patient)
    with pytest.raises(RunError, match="numbers are not finite"):
        beam_search(spoilt("NaN"), [[4, 5], [4] * 9], SearchConfig())


def test_a_word_that_cannot_be_is_no_trouble():
    model = random_model(3, output_bias=True)
    with torch.no_grad():
        model.embeddings.bias[7] = -math.inf
    config = SearchConfig(beam=2, extra=4)
    expected = plain_beam_search(model, [4, 5], config)
    for search in SEARCHES.values():
        assert_equal(search(model, [4, 5], config), expected)
