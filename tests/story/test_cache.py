"""Chapter 17 and page E6: what a cache keeps, and which models it refuses."""

import math

import numpy as np
import pytest
import torch

from annotated.attention import MultiHeadAttention
from annotated.batches import pad_rows
from annotated.engine import search as decoding
from annotated.engine.errors import RunError
from annotated.engine.machine import evaluating
from annotated.engine.packing import packed
from annotated.engine.search import (
    _row_compactor,
    _SlotCache,
    beam_search,
    converted,
)
from annotated.masks import causal_mask
from annotated.model import Transformer, TransformerConfig
from annotated.search import (
    CachedSelfAttention,
    KVCache,
    SearchConfig,
    _cache_of,
    _CachedCrossAttention,
    _grow_beams,
    alignment,
    cached_beam_search,
    plain_beam_search,
)
from annotated.tokens import BOS, EOS, PAD
from tests.helpers import SHAPE
from tests.searching import (
    KINDS,
    VOCAB,
    assert_equal,
    random_model,
    random_sentences,
)

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
            [found] = _grow_beams(cache, limit, config)
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
    past = _cache_of(block, x[:, :1])
    rows = [past(x[:, i : i + 1]) for i in range(1, 4)]
    expected = block(x, mask=causal_mask(4))[:, 1:]
    torch.testing.assert_close(torch.cat(rows, dim=1), expected)
    plain = _cache_of(MultiHeadAttention(16, 2), torch.randn(1, 3, 16))
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
    for kind in (_cache_of, CachedSelfAttention, _CachedCrossAttention):
        with pytest.raises(TypeError, match="no cache for Own: translate"):
            kind(block, memory)
    block.cache = lambda memory: memory
    assert _cache_of(block, memory) is memory


def test_the_fast_search_has_to_be_told_how_an_attention_turns():
    block, x = Own(16, 2), torch.randn(1, 2, 3, 8)
    with pytest.raises(TypeError, match="no cache for Own: translate with"):
        decoding._rotation(block)
    block.turn = lambda heads, first: heads + first
    assert torch.equal(decoding._rotation(block)(x, 2), x + 2)
    plain = MultiHeadAttention(16, 2)
    assert decoding._rotation(plain) is None


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
        slots, cache = _SlotCache(model, src, slots=9), KVCache(model, src)
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
        cache = _SlotCache(model, src, slots=1 + 2 * 7)
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
                cache.compact(_row_compactor(done))
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
    cache = _SlotCache(model, src, slots=33)
    for kept in cache.source:
        assert kept.k.shape == kept.v.shape == (3, 2, 5, 8)
    for kept in cache.target:
        assert kept.k.shape == kept.v.shape == (3, 2, 33, 8)


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
    if isinstance(change, type):
        return random_model(5, kind=change)
    model = random_model(5)
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


def of_class(path, kind, *sizes):
    def change(model):
        part = kind(*sizes)
        part.load_state_dict(model.get_submodule(path).state_dict())
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, part)

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
    "attention": of_class(f"{LAYER}.attention", Attends, 16, 2),
    "norm over time": of_class(f"{LAYER}.norm1", Mixing, 16),
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
    "norm": of_class(f"{LAYER}.norm1", Halved, 16),
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
