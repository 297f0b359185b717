"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from annotated.attention import MultiHeadAttention
from annotated.embeddings import (
    Embeddings,
    LearnedPositions,
    SinusoidalPositions,
    sinusoids,
)
from annotated.engine import hooks
from annotated.engine.errors import RunError
from annotated.engine.hooks import attention_blocks, recorded_weights
from annotated.engine.kernels import (
    attention_kernel,
    row_losses,
    sentence_attention,
)
from annotated.layers import DecoderLayer, EncoderLayer, FeedForward
from annotated.masks import causal_mask, window_mask
from annotated.model import Decoder, Encoder, Transformer, TransformerConfig
from annotated.tokens import BOS, EOS, PAD, UNK

__all__ = [
    "Packing", "PackedMask", "PackedAttention", "attend", "FastDropout",
    "PackedTransformer", "check_parts", "packed", "unpacked", "check_paper",
    "NoCacheError", "check_steps", "compile_layers", "chunked_loss",
]  # fmt: skip


# E2-packing.md: Where the tokens are
class _Spread(torch.autograd.Function):
    """Scatter rows into a tensor of zeros; saves only the indices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(index)
        zeros = x.new_zeros(rows, *x.shape[1:])
        return torch.index_copy(zeros, 0, index, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return grad.index_select(0, *ctx.saved_tensors), None, None


@dataclass(frozen=True)
class Packing:
    """The positions of the real tokens in a padded batch.

    pack keeps only these, (batch, length, …) -> (tokens, …), so that
    position-wise layers compute nothing for padding; pad is its inverse,
    with zeros as padding. Without padding, both return views.
    """

    real: Tensor  # (batch, length) of bool
    index: Tensor  # (tokens,): flat index of each real token
    # (batch + 1,) of int32: where each sentence begins in the packed rows
    starts: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        lengths = self.real.sum(dim=1, dtype=torch.int32)
        starts = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        object.__setattr__(self, "starts", starts)

    @classmethod
    def of(cls, ids: Tensor) -> Packing:
        """The packing of a batch of token ids, (batch, length)."""
        real = ids != PAD
        return cls(real, real.flatten().nonzero()[:, 0])

    def moved(self, move: Callable[[Tensor], Tensor]) -> Packing:
        """A copy with move applied to its tensors."""
        return Packing(move(self.real), move(self.index))

    @property
    def full(self) -> bool:
        """Whether there is no padding."""
        return len(self.index) == self.real.numel()

    def _as_views(self) -> bool:
        """Whether pack and pad copy nothing: without padding; but never
        while compiling, so that one graph serves both cases.
        """
        return not torch.compiler.is_compiling() and self.full

    @property
    def mask(self) -> Tensor | None:
        """The padding mask (batch, 1, 1, length); None if full."""
        return None if self.full else self.real[:, None, None, :]

    def pack(self, x: Tensor) -> Tensor:
        """(batch, length, …) -> (tokens, …)"""
        x = x.flatten(0, 1)
        return x if self._as_views() else x.index_select(0, self.index)

    def pad(self, x: Tensor) -> Tensor:
        """(tokens, …) -> (batch, length, …)"""
        if not self._as_views():
            x = _Spread.apply(x, self.index, self.real.numel())
        return x.unflatten(0, self.real.shape)


# E2-packing.md: Attention over a packed batch
@dataclass(frozen=True)
class PackedMask:
    """The mask that PackedAttention takes: the packings of the queries and
    of the keys, and which query may attend to which key.

    may_attend broadcasts to (batch, heads, q_len, k_len); None: all. Only
    the padded kernels need it.
    """

    queries: Packing
    keys: Packing
    may_attend: Tensor | None = None
    causal: bool = False
    window: int | None = None
    kernel: str | None = None  # see choose (page E31); None: not chosen yet

    @classmethod
    def to(
        cls,
        queries: Packing,
        keys: Packing,
        causal: bool = False,
        window: int | None = None,
        kernel: str | None = None,
    ) -> PackedMask:
        """The mask for all layers of a stack, built once per batch."""
        form: dict[str, Any] = {
            "causal": causal, "window": window, "kernel": kernel,
        }  # fmt: skip
        by_sentence = kernel in _BY_SENTENCE
        if by_sentence or (causal and window is None):
            # padding comes last, so a causal query never sees it
            return cls(queries, keys, None, **form)
        mask = keys.mask
        if window is not None:
            length, device = keys.real.size(1), keys.real.device
            nearby = window_mask(length, window, device)
            if causal:
                mask = nearby & causal_mask(length, device)
            else:
                mask = nearby if mask is None else mask & nearby
        if mask is not None:
            # a softmax over no keys is 0/0: let such a query see the
            # padding, whose values are zeros
            mask = mask | ~mask.any(dim=-1, keepdim=True)
        return cls(queries, keys, mask, **form)

    def within(self, window: int) -> PackedMask:
        """The same, for a layer whose window is another."""
        sides = self.queries, self.keys, self.causal
        return PackedMask.to(*sides, window, self.kernel)

    def padded(self) -> PackedMask:
        """The same, for attention that needs the rectangle."""
        if self.kernel not in _BY_SENTENCE:
            return self
        return PackedMask.to(
            self.queries, self.keys, self.causal, self.window
        )


_BY_SENTENCE = "sentences", "varlen"  # kernels that need no padding


class PackedAttention(MultiHeadAttention):
    """MultiHeadAttention on packed tokens, with the fastest kernel.

    With a PackedMask, x is (q_tokens, d_model) and memory is (k_tokens,
    d_model). With a boolean mask or None, it is MultiHeadAttention.
    """

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | PackedMask | None = None,
    ) -> Tensor:
        if not isinstance(mask, PackedMask):
            return super().forward(x, memory, mask)
        x = _narrowed(x)
        p = self.dropout.p if self.training else 0.0
        if mask.kernel in _BY_SENTENCE:
            q, k, v = self.projected(x, memory)
            return self.w_o(_by_sentence(q, k, v, mask, p).flatten(1))
        memory = x if memory is None else memory
        q, k, v = self.w_q(x), self.w_k(memory), self.w_v(memory)
        if p == 0 and _short(q, mask):
            heads = _ShortAttention.apply(q, k, v, mask, self.num_heads)
            return self.w_o(heads)
        q, k = mask.queries.pad(q), mask.keys.pad(k)
        heads = self.split(q), self.split(k), self.split(mask.keys.pad(v))
        return self.w_o(attend(*heads, mask, p))

    def projected(self, x: Tensor, memory: Tensor | None) -> list[Tensor]:
        """Queries, keys and values, (tokens, heads, d) each: one product
        for those that have the same input.
        """
        maps = self.w_q, self.w_k, self.w_v
        if memory is None:
            rows = _product(x, *maps)
        else:
            rows = [self.w_q(x), *_product(memory, *maps[1:])]
        return [each.unflatten(-1, (self.num_heads, -1)) for each in rows]


def _narrowed(x: Tensor) -> Tensor:
    """x in autocast's dtype, where that is on: it would cast x for every
    map that reads it.
    """
    told = hasattr(torch, "get_autocast_dtype")  # torch 2.4 on
    if not told or x.dtype != torch.float32:
        return x
    device = x.device.type
    on = torch.is_autocast_enabled(device)
    return x.to(torch.get_autocast_dtype(device)) if on else x


_HOOKS = (  # by which one can listen to a module
    *("_forward_hooks", "_forward_pre_hooks"),
    *("_backward_hooks", "_backward_pre_hooks"),
)


def _product(x: Tensor, *maps: nn.Linear) -> list[Tensor]:
    """What the maps make of x, in one product; each by itself where
    someone listens to one of them.
    """
    if any(getattr(m, kind) for m in maps for kind in _HOOKS):
        return [each(x) for each in maps]
    weight, bias = torch.cat([m.weight for m in maps]), None
    if maps[0].bias is not None:
        bias = torch.cat([m.bias for m in maps])
    sizes = [m.out_features for m in maps]
    return list(F.linear(x, weight, bias).split(sizes, dim=-1))


def _fused_attention(
    q: Tensor, k: Tensor, v: Tensor, **options: Any
) -> Tensor:
    """F.scaled_dot_product_attention; on a CPU never in 16 bits."""
    if q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, **options)
    wide = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast("cpu", enabled=False):
        heads = F.scaled_dot_product_attention(
            q.to(wide), k.to(wide), v.to(wide), **options
        )
    return heads.to(q.dtype)


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: PackedMask, p: float = 0.0,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention of heads (batch, heads, length, d), with zeros as padding,
    and with dropout p -> (q_tokens, heads · d_v). bias, which broadcasts
    to (batch, heads, q_len, k_len), is added to the scores.
    """
    if mask.kernel in _BY_SENTENCE and bias is None:
        sides = (mask.queries, q), (mask.keys, k), (mask.keys, v)
        q, k, v = (side.pack(x.transpose(1, 2)) for side, x in sides)
        return _by_sentence(q, k, v, mask, p).flatten(1)
    may = mask.padded().may_attend
    causal = mask.causal and may is None
    if bias is None:
        heads = _fused_attention(
            q, k, v, attn_mask=may, dropout_p=p, is_causal=causal
        )
    else:
        may = causal_mask(q.size(2), q.device) if causal else may
        heads = _biased_attention(q, k, v, bias, may, p)
    return mask.queries.pack(heads.transpose(1, 2).flatten(2))


