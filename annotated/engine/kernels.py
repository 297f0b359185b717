"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, starmap
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "Machine", "Chosen", "choose", "tl", "slow_sentence_attention",
    "sentence_attention", "slow_row_losses", "row_losses",
    "attention_kernel",
]  # fmt: skip


# E31-kernels.md: Which kernel runs
@dataclass(frozen=True)
class Machine:
    """What the choice of kernels depends on."""

    kind: str  # cuda, mps or cpu
    name: str = ""
    capability: tuple[int, int] = (0, 0)  # of a CUDA device
    torch: tuple[int, int] = (2, 3)
    triton: bool = False  # whether it can be imported
    flash: bool = False  # whether torch was built with flash attention
    bfloat16: bool = False  # a CPU: whether it multiplies that faster

    @classmethod
    def at(cls, device: str | torch.device) -> Machine:
        """The facts about a device; bfloat16 is left for pick_precision."""
        kind = torch.device(device).type
        major, minor = torch.__version__.split(".")[:2]
        version = int(major), int(minor)
        if kind != "cuda":
            return cls(kind, kind, torch=version)
        return cls(
            kind,
            torch.cuda.get_device_name(device),
            torch.cuda.get_device_capability(device),
            version,
            importlib.util.find_spec("triton") is not None,
            bool(getattr(torch.backends.cuda,
                         "is_flash_attention_available", bool)()),
        )  # fmt: skip


@dataclass(frozen=True)
class Chosen:
    """What runs, and why in this precision."""

    precision: str
    attention: str  # sentences, varlen, products or padded
    loss: str  # rows or chunks
    reason: str = ""

    def __str__(self) -> str:
        return f"{_ATTENTION[self.attention]}, {_LOSS[self.loss]}"


_ATTENTION = {
    "sentences": "attention in one kernel per sentence and head",
    "varlen": "torch's attention for sentences of varying length",
    "products": "attention in products of whole batches",
    "padded": "torch's attention, padded",
}
_LOSS = {
    "rows": "the loss in one pass over the logits",
    "chunks": "the loss in chunks",
}
_LONGEST = 128  # tokens of a sentence that fits into a program's registers
_SHORT = 256  # keys: on a CPU, more weights take more memory than they save


def _power(n: int) -> int:
    """The least power of two that is at least n and 16."""
    return max(16, 1 << (max(1, int(n)) - 1).bit_length())


def choose(
    machine: Machine,
    precision: str = "auto",
    longest: int = _LONGEST,
    head: tuple[int, int] = (64, 64),
    dropout: bool = False,
) -> Chosen:
    """The precision, and the kernels for sentences of at most longest
    tokens, heads of so many numbers in a key and in a value, and weights
    that are dropped or not.
    """
    reason = "as requested"
    if precision == "auto":
        precision, reason = _precision(machine)
    gpu, generation = machine.kind == "cuda", machine.capability[0]
    triton = gpu and machine.triton and machine.torch >= (2, 4)
    ampere = gpu and generation >= 8 and precision != "float32"
    attention = "padded"
    (key, value), tile = head, _power(longest) * _power(max(head))
    if triton and ampere and longest <= _LONGEST and tile <= _LONGEST * 64:
        attention = "sentences"
    elif ampere and machine.flash and machine.torch >= (2, 11):
        takes = key == value <= 256 and key % 8 == 0 and not dropout
        attention = "varlen" if takes else "padded"
    elif machine.kind == "cpu" and precision == "bfloat16" and not dropout:
        attention = "products" if longest <= _SHORT else "padded"
    loss = "rows" if triton and generation >= 7 else "chunks"
    return Chosen(precision, attention, loss, reason)


def _precision(machine: Machine) -> tuple[str, str]:
    """The fastest for training, and the reason."""
    name, generation = machine.name, machine.capability[0]
    if machine.kind == "cuda":
        if generation >= 8:
            return "bfloat16", f"{name} has tensor cores for it"
        if generation == 7:
            return "float16", f"{name} has no bfloat16 tensor cores"
        return "float32", f"{name} has no tensor cores"
    if machine.kind == "mps":
        return "float32", "bfloat16 has not been measured on Apple GPUs"
    if machine.bfloat16:
        return "bfloat16", "measured faster than float32 on this processor"
    return "float32", "bfloat16 was measured no faster on this processor"


