"""Chapter 26: each part of later years is what its paper says."""

import math
from argparse import Namespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from annotated.attention import MultiHeadAttention
from annotated.batches import Batch
from annotated.book.example import reversal_batch, reversal_model
from annotated.embeddings import sinusoids
from annotated.engine.errors import RunError
from annotated.engine.packing import check_parts, packed
from annotated.engine.search import beam_search
from annotated.engine.trainer import RunConfig
from annotated.engine.trainer import Trainer as FastTrainer
from annotated.exchange.export import export_run
from annotated.layers import FeedForward
from annotated.masks import causal_mask
from annotated.model import Transformer, TransformerConfig
from annotated.search import (
    CachedSelfAttention,
    SearchConfig,
    cached_beam_search,
    plain_beam_search,
)
from annotated.since import (
    DecoderOnly,
    GroupedQueryAttention,
    NoPositions,
    RMSNorm,
    RotaryAttention,
    SwiGLU,
    _CachedGroups,
    _RotaryGroups,
    rotate,
    swap,
)
from annotated.tokens import BOS, EOS, PAD
from annotated.training import batch_loss, copy_corpus

DOUBLE = torch.float64
PARTS = (
    "RMSNorm", "SwiGLU", "no positions", "rotary", "grouped",
    "rotary grouped",
)  # fmt: skip


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


# --- norms


def test_rms_norm_is_its_formula():
    norm = RMSNorm(2, eps=0.0)
    norm.weight.data = torch.tensor([2.0, 1.0])
    # the mean square of 3 and 4 is 12.5
    expected = torch.tensor([6.0, 4.0]) / math.sqrt(12.5)
    torch.testing.assert_close(norm(torch.tensor([3.0, 4.0])), expected)


@pytest.mark.skipif(not hasattr(nn, "RMSNorm"), reason="torch < 2.4")
def test_rms_norm_is_torchs():
    ours, theirs = RMSNorm(24).double(), nn.RMSNorm(24, eps=1e-5).double()
    nn.init.normal_(ours.weight)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(3, 5, 24, dtype=DOUBLE) * 1e-2  # so that ε matters
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-12, atol=0)


def test_on_vectors_of_mean_zero_both_norms_agree():
    x = torch.randn(4, 16, dtype=DOUBLE)
    x = x - x.mean(dim=-1, keepdim=True)
    rms, layer = RMSNorm(16).double(), nn.LayerNorm(16).double()
    torch.testing.assert_close(rms(x), layer(x))
    assert not torch.allclose(rms(x + 1), layer(x + 1), atol=0.1)


def test_pre_norm_is_a_field_of_the_configuration():
    post, pre = (reversal_model(norm=norm) for norm in ("post", "pre"))
    # a norm more at the end of each stack, of a gain and a bias
    assert size(pre) - size(post) == 2 * 2 * 64
    layer = pre.encoder.layers[0]
    x, out = torch.randn(1, 3, 64), layer.feed_forward.outer
    nn.init.zeros_(layer.attention.w_o.weight)
    nn.init.zeros_(out.weight)
    # where the sub-layers are silent, pre-norm hands the stream on as it is
    torch.testing.assert_close(layer(x), x, rtol=0, atol=0)
    assert not torch.allclose(post.encoder.layers[0](x), x, atol=0.1)


# --- networks


def test_gelu_is_x_times_the_normal_distribution():
    network = FeedForward(1, 1, activation="gelu").double()
    for linear in (network.inner, network.outer):
        nn.init.ones_(linear.weight)
    x = torch.linspace(-3, 3, 13, dtype=DOUBLE)[:, None]
    below = (1 + torch.erf(x / math.sqrt(2))) / 2
    torch.testing.assert_close(network(x), x * below)