def _biased_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, may: Tensor | None,
    p: float,
) -> Tensor:  # fmt: skip
    """Equation 1 with a bias, in at least float32."""
    wide = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        scores = q.to(wide) @ k.to(wide).mT / math.sqrt(q.size(-1)) + bias
        if may is not None:
            scores = scores.masked_fill(~may, -math.inf)
        weights = F.dropout(scores.softmax(dim=-1), p)
        return (weights @ v.to(wide)).to(q.dtype)


# E2-packing.md: Without the rectangle
def _by_sentence(
    q: Tensor, k: Tensor, v: Tensor, mask: PackedMask, p: float
) -> Tensor:
    """Attention of packed rows, (tokens, heads, d), with dropout p."""
    starts = mask.queries.starts, mask.keys.starts
    longest = mask.queries.real.size(1), mask.keys.real.size(1)
    reach = -1 if mask.window is None else mask.window // 2
    if mask.kernel == "sentences":
        rows = q, k, v, *starts, *longest
        return sentence_attention(*rows, mask.causal, reach, p)
    from torch.nn.attention.varlen import varlen_attn  # torch 2.10 on

    window = reach, 0 if mask.causal else reach
    heads: Any = varlen_attn(q, k, v, *starts, *longest, window_size=window)
    return heads


# E2-packing.md: In 16 bits on a CPU
@dataclass(frozen=True)
class _Heads:
    """Where the heads of packed tokens stand in padded batches.

    split copies (tokens, heads · d) -> (batch · heads, length, d), with
    zeros as padding; join is its inverse.
    """

    shape: tuple[int, int]  # batch · heads, length
    source: Tensor  # (batch · heads · length,): 1 + token · heads + head,
    # or 0 for padding
    index: Tensor  # (tokens, heads): where each of them goes

    @classmethod
    def of(cls, packing: Packing, count: int) -> _Heads:
        """The indices of count heads."""
        tokens, (batch, length) = len(packing.index), packing.real.shape
        rows = 1 + torch.arange(tokens * count).view(tokens, count)
        index = torch.arange(batch * count * length)
        index = index.view(batch, count, length).transpose(1, 2)
        return cls(
            (batch * count, length),
            packing.pad(rows).transpose(1, 2).flatten(),
            packing.pack(index),
        )

    def split(self, x: Tensor) -> Tensor:
        rows = x.unflatten(-1, (self.index.size(1), -1)).flatten(0, 1)
        rows = F.pad(rows, (0, 0, 1, 0))  # row 0 is zeros
        return rows.index_select(0, self.source).unflatten(0, self.shape)

    def join(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1).index_select(0, self.index.flatten())
        return rows.unflatten(0, self.index.shape).flatten(1)


