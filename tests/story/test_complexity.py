"""Table 1: what layers compute, what has to wait, how far signals go."""

from __future__ import annotations

import json
import math
import re
import weakref
from functools import partial
from itertools import product
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from annotated.attention import MultiHeadAttention, attention
from annotated.book.counters import (
    exponent,
    kept_numbers,
    multiplications,
)
from annotated.complexity import (
    Convolution,
    Recurrent,
    RestrictedSelfAttention,
    SelfAttention,
    SeparableConvolution,
    _dependence,
    _one_step,
    _restricted_attention,
    path_length,
)
from annotated.layers import FeedForward
from annotated.masks import causal_mask, window_mask
from annotated.seq2seq import sequential_products
from tests.helpers import ROOT, benchmark

LAYERS = {
    "self-attention": SelfAttention,
    "recurrent": Recurrent,
    "convolutional": lambda d: Convolution(d, 5),
    "separable": lambda d: SeparableConvolution(d, 5),
    "restricted": lambda d: RestrictedSelfAttention(d, 7),
}


def everything(n: int) -> torch.Tensor:
    return torch.ones(n, n, dtype=torch.bool)


# --- the layers


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_keep_the_shape(kind):
    x = torch.randn(2, 11, 8)
    assert LAYERS[kind](8)(x).shape == x.shape


@pytest.mark.parametrize("dilation", [1, 3])
def test_a_convolution_is_a_sum_over_its_kernel(dilation):
    layer = Convolution(4, 3, dilation).double()
    x = torch.randn(2, 10, 4, dtype=torch.float64)
    weight = layer.conv.weight  # (out, in, k): the last is of x_t itself
    out = torch.zeros_like(x)
    for t, i in product(range(10), range(3)):
        if t - i * dilation >= 0:
            out[:, t] += x[:, t - i * dilation] @ weight[:, :, 2 - i].T
    torch.testing.assert_close(layer(x), out)


def test_a_separable_convolution_is_a_convolution_of_low_rank():
    separable = SeparableConvolution(4, 3)
    whole = Convolution(4, 3)
    with torch.no_grad():
        depthwise = separable.depthwise.conv.weight[:, 0]  # (d, k)
        pointwise = separable.pointwise.weight  # (d, d)
        whole.conv.weight.copy_(pointwise[:, :, None] * depthwise)
    x = torch.randn(2, 7, 4)
    torch.testing.assert_close(separable(x), whole(x))


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 99), n=st.integers(1, 30), r=st.integers(1, 40))
def test_restricted_attention_is_attention_with_the_window_mask(seed, n, r):
    torch.manual_seed(seed)
    q, k, v = torch.randn(3, 2, 3, n, 4, dtype=torch.float64).unbind()
    v = v[..., :3]
    masked = attention(q, k, v, window_mask(n, r))
    torch.testing.assert_close(_restricted_attention(q, k, v, r), masked)


def test_restricted_attention_has_the_gradients_of_the_mask():
    found = []
    for kind in ("mask", "window"):
        torch.manual_seed(0)
        x = torch.randn(1, 12, 4, dtype=torch.float64, requires_grad=True)
        out = (
            attention(x, x, x, window_mask(12, 5))
            if kind == "mask"
            else RestrictedSelfAttention(4, 5)(x)
        )
        out.sin().sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)


# --- how much work


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(("n", "d"), [(12, 8), (40, 16), (7, 32)])
def test_operations_are_those_that_torch_counts(kind, n, d):
    layer = LAYERS[kind](d)
    counted = multiplications(layer, torch.randn(1, n, d))
    assert layer.operations(n) == counted


@pytest.mark.parametrize(
    ("kind", "n_power", "d_power"),
    [
        ("self-attention", 2, 1),
        ("recurrent", 1, 2),
        ("convolutional", 1, 2),
        ("restricted", 1, 1),
    ],
)
def test_operations_have_the_powers_of_table_1(kind, n_power, d_power):
    count = {
        (n, d): multiplications(LAYERS[kind](d), torch.randn(1, n, d))
        for n, d in ((16, 8), (32, 8), (16, 16))
    }
    assert count[32, 8] == 2**n_power * count[16, 8]
    assert count[16, 16] == 2**d_power * count[16, 8]


