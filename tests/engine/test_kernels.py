"""Our kernels compute what their slow forms do, and run where they should.

Triton's interpreter runs them on any processor: in a process of its own,
because Triton reads TRITON_INTERPRET when it is imported.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from annotated.engine import kernels
from annotated.engine.kernels import (
    Machine,
    choose,
    slow_row_losses,
    slow_sentence_attention,
)
from annotated.engine.packing import PackedTransformer, compile_layers
from annotated.engine.runner import train_recipe
from annotated.engine.runs import Run, read_recipe
from annotated.engine.start import _kernels_of
from annotated.engine.trainer import RunConfig, packed_loss
from annotated.loss import smoothed_loss
from annotated.training import copy_corpus
from tests.engine.packings import small
from tests.engine.small import CountingBackend
from tests.helpers import ROOT, TINY

# its inputs come in lists here, whose lengths mypy does not know
sentence_attention: Any = kernels.sentence_attention

needs_operators = pytest.mark.skipif(
    kernels._attend is None, reason="torch before 2.4 has no custom_op"
)

# --- the table ------------------------------------------------------------

NOW: dict[str, Any] = {"torch": (2, 13), "triton": True, "flash": True}


def gpu(major: int, minor: int, **facts: Any) -> Machine:
    return Machine("cuda", "card", (major, minor), **(NOW | facts))


TABLE = [  # machine; precision, attention to 60 and to 300 tokens, loss
    (gpu(6, 1), "float32", "padded", "padded", "chunks"),
    (gpu(7, 0), "float16", "padded", "padded", "rows"),
    # Colab's T4: no bfloat16 units, no flash attention
    (gpu(7, 5), "float16", "padded", "padded", "rows"),
    (gpu(8, 0), "bfloat16", "sentences", "varlen", "rows"),
    (gpu(8, 6), "bfloat16", "sentences", "varlen", "rows"),
    (gpu(8, 9), "bfloat16", "sentences", "varlen", "rows"),
    (gpu(9, 0), "bfloat16", "sentences", "varlen", "rows"),
    (gpu(10, 0), "bfloat16", "sentences", "varlen", "rows"),
    # a laptop with Windows: no Triton; flash attention or not
    (gpu(8, 9, triton=False), "bfloat16", "varlen", "varlen", "chunks"),
    (
        gpu(8, 9, triton=False, flash=False),
        *("bfloat16", "padded", "padded", "chunks"),
    ),
    # an older torch has no varlen_attn, a still older one no operators
    (gpu(9, 0, torch=(2, 6)), "bfloat16", "sentences", "padded", "rows"),
    (gpu(9, 0, torch=(2, 3)), "bfloat16", "padded", "padded", "chunks"),
    (Machine("mps"), "float32", "padded", "padded", "chunks"),
    (Machine("cpu"), "float32", "padded", "padded", "chunks"),
    (
        Machine("cpu", bfloat16=True),
        *("bfloat16", "products", "padded", "chunks"),
    ),
]


@pytest.mark.parametrize(
    ("machine", "precision", "short", "long", "loss"), TABLE
)
def test_each_machine_gets_the_kernels_it_can_run(
    machine: Machine, precision: str, short: str, long: str, loss: str
) -> None:
    chosen = [choose(machine, longest=n) for n in (60, 300)]
    assert [c.attention for c in chosen] == [short, long]
    assert {c.precision for c in chosen} == {precision}
    assert {c.loss for c in chosen} == {loss}
    assert all(c.reason and str(c) for c in chosen)


def test_what_was_asked_for_is_what_is_computed_in() -> None:
    exact = choose(gpu(9, 0), "float32")
    assert (exact.precision, exact.attention) == ("float32", "padded")
    assert choose(gpu(9, 0), "float16").attention == "sentences"
    assert choose(Machine("cpu", bfloat16=True), "float32").loss == "chunks"


@pytest.mark.parametrize(
    ("longest", "head", "dropout", "expected"),
    [
        (128, (64, 64), False, "sentences"),
        (129, (64, 64), False, "varlen"),
        (128, (64, 64), True, "sentences"),
        (129, (64, 64), True, "padded"),  # torch's kernel drops nothing
        (64, (128, 128), False, "sentences"),
        (65, (128, 128), False, "varlen"),  # the tile would not fit
        (100, (80, 80), False, "varlen"),  # a tile's sides are powers of 2
        (64, (80, 80), False, "sentences"),
        (129, (16, 64), False, "padded"),  # torch's has one size for both
        (128, (16, 64), False, "sentences"),
        (129, (25, 25), False, "padded"),  # and that is a multiple of 8
        (300, (512, 512), False, "padded"),
    ],
)
def test_a_tile_must_fit_and_a_dropped_weight_must_be_dropped(
    longest: int, head: tuple[int, int], dropout: bool, expected: str
) -> None:
    chosen = choose(gpu(9, 0), "auto", longest, head, dropout)
    assert chosen.attention == expected


def test_a_run_keeps_what_was_chosen_and_chooses_anew_elsewhere(
    tmp_path: Any, monkeypatch: Any, capsys: Any
) -> None:
    auto, folder = (
        TINY.changed(precision="auto", max_steps=2),
        tmp_path / "r",
    )
    train_recipe(auto, folder, device="cpu")
    first = dict(Run.as_begun(folder).kernels)
    assert first["machine"] == "cpu" and first["asked"] == "auto"
    began = read_recipe(folder).training.precision
    other = {"float32": "bfloat16", "bfloat16": "float32"}[began]
    from annotated.engine import start

    monkeypatch.setattr(
        start,
        "_kernels_of",
        lambda device, p: _kernels_of(device, p) | {"machine": "T4 (7.5)"},
    )
    monkeypatch.setattr(start, "pick_precision", lambda d: (other, "new"))
    capsys.readouterr()
    longer = auto.changed(max_steps=4)
    summary = train_recipe(longer, folder, resume=True, device="cpu")
    assert summary["precision"] == other
    assert (
        "begun on cpu; on T4 (7.5):\nprecision" in capsys.readouterr().err
    )
    kept = Run.as_begun(folder)
    assert kept.kernels["machine"] == "T4 (7.5)"
    assert (
        kept.kernels["precision"] == kept.recipe.training.precision == other
    )


def test_a_precision_that_was_asked_for_stays_elsewhere(
    tmp_path: Any, monkeypatch: Any
) -> None:
    from annotated.engine import start

    folder = tmp_path / "r"
    train_recipe(TINY.changed(precision="float32", max_steps=2), folder)
    monkeypatch.setattr(
        start,
        "_kernels_of",
        lambda device, p: _kernels_of(device, p) | {"machine": "T4 (7.5)"},
    )
    monkeypatch.setattr(start, "pick_precision", lambda d: ("bfloat16", ""))
    again = TINY.changed(precision="auto", max_steps=3)
    summary = train_recipe(again, folder, resume=True)
    assert summary["precision"] == "float32"


# --- the slow forms -------------------------------------------------------


def starts(lengths: Any) -> Tensor:
    return F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).int()


def drawn(
    q_lengths: Any, k_lengths: Any, d: int = 4, e: int = 6
) -> list[Tensor]:
    torch.manual_seed(0)
    sizes = (q_lengths, d), (k_lengths, d), (k_lengths, e)
    return [torch.randn(sum(n), 2, w).double() for n, w in sizes]


@needs_operators
@pytest.mark.parametrize("reach", [-1, 0, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_the_operator_is_equation_1_with_its_gradient(
    causal: bool, reach: int
) -> None:
    lengths = (1, 6, 3)
    inputs = [x.requires_grad_() for x in drawn(lengths, lengths)]
    ends = starts(lengths)
    found = sentence_attention(*inputs, ends, ends, 6, 6, causal, reach)
    wanted = []
    for i in range(3):
        q, k, v = (x[ends[i] : ends[i + 1]].transpose(0, 1) for x in inputs)
        apart = torch.arange(lengths[i])[:, None] - torch.arange(lengths[i])
        may = (apart >= 0) | (not causal)
        if reach >= 0:
            may &= apart.abs() <= reach
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=may)
        wanted.append(heads.transpose(0, 1))
    whole = torch.cat(wanted)
    torch.testing.assert_close(found, whole)
    grad = torch.randn_like(found)
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs, grad),
        torch.autograd.grad(whole, inputs, grad),
    )


@needs_operators
def test_an_empty_sentence_is_nothing_and_no_keys_are_zeros() -> None:
    q_lengths, k_lengths = (0, 3, 2), (4, 0, 1)
    inputs = [x.requires_grad_() for x in drawn(q_lengths, k_lengths)]
    bounds = starts(q_lengths), starts(k_lengths)
    found = sentence_attention(*inputs, *bounds, 3, 4)
    assert not found[:3].any()
    torch.testing.assert_close(found[3:], inputs[2][4:].expand(2, -1, -1))
    gradients = torch.autograd.grad(found.sum(), inputs)
    assert all(g.isfinite().all() for g in gradients)


@needs_operators
def test_dropped_weights_are_dropped_again_in_the_gradient() -> None:
    lengths = (30, 40)
    inputs = [x.requires_grad_() for x in drawn(lengths, lengths)]
    bounds = starts(lengths), starts(lengths)

    def run() -> Tensor:
        torch.manual_seed(7)
        return sentence_attention(*inputs, *bounds, 40, 40, False, -1, 0.4)

    assert torch.equal(run(), run())
    whole = sentence_attention(*inputs, *bounds, 40, 40)
    assert not torch.allclose(run(), whole)
    assert torch.autograd.gradcheck(
        lambda *x: (
            sentence_attention(*x, *bounds, 4, 4, True, -1, 0.4).sum()
            if torch.manual_seed(7)
            else None
        ),
        inputs,
        fast_mode=True,
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_slow_loss_is_the_plain_one_with_its_gradient(
    smoothing: float,
) -> None:
    torch.manual_seed(0)
    logits = torch.randn(7, 11).double().requires_grad_()
    labels = torch.randint(1, 11, (7,))
    loss, nll = smoothed_loss(logits, labels, smoothing)
    (gradient,) = torch.autograd.grad(loss, logits)
    own, total, p = slow_row_losses(logits.detach(), labels, smoothing)
    torch.testing.assert_close(-own, nll)
    torch.testing.assert_close(
        -(1 - smoothing) * own - smoothing / 11 * total, loss
    )
    torch.testing.assert_close(p - smoothing / 11, gradient)


# --- in the model ---------------------------------------------------------


def loss_of(
    kernel: str | None, compiled: bool = False, **options: Any
) -> tuple[float, dict[str, Tensor], int]:
    """Of the packed model with this attention: loss, gradients, and how
    many compiled graphs ran.
    """
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = PackedTransformer(small(**options)).double()
    model._kernel = lambda *sides: kernel  # type: ignore[method-assign]
    backend = CountingBackend()
    if compiled:
        compile_layers(model, backend)
    batch = copy_corpus(12, vocab=30, length=9).batch(range(12))
    loss, _ = packed_loss(model, batch, RunConfig(precision="float32"))
    loss.backward()
    found = {n: p.grad for n, p in model.named_parameters()}
    return loss.item(), found, backend.ran


@needs_operators
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_learns_the_same_without_the_rectangle(
    window: int | None, compiled: bool
) -> None:
    padded = loss_of(None, window=window)
    rows = loss_of("sentences", compiled, window=window)
    assert rows[0] == pytest.approx(padded[0], rel=1e-12)
    for name, gradient in padded[1].items():
        torch.testing.assert_close(rows[1][name], gradient)
    assert rows[2] == (4 if compiled else 0)  # one graph a layer


@needs_operators
def test_a_hook_on_a_map_is_still_called() -> None:
    calls = []
    torch.manual_seed(0)
    model = PackedTransformer(small())
    model._kernel = lambda *sides: "sentences"  # type: ignore[method-assign]
    block = model.encoder.layers[0].attention
    block.w_k.register_forward_hook(lambda *_: calls.append(1))
    batch = copy_corpus(3, vocab=30, length=5).batch(range(3))
    found = packed_loss(model, batch, RunConfig())[0]
    block.w_k._forward_hooks.clear()
    alone = packed_loss(model, batch, RunConfig())[0]
    assert calls == [1]
    torch.testing.assert_close(found, alone)


def test_torchs_varying_attention_gets_the_window_and_the_starts(
    monkeypatch: Any,
) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    asked = []

    def attend(q, k, v, *bounds, window_size):
        asked.append(window_size)
        causal, reach = window_size[1] == 0, window_size[0]
        return sentence_attention(q, k, v, *bounds, causal, reach)

    monkeypatch.setattr(varlen, "varlen_attn", attend)
    for window in (None, 3):
        padded, rows = (loss_of(k, window=window) for k in (None, "varlen"))
        assert rows[0] == pytest.approx(padded[0], rel=1e-12)
    assert set(asked) == {(-1, -1), (-1, 0), (1, 1), (1, 0)}


# --- the kernels, in the interpreter --------------------------------------

SCRIPT = """
import json
import torch
from annotated.engine import kernels as K
from tests.engine.test_kernels import starts

