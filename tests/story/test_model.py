"""Chapter 08: the whole model, against torch and by its properties."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from annotated.attention import MultiHeadAttention
from annotated.embeddings import sinusoids
from annotated.engine.hooks import recorded_weights
from annotated.engine.packing import packed
from annotated.model import Transformer, count_parameters
from annotated.school.milestones import _torch_state
from tests.story.models import VOCAB, small

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


some = settings(max_examples=20, deadline=None)


exact = {"rtol": 0.0, "atol": 1e-10}


def build(config, seed=0, kind=Transformer):
    """In float64 and eval mode, every parameter with its own value."""
    torch.manual_seed(seed)
    model = kind(config).double().eval()
    for name, parameter in model.named_parameters():
        if "embeddings" not in name:
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    return model


def pad(sentences, length=0):
    """Lists of token ids -> (batch, length), 0 behind each."""
    length = max(length, *map(len, sentences))
    rows = [s + [0] * (length - len(s)) for s in sentences]
    return torch.tensor(rows)


configs = st.builds(
    small,
    d_model=st.sampled_from([6, 12]),
    num_heads=st.sampled_from([1, 2, 3]),
    d_k=st.sampled_from([None, 1, 5]),
    d_v=st.sampled_from([None, 3]),
    num_encoder_layers=st.integers(1, 2),
    num_decoder_layers=st.integers(1, 2),
    norm=st.sampled_from(["post", "pre"]),
    positions=st.sampled_from(["sinusoidal", "learned"]),
    tie=st.sampled_from(["all", "decoder", "none"]),
    window=st.sampled_from([None, None, 1, 3, 4]),
    bias=st.booleans(),
)


models = st.builds(build, configs, st.integers(0, 100))


sentence = st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=7)


batches = st.lists(st.tuples(sentence, sentence), min_size=1, max_size=4)


def split(batch):
    return pad([s for s, _ in batch]), pad([t for _, t in batch])


# --- properties of the idea, over random models and batches


@some
@given(model=models, batch=batches, data=st.data())
def test_no_future_token_changes_a_past_output(model, batch, data):
    src, tgt = split(batch)
    j = data.draw(st.integers(0, tgt.size(1) - 1))
    changed = tgt.clone()
    # other tokens from j on, and padding stays padding
    changed[:, j:] = torch.where(tgt[:, j:] > 0, tgt[:, j:] % 12 + 1, 0)
    past, same_past = model(src, tgt)[:, :j], model(src, changed)[:, :j]
    torch.testing.assert_close(same_past, past, **exact)


@some
@given(model=models, batch=batches, extra=st.integers(1, 4))
def test_padding_of_the_source_changes_nothing(model, batch, extra):
    src, tgt = split(batch)
    wider = model(F.pad(src, (0, extra)), tgt)
    torch.testing.assert_close(wider, model(src, tgt), **exact)


@some
@given(model=models, batch=batches, extra=st.integers(1, 4))
def test_padding_of_the_target_changes_nothing(model, batch, extra):
    src, tgt = split(batch)
    wider = model(src, F.pad(tgt, (0, extra)))
    length = tgt.size(1)
    torch.testing.assert_close(wider[:, :length], model(src, tgt), **exact)


@some
@given(model=models, batch=batches, data=st.data())
def test_the_order_of_the_batch_does_not_matter(model, batch, data):
    src, tgt = split(batch)
    order = data.draw(st.permutations(range(len(batch))))
    shuffled = model(src[order], tgt[order])
    torch.testing.assert_close(shuffled, model(src, tgt)[order], **exact)


@some
@given(model=models, batch=batches)
def test_a_sentence_does_not_see_its_neighbours(model, batch):
    together = model(*split(batch))
    for i, (src, tgt) in enumerate(batch):
        alone = model(torch.tensor([src]), torch.tensor([tgt]))[0]
        torch.testing.assert_close(together[i, : len(tgt)], alone, **exact)


class NoPositions(nn.Module):
    def forward(self, length):
        return torch.zeros((), dtype=torch.float64)


@some
@given(
    config=configs.filter(lambda c: c.window is None),
    src=sentence,
    tgt=sentence,
    data=st.data(),
)
def test_without_positions_the_encoder_is_permutation_equivariant(
    config, src, tgt, data
):
    model = build(config)
    order = data.draw(st.permutations(range(len(src))))
    src, tgt = torch.tensor([src]), torch.tensor([tgt])
    model.src_positions = NoPositions()
    a, b = model.encode(src), model.encode(src[:, order])
    torch.testing.assert_close(b, a[:, order], **exact)
    # and the decoder, which sees a set, does not notice at all
    torch.testing.assert_close(
        model(src[:, order], tgt), model(src, tgt), **exact
    )


def test_with_positions_the_order_of_words_matters():
    model = build(small())
    src, tgt = torch.tensor([[1, 2, 3]]), torch.tensor([[4]])
    backwards = model(src.flip(1), tgt)
    assert not torch.allclose(backwards, model(src, tgt), atol=1e-3)


@some
@given(model=models, batch=batches, data=st.data())
def test_rows_of_padding_alone_stay_finite(model, batch, data):
    src, tgt = split(batch)
    src = torch.cat([src, torch.zeros_like(src[:1])])
    tgt = torch.cat([tgt, tgt[:1]])
    if data.draw(st.booleans()):  # a target of padding alone, too
        src, tgt = torch.cat([src, src[:1]]), torch.cat([tgt, 0 * tgt[:1]])
    model.train()
    logits = model(src, tgt)
    logits.square().mean().backward()
    assert logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@some
@given(model=models, batch=batches)
def test_encode_and_decode_are_the_two_halves_of_forward(model, batch):
    src, tgt = split(batch)
    memory = model.encode(src)
    logits = model.embeddings.logits(model.decode(tgt, memory, src))
    torch.testing.assert_close(logits, model(src, tgt), **exact)


class Copying(Transformer):
    """One that likes the words of the source."""

    def logits(self, x, memory, src):
        likes = F.one_hot(src, VOCAB).sum(1, keepdim=True)
        return super().logits(x, memory, src) + memory.norm() * likes


def test_logits_may_also_be_made_from_the_source():
    model, ids = Copying(small()).eval(), torch.tensor([[5, 7]])
    memory = model.encode(ids)
    plain = model.embeddings.logits(model.decode(ids, memory, ids))
    liked = (model(ids, ids) - plain)[..., [5, 7]]
    torch.testing.assert_close(liked, memory.norm().expand(1, 2, 2))


# --- against torch.nn.Transformer


def torch_twin(model):
    """torch's two stacks with the weights of the model."""
    c, pre = model.config, model.config.norm == "pre"
    sizes = (c.d_model, c.num_heads, c.d_ff, 0.0)
    kind = {"batch_first": True, "norm_first": pre}
    # the paper has no norm on top of a post-norm stack
    norms = [nn.LayerNorm(c.d_model) if pre else None for _ in range(2)]
    twin = nn.Transformer(
        c.d_model,
        c.num_heads,
        batch_first=True,
        custom_encoder=nn.TransformerEncoder(
            nn.TransformerEncoderLayer(*sizes, **kind),
            c.num_encoder_layers,
            norms[0],
            enable_nested_tensor=False,
        ),
        custom_decoder=nn.TransformerDecoder(
            nn.TransformerDecoderLayer(*sizes, **kind),
            c.num_decoder_layers,
            norms[1],
        ),
    ).to(model.embeddings.target)
    state = {
        name: value
        for name, value in _torch_state(model.state_dict()).items()
        if not name.startswith("embeddings")
    }
    twin.load_state_dict(state)
    return twin