def test_gelu_has_the_parameters_of_relu():
    relu, gelu = (
        FeedForward(16, 64, activation=name) for name in ("relu", "gelu")
    )
    gelu.load_state_dict(relu.state_dict())
    x = torch.randn(5, 16)
    assert not torch.allclose(relu(x), gelu(x), atol=1e-3)
    nn.init.constant_(relu.inner.bias, 50.0)  # far on the right both are x
    gelu.load_state_dict(relu.state_dict())
    torch.testing.assert_close(relu(x), gelu(x))


def test_swiglu_is_its_formula():
    network = SwiGLU(6, 9).double()
    assert network.inner.out_features == 6
    x = torch.randn(2, 3, 6, dtype=DOUBLE)
    gate, inner, outer = (
        getattr(network, name).weight for name in ("gate", "inner", "outer")
    )
    z = x @ gate.T
    expected = (z * z.sigmoid() * (x @ inner.T)) @ outer.T
    torch.testing.assert_close(network(x), expected)


@pytest.mark.parametrize(("d_model", "d_ff"), [(64, 128), (512, 2048)])
def test_swiglu_has_as_many_parameters(d_model, d_ff):
    matched = size(SwiGLU(d_model, d_ff)) / size(FeedForward(d_model, d_ff))
    assert matched == pytest.approx(1, abs=0.02)


def test_swiglu_drops_what_it_is_told():
    network, x = SwiGLU(8, 64, 0.5), torch.randn(1, 8)
    assert not torch.equal(network(x), network(x))
    network.eval()
    assert torch.equal(network(x), network(x))


# --- rotary positions


def test_rotating_multiplies_each_pair_by_a_complex_number():
    x = torch.randn(9, 16, dtype=DOUBLE)
    turned = rotate(x, sinusoids(9, 16, DOUBLE))
    even = torch.arange(0, 16, 2, dtype=DOUBLE)
    for pos in range(9):
        turn = torch.exp(1j * pos / 10_000 ** (even / 16))
        expected = torch.view_as_complex(x[pos].unflatten(0, (8, 2))) * turn
        expected = torch.view_as_real(expected).flatten()
        torch.testing.assert_close(turned[pos], expected)


def test_rotary_scores_depend_only_on_the_difference_of_positions():
    q, k = torch.randn(2, 1, 16, dtype=DOUBLE).expand(2, 40, 16)
    table = sinusoids(40, 16, DOUBLE)
    scores = rotate(q, table) @ rotate(k, table).T
    for offset in (-30, -3, 0, 1, 17):
        line = scores.diagonal(offset)
        torch.testing.assert_close(line, line[:1].expand_as(line))
    # and they do depend on it
    assert scores[0].std() > 0.1


def test_rotating_keeps_lengths():
    x = torch.randn(2, 3, 11, 8, dtype=DOUBLE)
    turned = rotate(x, sinusoids(11, 8, DOUBLE))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(turned[..., 0, :], x[..., 0, :])


def test_a_rotary_block_sees_order_and_a_shift_changes_nothing():
    block = RotaryAttention(16, 4).double()
    x = torch.randn(1, 6, 16, dtype=DOUBLE)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    assert not torch.allclose(block(x)[:, order], block(x[:, order]))
    before = torch.randn(1, 5, 16, dtype=DOUBLE)
    both = torch.cat([before, x], dim=1)
    mask = torch.arange(11) >= 5  # nobody may look at what came before
    late, early = block(both, mask=mask)[:, 5:], block(x)
    torch.testing.assert_close(late, early, rtol=0, atol=1e-6)


def test_positions_are_counted_from_the_first_that_is_told():
    block, x = RotaryAttention(16, 4), torch.randn(2, 4, 6, 4)
    turned = block.turn(x)
    torch.testing.assert_close(turned[..., 0, :], x[..., 0, :])
    assert not torch.allclose(turned[..., 1, :], x[..., 1, :])
    torch.testing.assert_close(
        block.turn(x[..., 2:, :], 2), turned[..., 2:, :]
    )
    torch.testing.assert_close(block.turn(x[0, 0]), turned[0, 0])


