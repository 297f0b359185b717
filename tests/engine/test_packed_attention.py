"""Page E2: attention and dropout on packed tokens, by every kernel."""

import ast
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from annotated.attention import attention
from annotated.engine import kernels as kernels_module
from annotated.engine.packing import (
    FastDropout,
    PackedAttention,
    PackedMask,
    PackedTransformer,
    Packing,
    _ChunkedLoss,
    _fused_attention,
    _Heads,
    _short,
    _ShortAttention,
    _Spread,
    chunked_loss,
    compile_layers,
)
from annotated.masks import causal_mask, padding_mask, window_mask
from tests.engine.packings import PACKAGE, ids, small

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


def test_heads_are_split_into_padded_batches_and_joined_again():
    packing = Packing.of(ids([5, 2, 7]))
    heads = _Heads.of(packing, 2)
    x = torch.randn(14, 6)
    split = heads.split(x)
    assert torch.equal(
        split,
        packing.pad(x).unflatten(2, (2, 3)).transpose(1, 2).flatten(0, 1),
    )
    assert torch.equal(heads.join(split), x)


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
            patch.setattr(kernels_module, "_SHORT", limit)
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