def test_convolutions_cost_k_times_as_much_and_windows_r_times():
    n, d = 20, 8
    for k in (3, 7):
        assert Convolution(d, k).operations(n) == k * n * d**2
    # an even r reaches as far as r + 1
    widths = {r: r + 1 - r % 2 for r in (1, 5, 8, 9)}
    for r, width in widths.items():
        layer = RestrictedSelfAttention(d, r)
        assert multiplications(layer, torch.randn(1, n, d)) == (
            2 * width * n * d
        )


@pytest.mark.parametrize("d", [8, 64])
def test_attention_is_cheaper_than_recurrence_below_n_equal_d(d):
    attend, recur = SelfAttention(d).operations, Recurrent(d).operations
    assert attend(d - 1) < recur(d - 1)
    assert attend(d) == recur(d)
    assert attend(d + 1) > recur(d + 1)


def test_with_its_projections_attention_is_cheaper_than_an_lstm_to_2d():
    d = 16
    lstm = multiplications(
        lambda x: nn.LSTMCell(d, d, bias=False)(x)[0], torch.randn(1, d)
    )
    assert lstm == 8 * d**2
    for n, cheaper in ((2 * d - 1, True), (2 * d, False)):
        layer = MultiHeadAttention(d, 2, bias=False)
        counted = multiplications(layer, torch.randn(1, n, d))
        assert counted == 2 * n**2 * d + 4 * n * d**2
        assert counted > Recurrent(d).operations(n)
        assert (counted < n * lstm) == cheaper


@pytest.mark.parametrize("num_heads", [1, 2, 8])
def test_operations_do_not_depend_on_the_number_of_heads(num_heads):
    layer = MultiHeadAttention(16, num_heads)
    one = MultiHeadAttention(16, 1)
    x = torch.randn(2, 9, 16)
    assert multiplications(layer, x) == multiplications(one, x)
    sizes = (sum(p.numel() for p in m.parameters()) for m in (layer, one))
    assert len(set(sizes)) == 1


def test_a_separable_convolution_as_wide_as_the_sentence():
    """n²d + nd², as self-attention and a point-wise map but for a 2."""
    n, d = 24, 16
    x = torch.randn(1, n, d)
    wide = multiplications(SeparableConvolution(d, n), x)
    assert wide == n**2 * d + n * d**2
    pair = nn.Sequential(SelfAttention(d), nn.Linear(d, d))
    assert multiplications(pair, x) == 2 * n**2 * d + n * d**2
    network = FeedForward(d, 4 * d)
    assert multiplications(network, x) == 8 * n * d**2