class _ShortAttention(torch.autograd.Function):
    """Equation 1 for packed tokens, with the weights of all heads stored:
    q (q_tokens, heads · d_k), k (k_tokens, heads · d_k), v (k_tokens,
    heads · d_v) -> (q_tokens, heads · d_v).
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: PackedMask,
        heads: int,
    ) -> Tensor:  # fmt: skip
        queries = keys = _Heads.of(mask.queries, heads)
        if mask.keys is not mask.queries:
            keys = _Heads.of(mask.keys, heads)
        q, k, v = queries.split(q), keys.split(k), keys.split(v)
        scale = 1 / math.sqrt(q.size(-1))
        scores = torch.bmm(q, k.mT).float().mul_(scale)
        may = mask.may_attend
        if may is None and mask.causal:
            may = causal_mask(q.size(1))
        if may is not None:
            bias = torch.zeros(may.shape).masked_fill_(~may, -math.inf)
            scores.unflatten(0, (-1, heads)).add_(bias)
        weights = scores.softmax(dim=-1).to(q.dtype)
        ctx.save_for_backward(q, k, v, weights)
        ctx.queries, ctx.keys, ctx.scale = queries, keys, scale
        return queries.join(torch.bmm(weights, v))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        q, k, v, weights = ctx.saved_tensors
        grad = ctx.queries.split(grad)
        dv = torch.bmm(weights.mT, grad)
        dw = torch.bmm(grad, v.mT).float()
        weights = weights.float()
        # the softmax's gradient: w · (dw - the mean of dw, weighted)
        dw -= (weights * dw).sum(dim=-1, keepdim=True)
        scores = dw.mul_(weights).mul_(ctx.scale).to(q.dtype)
        dq, dk = torch.bmm(scores, k), torch.bmm(scores.mT, q)
        joined = ctx.queries.join(dq), ctx.keys.join(dk), ctx.keys.join(dv)
        return *joined, None, None


def _short(q: Tensor, mask: PackedMask) -> bool:
    """Whether these queries have fast products and few keys."""
    if torch.compiler.is_compiling():  # the compiler fuses the other form
        return False
    longest = mask.keys.real.size(1)
    kernel = attention_kernel(q.device, q.dtype, longest)
    return kernel == "products"


# E2-packing.md: Dropout
class FastDropout(nn.Dropout):
    """nn.Dropout with 16 random bits per element on a CPU.

    torch draws at least 32; with 16, p is exact to 1/65,536. The scale is
    rounded to x's dtype and p is derived from it, which preserves the
    mean in 16-bit dtypes, too.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x of any shape -> the same shape. The identity in eval mode."""
        if not self.training or self.p == 0.0:
            return x
        simple = x.device.type != "cpu" or torch.compiler.is_compiling()
        if simple or self.p > 0.9:
            return F.dropout(x, self.p)
        scale = torch.tensor(1 / (1 - self.p), dtype=x.dtype).item()
        draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64)
        draws.random_(-(2**63), None)  # four 16-bit draws in each
        draws = draws.view(torch.int16)[: x.numel()].view(x.shape)
        # the threshold must fit in an int16
        kept = min(round(2**16 / scale), 2**16 - 1) - 2**15
        return x * draws.lt_(kept).to(x.dtype).mul_(scale)


# E2-packing.md: The model
class PackedTransformer(Transformer):
    """A Transformer that computes nothing for padding.

    It has the parameters and outputs of the plain Transformer, except
    that forward returns zeros where tgt is padding.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__(config)
        _make_fast(self)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        x, packing = self.hidden(src, tgt)
        return packing.pad(self.embeddings.logits(x))

    def hidden(
        self,
        src: Tensor,
        tgt: Tensor,
        source: Packing | None = None,
        target: Packing | None = None,
    ) -> tuple[Tensor, Packing]:
        """The decoder's output before the softmax, (tokens, d_model), for
        the real target tokens in order, and their packing. If source and
        target are given, nothing waits for the device.
        """
        source = Packing.of(src) if source is None else source
        target = Packing.of(tgt) if target is None else target
        kernel = self._kernel(src, tgt)
        memory = _narrowed(self._encode(src, source, kernel))
        x = self.embeddings.read_target(target.pack(tgt))
        x = self._add_positions(x, target, self.tgt_positions(tgt.size(1)))
        window = self.config.window
        mask = PackedMask.to(target, target, True, window, kernel)
        memory_mask = PackedMask.to(target, source, kernel=kernel)
        return self.decoder(x, memory, mask, memory_mask), target

    def encode(self, src: Tensor) -> Tensor:
        packing, kernel = Packing.of(src), self._kernel(src)
        return packing.pad(self._encode(src, packing, kernel))

    def _kernel(self, *sides: Tensor) -> str | None:
        """The attention for a batch with these ids; on a CPU each layer
        decides, by the numbers that arrive.
        """
        weight, config = self.embeddings.output, self.config
        if weight.device.type == "cpu":
            return None
        x = _narrowed(weight[:1])
        longest = max(ids.size(1) for ids in sides)
        dropout = self.training and config.attention_dropout > 0
        head = config.key_size, config.value_size
        return attention_kernel(x.device, x.dtype, longest, head, dropout)

    def _encode(
        self, src: Tensor, packing: Packing, kernel: str | None
    ) -> Tensor:
        x = self.embeddings.read_source(packing.pack(src))
        table = self.src_positions(src.size(1))
        x = self._add_positions(x, packing, table)
        window = self.config.window
        mask = PackedMask.to(packing, packing, window=window, kernel=kernel)
        return self.encoder(x, mask)

    def _add_positions(
        self, x: Tensor, packing: Packing, table: Tensor
    ) -> Tensor:
        """x (tokens, d_model) plus the rows of table at its positions."""
        position = packing.index % len(table)
        return self.dropout(x + F.embedding(position, table))

    @torch.no_grad()
    def attention_maps(self, src: Tensor, tgt: Tensor) -> dict[str, Tensor]:
        """Those of the plain form, by block."""
        with recorded_weights(attention_blocks(self)) as maps:
            memory = Transformer.encode(self, src)
            self.decode(tgt, memory, src)
        return maps


