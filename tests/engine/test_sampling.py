"""Page E6: what is drawn, against the plain model and chapter 16's cuts."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from annotated.attention import MultiHeadAttention
from annotated.engine.constraints import Limits
from annotated.engine.errors import RunError, UsageError
from annotated.engine.runs import Run
from annotated.engine.search import (
    Sampling,
    _chances,
    beam_search,
    search_in_order,
)
from annotated.search import log_p_after, output_limit, source_rows
from annotated.tokens import BOS, EOS
from press.exercises import read_exercises
from tests.helpers import ROOT
from tests.searching import (
    KINDS,
    VOCAB,
    assert_equal,
    random_model,
    random_sentences,
)

SOURCE = [5, 6, 7]
CUTS = {
    "as it is": {},
    "warm": {"temperature": 2.0},
    "cold, k": {"temperature": 0.5, "top_k": 3},
    "p": {"top_p": 0.8},
    "all": {"temperature": 1.5, "top_k": 5, "top_p": 0.7},
    "no cut": {"top_k": 10_000},
}


@pytest.fixture(scope="module")
def exercise():
    """The reference of chapter 16's exercise, sampling_probabilities."""
    [one] = [e for e in read_exercises(ROOT) if e.name == "16-sample"]
    names = {}
    exec(one.one("reference"), names)
    return names["sampling_probabilities"]


def plain_p(exercise, log_p, config):
    top_p = config.top_p if config.top_p < 1 else None
    return exercise(log_p, config.temperature, config.top_k, top_p)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
def test_the_distribution_is_the_exercises(exercise, cut, spread):
    """Also where the nucleus has more tokens than are looked at first."""
    torch.manual_seed(0)
    logits = spread * torch.randn(3, 2000, dtype=torch.float64)
    log_p, config = logits.log_softmax(dim=1), Sampling(**CUTS[cut])
    log_p[:, [0, 2]] = -math.inf
    chances, token = _chances(log_p, config)
    chances = chances / chances.sum(dim=1, keepdim=True)
    found = torch.zeros_like(log_p).scatter(1, token, chances)
    wanted = plain_p(exercise, log_p, config)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    assert torch.equal(found > 0, wanted > 0)


def drawn_plainly(exercise, models, src, config, number, prefix=()):
    """One output by the whole models, a token at a time; its total."""
    limit = min(output_limit(model, len(src), config) for model in models)
    seeds = np.random.default_rng([config.seed, number, *src])
    ids, total, source = [BOS], 0.0, source_rows(models[0], [src])
    for step, uniform in enumerate(seeds.random(limit, dtype=np.float32)):
        each = [log_p_after(model, source, ids) for model in models]
        log_p = torch.stack(each).logsumexp(dim=0) - math.log(len(each))
        p = plain_p(exercise, log_p, config)
        order = torch.arange(len(p))
        if config.top_k is not None or config.top_p < 1:
            order = p.argsort(descending=True)
        token = int(order[(p[order].cumsum(0) <= float(uniform)).sum()])
        if step < len(prefix):
            token = prefix[step]
        if step + 1 == limit:
            token = EOS
        ids, total = [*ids, token], total + log_p[token].item()
        if token == EOS:
            return ids[1:-1], total
    raise AssertionError("the limit forces an end")


@pytest.mark.parametrize(
    ("kind", "cut"), [*zip(KINDS, [*CUTS, "all"], strict=True)]
)
def test_the_cache_draws_what_the_plain_model_does(exercise, kind, cut):
    model = random_model(3, **KINDS[kind]).double().eval()
    config = Sampling(nbest=3, extra=6, seed=4, **CUTS[cut])
    sentences = random_sentences(3, 5)
    for src, found in zip(sentences, beam_search(model, sentences, config)):
        plain = [
            drawn_plainly(exercise, [model], src, config, n)
            for n in range(3)
        ]
        assert [one.ids for one in found] == [ids for ids, _ in plain]
        totals = [one.log_probability for one in found]
        assert totals == pytest.approx([t for _, t in plain], abs=1e-4)
        assert totals == [one.score for one in found]


def test_models_vote_and_a_prefix_is_kept(exercise):
    models = [random_model(seed).double().eval() for seed in (0, 1)]
    config = Sampling(nbest=4, extra=6, temperature=1.3)
    [found] = beam_search(models, [SOURCE], config, prefixes=[[7, 4]])
    for number, one in enumerate(found):
        ids, total = drawn_plainly(
            exercise, models, SOURCE, config, number, [7, 4]
        )
        assert one.ids == ids and ids[:2] == [7, 4]
        assert one.log_probability == pytest.approx(total, abs=1e-4)