def _import(name: str) -> Any:
    """A module of Triton, where it is installed and of use; else None."""
    wanted = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET")
    found = wanted and importlib.util.find_spec("triton")
    return importlib.import_module(name) if found else None


_triton = _import("triton")
tl = _import("triton.language")


def _jit(function: Callable[..., Any]) -> Any:
    """Triton's compiler, where it is."""
    return _triton.jit(function) if _triton else function


# E31-kernels.md: Attention, a sentence at a time
def _slow_weights(
    q: Tensor, k: Tensor, q_starts: Tensor, k_starts: Tensor,
    causal: bool = False, reach: int = -1, p: float = 0.0,
    seed: Tensor | None = None,
) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:  # fmt: skip
    """Of each sentence: its queries, its keys, its weights (heads, m, n),
    and what dropout multiplies them by.
    """
    draw = torch.Generator()
    if seed is not None:
        draw.manual_seed(int(seed))
    bounds = pairwise(q_starts.tolist()), pairwise(k_starts.tolist())
    for queries, keys in zip(*(starmap(slice, b) for b in bounds)):
        scores = q[queries].transpose(0, 1) @ k[keys].permute(1, 2, 0)
        scores = scores / math.sqrt(q.size(-1))
        m, n = (torch.arange(x, device=q.device) for x in scores.shape[1:])
        apart = m[:, None] - n
        may = apart >= 0 if causal else apart == apart
        may = may & (apart.abs() <= reach) if reach >= 0 else may
        weights = scores.masked_fill(~may, -math.inf).softmax(dim=-1)
        kept = torch.ones_like(weights)
        if seed is not None:
            noise = torch.rand(weights.shape, generator=draw)
            kept = (noise >= p).to(weights) / (1 - p)
        yield queries, keys, weights, kept


def slow_sentence_attention(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor,
    *how: Any,
) -> Tensor:  # fmt: skip
    """Equation 1 for each sentence: q (q_tokens, heads, d_k), k (k_tokens,
    heads, d_k), v (k_tokens, heads, d_v) -> (q_tokens, heads, d_v). A
    query with no key gets zeros. how: causal, reach, p and seed; with a
    seed, weights are dropped with probability p.
    """
    o = v.new_zeros(len(q), *v.shape[1:])
    parts = _slow_weights(q, k, q_starts, k_starts, *how)
    for queries, keys, weights, kept in parts:
        heads = (weights * kept) @ v[keys].transpose(0, 1)
        rows = queries.start, queries.stop
        o = o.slice_scatter(heads.transpose(0, 1), 0, *rows)
    return o


@_jit
def _read(
    X, first, count, stride, head, size,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """count rows from first on, of one head, in a tile."""
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < count) & (column < size)
    place = (first + row).to(tl.int64) * stride + head * size + column
    return tl.load(X + place, mask=inside, other=0.0)


@_jit
def _write(
    X, x, first, count, stride, head, size,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """_read's inverse."""
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < count) & (column < size)
    place = (first + row).to(tl.int64) * stride + head * size + column
    tl.store(X + place, x.to(X.dtype.element_ty), mask=inside)


