"""E2: what skips padding computes what the plain form computes."""

import ast
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from annotated.attention import MultiHeadAttention, attention
from annotated.engine import packing as packing_module
from annotated.engine.errors import RunError
from annotated.engine.packing import (
    FastDropout,
    PackedAttention,
    PackedMask,
    PackedTransformer,
    Packing,
    _ChunkedLoss,
    _fused_attention,
    _short,
    _ShortAttention,
    _Spread,
    check_compiler,
    chunked_loss,
    compile_layers,
    packed,
)
from annotated.loss import smoothed_loss, smoothed_targets
from annotated.masks import causal_mask, padding_mask, window_mask
from annotated.model import Transformer, TransformerConfig

PACKAGE = Path(packing_module.__file__).parents[1]
calm = settings(
    deadline=None, max_examples=25
)  # a busy machine is no failure
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
seeds = st.integers(0, 2**32 - 1)
batches = st.lists(st.integers(0, 7), min_size=1, max_size=5)
OPTIONS = [
    {},
    {"norm": "pre"},
    {"window": 3},
    {"positions": "learned"},
    {"d_k": 5, "d_v": 7},
    {"bias": False},
    {"tie": "decoder", "num_encoder_layers": 1},
    {"tie": "none", "norm": "pre", "window": 4},
    {"activation": "silu", "output_bias": True},
    {"activation": "gelu", "output_bias": True, "tie": "none"},
]


def real_tokens(lengths):
    longest = max(*lengths, 1) if len(lengths) > 1 else max(lengths[0], 1)
    return torch.arange(longest) < torch.tensor(lengths)[:, None]


def small(**options):
    sizes = {
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "d_model": 16,
        "d_ff": 32,
        "num_heads": 2,
        "dropout": 0.0,
    }
    return TransformerConfig(src_vocab=30, tgt_vocab=30, **sizes | options)


def ids(lengths, seed=0):
    real = real_tokens(lengths)
    draw = torch.Generator().manual_seed(seed)
    words = torch.randint(4, 30, real.shape, generator=draw)
    return words.where(real, torch.zeros_like(words))


# --- the model ---


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_packed_is_plain_forward_and_gradient(options, dtype):
    torch.manual_seed(0)
    plain = Transformer(small(**options)).to(dtype)
    if plain.embeddings.bias is not None:
        nn.init.normal_(plain.embeddings.bias)
    fast = packed(plain)
    src, tgt = ids([7, 4, 1, 7, 0]), ids([3, 6, 6, 1, 2], seed=1)
    real = tgt != 0
    results = []
    for model in (plain, fast):
        logits = model(src, tgt)[real]
        weights = list(model.parameters())
        loss = logits.square().mean()
        results.append((logits, torch.autograd.grad(loss, weights)))
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(results[1], results[0], **close)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_packed_halves_and_maps_are_the_plain_ones(options):
    torch.manual_seed(0)
    plain = Transformer(small(**options)).double().eval()
    fast = packed(plain)
    src, tgt = ids([7, 4, 1]), ids([3, 6, 6], seed=1)
    memory = plain.encode(src)
    torch.testing.assert_close(fast.encode(src)[src != 0], memory[src != 0])
    torch.testing.assert_close(
        fast.decode(tgt, memory, src)[tgt != 0],
        plain.decode(tgt, memory, src)[tgt != 0],
    )
    mine, theirs = (m.attention_maps(src, tgt) for m in (fast, plain))
    assert mine.keys() == theirs.keys()
    for name, weights in theirs.items():
        real = (src if name.startswith("encoder") else tgt) != 0
        rows = weights.transpose(1, 2)[real]
        torch.testing.assert_close(mine[name].transpose(1, 2)[real], rows)


def test_both_forms_have_one_set_of_parameters():
    plain = Transformer(small())
    fast = packed(plain)
    assert list(fast.state_dict()) == list(plain.state_dict())
    for mine, theirs in zip(
        fast.parameters(), plain.parameters(), strict=True
    ):
        assert mine is theirs
    assert fast.embeddings.source is fast.embeddings.output


def test_a_packed_model_trains_as_the_plain_one_does():
    torch.manual_seed(0)
    plain = Transformer(small()).double()
    fast = PackedTransformer(plain.config).double()
    fast.load_state_dict(plain.state_dict())
    src, tgt, labels = (
        ids([7, 4, 1]),
        ids([3, 6, 2]),
        ids([3, 6, 2], seed=1),
    )
    curves = []
    for model in (plain, fast):
        adam = torch.optim.Adam(model.parameters(), lr=1e-2)
        curve = []
        for _ in range(30):
            if model is plain:
                loss, _ = smoothed_loss(model(src, tgt), labels)
            else:
                x, packing = model.hidden(src, tgt)
                weight = model.embeddings.output
                loss, _ = chunked_loss(x, weight, packing.pack(labels))
            adam.zero_grad()
            loss.backward()
            adam.step()
            curve.append(loss.item())
        curves.append(curve)
    assert curves[0][-1] < curves[0][0] / 2
    assert curves[1] == pytest.approx(curves[0], rel=1e-9)


def test_packings_that_are_given_are_not_looked_for_again(monkeypatch):
    model = PackedTransformer(small())
    src, tgt = ids([7, 4, 1]), ids([3, 6, 2], seed=1)
    expected, _ = model.hidden(src, tgt)
    source, target = Packing.of(src), Packing.of(tgt)
    monkeypatch.setattr(Packing, "of", None)
    found, packing = model.hidden(src, tgt, source, target)
    assert torch.equal(found, expected) and packing is target


def test_a_packed_model_can_be_packed_again():
    once = packed(Transformer(small()))
    twice = packed(once)
    assert list(twice.parameters())[0] is list(once.parameters())[0]