def test_across_two_sequences_nothing_is_turned():
    rotary, plain = RotaryAttention(16, 4), MultiHeadAttention(16, 4)
    rotary.load_state_dict(plain.state_dict())
    x, memory = torch.randn(2, 3, 16), torch.randn(2, 7, 16)
    torch.testing.assert_close(rotary(x, memory), plain(x, memory))
    mask = torch.arange(7) < 4  # padding
    masked = rotary(x, memory, mask)
    torch.testing.assert_close(masked, plain(x, memory, mask))
    assert not torch.allclose(masked, rotary(x, memory), atol=1e-4)
    assert not torch.allclose(rotary(x), plain(x), atol=1e-4)


# --- grouped heads


def test_as_many_groups_as_heads_is_multi_head_attention():
    grouped = GroupedQueryAttention(16, 4, 4).double()
    plain = MultiHeadAttention(16, 4).double()
    grouped.load_state_dict(plain.state_dict())
    x = torch.randn(2, 6, 16, dtype=DOUBLE)
    memory = torch.randn(2, 3, 16, dtype=DOUBLE)
    torch.testing.assert_close(grouped(x), plain(x))
    torch.testing.assert_close(grouped(x, memory), plain(x, memory))
    mask = causal_mask(6)
    torch.testing.assert_close(grouped(x, mask=mask), plain(x, mask=mask))


def test_a_group_is_heads_with_equal_keys_and_values():
    grouped, plain = (
        GroupedQueryAttention(16, 4, 2),
        MultiHeadAttention(16, 4),
    )
    state = grouped.state_dict()
    for name in ("w_k", "w_v"):
        for kind in ("weight", "bias"):
            two = state[f"{name}.{kind}"].unflatten(0, (2, 4))
            state[f"{name}.{kind}"] = two[[0, 0, 1, 1]].flatten(0, 1)
    plain.load_state_dict(state)
    x = torch.randn(2, 6, 16)
    torch.testing.assert_close(grouped(x), plain(x))


@pytest.mark.parametrize("groups", [1, 2])
def test_shared_keys_begin_as_glorot_has_it(groups):
    """Uniform up to √(6 / (inputs + outputs)), with biases of 0."""
    block = GroupedQueryAttention(64, 4, groups)
    for linear in (block.w_q, block.w_k, block.w_v, block.w_o):
        bound = math.sqrt(6 / (64 + linear.out_features))
        assert 0.97 * bound < linear.weight.abs().max() <= bound
        assert not linear.bias.any()


def test_groups_have_to_divide_the_heads():
    with pytest.raises(ValueError, match="num_groups 3 does not divide"):
        GroupedQueryAttention(16, 4, 3)
    with pytest.raises(ValueError, match="num_groups 0 does not divide"):
        GroupedQueryAttention(16, 4, 0)


def test_only_pairs_of_components_can_be_turned():
    """An odd d_k of 3 was broadcast, and one of 1 left no component."""
    with pytest.raises(ValueError, match="d_k must be even, not 3"):
        RotaryAttention(6, 2)


def filled(cache, x):
    """The cache after x, position by position, and what it answered."""
    rows = [cache(x[:, i : i + 1]) for i in range(x.size(1))]
    return cache.k.numel() + cache.v.numel(), torch.cat(rows, dim=1)


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_the_cache_shrinks_by_the_factor_and_answers_the_same(groups):
    block = GroupedQueryAttention(32, 8, groups).double()
    x = torch.randn(3, 5, 32, dtype=DOUBLE)
    small, answers = filled(block.cache(x[:, :0]), x)
    large, same = filled(CachedSelfAttention(block, x[:, :0]), x)
    assert large == small * 8 // groups == 2 * 3 * 5 * 32
    q, mask = torch.randn(3, 8, 1, 4, dtype=DOUBLE), torch.arange(5) < 3
    one, other = (kind(block, x).attend(q, mask)
                  for kind in (_CachedGroups, CachedSelfAttention))  # fmt: skip
    torch.testing.assert_close(one, other)
    expected = block(x, mask=causal_mask(5))
    torch.testing.assert_close(answers, expected)
    torch.testing.assert_close(same, expected)


