"""Page E6: the fast search finds what the plain one finds, part by part."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated import search as story
from annotated.batches import pad_rows
from annotated.engine import search as decoding
from annotated.engine.search import (
    _BeamSearch,
    _best_continuations,
    _SlotCache,
    beam_search,
    search_in_order,
)
from annotated.model import Transformer
from annotated.search import (
    SearchConfig,
    cached_beam_search,
    greedy,
    log_p_after,
    output_limit,
    plain_beam_search,
)
from annotated.tokens import BOS, EOS, PAD
from tests.searching import (
    KINDS,
    MODEL,
    VOCAB,
    assert_equal,
    random_model,
    random_sentences,
)


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


# --- the fast search is the plain one -------------------------------------


class Patient(decoding._BeamSearch):
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
        monkeypatch.setattr(decoding, "_BeamSearch", Patient)
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
    before = _BeamSearch.next_log_p

    def count(search):
        nonlocal steps
        steps += 1
        return before(search)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_BeamSearch, "next_log_p", count)
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
    totals = scores[:, :, None] + log_p
    best, parent, token = _best_continuations(totals, ranks)
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


# --- the engine's search, one part at a time ------------------------------


def begun(beam=2, count=1, **config):
    """A search before its first step, as many words in each sentence."""
    given = [[4, 5]] * count
    search = SearchConfig(beam=beam, **config)
    model = Transformer(MODEL.config).eval()
    return decoding._BeamSearch([model], given, search, [()] * count)


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
    assert _SlotCache(model, full, slots=1).mask is None
    assert _SlotCache(model, mixed, slots=1).mask is not None


def test_a_gpu_is_asked_less_often_who_has_finished(monkeypatch):
    asked = []
    monkeypatch.setattr(decoding, "_SlotCache", lambda _, src, slots: src)
    for place, patience in (("cpu", 1), ("meta", 8)):
        model = Transformer(MODEL.config).to(place)
        search = decoding._BeamSearch(
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

    monkeypatch.setattr(decoding._BeamSearch, "compacted", note)
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
    monitor = [type("Cache", (), {"keep_slots": asked.append})]
    search.caches = monitor
    seen = torch.tensor(used).bool()[:, None].expand(-1, 2, -1).clone()
    seen[:, 1] = False  # of two hypotheses, one has come through them
    found = search.compacted(seen)
    if kept is None:
        assert not asked and found is seen
        return
    assert [slots.tolist() for slots in asked] == [kept]
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