@pytest.mark.parametrize("options", OPTIONS[:4], ids=str)
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_packed_model_lies_where_the_plain_one_does(
    options, dtype, device
):
    plain = Transformer(small(**options)).to(device, dtype)
    fast = packed(plain)
    whole = dict(plain.named_buffers()) | dict(plain.named_parameters())
    found = dict(fast.named_buffers()) | dict(fast.named_parameters())
    assert found.keys() == whole.keys()
    assert all(found[name] is whole[name] for name in whole)
    sides = torch.ones(2, 2, 3, dtype=torch.long, device=device)
    packing = Packing(sides[0] == 1, torch.arange(6, device=device))
    x, _ = fast.hidden(sides[0], sides[1], packing, packing)
    assert (x.device.type, x.dtype) == (device, dtype)


def test_a_packed_model_draws_no_numbers_and_changes_no_switch():
    plain = Transformer(small()).eval()
    plain.embeddings.target.requires_grad_(False)
    plain.encoder.layers[0].dropout.p = 0.4
    before = torch.get_rng_state()
    fast = packed(plain)
    assert torch.equal(torch.get_rng_state(), before)
    assert not fast.embeddings.output.requires_grad
    assert not plain.embeddings.target.requires_grad
    assert fast.encoder.layers[0].dropout.p == 0.4
    assert not fast.training and not fast.decoder.training
    assert type(plain.dropout) is nn.Dropout
    assert type(plain.encoder.layers[0].attention) is MultiHeadAttention


@pytest.mark.skipif(torch.__version__ < "2.5", reason="cuDNN is not asked")
@pytest.mark.parametrize(
    "make", [PackedTransformer, lambda c: packed(Transformer(c))]
)
def test_whoever_packs_turns_off_the_kernel_that_is_planned_by_shape(make):
    cuda = torch.backends.cuda
    before = cuda.cudnn_sdp_enabled(), cuda.flash_sdp_enabled()
    try:
        cuda.enable_cudnn_sdp(True)
        make(small())
        assert not cuda.cudnn_sdp_enabled()
        assert cuda.flash_sdp_enabled() == before[1]
    finally:
        cuda.enable_cudnn_sdp(before[0])


@pytest.mark.parametrize("training", [True, False])
def test_a_packed_model_is_in_the_mode_of_the_plain_one(training):
    plain = Transformer(small()).train(training)
    modes = {part.training for part in packed(plain).modules()}
    assert modes == {training}


def test_hooks_fire_in_both_forms():
    for model in (Transformer(small()), PackedTransformer(small())):
        seen = []
        for layer in [*model.encoder.layers, *model.decoder.layers]:
            layer.register_forward_hook(
                lambda *_, seen=seen: seen.append(1)
            )
        model(ids([3, 2]), ids([2, 4]))
        assert len(seen) == 4


def test_dropout_acts_in_training_and_only_there():
    model = PackedTransformer(small(dropout=0.5))
    assert not any(type(m) is nn.Dropout for m in model.modules())
    src, tgt = ids([7, 4]), ids([3, 6])
    assert not torch.equal(model(src, tgt), model(src, tgt))
    model.eval()
    assert torch.equal(model(src, tgt), model(src, tgt))


@calm
@given(seeds, batches, st.booleans())
def test_packed_attention_is_the_plain_form(seed, lengths, causal):
    torch.manual_seed(seed)
    plain = MultiHeadAttention(8, 2).double()
    fast = PackedAttention(8, 2).double()
    fast.load_state_dict(plain.state_dict())
    real = real_tokens(lengths)
    packing = Packing.of(real.long())
    x = torch.randn(*real.shape, 8, dtype=torch.float64)
    mask = padding_mask(real.long())
    if causal:
        mask = mask & causal_mask(real.size(1))
    expected = plain(x, mask=mask)[real]
    view = PackedMask.to(packing, packing, causal=causal)
    found = fast(packing.pack(x), mask=view)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(fast(x, mask=mask), plain(x, mask=mask))


# --- attention with few keys, in 16 bits ---


@pytest.fixture
def kernels(monkeypatch):
    """Which kernels compute attention, and in which dtypes."""
    kernel, short, seen = F.scaled_dot_product_attention, torch.bmm, []

    def fused(q, *args, **options):
        seen.append(("fused", q.dtype))
        return kernel(q, *args, **options)

    def product(a, b):
        seen.append(("short", a.dtype))
        return short(a, b)

    monkeypatch.setattr(F, "scaled_dot_product_attention", fused)
    monkeypatch.setattr(torch, "bmm", product)
    return seen


def attend(layer, sentences, causal=False):
    packing = Packing.of(sentences)
    x = torch.randn(len(packing.index), 16, dtype=layer.w_q.weight.dtype)
    return layer(x, mask=PackedMask.to(packing, packing, causal))


