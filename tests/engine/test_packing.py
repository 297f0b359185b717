"""E2: what skips padding computes what the plain form computes."""

import ast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from annotated.attention import MultiHeadAttention
from annotated.engine.packing import (
    PackedAttention,
    PackedMask,
    PackedTransformer,
    Packing,
    _product,
    chunked_loss,
    packed,
)
from annotated.loss import smoothed_loss
from annotated.masks import causal_mask, padding_mask
from annotated.model import Transformer
from tests.engine.packings import (
    PACKAGE,
    TOLERANCE,
    calm,
    ids,
    real_tokens,
    small,
)

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


def test_who_listens_to_the_gradient_of_a_map_hears_it():
    heard = []
    maps = nn.Linear(4, 4), nn.Linear(4, 4)
    maps[1].register_full_backward_hook(lambda *_: heard.append("after"))
    maps[1].register_full_backward_pre_hook(
        lambda *_: heard.append("before")
    )
    x = torch.ones(3, 4, requires_grad=True)
    sum(y.sum() for y in _product(x, *maps)).backward()
    assert heard == ["before", "after"]


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
    full, x = Packing.of(torch.ones(2, 3)), torch.randn(2, 3, 4)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    tokens = full.pack(x)
    assert tokens.data_ptr() != x.data_ptr()
    assert full.pad(tokens).data_ptr() != tokens.data_ptr()
    assert torch.equal(full.pad(tokens), x)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_weights_are_dropped_while_training_alone(rate):
    layer = PackedAttention(8, 2, dropout=rate)
    packing = Packing.of(torch.tensor([[1, 1, 1], [1, 1, 0]]))
    mask, x = PackedMask.to(packing, packing), torch.randn(5, 8)
    layer.train()
    assert torch.equal(layer(x, x, mask), layer(x, x, mask)) == (rate == 0)
    layer.eval()
    assert torch.equal(layer(x, x, mask), layer(x, x, mask))


# --- who computes a model otherwise than it does itself ---------------------

GUARDS = {  # each place, and what it asks first
    "engine/packing.py": "check_parts",  # packed
    "engine/scoring.py": "check_parts",
    "engine/trainer.py": "trainable",  # which asks check_parts
    "exchange/export.py": "check_paper",
    "search.py": "check_steps",
    "engine/search.py": "check_steps",
}
ITSELF = {  # the model, models of another kind, an exercise, an example
    ("model.py", "Transformer"),
    ("since.py", "DecoderOnly"),
    ("school/milestones.py", "_equals_torch"),
    ("book/example.py", "without"),
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