def _departure(part: nn.Module, hooks: bool = False) -> str:
    """What this object does that its class does not say: a method that
    was replaced or, unless hooks are allowed, a hook. "" if nothing.
    """
    replaced = [
        name
        for name in vars(part)
        if callable(getattr(type(part), name, None))
    ]
    used = part._forward_hooks or part._forward_pre_hooks
    name = type(part).__name__
    if replaced:
        return f"{name} with another {replaced[0]}"
    return f"{name} with a hook" if used and not hooks else ""


def _as_said(config: Any) -> Transformer:
    """The model that a configuration says, without numbers."""
    kind = getattr(config, "kind", Transformer)  # page E32's have one
    with torch.device("meta"):
        return kind(config)


def check_parts(
    model: Transformer, hooks: bool = False, narrow: bool = False
) -> None:
    """RunError, naming the part, unless model has the parts that its config
    says (chapter 26 puts in others). hooks: whether they may have hooks;
    narrow: whether linear maps may multiply in fewer bits.
    """
    paper = dict(_as_said(model.config).named_modules())
    parts = dict(model.named_modules(remove_duplicate=False))
    narrowed: set[str] = set()
    for name in {**paper, **parts}:
        kind, part = type(paper.get(name)), parts.get(name)
        if narrow and kind in getattr(part, "_FLOAT_MODULE", ()):
            narrowed.add(name)
        if not narrowed.isdisjoint((name, name.rpartition(".")[0])):
            continue
        wrong = "missing" if part is None else _departure(part, hooks)
        if not wrong and type(part) not in (kind, _FAST.get(kind)):
            wrong = type(part).__name__
        if wrong:
            raise RunError(
                f"{name or 'the model'} is {wrong}, which the model's "
                "config does not say: only the plain model computes it"
            )