def test_draws_have_the_frequencies_of_the_model():
    """Each of the first tokens within five standard deviations: by chance
    one in 150,000 of these tests would fail, and the draws are fixed.
    """
    count, model = 5_000, random_model(7, end=0.0).eval()
    config = Sampling(nbest=count, limit=2)
    [found] = beam_search(model, [SOURCE], config)
    seen = Counter(one.ids[0] if one.ids else EOS for one in found)
    p = log_p_after(model, source_rows(model, [SOURCE]), [BOS]).exp()
    p = p / p.sum()
    assert sum(seen.values()) == count and len(seen) > 4
    for token, chance in enumerate(p.tolist()):
        deviation = math.sqrt(count * chance * (1 - chance))
        assert abs(seen[token] - count * chance) <= 5 * deviation, token


def test_a_draw_depends_on_nothing_beside_it():
    models = [random_model(seed).double().eval() for seed in (0, 1)]
    sentences = random_sentences(12, 2)
    config = Sampling(nbest=3, temperature=1.5, top_p=0.95, extra=8)
    alone = [beam_search(models, [one], config)[0] for one in sentences]
    backwards = search_in_order(models, sentences[::-1], config)[::-1]
    for how in ({"workers": 2, "batch_tokens": 40}, {"batch_size": 2}):
        together = search_in_order(models, sentences, config, **how)
        for three in zip(alone, together, backwards, strict=True):
            assert_equal(three[0], three[1])
            assert_equal(three[0], three[2])
    fewer = beam_search(models, sentences, replace(config, nbest=2))
    for all_three, two in zip(alone, fewer, strict=True):
        assert_equal(all_three[:2], two)
    # and on the seed
    others = beam_search(models, sentences, replace(config, seed=1))
    assert [[h.ids for h in some] for some in others] != [
        [h.ids for h in some] for some in alone
    ]
    # the draws of a sentence are not one draw
    assert len({tuple(h.ids) for some in alone for h in some}) > 20


def test_a_guide_bars_tokens_from_draws():
    model = random_model(5, end=1.0).eval()
    guide = Limits(VOCAB, 4, 1)
    config = Sampling(nbest=50, temperature=3.0)
    [found] = beam_search(model, [SOURCE], config, guide=guide)
    assert len(found) == 50
    for one in found:
        assert len(set(one.ids)) == len(one.ids) >= 4
    # where everything is barred there is nothing to draw
    guide = Limits(VOCAB, 20, 1)
    assert beam_search(model, [SOURCE], config, guide=guide) == [[]]


@pytest.mark.parametrize("cut", CUTS)
def test_nothing_that_is_no_number_is_drawn(cut):
    model = random_model()
    with torch.no_grad():
        model.embeddings.output.fill_(math.nan)
    with pytest.raises(RunError, match="not finite"):
        beam_search(model, [SOURCE], Sampling(**CUTS[cut]))


def test_lines_are_drawn_and_demands_refused():
    run = Run.open(Path("pocket"))
    lines = ["Anna schläft .", "", "Die Hunde schlafen ."]
    config = Sampling(nbest=4, temperature=3.0)
    found = run.translate(lines, config)
    assert [len(each) for each in found] == [4, 1, 4]
    assert len({one.text for one in found[0]}) > 1
    begun = run.translate(lines, config, prefixes=["The dog"] * 3)
    assert all(one.text.startswith("The dog") for one in begun[2])
    with pytest.raises(UsageError, match="searched, not drawn"):
        run.translate(lines, config, required=[["dog"]] * 3)


def test_another_engine_does_not_search_in_place_of_a_draw():
    def engine(pieces, search):
        raise AssertionError("it was asked")

    run = replace(Run.open(Path("pocket")), engine=engine)
    with pytest.raises(RunError, match="another engine draws nothing"):
        run.translate(["Anna schläft ."], Sampling())


class _Other(MultiHeadAttention):
    def weights(self, *given):
        return super().weights(*given)


def test_what_has_no_cache_is_not_searched_in_place_of_a_draw():
    model = random_model()
    model.decoder.layers[0].attention.__class__ = _Other
    with pytest.raises(RunError, match="no samples: there is no cache"):
        search_in_order(model, [SOURCE], Sampling())


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": 0.0}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.1},
     {"seed": -1}, {"nbest": 0}],
)  # fmt: skip
def test_fields_are_checked(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Sampling(**wrong)
