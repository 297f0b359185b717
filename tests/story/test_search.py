"""Chapter 16: greedy search, beam search, limits; all three searches."""

import math
from dataclasses import replace

import pytest
import torch

from annotated.engine import search as decoding
from annotated.engine.search import beam_search, search_in_order
from annotated.model import Transformer, TransformerConfig
from annotated.search import (
    Hypothesis,
    SearchConfig,
    alignment,
    cached_beam_search,
    length_penalty,
    output_limit,
    plain_beam_search,
    settled,
)
from annotated.tokens import BOS, EOS, PAD, SPECIALS
from annotated.training import Trainer, TrainingConfig, copy_corpus
from tests.searching import (
    KINDS,
    MODEL,
    VOCAB,
    assert_equal,
    random_model,
    random_sentences,
)

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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, 0) for field in ("beam", "extra", "nbest", "limit")),
        *((field, 1.5) for field in ("beam", "extra", "nbest", "limit")),
        ("alpha", -0.1),
        ("alpha", 10.0),
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
    search = decoding._BeamSearch(
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