_FAST: dict[Any, Any] = {  # plain part: its fast version
    MultiHeadAttention: PackedAttention,
    nn.Dropout: FastDropout,
    Transformer: PackedTransformer,
}


def _over(new: Any, old: nn.Module) -> Any:
    """new with the parts of old in place of its own, and in its mode."""
    for name, part in old._modules.items():
        new.add_module(name, part)
    new.training = old.training
    return new


def _fast(plain: nn.Module) -> nn.Module:
    """The fast version of a part; the part itself where there is none."""
    if type(plain) is nn.Dropout:
        return FastDropout(plain.p, plain.inplace).train(plain.training)
    if type(plain) is not MultiHeadAttention:
        return plain
    shape = plain.w_q.in_features, plain.num_heads, plain.d_k, plain.d_v
    with torch.device("meta"):  # its own maps are dropped
        fast: MultiHeadAttention = _over(PackedAttention(*shape), plain)
    return fast


def _make_fast(model: PackedTransformer) -> None:
    """Put the fast version of each plain part in its place. For the whole
    process, cuDNN's attention is turned off.
    """
    hooks.replace(model, MultiHeadAttention, _fast)
    hooks.replace(model, nn.Dropout, _fast)
    if hasattr(torch.backends.cuda, "enable_cudnn_sdp"):  # torch 2.5 on
        torch.backends.cuda.enable_cudnn_sdp(False)