def test_what_is_counted_is_let_go() -> None:
    """A hook that returned the tensor that it is given would keep it."""
    outputs = []

    class Sigmoid(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.sigmoid()
            outputs.append(weakref.ref(y))
            return y

    assert kept_numbers(Sigmoid(), torch.randn(7)) == 7
    [output] = outputs
    assert output() is None


def test_counters_count_what_is_kept_by_hand():
    n, d = 10, 4
    x = torch.randn(1, n, d)
    kept = partial(kept_numbers, x=x)
    assert kept(SelfAttention(d)) == n**2  # the weights
    assert kept(nn.Sequential(nn.Linear(d, d), nn.Tanh())) == n * d
    assert kept(nn.Linear(d, d)) == 0  # its input is no news
    assert kept(Convolution(d, 3)) == (n + 2) * d  # with the zeros


def test_only_full_attention_keeps_numbers_that_grow_as_n_squared():
    for kind, make in LAYERS.items():
        layer = make(8)
        kept = [
            kept_numbers(layer, torch.randn(1, n, 8)) for n in (256, 512)
        ]
        power = 2 if kind == "self-attention" else 1
        assert exponent((256, 512), kept) == pytest.approx(power, abs=0.05)


def test_the_exponent_of_a_power_law():
    assert exponent((2, 4, 8), (12, 48, 192)) == pytest.approx(2)


# --- what has to wait


@pytest.mark.parametrize("kind", LAYERS)
def test_only_recurrence_waits_for_every_position(kind):
    layer = LAYERS[kind](8)
    chains = [
        sequential_products(layer(torch.randn(1, n, 8, requires_grad=True)))
        for n in (10, 20, 40, 2000)
    ]
    if kind == "recurrent":
        assert chains == [10, 20, 40, 2000]
    else:
        assert len(set(chains)) == 1 and chains[0] > 0


# --- how far apart


def test_who_hears_whom_in_one_layer():
    n, d = 9, 4
    assert _dependence(SelfAttention(d), n, d).all()
    assert _dependence(nn.Linear(d, d), n, d).equal(
        everything(n) & torch.eye(n).bool()
    )
    assert _dependence(Recurrent(d), n, d).equal(causal_mask(n))
    window = _dependence(RestrictedSelfAttention(d, 5), n, d)
    assert window.equal(window_mask(n, 5))
    near = causal_mask(n) & ~causal_mask(n).tril(-3)
    assert _dependence(Convolution(d, 3), n, d).equal(near)
    assert _dependence(SeparableConvolution(d, 3), n, d).equal(near)
    gaps = _dependence(Convolution(d, 2, dilation=4), n, d)
    assert gaps[8].nonzero().flatten().tolist() == [4, 8]
    middle = _dependence(Convolution(d, 3, causal=False), n, d)
    assert middle.equal(window_mask(n, 3))


@pytest.mark.parametrize("n", [2, 9, 10, 28])
def test_paths_are_as_long_as_table_1_says(n):
    d, k, r = 4, 3, 5
    past, every = causal_mask(n), everything(n)
    step = partial(_one_step, Recurrent(d))
    found = {
        "self-attention": path_length(lambda i: SelfAttention(d), every, d),
        "recurrent": path_length(lambda i: step, past, d),
        "contiguous": path_length(lambda i: Convolution(d, k), past, d),
        "dilated": path_length(
            lambda i: Convolution(d, k, dilation=k**i), past, d
        ),
        "restricted": path_length(
            lambda i: RestrictedSelfAttention(d, r), every, d
        ),
    }
    assert found == {
        "self-attention": 1,
        "recurrent": n - 1,
        "contiguous": math.ceil((n - 1) / (k - 1)),
        "dilated": math.ceil(round(math.log(n, k), 9)),
        "restricted": math.ceil((n - 1) / (r // 2)),
    }


def test_the_picture_of_the_routes_has_the_lengths_that_are_measured():
    text = (ROOT / "book/09-why-self-attention.md").read_text("utf-8")
    said = re.findall(
        r'^    \("([\w -]+?)(?:, .+)?: (\d+) steps?",', text, re.M
    )
    past, every, step = causal_mask(9), everything(9), Recurrent(4)
    assert {name: int(steps) for name, steps in said} == {
        "self-attention": path_length(lambda i: SelfAttention(4), every, 4),
        # from state to state; the picture also has the step into the first
        "recurrent": 1
        + path_length(lambda i: partial(_one_step, step), past, 4),
        "convolution": path_length(lambda i: Convolution(4, 3), past, 4),
        "dilated convolution": path_length(
            lambda i: Convolution(4, 3, dilation=3**i), past, 4
        ),
    }


def test_a_kernel_as_wide_as_the_sentence_connects_it_in_one_layer():
    past = causal_mask(12)
    for k, layers in ((11, 2), (12, 1)):
        for kind in (Convolution, SeparableConvolution):
            made = partial(kind, 4, k)
            assert path_length(lambda i: made(), past, 4) == layers  # noqa: B023


def test_the_paths_multiplied_are_those_of_the_whole_stack():
    torch.manual_seed(0)
    stack = nn.Sequential(*(Convolution(4, 3) for _ in range(3)))
    reached = torch.eye(12)
    for layer in stack:
        reached = _dependence(layer, 12, 4).float() @ reached
    assert _dependence(stack, 12, 4).equal(reached > 0)


def test_the_steps_of_the_cells_end_in_the_recurrent_layer():
    """_one_step moves states as the layer does: n steps are its forward."""
    n, layer = 7, Recurrent(5).double()
    x = torch.randn(2, n, 5, dtype=torch.float64)
    states = torch.zeros_like(x)
    for _ in range(n):
        before = torch.cat([torch.zeros_like(x[:, :1]), states[:, :-1]], 1)
        states = layer.step(x, before)
    torch.testing.assert_close(states, layer(x))
    moved = _one_step(layer, x)
    torch.testing.assert_close(
        moved[:, 1:], layer.step(x[:, 1:], x[:, :-1])
    )


def test_layers_that_never_connect_are_an_error():
    with pytest.raises(ValueError, match="5 layers do not connect all 5"):
        path_length(lambda i: nn.Linear(4, 4), everything(5), 4)


def test_the_last_of_n_layers_may_connect_and_no_later_one():
    def all_at(last):
        return lambda i: SelfAttention(4) if i == last else nn.Identity()

    assert path_length(all_at(4), everything(5), 4) == 5
    with pytest.raises(ValueError, match="5 layers do not connect"):
        path_length(all_at(5), everything(5), 4)


def test_a_layer_hears_what_it_compares():
    """At equal inputs the gradient of a squared difference would be 0."""

    def change(x):
        return (x - x.roll(1, dims=1)).square()

    both = torch.eye(6) + torch.eye(6).roll(-1, dims=1)
    assert _dependence(change, 6, 3).equal(both > 0)


# --- the ledger and the scripts that wrote it


def of_ledger(name: str) -> dict[str, Any]:
    file = ROOT / "book" / "results" / f"{name}.json"
    return json.loads(file.read_text("utf-8"))["metrics"]


def test_the_times_of_the_ledger_have_the_exponents_of_table_1():
    off = []
    for row in of_ledger("table1")["exponents"]:
        again = exponent(row["sizes"], row["seconds"])
        assert again == pytest.approx(row["time"], abs=1e-3)
        if row["layer"] != "with projections":
            off.append(abs(row["time"] - row["stated"]))
    assert max(off) < 0.2


def test_by_the_clock_the_crossing_of_the_ledger_is_beyond_d():
    for one in of_ledger("table1")["crossings"]:
        assert one["crossing"] > one["d"]


def test_the_projections_are_why_a_whole_layer_has_other_exponents():
    rows = {
        row["axis"]: row
        for row in of_ledger("table1")["exponents"]
        if row["layer"] == "with projections"
    }
    # the projections' n·d² pulls both towards its own exponents, 1 and 2
    assert 1 < rows["n"]["operations"] < 1.6
    assert 1.6 < rows["d"]["operations"] < 2
    # and the softmax of all heads' weights back to n², which has no d
    assert rows["n"]["operations"] < rows["n"]["time"] < 2
    assert 1 < rows["d"]["time"] < rows["d"]["operations"]


@pytest.fixture(scope="module")
def additive():
    with benchmark("additive") as script:
        yield script


def test_additive_scores_are_those_of_a_loop(additive: ModuleType):
    layer = additive.AdditiveAttention(8, 2, 3, 4)
    x, memory = torch.randn(1, 4, 8), torch.randn(1, 5, 8)
    mask = torch.rand(4, 5) < 0.7
    mask[:, 0] = True
    weights = layer.weights(x, memory, mask)
    q = layer.w_q(x).view(4, 2, 3)
    k = layer.w_k(memory).view(5, 2, 3)
    for head in range(2):
        w = layer.w[head].flatten()
        scores = torch.full((4, 5), -math.inf)
        for i, j in mask.nonzero().tolist():
            scores[i, j] = w @ torch.tanh(q[i, head] + k[j, head])
        torch.testing.assert_close(
            weights[0, head], scores.softmax(-1), atol=1e-6, rtol=1e-5
        )


def test_without_the_factor_queries_are_longer(additive: ModuleType):
    models = [additive.build(kind, 9, 0, 2) for kind in additive.KINDS]
    x = torch.randn(1, 5, 64)
    blocks = [model.encoder.layers[0].attention for model in models]
    queries = [block.w_q(x) for block in blocks]
    torch.testing.assert_close(queries[1], 3 * queries[0])
    assert isinstance(blocks[2], additive.AdditiveAttention)


def test_the_additive_benchmark_writes_its_ledger_file(
    additive: ModuleType, tmp_path
):
    file = tmp_path / "additive.json"
    words = f"--d-k 4 --seeds 1 --steps 2 --num-heads 2 --json {file}"
    assert additive.main(words.split()) == 0
    rows = json.loads(file.read_text())["metrics"]["rows"]
    assert [row["kind"] for row in rows] == list(additive.KINDS)
    assert all(len(row["loss"]) == 1 for row in rows)


def test_the_table_benchmark_writes_its_ledger_file(tmp_path):
    file = tmp_path / "table1.json"
    words = f"--budget 0 --shrink 16 --widths 4 --json {file}"
    with benchmark("table1") as script:
        assert script.main(words.split()) == 0
        rows = json.loads(file.read_text())["metrics"]["exponents"]
        assert len(rows) == len(script.ROWS)
    for row in rows:
        if row["layer"] in ("self-attention", "recurrent", "convolutional"):
            assert row["operations"] == pytest.approx(row["stated"])