def test_rotary_groups_are_both():
    both = _RotaryGroups(16, 4, 2).double()
    rotary = RotaryAttention(16, 4).double()
    state = both.state_dict()
    for name in ("w_k", "w_v"):
        for kind in ("weight", "bias"):
            two = state[f"{name}.{kind}"].unflatten(0, (2, 4))
            state[f"{name}.{kind}"] = two[[0, 0, 1, 1]].flatten(0, 1)
    rotary.load_state_dict(state)
    x = torch.randn(2, 6, 16, dtype=DOUBLE)
    torch.testing.assert_close(both(x), rotary(x))
    small, answers = filled(both.cache(x[:, :0]), x)
    large, same = filled(rotary.cache(x[:, :0]), x)
    assert large == 2 * small
    torch.testing.assert_close(answers, same)
    torch.testing.assert_close(answers, both(x, mask=causal_mask(6)))


VARIANTS = {
    "paper": {}, "pre-norm": {"norm": "pre"}, "window": {"window": 3},
    "learned": {"positions": "learned"}, "no ties": {"tie": "none"},
    "no biases": {"bias": False},
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("part", PARTS)
def test_a_changed_model_is_searched_like_a_plain_one(part, variant):
    """Every part by every search: the hypotheses of the plain one."""
    model = swap(reversal_model(**VARIANTS[variant]), part, groups=2)
    sharpen(model)
    sentences = [[5, 6, 7, 8, 9, 10, 11], [8], [12, 4]]
    config = SearchConfig(3, extra=9, nbest=2)
    plain = [plain_beam_search(model, s, config) for s in sentences]
    assert any(len(h[0].ids) > 4 for h in plain)
    for search in (cached_beam_search, beam_search):
        found = search(model, sentences, config)
        for one, other in zip(found, plain, strict=True):
            assert [h.ids for h in one] == [h.ids for h in other]
            assert [h.score for h in one] == pytest.approx(
                [h.score for h in other], abs=1e-4
            )


def sharpen(model):
    """Let attention look hard, and sentences go on."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("w_q.weight", "w_k.weight")):
                weight.mul_(3.0)
        model.embeddings.output[EOS] = 0.0


@pytest.mark.parametrize("search", [cached_beam_search, beam_search])
def test_attention_of_another_kind_is_refused_by_its_name(search):
    class Uniform(MultiHeadAttention):
        def weights(self, x, memory=None, mask=None):
            return super().weights(0 * x, memory, mask)

    model = reversal_model()
    for layer in model.decoder.layers:
        layer.attention = Uniform(model.config.d_model, 4)
    with pytest.raises(TypeError, match="no cache for Uniform"):
        search(model, [[5, 6, 7]], SearchConfig(2))


def test_a_cache_of_rotary_attention_may_begin_with_a_memory():
    block = RotaryAttention(16, 4).double()
    x = torch.randn(2, 5, 16, dtype=DOUBLE)
    cache = block.cache(x[:, :3])
    rows = [cache(x[:, i : i + 1]) for i in (3, 4)]
    expected = block(x, mask=causal_mask(5))[:, 3:]
    torch.testing.assert_close(torch.cat(rows, dim=1), expected)


# --- one stack

SHAPE = {
    "src_vocab": 12, "tgt_vocab": 12, "num_encoder_layers": 2,
    "d_model": 16, "d_ff": 32, "num_heads": 4, "dropout": 0.0,
}  # fmt: skip
SRC = torch.tensor([[5, 6, 7, EOS], [8, EOS, PAD, PAD]])
TGT = torch.tensor([[BOS, 9, 10, 11, 4], [BOS, 4, PAD, PAD, PAD]])


def one_stack(*parts, **changes):
    model = DecoderOnly(TransformerConfig(**SHAPE | changes))
    return swap(model, *parts, groups=2).double()


@pytest.mark.parametrize("parts", [(), ("rotary grouped", "SwiGLU")])
def test_one_stack_is_causal_on_the_joined_sequence(parts):
    model = one_stack(*parts)
    before = model(SRC[:1], TGT[:1])
    assert before.shape == (1, 5, 12)
    for place in range(1, 5):
        changed = TGT[:1].clone()
        changed[0, place] = 8
        after = model(SRC[:1], changed)
        torch.testing.assert_close(after[:, :place], before[:, :place])
        assert not torch.allclose(after[:, place], before[:, place])
    source = SRC[:1].clone()
    source[0, 0] = 8  # the first of all: every later one may see it
    changes = (model(source, TGT[:1]) - before).abs().amax(dim=-1)
    assert (changes > 1e-6).all()


@pytest.mark.parametrize("parts", [(), ("rotary",), ("no positions",)])
def test_padding_between_source_and_target_changes_nothing(parts):
    model = one_stack(*parts)
    together = model(SRC, TGT)[1, :2]
    alone = model(SRC[1:, :2], TGT[1:, :2])[0]
    torch.testing.assert_close(together, alone)
    # nor much of it, in whatever order a sort leaves what is equal
    padded = F.pad(SRC[:1], (0, 40), value=PAD)
    torch.testing.assert_close(
        model(padded, TGT[:1]), model(SRC[:1], TGT[:1])
    )


def test_what_one_stack_makes_lies_where_the_model_does():
    """Not on the default device, which here is one without numbers."""
    model = one_stack()
    expected = model(SRC, TGT)
    with torch.device("meta"):
        assert torch.equal(model(SRC, TGT), expected)


def test_one_stack_is_a_language_model_of_source_and_target():
    model = one_stack()
    src, tgt = SRC[:1], TGT[:1]
    x = model.embeddings.read_source(torch.cat([src, tgt], dim=1))
    x = model.stack(x + model.positions(9), causal_mask(9))
    expected = model.embeddings.logits(x)[:, src.size(1) :]
    torch.testing.assert_close(model(src, tgt), expected)


def test_the_loss_counts_the_target_alone():
    model = one_stack()
    labels = torch.tensor([[9, 10, 11, 4, EOS], [4, EOS, PAD, PAD, PAD]])
    loss, nll = batch_loss(model, Batch(SRC, TGT, labels), 0.0)
    rows = [model(SRC[:1], TGT[:1])[0], model(SRC[1:], TGT[1:])[0, :2]]
    real = torch.cat([labels[0], labels[1, :2]])
    by_hand = F.cross_entropy(torch.cat(rows), real, reduction="sum")
    torch.testing.assert_close(loss, by_hand)
    torch.testing.assert_close(nll, by_hand)


def test_five_layers_in_one_stack_are_as_large_as_two_and_two():
    # where d_ff is twice d_model: 5 · 8 d² = 2 · 8 d² + 2 · 12 d²
    shape = {"src_vocab": 9, "tgt_vocab": 9, "d_model": 64, "d_ff": 128}
    two = TransformerConfig(
        **shape, num_encoder_layers=2, num_decoder_layers=2
    )
    five = TransformerConfig(**shape, num_encoder_layers=5)
    sizes = size(DecoderOnly(five)), size(Transformer(two))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)


# --- putting them in


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_swapped_model_has_the_part_and_learns(part, norm):
    model = swap(reversal_model(norm=norm), part, groups=2)
    kinds = [type(block) for block in model.modules()]
    expected = {
        "RMSNorm": (RMSNorm, nn.LayerNorm),
        "SwiGLU": (SwiGLU, FeedForward),
        "grouped": (GroupedQueryAttention, MultiHeadAttention),
        "rotary": (RotaryAttention, MultiHeadAttention),
        "rotary grouped": (_RotaryGroups, MultiHeadAttention),
    }
    if part in expected:
        new, old = expected[part]
        assert new in kinds and old not in kinds
    if "positions" in part or "rotary" in part:
        assert kinds.count(NoPositions) == 2
    src, tgt, labels = reversal_batch(5, 16)
    adam = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(12):
        logits = model(src, tgt).flatten(0, 1)
        loss = F.cross_entropy(logits, labels.flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert all(p.grad is not None for p in model.parameters())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
def test_one_stack_shares_the_matrices_that_it_is_told(tie):
    rows = one_stack(tie=tie).embeddings
    assert (rows.source is rows.target) == (tie == "all")
    assert (rows.output is rows.target) == (tie != "none")


def test_no_positions_are_no_weights():
    stand_in = NoPositions()
    assert stand_in(7).tolist() == [[0.0]] * 7
    assert not stand_in.state_dict() and not list(stand_in.parameters())


def test_learned_positions_go_too():
    model = swap(reversal_model(positions="learned"), "no positions")
    assert isinstance(model.src_positions, NoPositions)
    assert isinstance(model.tgt_positions, NoPositions)


def test_parts_keep_the_shape_and_the_switches_of_the_model():
    model = reversal_model(
        bias=False, activation_dropout=0.2, attention_dropout=0.3, d_k=8,
        d_v=12,
    )  # fmt: skip
    swap(model, "SwiGLU", "rotary")
    network = model.encoder.layers[0].feed_forward
    block = model.decoder.layers[0].cross_attention
    assert network.inner.bias is None and network.dropout.p == 0.2
    assert block.w_q.bias is None and block.dropout.p == 0.3
    assert (block.d_k, block.d_v) == (8, 12)


@pytest.mark.parametrize("part", ["rotary", "grouped", "rotary grouped"])
@pytest.mark.parametrize("bias", [True, False])
def test_blocks_and_networks_keep_dropout_and_biases(part, bias):
    model = reversal_model(
        bias=bias, activation_dropout=0.2, attention_dropout=0.3
    )
    layer = swap(model, "SwiGLU", part).encoder.layers[0]
    assert layer.attention.dropout.p == 0.3
    assert layer.feed_forward.dropout.p == 0.2
    block = layer.attention
    for one in (block.w_q, block.w_k, block.w_v, block.w_o):
        assert (one.bias is not None) == bias


def test_one_group_is_what_is_meant_if_none_is_told():
    block = swap(reversal_model(), "grouped").encoder.layers[0].attention
    assert block.w_k.out_features == block.w_v.out_features == block.d_k


def test_an_unknown_part_is_an_error():
    with pytest.raises(KeyError, match="SwiGLUE"):
        swap(reversal_model(), "SwiGLUE")


# --- what knows the paper's parts alone


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_later_years_is_not_lost_without_a_word(part, tmp_path):
    """Packing and export build a model from the config, which does not say
    that a part was swapped: they refuse, and name the part.
    """
    model = swap(reversal_model(), part, groups=2)
    name = {
        "no positions": "NoPositions",
        "rotary": "NoPositions|RotaryAttention",
        "grouped": "GroupedQueryAttention",
        "rotary grouped": "NoPositions|_RotaryGroups",
    }.get(part, part)  # fmt: skip
    how = RunConfig(batch_tokens=50, max_steps=1)
    for action in (
        lambda: packed(model),
        lambda: FastTrainer(model, copy_corpus(9), how),
        lambda: export_run(Namespace(model=model), "onnx", tmp_path / "a"),
    ):
        with pytest.raises(RunError, match=f"is ({name}), which"):
            action()
    assert not [*tmp_path.iterdir()]


def test_nothing_is_swapped_into_a_packed_model():
    model = packed(reversal_model())
    with pytest.raises(TypeError, match="not of a packed one"):
        swap(model, "rotary")


def test_the_papers_own_models_have_no_part_of_their_own():
    for variant in VARIANTS.values():
        model = reversal_model(**variant)
        check_parts(model)
        check_parts(packed(model))