def _as(kind: type[Transformer], model: Transformer) -> Any:
    """A model of this class with copies of another's parts, over the same
    Parameter objects and buffers.
    """
    tensors = [*model.parameters(), *model.buffers()]
    with torch.device("meta"):
        new = kind(model.config)
    return _over(new, copy.deepcopy(model, {id(x): x for x in tensors}))


def packed(model: Transformer) -> PackedTransformer:
    """The packed form of a plain model. The two share their Parameter
    objects, so training one trains the other. For RunError see check_parts.
    """
    check_parts(model)
    if why := getattr(model.config, "padded", str)():  # page E32
        raise RunError(f"the packed model computes something else: {why}")
    fast: PackedTransformer = _as(PackedTransformer, model)
    _make_fast(fast)
    return fast


def unpacked(model: Transformer) -> Transformer:
    """The plain form of a packed model, whose parts take plain masks, too.
    The two share their Parameter objects; any other model is given back as
    it is.
    """
    if not isinstance(model, PackedTransformer):
        return model
    plain: Transformer = _as(Transformer, model)
    return plain


# E2-packing.md: Models of another kind
_ALIKE = "eps", "num_heads", "d_k", "d_v", "activation", "pre_norm", "scale"


def check_paper(
    model: Transformer, strict: bool = False, more: Collection[type] = ()
) -> None:
    """RunError, naming the part, unless model computes what its config and
    its weights say; and, if strict, with the paper's parts and more alone.
    """
    check_parts(model)
    config, e = model.config, model.embeddings
    paper = _as_said(config)
    usual = {"eps": 1e-5, "scale": math.sqrt(config.d_model)}
    for name, part in model.named_modules():
        values, kind = vars(part), type(part)
        expected = vars(paper.get_submodule(name))
        if strict:
            expected = expected | usual
            if kind not in {*_PAPER_PARTS, *more}:
                raise RunError(
                    f"{name} is {kind.__name__}, which has no place in "
                    "this form"
                )
        for key in _ALIKE:
            if key in values and values[key] != expected[key]:
                raise RunError(
                    f"{name} has {key} {values[key]}, which has no place "
                    "in this form"
                )
        if isinstance(part, SinusoidalPositions):
            waves = sinusoids(*part.table.shape)
            if not (part.table.cpu() - waves).abs().max() < 0.01:
                raise RunError(f"{name} has another table than sinusoids")
    tied = {"all": (e.source, e.output), "decoder": (e.output,), "none": ()}
    if any(table is not e.target for table in tied[config.tie]):
        raise RunError(
            f"the embeddings are not one matrix, as tie {config.tie} says"
        )