torch.manual_seed(0)
CASES = {  # lengths of queries, of keys; causal; reach; d_k, d_v
    "of one token": ((1, 1), (1, 1), True, -1, 16, 16),
    "uneven": ((1, 5, 17, 3), (1, 5, 17, 3), True, -1, 16, 16),
    "cross": ((5, 17, 3), (4, 33, 2), False, -1, 24, 40),
    "with an empty target": ((0, 3, 20), (2, 4, 5), False, -1, 16, 32),
    "with an empty source": ((2, 3), (0, 5), False, -1, 16, 16),
    "in a window": ((7, 30), (7, 30), False, 3, 16, 16),
    "in a window, causal": ((7, 30), (7, 30), True, 2, 16, 16),
    "that fill the tile": ((32, 16), (32, 16), True, -1, 32, 32),
}
found = {}


def error(mine, theirs):
    apart = (mine.double() - theirs).norm() / theirs.norm().clamp(min=1)
    return float(apart)


for dtype in (torch.float32, torch.float16):
    for name, (m, n, causal, reach, d, e) in CASES.items():
        q, k, v, g = (
            torch.randn(sum(x), 2, y).to(dtype)
            for x, y in ((m, d), (n, d), (n, e), (m, e))
        )
        bounds = starts(m), starts(n)
        how = max(m), max(n), causal, reach, 0.0, None
        o = K._launched_forward(q, k, v, *bounds, *how)
        gradients = K._launched_backward(g, q, k, v, *bounds, *how)
        wide = [x.double().requires_grad_() for x in (q, k, v)]
        slow = K.slow_sentence_attention(*wide, *bounds, causal, reach)
        exact = torch.autograd.grad(slow, wide, g.double())
        pairs = zip((o, *gradients), (slow.detach(), *exact))
        found[f"{dtype} {name}"] = [error(*pair) for pair in pairs]