def by_torch(model, twin, src, tgt):
    read, c = model.embeddings, model.config
    length = tgt.size(1)
    dtype = next(model.parameters()).dtype
    places = sinusoids(max(src.size(1), length), c.d_model, dtype)
    y = twin(
        read.read_source(src) + places[: src.size(1)],
        read.read_target(tgt) + places[:length],
        tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
        src_key_padding_mask=src == 0,
        memory_key_padding_mask=src == 0,
    )
    return read.logits(y)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize(
    "lengths", [[(6, 5), (6, 5)], [(7, 2), (4, 5), (1, 3)]]
)
def test_the_model_agrees_with_torch(norm, dtype, lengths):
    torch.manual_seed(0)
    config = small(norm=norm, d_model=16, num_heads=4, dropout=0.0)
    model = build(config).train().to(dtype)
    twin = torch_twin(model)
    batch = [
        (torch.randint(1, VOCAB, (s,)).tolist(), [1] + [2] * (t - 1))
        for s, t in lengths
    ]
    src, tgt = split(batch)
    a, b = model(src, tgt), by_torch(model, twin, src, tgt)
    close = {"rtol": 0.0, "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(a[tgt > 0], b[tgt > 0], **close)
    mix = torch.randn_like(a) * (tgt > 0)[:, :, None] / math.sqrt(a.numel())
    (a * mix).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    ours = _torch_state(gradients)
    model.zero_grad()
    (b * mix).sum().backward()
    theirs = dict(twin.named_parameters()) | {
        name: p for name, p in model.named_parameters() if "embed" in name
    }
    assert ours.keys() == theirs.keys()
    for name, parameter in theirs.items():
        torch.testing.assert_close(ours[name], parameter.grad, **close)


# --- the choices of the configuration


@pytest.mark.parametrize("window", [1, 2, 3, 5])
def test_a_window_hides_what_is_farther_than_half_of_it(window):
    layers, reach = 2, 2 * (window // 2)
    model = build(small(window=window, num_encoder_layers=layers))
    src = torch.arange(1, 13)[None]
    before = model.encode(src)
    changed = src.clone()
    changed[0, 6] = 12 if src[0, 6] != 12 else 11
    moved = (model.encode(changed) != before).any(dim=-1)[0]
    distance = (torch.arange(12) - 6).abs()
    assert moved.tolist() == (distance <= reach).tolist()


def test_a_window_holds_in_the_decoder_too_and_not_across():
    model = build(small(window=3, num_decoder_layers=1))
    src, tgt = torch.arange(1, 10)[None], torch.arange(1, 10)[None]
    before = model(src, tgt)
    changed = tgt.clone()
    changed[0, 4] = 12
    moved = (model(src, changed) != before).any(dim=-1)[0]
    assert moved.nonzero().flatten().tolist() == [4, 5]
    # cross-attention sees the whole source
    changed = src.clone()
    changed[0, 8] = 12
    moved = (model(changed, tgt) != before).any(dim=-1)[0]
    assert moved.all()


def test_without_a_window_everything_is_seen():
    model = build(small(num_encoder_layers=1))
    src = torch.arange(1, 13)[None]
    changed = src.clone()
    changed[0, 0] = 12
    moved = (model.encode(changed) != model.encode(src)).any(dim=-1)
    assert moved.all()


def test_learned_positions_raise_past_max_len_on_either_side():
    model = build(small(positions="learned", max_len=5))
    short, long = torch.ones(1, 5).long(), torch.ones(1, 6).long()
    assert model(short, short).shape == (1, 5, VOCAB)
    for src, tgt in [(long, short), (short, long)]:
        with pytest.raises(ValueError, match="max_len is 5"):
            model(src, tgt)


def test_learned_positions_are_two_tables_and_both_learn():
    model = build(small(positions="learned"))
    assert model.src_positions.table is not model.tgt_positions.table
    model(torch.tensor([[1, 2]]), torch.tensor([[3]])).sum().backward()
    assert model.src_positions.table.grad[:2].any()
    assert model.tgt_positions.table.grad[:1].any()


def test_sinusoids_go_on_as_far_as_the_sentence():
    model = build(small())
    long = torch.ones(1, 600).long()
    assert model(long, long[:, :3]).isfinite().all()


@pytest.mark.parametrize(
    ("tie", "tables"), [("all", 1), ("decoder", 2), ("none", 3)]
)
def test_tying_shares_the_right_tables_and_they_get_one_gradient(
    tie, tables
):
    model = build(small(tie=tie))
    e = model.embeddings
    assert (e.source is e.target) == (tie == "all")
    assert (e.output is e.target) == (tie != "none")
    assert len(list(e.parameters())) == tables
    logits = model(torch.tensor([[1, 2]]), torch.tensor([[3]]))
    logits.square().sum().backward()
    read, scored = {1, 2}, {3}
    rows = e.source.grad.abs().sum(dim=1).nonzero().flatten().tolist()
    if tie == "all":
        assert len(rows) == VOCAB  # as output, every row learns
    else:
        assert set(rows) == read  # as source, only what was read
    if tie == "none":
        rows = e.target.grad.abs().sum(dim=1).nonzero().flatten()
        assert set(rows.tolist()) == scored


def test_two_vocabularies_need_a_looser_tie():
    model = build(small(src_vocab=20, tie="decoder"))
    logits = model(torch.tensor([[19]]), torch.tensor([[1, 12]]))
    assert logits.shape == (1, 2, VOCAB)


@pytest.mark.parametrize("d_k", [None, 1, 7])
@pytest.mark.parametrize("d_v", [None, 2, 9])
def test_keys_and_values_may_have_sizes_of_their_own(d_k, d_v):
    config = small(d_k=d_k, d_v=d_v)
    assert (config.key_size, config.value_size) == (d_k or 6, d_v or 6)
    model = build(config)
    heads, k, v = 2, d_k or 6, d_v or 6
    for layer in model.decoder.layers:
        for part in (layer.attention, layer.cross_attention):
            assert part.w_q.weight.shape == (heads * k, 12)
            assert part.w_k.weight.shape == (heads * k, 12)
            assert part.w_v.weight.shape == (heads * v, 12)
            assert part.w_o.weight.shape == (12, heads * v)
    src = tgt = torch.tensor([[1, 2, 3]])
    assert model(src, tgt).shape == (1, 3, VOCAB)
    maps = model.attention_maps(src, tgt)
    assert all(m.shape == (1, 2, 3, 3) for m in maps.values())


@pytest.mark.parametrize("sizes", [{}, {"d_k": 3}, {"d_v": 2}])
def test_heads_of_unequal_size_are_refused(sizes):
    with pytest.raises(ValueError, match="num_heads 5 does not divide"):
        small(num_heads=5, **sizes)


def test_sizes_that_do_not_divide_are_fine_when_given():
    assert small(num_heads=5, d_k=3, d_v=2).key_size == 3


def test_only_pre_norm_stacks_end_with_a_norm():
    count = {n: count_parameters(small(norm=n)) for n in ("post", "pre")}
    assert count["pre"] - count["post"] == 2 * 2 * 12


def test_without_bias_only_the_norms_have_one():
    names = dict(build(small(bias=False)).named_parameters())
    biases = [name for name in names if name.endswith("bias")]
    assert len(biases) == 2 * 2 + 2 * 3  # those of the norms
    assert all("norm" in name for name in biases)


@pytest.mark.parametrize("form", ["plain", "packed"])
@pytest.mark.parametrize(
    "knob", ["dropout", "attention_dropout", "activation_dropout"]
)
def test_every_dropout_acts_in_training_and_only_there(knob, form):
    rates = {"dropout": 0.0, "attention_dropout": 0.0, knob: 0.5}
    model = build(small(**rates))
    model = packed(model) if form == "packed" else model
    src = tgt = torch.tensor([[1, 2, 3, 4]])
    assert torch.equal(model(src, tgt), model(src, tgt))
    model.train()
    torch.manual_seed(1)
    first, second = model(src, tgt), model(src, tgt)
    torch.manual_seed(1)
    assert torch.equal(model(src, tgt), first)
    assert not torch.equal(first, second)


class Through(nn.Module):
    """A stack that changes nothing."""

    def forward(self, x, *_):
        return x


@pytest.mark.parametrize("form", ["plain", "packed"])
@pytest.mark.parametrize("side", ["source", "target"])
def test_dropout_hits_embeddings_plus_positions_of_each_side(side, form):
    model = build(small(dropout=0.5))
    model = packed(model) if form == "packed" else model
    model.encoder, model.decoder = Through(), Through()
    src, tgt = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[5, 6, 7]])

    def read():
        if side == "source":
            return model.encode(src)
        if form == "packed":
            return model.hidden(src, tgt)[0]
        return model.decode(tgt, model.encode(src), src)

    whole = read()
    values = (read() / whole).unique().tolist()
    assert values == [1.0]
    model.train()
    values = (read() / whole).round(decimals=6).unique().tolist()
    assert values == [0.0, 2.0]