_PAPER_PARTS = {  # the classes of the paper's model, in either form
    *(Transformer, Encoder, Decoder, EncoderLayer, DecoderLayer),
    *(MultiHeadAttention, FeedForward, Embeddings, SinusoidalPositions),
    *(LearnedPositions, nn.LayerNorm, nn.Linear, nn.Dropout, nn.Identity),
    *(nn.ModuleList, *_FAST.values()),
}


_Start = Callable[[Tensor], Callable[[Tensor], Tensor]]


class NoCacheError(TypeError):
    """No search with a cache computes this model; plain search does."""


def check_steps(model: Transformer, start: _Start) -> None:
    """NoCacheError, naming a part, if a cache gets a model wrong that is
    not the paper's. start(src) begins a search of one hypothesis per row;
    what it returns takes the newest tokens (rows,) to logits (rows, vocab).
    """
    strange = [
        f"{name or 'the model'} is "
        f"{_departure(part) or type(part).__name__}"
        for name, part in model.named_modules()
        if _departure(part) or not _known(type(part))
    ]
    if strange and (_passed_over(model) or not _same(model, start)):
        raise NoCacheError(
            "a search with a cache computes another model than this, where "
            f"{strange[0]}: translate with plain_beam_search, or override "
            "logits(x, memory, src), in which every search ends"
        )


def _known(kind: type) -> bool:
    """Whether it is of the paper's model, or what converted makes of it."""
    module = kind.__module__
    ours = module == "annotated.engine.search" or ".quantized." in module
    return ours or kind in _PAPER_PARTS


def _passed_over(model: Transformer) -> bool:
    """Whether the model has a forward or decode of its own, or an object
    that a cache copies has a forward that stays with the original.
    """
    copied = model, model.decoder, *model.decoder.layers
    ours = Transformer, PackedTransformer
    return any(
        any(name in vars(part) for part in copied)
        or getattr(type(model), name)
        not in [getattr(c, name) for c in ours]
        for name in ("forward", "decode")
    )


def _same(model: Transformer, start: _Start) -> bool:
    """Whether steps and model agree, as far as rounding allows."""
    config, first = model.config, next(model.parameters())

    def words(vocab: int, most: int) -> Tensor:
        length = min(most, config.max_len)
        ids = torch.arange(2 * length, device=first.device)
        return UNK + ids.view(2, length) % max(1, vocab - UNK)

    src, tgt = words(config.src_vocab, 5), words(config.tgt_vocab, 8)
    src[:, -1], src[1, -1:], tgt[:, 0] = EOS, PAD, BOS
    step = start(src)
    steps = [step(tgt[:, i]) for i in range(tgt.size(1))]
    cached, full = torch.stack(steps, dim=1), model(src, tgt)
    exact = all(p.dtype.itemsize >= 4 for p in model.parameters())
    exact = exact and not any(
        ".quantized." in type(part).__module__ for part in model.modules()
    )
    size = full.masked_fill(~full.isfinite(), 0.0).abs().max().item()
    near = {"rtol": 0.0, "atol": (1e-4 if exact else 0.1) * size}
    return torch.allclose(cached, full, **near, equal_nan=True)