@_jit
def _weights(
    q, k, count, scale, reach,
    M: tl.constexpr, N: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """softmax of q kᵀ · scale over the count keys that are there."""
    row, column = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    may = (row >= 0) & (column < count)  # of the shape of the tile
    if CAUSAL:
        may = may & (column <= row)
    if reach >= 0:
        may = may & (tl.abs(row - column) <= reach)
    scores = tl.where(may, tl.dot(q, tl.trans(k)) * scale, -1e30)
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    weights = tl.where(may, weights, 0.0)  # also where no key is there
    return weights / tl.maximum(tl.sum(weights, 1)[:, None], 1e-30)


@_jit
def _kept(seed, p, program, M: tl.constexpr, N: tl.constexpr):
    """1 / (1 - p) for each weight that is kept, 0 for the dropped."""
    row, column = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    noise = tl.rand(seed, (program * M + row) * N + column)
    return tl.where(noise >= p, 1 / (1 - p), 0.0)


@_jit
def _forward(
    Q, K, V, OUT, Q0, K0, SEED, sq, sk, sv, so, scale, reach, p,
    H: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    DD: tl.constexpr, EE: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    CAUSAL: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """One head of one sentence. DD, EE: powers of two above D and E."""
    program = tl.program_id(0)
    sentence, head = program // H, program % H
    q0, k0 = tl.load(Q0 + sentence), tl.load(K0 + sentence)
    m, n = tl.load(Q0 + sentence + 1) - q0, tl.load(K0 + sentence + 1) - k0
    q = _read(Q, q0, m, sq, head, D, M, DD)
    k = _read(K, k0, n, sk, head, D, N, DD)
    v = _read(V, k0, n, sv, head, E, N, EE)
    weights = _weights(q, k, n, scale, reach, M, N, CAUSAL)
    if DROP:
        weights = weights * _kept(tl.load(SEED), p, program, M, N)
    o = tl.dot(weights.to(v.dtype), v)
    _write(OUT, o, q0, m, so, head, E, M, EE)


@_jit
def _backward(
    Q, K, V, G, DQ, DK, DV, Q0, K0, SEED,
    sq, sk, sv, sg, sdq, sdk, sdv, scale, reach, p,
    H: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    DD: tl.constexpr, EE: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    CAUSAL: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """The gradients of one head of one sentence; G is that of OUT."""
    program = tl.program_id(0)
    sentence, head = program // H, program % H
    q0, k0 = tl.load(Q0 + sentence), tl.load(K0 + sentence)
    m, n = tl.load(Q0 + sentence + 1) - q0, tl.load(K0 + sentence + 1) - k0
    q = _read(Q, q0, m, sq, head, D, M, DD)
    k = _read(K, k0, n, sk, head, D, N, DD)
    v = _read(V, k0, n, sv, head, E, N, EE)
    g = _read(G, q0, m, sg, head, E, M, EE)
    weights = _weights(q, k, n, scale, reach, M, N, CAUSAL)
    dw = tl.dot(g, tl.trans(v))
    used = weights
    if DROP:
        kept = _kept(tl.load(SEED), p, program, M, N)
        used, dw = weights * kept, dw * kept
    dv = tl.dot(tl.trans(used.to(v.dtype)), g)
    _write(DV, dv, k0, n, sdv, head, E, N, EE)
    ds = weights * (dw - tl.sum(weights * dw, 1)[:, None]) * scale
    ds = ds.to(q.dtype)
    _write(DQ, tl.dot(ds, k), q0, m, sdq, head, D, M, DD)
    _write(DK, tl.dot(tl.trans(ds), q), k0, n, sdk, head, D, N, DD)


# E31-kernels.md: An operator that torch knows
def _launch(
    kernel: Any, tensors: list[Tensor], starts: tuple[Tensor, Tensor],
    longest: tuple[int, int], causal: bool, reach: int, p: float,
    seed: Tensor | None,
) -> None:  # fmt: skip
    """Run a kernel with a program for each sentence and head."""
    (_, heads, d), e = tensors[0].shape, tensors[2].size(2)
    m, n = map(_power, longest)
    size = m * n
    warps = 1 if size <= 512 else 2 if size <= 1024 else 4
    kernel[((len(starts[0]) - 1) * heads,)](
        *tensors, *starts, starts[0] if seed is None else seed,
        *(x.stride(0) for x in tensors), 1 / math.sqrt(d), reach, p,
        heads, d, e, _power(d), _power(e), m, n, causal, seed is not None,
        num_warps=8 if size > 64 * 64 else warps,
    )  # fmt: skip


def _laid(x: Tensor) -> Tensor:
    """x (tokens, heads, d) with the numbers of a token side by side."""
    side_by_side = x.stride(2) == 1 and x.stride(1) == x.size(2)
    return x if side_by_side else x.contiguous()


def _launched_forward(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor,
    q_longest: int, k_longest: int, causal: bool, reach: int, p: float,
    seed: Tensor | None,
) -> Tensor:  # fmt: skip
    """slow_sentence_attention by the kernel; no sentence is longer than
    q_longest and k_longest tokens.
    """
    o = q.new_empty(*q.shape[:2], v.size(2))
    if o.numel():
        tensors = [*map(_laid, (q, k, v)), o]
        longest = q_longest, k_longest
        rest = (q_starts, k_starts), longest, causal, reach, p, seed
        _launch(_forward, tensors, *rest)
    return o


def _launched_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor,
    k_starts: Tensor, q_longest: int, k_longest: int, causal: bool,
    reach: int, p: float, seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k and v, where the result's is g."""
    inputs = [*map(_laid, (q, k, v))]
    outputs = [torch.empty(x.shape, dtype=x.dtype, device=x.device)
               for x in inputs]  # fmt: skip
    if not g.numel():
        for x in outputs:
            x.zero_()
    else:
        tensors = [*inputs, g.contiguous(), *outputs]
        longest = q_longest, k_longest
        rest = (q_starts, k_starts), longest, causal, reach, p, seed
        _launch(_backward, tensors, *rest)
    return outputs[0], outputs[1], outputs[2]


_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor q_starts, Tensor k_starts, "
    "SymInt q_longest, SymInt k_longest, bool causal, int reach, float p, "
    "Tensor? seed"
)


def _slow(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor,
    q_longest: int, k_longest: int, *how: Any,
) -> Tensor:  # fmt: skip
    """_launched_forward, where there is no GPU."""
    return slow_sentence_attention(q, k, v, q_starts, k_starts, *how)


def _slow_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor,
    k_starts: Tensor, q_longest: int, k_longest: int, *how: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """_launched_backward, where there is no GPU."""
    gradients = dq, dk, dv = [torch.zeros_like(x) for x in (q, k, v)]
    parts = _slow_weights(q, k, q_starts, k_starts, *how)
    for queries, keys, weights, kept in parts:
        up, values = g[queries].transpose(0, 1), v[keys].transpose(0, 1)
        dv[keys] = ((weights * kept).mT @ up).transpose(0, 1)
        dw = (up @ values.mT) * kept
        dw = weights * (dw - (weights * dw).sum(dim=-1, keepdim=True))
        dw = dw / math.sqrt(q.size(-1))
        dq[queries] = (dw @ k[keys].transpose(0, 1)).transpose(0, 1)
        dk[keys] = (dw.mT @ q[queries].transpose(0, 1)).transpose(0, 1)
    return tuple(gradients)


def _like(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(
        torch.empty(x.shape, dtype=x.dtype, device=x.device)
        for x in tensors
    )


def _operator() -> Any:
    """The operator annotated::sentence_attention; None before torch 2.4."""
    custom_op: Any = getattr(torch.library, "custom_op", None)
    if custom_op is None:
        return None
    attend = custom_op(
        "annotated::sentence_attention", _launched_forward,
        mutates_args=(), schema=f"({_ARGUMENTS}) -> Tensor",
    )  # fmt: skip
    gradients = custom_op(
        "annotated::sentence_attention_backward", _launched_backward,
        mutates_args=(),
        schema=f"(Tensor g, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor)",
    )  # fmt: skip
    attend.register_kernel("cpu")(_slow)
    gradients.register_kernel("cpu")(_slow_backward)
    attend.register_fake(
        lambda q, k, v, *_: q.new_empty(*q.shape[:2], v.size(2))
    )
    gradients.register_fake(lambda g, q, k, v, *_: _like(q, k, v))

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.m, ctx.n, ctx.causal, ctx.reach, ctx.p, seed = inputs
        ctx.save_for_backward(*tensors, seed)

    def back(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        *tensors, seed = ctx.saved_tensors
        how = ctx.m, ctx.n, ctx.causal, ctx.reach, ctx.p, seed
        return *gradients(g, *tensors, *how), *(None,) * 8

    attend.register_autograd(back, setup_context=keep)
    return attend


_attend = _operator()


def sentence_attention(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor,
    q_longest: int, k_longest: int, causal: bool = False,
    reach: int = -1, p: float = 0.0,
) -> Tensor:  # fmt: skip
    """slow_sentence_attention as one operator, in one kernel on a GPU.
    The noise of dropout is drawn from torch's generator.
    """
    seed = None
    if p:
        seed = torch.randint(2**31 - 1, (1,), device=q.device)
    return _attend(
        q, k, v, q_starts, k_starts, q_longest, k_longest, causal, reach,
        p, seed,
    )  # fmt: skip


# E31-kernels.md: The loss in one pass
def slow_row_losses(
    logits: Tensor, labels: Tensor, smoothing: float, learn: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """logits (rows, vocab), labels (rows,) -> the sums, over the rows, of
    the label's log-probability and of all log-probabilities; and, if
    learn, softmax - (1 - smoothing) · one-hot label: the gradient of their
    loss but for smoothing / vocab. It may take the place of logits.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    log_p, label = logits.to(wide).log_softmax(dim=-1), labels[:, None]
    own, total = log_p.gather(1, label).sum(), log_p.sum()
    if not learn:
        return own, total, logits
    less = log_p.new_full(label.shape, smoothing - 1)
    return own, total, log_p.exp_().scatter_add_(1, label, less)


@_jit
def _rows(
    Z, LABELS, OWN, ALL, stride, less,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The loss of one row, and in its place its gradient."""
    row = tl.program_id(0).to(tl.int64)
    z0, label = Z + row * stride, tl.load(LABELS + row)
    top = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    plain = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, VOCAB, BLOCK):  # BLOCK softmaxes side by side
        n = first + tl.arange(0, BLOCK)
        z = tl.load(z0 + n, mask=n < VOCAB, other=-1e30).to(tl.float32)
        plain += tl.where(n < VOCAB, z, 0.0)
        new = tl.maximum(top, z)  # never -inf, whose difference is NaN
        total = total * tl.exp(top - new) + tl.exp(z - new)
        top = new
    peak = tl.max(top, 0)
    log_sum = peak + tl.log(tl.sum(total * tl.exp(top - peak), 0))
    own = tl.load(z0 + label).to(tl.float32) - log_sum
    tl.store(OWN + row, own)
    tl.store(ALL + row, tl.sum(plain, 0) - VOCAB * log_sum)
    for first in range(0, VOCAB, BLOCK):
        n = first + tl.arange(0, BLOCK)
        z = tl.load(z0 + n, mask=n < VOCAB, other=-1e30).to(tl.float32)
        p = tl.exp(z - log_sum) - tl.where(n == label, less, 0.0)
        tl.store(z0 + n, p.to(Z.dtype.element_ty), mask=n < VOCAB)


def _launched_row_losses(
    logits: Tensor, labels: Tensor, smoothing: float, block: int = 4096
) -> tuple[Tensor, Tensor, Tensor]:
    """slow_row_losses by the kernel, in float32; overwrites logits."""
    own = torch.empty(len(logits), device=logits.device)
    total = torch.empty_like(own)
    if len(logits):
        _rows[(len(logits),)](
            logits, labels, own, total, logits.stride(0), 1 - smoothing,
            logits.size(1), min(block, _power(logits.size(1))), num_warps=8,
        )  # fmt: skip
    return own.sum(), total.sum(), logits


def row_losses(
    logits: Tensor, labels: Tensor, smoothing: float, learn: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """slow_row_losses, in one pass where choose says so."""
    device = logits.device
    usable = device.type == "cuda" and logits.dtype != torch.float64
    if _triton and usable and choose(_machine_at(device)).loss == "rows":
        return _launched_row_losses(logits, labels, smoothing)
    return slow_row_losses(logits, labels, smoothing, learn)


def attention_kernel(
    device: torch.device, dtype: torch.dtype, longest: int,
    head: tuple[int, int] = (64, 64), dropout: bool = False,
) -> str:  # fmt: skip
    """The attention that choose names for tensors on a device."""
    precision = str(dtype).removeprefix("torch.")
    if dtype == torch.float64:
        precision = "float32"  # no kernel is for it
    machine = _machine_at(device)
    if _triton is None:  # installed, but not to be imported
        machine = replace(machine, triton=False)
    return choose(machine, precision, longest, head, dropout).attention


_machine_at = cache(Machine.at)
