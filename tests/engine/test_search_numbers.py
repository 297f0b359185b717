"""Page E6: searches in more bits, in fewer, and with numbers that are none."""

import copy
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from annotated.engine import search as decoding
from annotated.engine.errors import RunError
from annotated.engine.packing import packed
from annotated.engine.search import (
    _BeamSearch,
    beam_search,
    converted,
    search_in_order,
)
from annotated.model import Transformer
from annotated.search import (
    SearchConfig,
    cached_beam_search,
    plain_beam_search,
)
from annotated.tokens import BOS, EOS
from tests.searching import (
    MODEL,
    assert_equal,
    random_model,
    random_sentences,
)


def test_float64_models_can_be_searched():
    model = random_model(3).double()
    config = SearchConfig(extra=4, nbest=2)
    for sentence in random_sentences(4, 3):
        [found] = beam_search(model, [sentence], config)
        assert_equal(found, plain_beam_search(model, sentence, config))


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.qint8])
def test_in_fewer_bits_the_easy_answers_are_the_same(
    beam, dtype, half_trained
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


def test_a_linear_map_in_16_bits_takes_and_gives_what_the_others_do():
    linear, x = torch.nn.Linear(5, 3), torch.randn(2, 5)
    found = decoding._HalfLinear(linear, torch.bfloat16)(x)
    rounded = linear(x.bfloat16())
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


def test_int8_is_computed_where_torch_has_chosen_no_engine(monkeypatch):
    """As on a Mac, whose torch has one and does not choose it."""
    mac = SimpleNamespace(
        engine="none", supported_engines=["none", "qnnpack"]
    )
    monkeypatch.setattr(torch.backends, "quantized", mac)
    converted(Transformer(MODEL.config), torch.qint8)
    assert mac.engine == "qnnpack"
    mac.engine, mac.supported_engines = "none", ["none"]
    with pytest.raises(RunError, match="multiplies no int8"):
        converted(Transformer(MODEL.config), torch.qint8)


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

    before = _BeamSearch.__init__
    monkeypatch.setattr(_BeamSearch, "__init__", patient)
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