@pytest.mark.parametrize(
    ("dtype", "mixed", "dropout", "expected"),
    [
        (torch.float32, False, 0.0, ("fused", torch.float32)),
        (torch.float64, True, 0.0, ("fused", torch.float64)),
        (torch.bfloat16, False, 0.0, ("short", torch.bfloat16)),
        (torch.float32, True, 0.0, ("short", torch.bfloat16)),
        (torch.bfloat16, False, 0.1, ("fused", torch.float32)),
        (torch.float32, True, 0.1, ("fused", torch.float32)),
        (torch.float16, False, 0.0, ("fused", torch.float32)),
    ],
)
def test_who_attends_in_which_numbers(
    kernels, dtype, mixed, dropout, expected
):
    layer = PackedAttention(16, 2, dropout=dropout).to(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        found = attend(layer, ids([12, 9, 3]))
        assert set(kernels) == {expected}
        # what is dropped while training is not dropped afterwards
        kernels.clear()
        attend(layer.eval(), ids([12, 9, 3]))
    again = "short" if torch.bfloat16 in (dtype, found.dtype) else "fused"
    assert {name for name, _ in kernels} == {again}


def test_many_keys_or_a_compiler_are_left_to_the_kernel(
    kernels, monkeypatch
):
    layer = PackedAttention(16, 2).bfloat16()
    for length, expected in ((256, "short"), (257, "fused")):
        kernels.clear()
        attend(layer, torch.ones(1, length))
        assert {name for name, _ in kernels} == {expected}
    # it is the keys that count
    long, brief = (Packing.of(torch.ones(1, n)) for n in (300, 2))
    for queries, keys, expected in (
        (long, brief, "short"),
        (brief, long, "fused"),
    ):
        kernels.clear()
        x, memory = (
            torch.randn(p.real.size(1), 16).bfloat16()
            for p in (queries, keys)
        )
        layer(x, memory, PackedMask.to(queries, keys))
        assert {name for name, _ in kernels} == {expected}
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    kernels.clear()
    attend(layer, torch.ones(1, 5))
    assert {name for name, _ in kernels} == {"fused"}


def test_on_another_device_the_kernel_is_torchs():
    q, k, v = torch.randn(3, 2, 2, 5, 8, device="meta").bfloat16()
    assert _fused_attention(q, k, v).dtype == torch.bfloat16
    mask = PackedMask.to(*[Packing.of(torch.ones(2, 5))] * 2)
    assert _short(q.new_empty(10, 16, device="cpu"), mask)
    assert not _short(q.new_empty(10, 16), mask)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_kernel_on_a_cpu_rounds_at_the_end_and_nowhere_before(
    mixed, dtype
):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 5, 8).to(dtype)
    exact = F.scaled_dot_product_attention(q.float(), k.float(), v.float())
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        found = _fused_attention(q, k, v)
    assert torch.equal(found, exact.to(dtype))


CROSS = [
    (ids([5, 2, 7]), ids([3, 6, 1])),
    (ids([4, 4]), ids([4, 4])),
    (ids([3, 2]), ids([0, 4])),  # nothing to attend to
    (ids([0, 0]), ids([2, 1])),  # nobody asks
    (ids([1]), ids([0])),
    (torch.tensor([[0, 5, 0, 6], [7, 0, 0, 0]]), ids([2, 3])),
]
WAYS = [
    *[(a, b, {}) for a, b in CROSS],
    *[(a, a, {"causal": True}) for a, _ in CROSS[:-1]],
    (CROSS[0][0], CROSS[0][0], {"window": 3}),
    (CROSS[0][0], CROSS[0][0], {"window": 3, "causal": True}),
    (CROSS[1][0], CROSS[1][0], {"window": 1}),
]