# queries, keys and values out of one matrix
rows = torch.randn(9, 3 * 2 * 16).unflatten(1, (3, 2, 16)).unbind(1)
ends = starts((4, 5))
o = K._launched_forward(*rows, ends, ends, 5, 5, True, -1, 0.0, None)
slow = K.slow_sentence_attention(*(x.double() for x in rows), ends, ends, True)
found["of one matrix"] = [error(o, slow)]

# values that are the identity show the weights; p of them are dropped
m = 64
ends, seed = starts((m, m)), torch.tensor([5])
q, k, g = torch.randn(3, 2 * m, 1, 16)
g = torch.randn(2 * m, 1, m)
v = torch.eye(m).repeat(2, 1)[:, None]
how = m, m, False, -1, 0.3, seed
once = K._launched_forward(q, k, v, ends, ends, *how)
again = K._launched_forward(q, k, v, ends, ends, *how)
whole = K._launched_forward(q, k, v, ends, ends, *how[:4], 0.0, None)
kept = once / whole
share = float((kept == 0).float().mean())
found["dropped"] = share, float((once - again).abs().max())
found["scale"] = [error(kept[kept > 0], torch.tensor(1 / 0.7).double())]
wide = [x.double().requires_grad_() for x in (q, k, v)]
parts = []
for i in range(2):
    a, b, c = (x[i * m : (i + 1) * m, 0] for x in wide)
    weights = (a @ b.T / 4).softmax(1) * kept[i * m : (i + 1) * m, 0].double()
    parts.append((weights @ c)[:, None])