# --- looking inside


def test_attention_maps_are_the_weights_of_every_head():
    model = build(small(num_encoder_layers=1, num_decoder_layers=2))
    src, tgt = pad([[1, 2, 3, 4], [5, 6]]), pad([[7, 8, 9], [10]])
    maps = model.attention_maps(src, tgt)
    assert list(maps) == [
        "encoder.0",
        "decoder.0",
        "cross.0",
        "decoder.1",
        "cross.1",
    ]
    sizes = {"encoder": (4, 4), "decoder": (3, 3), "cross": (3, 4)}
    for name, weights in maps.items():
        assert weights.shape == (2, 2, *sizes[name.split(".")[0]])
        torch.testing.assert_close(
            weights[0].sum(-1), torch.ones_like(weights[0, ..., 0])
        )
    assert (maps["decoder.1"].triu(1) == 0).all()
    assert (maps["encoder.0"][1, :, :, 2:] == 0).all()  # padding
    assert (maps["cross.1"][1, :, :, 2:] == 0).all()


def test_attention_maps_explain_the_output_of_the_first_layer():
    model = build(small())
    src, tgt = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1]])
    weights = model.attention_maps(src, tgt)["encoder.0"]
    attention = model.encoder.layers[0].attention
    x = model.embeddings.read_source(src)
    x = x + sinusoids(4, 12, x.dtype)
    v = attention.split(attention.w_v(x))
    mixed = (weights @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attention.w_o(mixed), attention(x), **exact)