@pytest.mark.parametrize("way", range(len(WAYS)))
@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)]
)
def test_short_attention_is_equation_1_with_its_gradient(way, dtype, error):
    """Written by sentence and head, in float64."""
    torch.manual_seed(way)
    asks, tells, options = WAYS[way]
    queries, keys = Packing.of(asks), Packing.of(tells)
    mask = PackedMask.to(queries, keys, **options)
    heads, d_k, d_v = 3, 5, 4
    q, k, v = (
        torch.randn(len(p.index), heads * d).to(dtype).requires_grad_()
        for p, d in ((queries, d_k), (keys, d_k), (keys, d_v))
    )
    found = _ShortAttention.apply(q, k, v, mask, heads)
    assert (found.shape, found.dtype) == ((len(q), heads * d_v), dtype)
    wanted = torch.zeros(found.shape, dtype=torch.float64)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    may = padding_mask(tells).expand(-1, 1, asks.size(1), -1)[:, 0]
    if options.get("causal"):
        may = may & causal_mask(asks.size(1))
    if "window" in options:
        may = may & window_mask(asks.size(1), options["window"])
    for i in range(len(asks)):
        rows, columns = (
            (p.index // p.real.size(1) == i).nonzero()[:, 0]
            for p in (queries, keys)
        )
        seen = may[i][asks[i] != 0][:, tells[i] != 0]
        for h in range(heads):
            q1, k1, v1 = (
                x[side].unflatten(1, (heads, -1))[:, h]
                for x, side in zip(wide, (rows, columns, columns))
            )
            wanted[rows, h * d_v : (h + 1) * d_v] = attention(
                q1, k1, v1, seen
            )
    grad = torch.randn(found.shape).to(dtype)
    gradients = torch.autograd.grad(found, (q, k, v), grad)
    expected = torch.autograd.grad(
        wanted, wide, grad.double(), allow_unused=True
    )
    for mine, theirs in zip((found, *gradients), (wanted, *expected)):
        theirs = torch.zeros(mine.shape) if theirs is None else theirs
        scale = max(1.0, theirs.norm().item())
        assert (mine.double() - theirs).norm() <= error * scale


def test_the_softmax_of_short_attention_is_in_32_bits():
    """Scores of 96 and 90 fit into 16 bits; divided by √3, they do not."""
    packing = Packing.of(torch.ones(1, 2))
    mask = PackedMask.to(packing, packing)
    scores = torch.tensor([96.0, 90.0])
    q, k = torch.ones(2, 3), F.pad(scores[:, None], (0, 2))
    found = _ShortAttention.apply(
        q.bfloat16(), k.bfloat16(), torch.eye(2).bfloat16(), mask, 1
    )
    exact = (scores / math.sqrt(3)).softmax(0).expand(2, 2)
    torch.testing.assert_close(found.float(), exact, rtol=4e-3, atol=0)


def test_short_attention_has_no_second_derivative():
    packing = Packing.of(torch.ones(1, 3))
    x = torch.randn(3, 4, requires_grad=True)
    found = _ShortAttention.apply(
        x, x, x, PackedMask.to(packing, packing), 2
    )
    (gradient,) = torch.autograd.grad(
        found.square().sum(), x, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_the_places_of_heads_are_found_once(monkeypatch):
    packing = Packing.of(ids([5, 2, 7]))
    found = packing.heads(2)
    assert packing.heads(2) is found and packing.heads(3) is not found
    x = torch.randn(14, 6)
    split = found.split(x)
    assert torch.equal(
        split,
        packing.pad(x).unflatten(2, (2, 3)).transpose(1, 2).flatten(0, 1),
    )
    assert torch.equal(found.join(split), x)
    assert packing == Packing(packing.real, packing.index)


def test_training_in_16_bits_takes_the_way_of_float32():
    """Two curves of one model: with few keys, and by the kernel."""
    curves = []
    for limit in (256, 0):
        torch.manual_seed(0)
        model = PackedTransformer(small(d_model=32))
        adam = torch.optim.Adam(model.parameters(), lr=3e-3)
        source, target = ids([7, 4, 1]), ids([3, 6, 2], seed=1)
        curve = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(packing_module, "SHORT", limit)
            for _ in range(30):
                with torch.autocast("cpu", torch.bfloat16):
                    x, packing = model.hidden(source, target)
                loss, _ = chunked_loss(
                    x, model.embeddings.output, packing.pack(target)
                )
                adam.zero_grad()
                loss.backward()
                adam.step()
                curve.append(loss.item())
        curves.append(curve)
    assert curves[0][-1] < curves[0][0] / 2
    assert curves[0] != curves[1]
    assert curves[0] == pytest.approx(curves[1], rel=0.02)


# --- autocast ---


@pytest.mark.skipif(torch.__version__ < "2.4", reason="autocast casts")
def test_what_several_maps_read_is_cast_once():
    model = PackedTransformer(small())
    seen = []  # what the maps read, kept alive: an id is used again
    for part in model.modules():
        if isinstance(part, PackedAttention):
            for linear in (part.w_q, part.w_k, part.w_v):
                linear.register_forward_pre_hook(
                    lambda _, read: seen.append(read[0])
                )
    sentences = ids([12, 9, 3])
    with torch.autocast("cpu", torch.bfloat16):
        model.hidden(sentences, sentences)
    assert {x.dtype for x in seen} == {torch.bfloat16}
    # encoder; decoder's own, and its queries; the memory, for all layers
    encoder, decoder = (
        len(stack.layers) for stack in (model.encoder, model.decoder)
    )
    assert len({id(x) for x in seen}) == encoder + 2 * decoder + 1


def test_autocast_leaves_64_bits_as_they_are():
    model, sentences = PackedTransformer(small()).double(), ids([5, 3])
    expected, _ = model.hidden(sentences, sentences)
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = model.hidden(sentences, sentences)
    assert torch.equal(found, expected)


# --- packing ---


@calm
@given(seed=seeds, lengths=batches)
def test_packing_agrees_with_boolean_indexing(seed, lengths):
    real = real_tokens(lengths)
    packing = Packing.of(real.long())
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(*real.shape, 3, generator=g)
    tokens = packing.pack(x)
    assert torch.equal(tokens, x[real])
    assert torch.equal(packing.pad(tokens), x * real[:, :, None])
    assert torch.equal(packing.pack(packing.pad(tokens)), tokens)


@calm
@given(seed=seeds, real=st.lists(st.booleans(), min_size=6, max_size=6))
def test_padding_may_stand_anywhere(seed, real):
    real = torch.tensor(real).view(2, 3)
    packing = Packing.of(real.long())
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(packing.pad(packing.pack(x)), x * real)


@pytest.mark.parametrize("lengths", [(5, 2, 0, 3), (5, 5), (0, 0)])
def test_gradients_of_packing_agree_with_finite_differences(lengths):
    packing = Packing.of(real_tokens(lengths).long())
    x = torch.randn(*packing.real.shape, 2, dtype=torch.float64)
    tokens = torch.randn(sum(lengths), 2, dtype=torch.float64)
    for function, leaf in ((packing.pack, x), (packing.pad, tokens)):
        leaf.requires_grad_()
        assert torch.autograd.gradcheck(function, leaf)
        assert torch.autograd.gradgradcheck(function, leaf)


def test_packing_token_ids_keeps_them_whole_numbers():
    ids = torch.tensor([[5, 8, 6], [4, 0, 0]])
    packing = Packing.of(ids)
    assert packing.pack(ids).tolist() == [5, 8, 6, 4]
    assert torch.equal(packing.pad(packing.pack(ids)), ids)


def test_packing_knows_its_mask():
    ids = torch.tensor([[5, 8, 6], [4, 0, 0]])
    packing = Packing.of(ids)
    assert torch.equal(packing.mask, padding_mask(ids))
    assert not packing.full


def test_packing_without_padding_copies_nothing():
    packing = Packing.of(torch.ones(2, 3).long())
    x = torch.randn(2, 3, 4)
    assert packing.full and packing.mask is None
    assert packing.pack(x).data_ptr() == x.data_ptr()
    assert packing.pad(packing.pack(x)).data_ptr() == x.data_ptr()


# --- dropout ---


@pytest.mark.parametrize("p", [0.01, 0.1, 0.3, 0.5, 0.9])
def test_dropout_drops_at_its_rate_and_scales_the_rest(p):
    torch.manual_seed(0)
    n = 1_000_000
    y = FastDropout(p)(torch.ones(n))
    dropped = (y == 0).double().mean().item()
    assert abs(dropped - p) < 5 * math.sqrt(p * (1 - p) / n)
    survivors = y[y != 0]
    assert (survivors == survivors[0]).all()
    assert survivors[0].item() == pytest.approx(1 / (1 - p), abs=1e-2)
    # rounding p to 16 bits does not move the mean
    assert abs(y.double().mean().item() - 1) < 5 * math.sqrt(
        p / n / (1 - p)
    )


def test_dropout_draws_each_number_by_itself():
    torch.manual_seed(0)
    kept = (FastDropout(0.5)(torch.ones(100_000, 4)) > 0).double()
    # four draws come from one 64-bit number: they must not be related
    correlation = torch.corrcoef(kept.T) - torch.eye(4)
    assert correlation.abs().max() < 0.02


@pytest.mark.parametrize("p", [1e-9, 1e-6, 1 / 2**17])
def test_dropout_with_a_tiny_rate_keeps_nearly_everything(p):
    torch.manual_seed(0)
    mask = FastDropout(p)(torch.ones(4_000_000))
    # one in 65,536 at most: 61, and five standard deviations
    assert (mask == 0).sum() < 100
    assert mask.max().item() == pytest.approx(1, abs=1e-4)


def test_dropout_with_rate_1_keeps_nothing_and_stays_finite():
    assert (FastDropout(1.0)(torch.ones(1000)) == 0).all()


def test_dropout_is_torchs_where_it_compiles_or_is_on_no_cpu(monkeypatch):
    x = torch.ones(1000)
    assert FastDropout(0.5)(x.to("meta")).device.type == "meta"
    torch.manual_seed(0)
    expected = F.dropout(x, 0.5)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.manual_seed(0)
    assert torch.equal(FastDropout(0.5)(x), expected)


def test_dropout_is_the_identity_when_evaluating_or_at_rate_0():
    x = torch.randn(5, 7)
    assert FastDropout(0.5).eval()(x) is x
    assert FastDropout(0.0)(x) is x


def test_dropout_follows_the_seed():
    dropout, x = FastDropout(0.5), torch.ones(1000)
    torch.manual_seed(3)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(second, first)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dropout_keeps_shape_and_dtype(shape, dtype):
    y = FastDropout(0.5)(torch.ones(shape, dtype=dtype))
    assert (y.shape, y.dtype) == (shape, dtype)


def test_dropout_takes_a_tensor_that_is_not_contiguous():
    x = torch.arange(1.0, 7.0).reshape(2, 3).T
    y = FastDropout(0.5)(x)
    assert ((y == 0) | (y == 2 * x)).all()


def test_dropout_drops_the_gradients_that_it_dropped_the_values_of():
    x = torch.ones(1000, requires_grad=True)
    y = FastDropout(0.3)(x)
    y.sum().backward()
    assert torch.equal(x.grad, y)


def test_dropout_keeps_the_mean_in_sixteen_bits():
    """1/0.9 is 1.1094 in bfloat16: the rate follows, the mean stays 1."""
    torch.manual_seed(0)
    y = FastDropout(0.1)(torch.ones(4_000_000, dtype=torch.bfloat16))
    assert abs(y.double().mean().item() - 1) < 5e-4


# --- the loss in chunks ---


def make(tokens=23, vocab=37, d_model=8, dtype=torch.float64, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, d_model, dtype=dtype, generator=draw)
    weight = torch.randn(vocab, d_model, dtype=dtype, generator=draw)
    labels = torch.randint(vocab, (tokens,), generator=draw)
    return x.requires_grad_(), weight.requires_grad_(), labels


def reference(x, weight, labels, smoothing, bias=0.0):
    logits = x @ weight.T + bias
    return F.cross_entropy(
        logits, labels, reduction="sum", label_smoothing=smoothing
    )


@pytest.mark.filterwarnings("error")  # of an output of the wrong size
@pytest.mark.parametrize("rows", [None, 1, 5, 23, 100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_gradient_agree_with_torch(dtype, smoothing, rows):
    x, weight, labels = make(dtype=dtype)
    loss, _ = chunked_loss(x, weight, labels, smoothing, rows)
    assert loss.dtype == dtype
    theirs = reference(x, weight, labels, smoothing)
    ours_grad = torch.autograd.grad(3 * loss / 23, (x, weight))
    their_grad = torch.autograd.grad(3 * theirs / 23, (x, weight))
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(loss, theirs, **close)
    torch.testing.assert_close(ours_grad, their_grad, **close)


@calm
@given(
    st.integers(1, 12),
    st.integers(1, 30),
    st.integers(1, 9),
    st.integers(1, 14),
    st.floats(0, 0.99),
)
def test_it_agrees_for_every_shape(tokens, vocab, d_model, rows, smoothing):
    x, weight, labels = make(tokens, vocab, d_model)
    loss, _ = chunked_loss(x, weight, labels, smoothing, rows)
    theirs = reference(x, weight, labels, smoothing)
    close = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(loss, theirs, **close)
    torch.testing.assert_close(
        torch.autograd.grad(loss, (x, weight)),
        torch.autograd.grad(theirs, (x, weight)),
        **close,
    )


@pytest.mark.parametrize("rows", [None, 1, 5, 100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_an_output_bias_is_added_and_learned(smoothing, rows):
    x, weight, labels = make()
    bias = torch.randn(len(weight)).double().requires_grad_()
    inputs = x, weight, bias
    loss, nll = chunked_loss(x, weight, labels, smoothing, rows, bias)
    theirs = reference(x, weight, labels, smoothing, bias)
    close = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(loss, theirs, **close)
    torch.testing.assert_close(
        torch.autograd.grad(3 * loss / 23, inputs),
        torch.autograd.grad(3 * theirs / 23, inputs),
        **close,
    )
    whole = reference(x, weight, labels, 0.0, bias)
    torch.testing.assert_close(nll, whole, **close)


def test_an_output_bias_may_learn_alone():
    x, weight, labels = make()
    bias = torch.zeros(len(weight)).double().requires_grad_()
    frozen = x.detach(), weight.detach(), labels
    loss, _ = chunked_loss(*frozen, 0.1, bias=bias)
    theirs = reference(*frozen, 0.1, bias)
    torch.testing.assert_close(
        torch.autograd.grad(loss, bias), torch.autograd.grad(theirs, bias)
    )


def test_the_gradient_agrees_with_small_differences():
    x, weight, labels = make(tokens=5, vocab=7, d_model=3)

    def loss(x, weight):
        return chunked_loss(x, weight, labels, 0.1, rows=2)[0]

    assert torch.autograd.gradcheck(loss, (x, weight))


def test_it_is_the_cross_entropy_with_the_smoothed_targets():
    x, weight, labels = make()
    targets = smoothed_targets(labels, 37, 0.1).double()
    log_p = (x @ weight.T).log_softmax(dim=-1)
    expected = -(targets * log_p).sum()
    loss, _ = chunked_loss(x, weight, labels, 0.1)
    # targets are made in float32
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("rows", [None, 4])
def test_nll_is_the_unchunked_loss_whatever_the_smoothing(rows):
    x, weight, labels = make()
    expected = reference(x, weight, labels, 0.0)
    for smoothing in (0.0, 0.1, 0.5):
        _, nll = chunked_loss(x, weight, labels, smoothing, rows)
        torch.testing.assert_close(nll, expected, rtol=1e-12, atol=0)
        assert not nll.requires_grad


def test_a_model_that_knows_nothing_has_the_vocabulary_as_perplexity():
    x, weight, labels = make()
    loss, nll = chunked_loss(torch.zeros_like(x), weight, labels, 0.1)
    for value in (loss, nll):
        assert math.exp(value.item() / 23) == pytest.approx(37, rel=1e-12)


@pytest.mark.parametrize("smoothing", [0.1, 0.2])
def test_a_model_that_matches_its_target_pays_for_it(smoothing):
    """Where the model says what is asked for, the gradient is 0, the loss
    the target's entropy, and a label has 1 - ε + ε/V and no more.
    """
    labels = torch.arange(37)
    targets = smoothed_targets(labels, 37, smoothing).double()
    x = targets.log().requires_grad_()
    loss, nll = chunked_loss(x, torch.eye(37).double(), labels, smoothing)
    entropy = -(targets * targets.log()).sum()
    assert loss.item() == pytest.approx(entropy.item(), rel=1e-6)
    own = 1 - smoothing + smoothing / 37
    assert nll.item() / 37 == pytest.approx(-math.log(own), rel=1e-6)
    (gradient,) = torch.autograd.grad(loss, x)
    assert gradient.abs().max() < 1e-7


def test_a_model_that_is_sure_is_punished():
    """Logits of 200 on the label: nll 0, the loss 0.1 · 36/37 · 200."""
    labels = torch.arange(37)
    sure = 200 * torch.eye(37, dtype=torch.float64)
    loss, nll = chunked_loss(sure, torch.eye(37).double(), labels, 0.1)
    assert nll.item() == pytest.approx(0, abs=1e-12)
    assert loss.item() / 37 == pytest.approx(0.1 * 36 / 37 * 200)


def test_without_gradients_the_values_are_the_same():
    x, weight, labels = make()
    expected = chunked_loss(x, weight, labels)
    with torch.no_grad():
        found = chunked_loss(x, weight, labels, rows=4)
    assert not found[0].requires_grad
    torch.testing.assert_close(found, tuple(e.detach() for e in expected))


@pytest.mark.parametrize("learns", ["x", "weight"])
def test_either_side_may_be_frozen(learns):
    x, weight, labels = make()
    frozen = weight if learns == "x" else x
    frozen.requires_grad_(False)
    other = x if learns == "x" else weight
    loss, _ = chunked_loss(x, weight, labels)
    (found,) = torch.autograd.grad(loss, other)
    theirs = reference(x, weight, labels, 0.1)
    (expected,) = torch.autograd.grad(theirs, other)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_the_inputs_are_left_as_they_were():
    x, weight, labels = make()
    before = x.detach().clone(), weight.detach().clone(), labels.clone()
    chunked_loss(x, weight, labels)[0].backward()
    for now, then in zip((x, weight, labels), before, strict=True):
        assert torch.equal(now, then)


def test_no_tokens_lose_nothing():
    x, weight, labels = make()
    loss, nll = chunked_loss(x[:0], weight, labels[:0])
    loss.backward()
    assert loss.item() == nll.item() == 0
    assert not weight.grad.any()


def test_huge_logits_stay_finite():
    x, weight, labels = make(dtype=torch.float32)
    loss, nll = chunked_loss(x * 1e4, weight, labels)
    gradient = torch.autograd.grad(loss, (x, weight))
    assert torch.isfinite(loss) and torch.isfinite(nll)
    assert all(torch.isfinite(g).all() for g in gradient)


def test_bfloat16_vectors_go_with_float32_weights():
    """As in mixed precision: values in float32, 8 bits of mantissa."""
    x, weight, labels = make(tokens=64, dtype=torch.float32)
    half = x.detach().bfloat16().requires_grad_()
    loss, nll = chunked_loss(half, weight, labels, rows=10)
    assert loss.dtype == nll.dtype == torch.float32
    gradient = torch.autograd.grad(3 * loss / 64, (half, weight))
    assert [g.dtype for g in gradient] == [torch.bfloat16, torch.float32]
    # from the logits on, nothing is rounded to 16 bits
    logits = (half @ weight.bfloat16().T).float()
    own = F.cross_entropy(logits, labels, reduction="sum")
    assert nll.item() == pytest.approx(own.item(), rel=1e-5)
    exact = half.detach().double().requires_grad_()
    theirs = reference(exact, weight.double(), labels, 0.1)
    expected = torch.autograd.grad(3 * theirs / 64, (exact, weight))
    assert loss.item() == pytest.approx(theirs.item(), rel=0.01)
    for found, wanted in zip(gradient, expected, strict=True):
        error = (found.double() - wanted).norm() / wanted.norm()
        assert error < 0.01


def test_a_sum_over_tokens_may_be_more_than_float16_can_hold():
    """1,000 vectors of 100: their sum is 100,000, and 65,504 the most."""
    x = torch.full((1000, 1), 100.0).half()
    weight = torch.zeros(4, 1, requires_grad=True)
    labels = torch.zeros(1000, dtype=torch.long)
    loss, _ = chunked_loss(x, weight, labels, 0.8, rows=10)
    (gradient,) = torch.autograd.grad(loss, weight)
    # of a token and its label, 100 · (1/4 - 0.2 - 0.8/4); else 1/4 - 0.2
    expected = torch.tensor([[-15_000.0], [5000], [5000], [5000]])
    torch.testing.assert_close(gradient, expected, rtol=1e-2, atol=0)


class Watch(TorchDispatchMode):
    """What torch is asked for, and the shapes of what it gives."""

    def __init__(self):
        super().__init__()
        self.shapes = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            name = function.overloadpacket.__name__
            self.shapes.setdefault(name, []).append(tuple(result.shape))
        return result


@pytest.mark.parametrize(
    ("device", "dtype", "tokens", "vocab", "rows"),
    [
        ("cpu", torch.float32, 2000, 1000, 2**20 // 1000),
        ("meta", torch.float32, 200_000, 1000, 2**27 // 1000),
        ("cpu", torch.float32, 600, 8000, 256),
        ("meta", torch.float32, 600, 2**28, 256),
        ("meta", torch.float16, 10_000, 1000, 4096),
    ],
)
def test_as_many_logits_at_a_time_as_suit_the_device(
    device, dtype, tokens, vocab, rows
):
    x = torch.empty(tokens, 1, dtype=dtype, device=device)
    weight = torch.empty(vocab, 1, dtype=dtype, device=device)
    labels = torch.zeros(tokens, dtype=torch.long, device=device)
    with Watch() as seen:
        chunked_loss(x, weight, labels)
    sizes = [shape[0] for shape in seen.shapes["_log_softmax"]]
    assert sizes[:-1] == [rows] * (tokens // rows - (tokens % rows == 0))
    assert sum(sizes) == tokens


@pytest.mark.parametrize("frozen", [False, True])
def test_where_nothing_learns_no_gradient_is_made(frozen):
    x, weight, labels = make()
    if frozen:
        x, weight = x.detach(), weight.detach()
    with torch.set_grad_enabled(frozen), Watch() as seen:
        chunked_loss(x, weight, labels)
    assert "scatter_add_" not in seen.shapes
    assert seen.shapes["empty_like"] == seen.shapes["zeros_like"][1:]
    assert seen.shapes["empty_like"] == [(0, 8)]


def test_a_second_derivative_is_refused_not_wrong():
    x, weight, labels = make()
    loss, _ = chunked_loss(x, weight, labels)
    (gradient,) = torch.autograd.grad(loss**2, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("lengths", [[5, 5], [5, 2]])
@pytest.mark.parametrize("causal", [False, True])
def test_a_window_leaves_no_query_without_a_key(lengths, causal):
    ids = (torch.arange(5) < torch.tensor(lengths)[:, None]).long()
    packing = Packing.of(ids)
    seen = PackedMask.to(packing, packing, causal, window=1).may_attend
    assert seen.any(dim=-1).all()
    near = torch.eye(5, dtype=torch.bool)
    for row, length in zip(seen.expand(2, 1, 5, 5)[:, 0], lengths):
        assert torch.equal(row[:length], near[:length])


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_is_made_where_the_tokens_are(causal):
    real = torch.ones(2, 5, dtype=torch.bool, device="meta")
    packing = Packing(real, torch.zeros(10, device="meta"))
    seen = PackedMask.to(packing, packing, causal, window=3).may_attend
    assert seen.device.type == "meta"


def test_one_graph_serves_batches_with_and_without_padding(monkeypatch):
    full = Packing.of(torch.ones(2, 3))
    assert full.full and full.mask is None
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not full.full and full.mask.all()


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_weights_are_dropped_while_training_alone(rate):
    layer = PackedAttention(8, 2, dropout=rate)
    packing = Packing.of(torch.tensor([[1, 1, 1], [1, 1, 0]]))
    mask, x = PackedMask.to(packing, packing), torch.randn(5, 8)
    layer.train()
    assert torch.equal(layer(x, x, mask), layer(x, x, mask)) == (rate == 0)
    layer.eval()
    assert torch.equal(layer(x, x, mask), layer(x, x, mask))


# --- what torch differentiates by our own rules ---


def functions():
    """Every autograd.Function of the package, by reading its source."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and any(
                "Function" in ast.unparse(base) for base in node.bases
            ):
                yield node.name


def calls():
    """Each of them with inputs, which may be learned."""
    x, y = (torch.randn(5, 8, requires_grad=True) for _ in range(2))
    labels, packing = torch.tensor([1, 2, 3, 4, 0]), Packing.of(ids([3, 2]))
    mask = PackedMask.to(packing, packing)
    spread = x, packing.index, packing.real.numel()
    yield _Spread, spread
    yield _ShortAttention, (x, y, x, mask, 2)
    yield _ChunkedLoss, (x, y, x[:, 0], labels, 0.1, 2, True)


class _Changes(TorchDispatchMode):
    """Keeps every tensor that an operation changes in place."""

    def __init__(self):
        super().__init__()
        self.changed = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function._schema.is_mutable:
            kept = [*args, *(kwargs or {}).values()]
            for argument, value in zip(function._schema.arguments, kept):
                info = argument.alias_info
                if info is not None and info.is_write:
                    self.changed.append(value)
        return result


def test_no_rule_of_ours_ends_in_an_operation_in_place():
    """torch 2.11's compiler loses the gradient of one that does."""
    assert {f.__name__ for f, _ in calls()} == {*functions()}
    for function, inputs in calls():
        ctx = SimpleNamespace(
            save_for_backward=lambda *_: None,
            mark_non_differentiable=lambda *_: None,
        )
        with torch.no_grad(), _Changes() as mode:
            outputs = function.forward(ctx, *inputs)
        changed = {x.untyped_storage().data_ptr() for x in mode.changed}
        for x in outputs if isinstance(outputs, tuple) else (outputs,):
            where = x.untyped_storage().data_ptr()
            assert where not in changed, function.__name__


# --- compiling ---


def test_a_machine_without_a_compiler_is_told_why(monkeypatch):
    def compiler(function):
        def compiled(x):
            assert torch.equal(function(x), torch.exp(x))
            raise RuntimeError("no compiler here\nand much more")

        return compiled

    told = r"on cpu \(no compiler here\): omit --compile"
    monkeypatch.setattr(torch, "compile", compiler)
    with pytest.raises(RunError, match=told):
        check_compiler("cpu")
    monkeypatch.setattr(
        torch, "equal", lambda x, _: x.device.type == "meta"
    )
    with pytest.raises(RunError, match="on meta .no compiler here"):
        check_compiler("meta")


def test_every_layer_is_compiled_for_all_lengths(monkeypatch):
    """And DDP does not cut the graphs of a layer."""
    how = []
    monkeypatch.setattr(
        nn.Module, "compile", lambda _, **kw: how.append(kw)
    )
    with torch._dynamo.config.patch(optimize_ddp=True):
        compile_layers(PackedTransformer(small()))
        assert torch._dynamo.config.optimize_ddp is False
        compile_layers(PackedTransformer(small()), "eager")
    assert how == [
        *[{"dynamic": True, "backend": "inductor"}] * 4,
        *[{"dynamic": True, "backend": "eager"}] * 4,
    ]


def test_a_compiled_layer_is_one_graph_for_every_length():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    model = PackedTransformer(
        small(num_encoder_layers=1, num_decoder_layers=1)
    )
    lengths = [7, 4], [9, 3, 8]
    expected = [model(ids(n), ids(n)) for n in lengths]
    with torch._dynamo.config.patch(optimize_ddp=True):
        compile_layers(model, backend)
        found = [model(ids(n), ids(n)) for n in lengths]
    torch.testing.assert_close(found, expected)
    assert len(graphs) == 2


def test_every_parameter_of_compiled_layers_learns_as_without():
    """In torch 2.11 those before a sum in place would have no gradient."""
    torch.manual_seed(0)
    model = PackedTransformer(small(num_encoder_layers=1))
    gradients = []
    for compiled in (False, True):
        if compiled:
            compile_layers(model, "aot_eager")
        model.zero_grad()
        model(ids([7, 4]), ids([3, 6])).square().sum().backward()
        found = {n: p.grad for n, p in model.named_parameters()}
        gradients.append(found)
    eager, compiled = gradients
    wrong = [
        n
        for n in eager
        if not torch.allclose(eager[n], compiled[n], rtol=1e-4, atol=1e-4)
    ]
    assert not wrong


# --- who computes a model otherwise than it does itself ---------------------

GUARDS = {  # each place, and what it asks first
    "engine/packing.py": "check_parts",  # packed
    "engine/trainer.py": "check_parts",
    "exchange/export.py": "check_paper",
    "search.py": "check_steps",
    "engine/search.py": "check_steps",
}
ITSELF = {  # the model, models of another kind, an exercise, an example
    ("model.py", "Transformer"),
    ("since.py", "DecoderOnly"),
    ("school/milestones.py", "_equals_torch"),
    ("book/example.py", "without_mask"),
}


def places():
    """Where the package takes a model's parts and computes with them."""
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        for owner in ast.parse(path.read_text("utf-8")).body:
            for node in ast.walk(owner):
                if not isinstance(node, ast.Attribute):
                    continue
                name = ast.unparse(node)
                reads = name.endswith((".read_source", ".read_target"))
                writes = name.endswith(
                    (".embeddings.logits", ".embeddings.output")
                )
                layers = name.endswith(
                    (".encoder.layers", ".decoder.layers")
                )
                if reads or writes or layers:
                    yield file, getattr(owner, "name", "")


def test_whoever_computes_with_the_parts_asks_whose_they_are():
    found = {*places()}
    assert found >= ITSELF
    assert {file for file, _ in found - ITSELF} == {*GUARDS}
    for file, guard in GUARDS.items():
        text = (PACKAGE / file).read_text("utf-8")
        assert text.count(f"{guard}(") >= 1, file