exact = torch.autograd.grad(torch.cat(parts), wide, g.double())
mine = K._launched_backward(g, q, k, v, ends, ends, *how)
found["its gradient"] = [error(*pair) for pair in zip(mine, exact)]
other = K._launched_forward(q, k, v, ends, ends, *how[:5], seed + 1)
found["another seed"] = bool(torch.equal(once, other))

for rows, vocab, block in ((1, 5, 16), (6, 90, 16), (3, 64, 32)):
    for dtype in (torch.float32, torch.float16):
        z = (3 * torch.randn(rows, vocab)).to(dtype)
        y = torch.randint(vocab, (rows,))
        slow = K.slow_row_losses(z.double(), y, 0.1)
        *sums, p = K._launched_row_losses(z, y, 0.1, block)
        name = f"loss {dtype} {rows} {vocab}"
        found[name] = [error(a, b) for a, b in zip((*sums, p), slow)]
z = torch.randn(2, 40)
z[0, 3:30] = -torch.inf
slow = K.slow_row_losses(z.double(), torch.tensor([1, 39]), 0.0)
own, _, p = K._launched_row_losses(z, torch.tensor([1, 39]), 0.0, 16)
found["forbidden words"] = [error(own, slow[0]), error(p, slow[2])]
print(json.dumps(found))
"""


def test_the_script_names_what_the_module_has() -> None:
    """Where Triton is missing, nothing else would say so."""
    names = set(re.findall(r"\bK\.(\w+)", SCRIPT))
    assert names and not [n for n in names if not hasattr(kernels, n)]


@pytest.fixture(scope="module")
def interpreted() -> dict[str, list[float]]:
    pytest.importorskip("triton", minversion="3")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_kernels_are_their_slow_forms(
    interpreted: dict[str, Any],
) -> None:
    special = "dropped", "another seed"
    for name, errors in interpreted.items():
        if name not in special:
            most = 3e-3 if "float16" in name else 1e-5
            assert max(errors) < most, (name, errors)
    assert len(interpreted) > 20


def test_the_kernels_dropout_is_the_same_in_both_directions(
    interpreted: dict[str, Any],
) -> None:
    share, apart = interpreted["dropped"]
    assert share == pytest.approx(0.3, abs=0.03)
    assert apart == 0 and not interpreted["another seed"]


def test_without_triton_the_kernels_are_not_wanted() -> None:
    """What is jitted is then a plain function, which nobody calls."""
    if kernels._triton is None:
        assert kernels._forward.__name__ == "_forward"
    device = torch.device("cpu")
    found = {
        kernels.attention_kernel(device, dtype, 60)
        for dtype in (torch.float32, torch.float16, torch.float64)
    }
    assert found == {"padded"}
    slow = slow_sentence_attention(*drawn((2,), (2,)), *[starts((2,))] * 2)
    assert slow.shape == (2, 2, 6)