# E2-packing.md: Compiled layers
def compile_layers(model: Transformer, backend: Any = "inductor") -> None:
    """Apply torch.compile to each layer of the model, in place."""
    # a layer is a small enough unit for DDP to overlap its exchange with
    torch._dynamo.config.optimize_ddp = False
    for stack in (model.encoder, model.decoder):
        for layer in stack.layers:
            layer.compile(dynamic=True, backend=backend)


# E2-packing.md: The loss in chunks
def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, without a copy where all are of one dtype."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


class _ChunkedLoss(torch.autograd.Function):
    """Softmax, loss and gradient: each chunk of rows is scored, compared
    with its labels, turned into its gradient and discarded.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        smoothing: float,
        rows: int,
        learn: bool,
    ) -> tuple[Tensor, Tensor]:
        vocab, narrow = len(weight), weight.to(x.dtype)
        wide = torch.promote_types(x.dtype, torch.float32)
        loss, share = x.new_zeros((), dtype=wide), smoothing / vocab
        nll = torch.zeros_like(loss)
        dx = torch.empty_like(x if learn else x[:0])
        dw = torch.zeros_like(weight if learn else weight[:0])
        db = None if bias is None else torch.zeros_like(bias)
        for first in range(0, len(x), rows):
            chunk = x[first : first + rows]
            label = labels[first : first + rows]
            p = chunk @ narrow.T
            if bias is not None:
                p = p.to(wide).add_(bias)
            # p becomes the gradient of p, but for the smoothing term
            likelihood, total, p = row_losses(p, label, smoothing, learn)
            nll = nll - likelihood
            loss = loss - (1 - smoothing) * likelihood
            if smoothing:  # 0 · -inf would be NaN
                loss = loss - share * total
            if learn:
                if db is not None:
                    db += p.sum(dim=0)
                p = p.to(x.dtype)
                torch.mm(p, narrow, out=dx[first : first + rows])
                _add_product(dw, p.T, chunk)
        if learn:
            # smoothing subtracts one share from every word's gradient
            dx -= share * narrow.sum(dim=0)
            dw -= share * x.sum(dim=0, dtype=dw.dtype)
            if db is not None:
                db -= share * len(x)
            ctx.save_for_backward(dx, dw, db)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
        dx, dw, db = ctx.saved_tensors
        # 1/tokens is small and would lose precision in 16 bits
        dx = dx * grad if dx.dtype == grad.dtype else dx.float() * grad
        db = None if db is None else grad * db
        return dx, grad * dw, db, *(None,) * 4  # dx is cast by autograd


def chunked_loss(
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    smoothing: float = 0.1,
    rows: int | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """smoothed_loss(x @ weight.T + bias, labels), computed in chunks.

    x (tokens, d_model), weight (vocab, d_model), bias (vocab,), labels
    (tokens,), none of which is padding.
    Returns two scalars in nats, summed over tokens: the training loss
    (§5.4) and the negative log-likelihood of the labels; exp of its mean
    is the perplexity of Table 3. Logits are computed for rows tokens at a
    time; the default suits the device's memory.
    """
    if rows is None:
        # 4 or 512 MiB of logits, and as much of log-probabilities; but
        # each chunk adds to all of dw: for a few rows that is too much
        numbers = 2**20 if x.device.type == "cpu" else 2**27
        rows = max(256, numbers // len(weight))
        if x.dtype == torch.float16:  # a sum over more might overflow
            rows = min(rows, 4096)
    inputs = (x, weight) if bias is None else (x, weight, bias)
    learn = torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in inputs
    )
    return _ChunkedLoss.apply(
        x, weight, bias, labels, smoothing, rows, learn
    )