class Elsewhere(Transformer):
    """Its encoder is its own, and it has an attention outside a layer."""

    def encode(self, src):
        return super().encode(src.flip(1))

    def logits(self, x, memory, src):
        return super().logits(x + self.pointer(x, memory), memory, src)


def test_attention_maps_are_those_of_what_the_model_computes():
    model = build(small(), kind=Elsewhere)
    model.pointer = MultiHeadAttention(12, 2).double()
    src, tgt = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 5]])
    maps = model.attention_maps(src, tgt)
    with recorded_weights(
        {"it": model.encoder.layers[0].attention}
    ) as seen:
        model.encode(src)
    torch.testing.assert_close(maps["encoder.0"], seen["it"])
    assert maps["pointer"].shape == (1, 2, 2, 4)


def test_what_was_recorded_says_that_it_has_no_gradient():
    model = build(small())
    blocks = {"it": model.decoder.layers[0].cross_attention}
    with recorded_weights(blocks) as maps:
        model(torch.tensor([[1, 2]]), torch.tensor([[1]])).sum().backward()
    with pytest.raises(RuntimeError, match="can't retain_grad"):
        maps["it"].retain_grad()


def test_looking_leaves_nothing_behind():
    model = build(small())
    src = tgt = torch.tensor([[1, 2]])
    model.attention_maps(src, tgt)
    assert not any(m._forward_pre_hooks for m in model.modules())
    with pytest.raises(IndexError):
        model.attention_maps(torch.tensor([[VOCAB]]), tgt)
    assert not any(m._forward_pre_hooks for m in model.modules())


# --- at the start


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("tie", ["all", "none"])
def test_an_untrained_model_says_all_tokens_are_about_equally_likely(
    norm, tie
):
    torch.manual_seed(0)
    vocab = 2000
    model = Transformer(
        small(
            src_vocab=vocab,
            tgt_vocab=vocab,
            d_model=128,
            d_ff=256,
            norm=norm,
            tie=tie,
        )
    ).eval()
    src, tgt = torch.randint(1, vocab, (2, 16, 20))
    logits = model(src, tgt[:, :-1]).flatten(0, 1)
    loss = F.cross_entropy(logits, tgt[:, 1:].flatten()).item()
    # ln V, and a half for logits of variance 1
    assert loss == pytest.approx(math.log(vocab) + 0.5, abs=0.35)


def test_the_same_seed_builds_the_same_model():
    a, b = build(small(), seed=3), build(small(), seed=3)
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_state_dict_restores_the_model():
    a, b = build(small(), seed=1), build(small(), seed=2)
    b.load_state_dict(a.state_dict())
    src, tgt = torch.tensor([[1, 2]]), torch.tensor([[3]])
    assert torch.equal(a(src, tgt), b(src, tgt))
    assert not any("positions" in name for name in a.state_dict())
