"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annotated.attention import (
    MultiHeadAttention,
    attention_weights,
    initialise,
)
from annotated.embeddings import SinusoidalPositions
from annotated.engine import hooks
from annotated.engine.errors import (
    DataError,
    RunError,
    TrainingError,
    UsageError,
)
from annotated.engine.machine import out_of_memory
from annotated.engine.packing import (
    PackedAttention,
    PackedMask,
    PackedTransformer,
    attend,
    check_parts,
    packed,
    unpacked,
)
from annotated.layers import FeedForward
from annotated.model import ModelShape, Transformer, TransformerConfig
from annotated.search import CachedSelfAttention
from annotated.tokens import BOS, EOS, PAD

__all__ = [
    "PartsShape", "PartsConfig", "ComposedAttention", "CachedTurned",
    "OURS", "register", "find_registered", "own_code", "take_imports",
    "sources", "check_sources", "build", "asks_for_maps", "trainable",
]  # fmt: skip


# E32-change-the-model.md: Fields of the configuration
@dataclass(frozen=True, kw_only=True)
class PartsShape(ModelShape):
    """A model's shape, with the parts that came after the paper."""

    norm_kind: Literal["layer", "rms"] = "layer"  # LayerNorm or RMSNorm
    # how positions are encoded; the last four: in attention, or not at all
    positions: Literal[
        "sinusoidal", "learned", "rotary", "relative", "alibi", "none"
    ] = "sinusoidal"  # type: ignore[assignment]
    # heads of keys and values, shared by groups (unset: num_heads)
    num_kv_heads: int | None = None
    qk_norm: bool = False  # scale each query and key to one length
    gated: bool = False  # a gate in the feed-forward networks
    # of activation gelu: none, or its formula with tanh, as in torch
    approximate: Literal["none", "tanh"] = "none"
    # window of each layer in turn; 0: all tokens (unset: window, for all)
    windows: tuple[int, ...] = ()
    parts: tuple[str, ...] = ()  # parts of your own, from --import


@dataclass(frozen=True, kw_only=True)
class PartsConfig(PartsShape, TransformerConfig):
    """TransformerConfig, with these fields. ValueError where one is wrong
    or does not go with another.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        kv = self.num_kv_heads
        if kv and self.num_heads % kv:
            raise ValueError(
                f"num_kv_heads {kv} does not divide num_heads "
                f"{self.num_heads}"
            )
        if kv and self.key_size != self.value_size:
            raise ValueError("num_kv_heads needs d_k and d_v to be equal")
        if self.positions == "rotary" and self.key_size % 2:
            raise ValueError(
                f"rotary positions need an even d_k, not {self.key_size}"
            )
        for window in self.windows:
            if type(window) is not int or window < 0:
                raise ValueError(
                    f"windows must be integers >= 0, not {window!r}"
                )
        if self.approximate != "none" and self.activation != "gelu":
            raise ValueError(
                f"approximate {self.approximate} needs activation gelu, "
                f"not {self.activation}"
            )
        if self.windows and self.window is not None:
            raise ValueError("give window or windows, not both")
        for name in self.parts:
            find_registered("part", name)

    def change(self, model: Transformer) -> None:
        """Put the parts of this configuration into a new model."""
        width = self.d_model
        if self.norm_kind == "rms":
            norm = _since("RMSNorm")
            hooks.replace(model, nn.LayerNorm, lambda _: norm(width))
        if self.gated:
            hooks.replace(model, FeedForward, lambda _: self.gate())
        if self.approximate == "tanh":
            for part in model.modules():
                if isinstance(part, (FeedForward, _since("SwiGLU"))):
                    part.activation = _gelu_tanh
        if self.positions not in ("sinusoidal", "learned"):
            model.src_positions = _since("NoPositions")()
            model.tgt_positions = _since("NoPositions")()
        if self.composed:
            self.attend_by(model, ComposedAttention)
        for name in self.parts:
            own = find_registered("part", name)
            if issubclass(own.of, Transformer):
                continue  # see kind
            if issubclass(own.of, MultiHeadAttention):
                self.attend_by(model, partial(_made, name))
                continue

            def new(_: nn.Module, name: str = name) -> nn.Module:
                return _made(name, self)

            if not hooks.replace(model, own.of, new):
                raise UsageError(
                    f"parts: {name} takes the place of "
                    f"{own.of.__name__}, and this model has none"
                )

    def gate(self) -> nn.Module:
        """SwiGLU, with the activation of this configuration."""
        network = _since("SwiGLU")(
            self.d_model, self.d_ff, self.activation_dropout
        )
        network.activation = getattr(F, self.activation)
        return network

    def attend_by(self, model: Transformer, make: Any) -> None:
        """Let make(config, layer) be the attention everywhere."""
        for stack in (model.encoder, model.decoder):
            for i, layer in enumerate(stack.layers):
                layer.attention = make(self, i)
                if stack is model.decoder:
                    layer.cross_attention = make(self, None)

    @property
    def composed(self) -> bool:
        """Whether attention does more than the paper's."""
        inside = self.positions in ("rotary", "relative", "alibi")
        return bool(
            inside or self.num_kv_heads or self.qk_norm or self.windows
        )

    # E32-change-the-model.md: Packed, padded or refused
    @property
    def kind(self) -> Callable[[TransformerConfig], Any]:
        """What makes the whole model: Transformer, or one of your own."""
        of = {n: find_registered("part", n).of for n in self.parts}
        whole = [n for n in of if issubclass(of[n], Transformer)]
        return partial(_made, whole[-1]) if whole else Transformer

    def padded(self) -> str:
        """Why a model of this configuration runs on padded batches; "" if
        it runs packed. RunError if it would compute something wrong, or
        fail.
        """
        if not self.parts:
            return ""
        with own_code("part", *self.parts):
            return _tried(self)


def _gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its approximation with tanh, as GPT-2 computes it."""
    return F.gelu(x, approximate="tanh")


def _made(name: str, *given: Any) -> nn.Module:
    """The part that was registered by this name, made of what is given."""
    with own_code("part", name):
        part = find_registered("part", name).make(*given)
    if not isinstance(part, nn.Module):
        raise RunError(f"part {name} is {part!r}, not an nn.Module")
    return part


def _since(name: str) -> Any:
    """A part of chapter 26, which is loaded only for those who ask."""
    return getattr(importlib.import_module("annotated.since"), name)


# E32-change-the-model.md: Attention that is put together
class ComposedAttention(PackedAttention):
    """The attention that a configuration asks for, in the self-attention
    of this layer or in cross-attention (None), where the positions of one
    side say nothing about the other: turn and bias are not asked.
    """

    def __init__(self, config: PartsConfig, layer: int | None = None):
        c = config
        super().__init__(
            c.d_model, c.num_heads, c.d_k, c.d_v, c.attention_dropout,
            c.bias,
        )  # fmt: skip
        kv = (c.num_kv_heads or c.num_heads) * self.d_k
        if c.num_kv_heads:
            self.w_k = nn.Linear(c.d_model, kv, c.bias)
            self.w_v = nn.Linear(c.d_model, kv, c.bias)
        if c.qk_norm:
            width = c.num_heads * self.d_k
            self.w_q = _NormedLinear(c.d_model, width, self.d_k, c.bias)
            self.w_k = _NormedLinear(c.d_model, kv, self.d_k, c.bias)
        initialise(self.w_q, self.w_k, self.w_v)
        kind = c.positions if layer is not None else "none"
        self.window: int | None = None
        self.angles: SinusoidalPositions | None = None
        self.distances: _RelativeBias | _AlibiBias | None = None
        if layer is not None and c.windows:
            self.window = c.windows[layer % len(c.windows)] or None
        if kind == "rotary":
            self.angles = SinusoidalPositions(self.d_k)
        elif kind == "relative":
            self.distances = _RelativeBias(c.num_heads)
        elif kind == "alibi":
            self.distances = _AlibiBias(c.num_heads)

    def turn(self, x: Tensor, first: int = 0) -> Tensor:
        """Queries or keys (…, length, d_k) of positions first, first + 1,
        …, as their positions change them: the same shape.
        """
        if self.angles is None:
            return x
        table = self.angles(first + x.size(-2))[first:]
        return _since("rotate")(x, table).to(x.dtype)

    def bias(self, distance: Tensor) -> Tensor | None:
        """What is added to the scores of a query and a key at these
        distances, query minus key (…): (heads, …), or None for nothing.
        """
        return None if self.distances is None else self.distances(distance)

    def split(self, x: Tensor) -> Tensor:
        """(batch, length, groups · d) -> (batch, heads, length, d)"""
        if x.size(-1) >= self.num_heads * min(self.d_k, self.d_v):
            return super().split(x)
        groups = x.unflatten(-1, (-1, self.d_k)).transpose(1, 2)
        return groups.repeat_interleave(
            self.num_heads // groups.size(1), dim=1
        )

    def scored(
        self, q: Tensor, k: Tensor, distance: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Weights of turned queries and keys at these distances."""
        if self.window is not None:
            near = distance.abs() <= self.window // 2
            mask = near if mask is None else mask & near
        bias = self.bias(distance)
        if bias is None:
            return attention_weights(q, k, mask)
        # equation 1, with something added to the scores
        scores = q @ k.transpose(-2, -1) / self.d_k**0.5 + bias
        if mask is None:
            return scores.softmax(dim=-1)
        weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        return weights.masked_fill(~mask, 0.0)

    def weights(
        self, x: Tensor, memory: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        if memory is not None and memory is not x:
            return super().weights(x, memory, mask)
        q = self.turn(self.split(self.w_q(x)))
        k = self.turn(self.split(self.w_k(x)))
        distance = _distances(q.size(2), k.size(2), q.device)
        return self.scored(q, k, distance, mask)

    def forward(
        self, x: Tensor, memory: Tensor | None = None,
        mask: Tensor | PackedMask | None = None,
    ) -> Tensor:  # fmt: skip
        if not isinstance(mask, PackedMask):
            return super().forward(x, memory, mask)
        p, bias = self.dropout.p if self.training else 0.0, None
        source = x if memory is None else memory
        q = self.split(mask.queries.pad(self.w_q(x)))
        k = self.split(mask.keys.pad(self.w_k(source)))
        v = self.split(mask.keys.pad(self.w_v(source)))
        if memory is None:
            q, k = self.turn(q), self.turn(k)
            bias = self.bias(_distances(q.size(2), k.size(2), q.device))
            if self.window is not None:
                mask = mask.within(self.window)
        return self.w_o(attend(q, k, v, mask, p, bias))

    def cache(self, memory: Tensor) -> CachedSelfAttention:
        return _CachedComposed(self, memory)


def _distances(
    queries: int, keys: int, device: torch.device | None = None
) -> Tensor:
    """Query minus key, (queries, keys)."""
    place = torch.arange(max(queries, keys), device=device)
    return place[:queries, None] - place[None, :keys]


class CachedTurned(CachedSelfAttention):
    """A KV cache that counts positions; its block's method turn changes
    queries and keys by theirs.
    """

    block: Any
    position = 0  # of the key that comes next

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        k, v = super().keys_values(x)
        k = self.block.turn(k, self.position)
        self.position += x.size(1)
        return k, v

    def queries(self, x: Tensor) -> Tensor:
        """Of the newest position, whose key is already there."""
        return self.block.turn(super().queries(x), self.position - 1)


class _CachedComposed(CachedTurned):
    """A KV cache that knows how far away each key is."""

    def attend(self, q: Tensor, mask: Tensor | None = None) -> Tensor:
        last = self.k.size(2)
        distance = _distances(last, last, q.device)[-1:]
        heads = self.block.scored(q, self.k, distance, mask) @ self.v
        return self.block.w_o(heads.transpose(1, 2).flatten(2))


# E32-change-the-model.md: Scores by distance
class _RelativeBias(nn.Module):
    """A learned number for each head and distance, clipped at reach."""

    def __init__(self, num_heads: int, reach: int = 16):
        super().__init__()
        self.reach = reach
        first = 0.02 * torch.randn(num_heads, 2 * reach + 1)
        self.table = nn.Parameter(first)

    def forward(self, distance: Tensor) -> Tensor:
        """Distances (…) -> (heads, …)"""
        index = distance.clamp(-self.reach, self.reach) + self.reach
        return self.table[:, index]


class _AlibiBias(nn.Module):
    """Minus the distance, times a slope for each head."""

    slopes: Tensor

    def __init__(self, num_heads: int):
        super().__init__()
        head = torch.arange(1, num_heads + 1)
        slopes = 2.0 ** (-8 * head / num_heads)
        self.register_buffer("slopes", slopes, persistent=False)

    def forward(self, distance: Tensor) -> Tensor:
        """Distances (…) -> (heads, …)"""
        slopes = self.slopes.view(-1, *(1,) * distance.dim())
        return -slopes * distance.abs()


# E32-change-the-model.md: Queries and keys of one length
class _NormedLinear(nn.Linear):
    """A linear map (…, n) -> (…, heads · size), each of whose heads has a
    root mean square of 1, times a learned gain (size,).
    """

    def __init__(self, inputs: int, outputs: int, size: int, bias: bool):
        super().__init__(inputs, outputs, bias)
        self.size, self.eps = size, 1e-6
        self.gain = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        heads = super().forward(x).unflatten(-1, (-1, self.size))
        wide = heads.to(torch.promote_types(heads.dtype, torch.float32))
        mean_square = wide.square().mean(dim=-1, keepdim=True)
        normed = wide * (mean_square + self.eps).rsqrt() * self.gain
        return normed.to(heads.dtype).flatten(-2)


# E32-change-the-model.md: Parts of your own
@dataclass(frozen=True)
class _Own:
    """What register was given, and the file in which it stands."""

    make: Any
    of: Any
    file: str
    sha256: str


OURS = {  # what a run uses unless it names something else
    "part": "", "loss": "smoothed", "optimizer": "adam",
    "schedule": "paper", "batching": "paper",
}  # fmt: skip
_REGISTERED: dict[tuple[str, str], _Own] = {}


def register(
    kind: str, name: str, of: type | None = None
) -> Callable[[Any], Any]:
    """A decorator that makes a class or function known by a name. kind is
    part, loss, optimizer, schedule or batching; a part also says what it
    is of, the class that it takes the place of. UsageError where that is
    missing.
    """
    if kind not in OURS or name == OURS[kind]:
        raise UsageError(f"a {kind} named {name!r} cannot be registered")
    if (kind == "part") != isinstance(of, type):
        raise UsageError(
            f"register {name}: a part says of which class it takes the "
            "place, and nothing else does"
        )

    def keep(make: Any) -> Any:
        module = sys.modules.get(make.__module__)
        file = getattr(module, "__file__", None)
        known = _REGISTERED.get((kind, name))
        if known and file and known.file not in ("", str(file)):
            raise UsageError(
                f"{kind} {name} is registered by {known.file} already"
            )
        sha256 = _sha256(Path(file)) if file else ""
        own = _Own(make, of, str(file or ""), sha256)
        if known and _twice(known, own):
            raise UsageError(f"{kind} {name} is registered twice")
        _REGISTERED[kind, name] = own
        return make

    return keep


def find_registered(kind: str, name: str) -> _Own:
    """What is known by this name. UsageError if nothing is."""
    if (kind, name) not in _REGISTERED:
        have = [n for k, n in _REGISTERED if k == kind]
        more = f" (there is {', '.join(have)})" if have else ""
        raise UsageError(
            f"there is no {kind} {name!r}{more}: give --import and the "
            "file that registers it"
        )
    return _REGISTERED[kind, name]


def _twice(old: _Own, new: _Own) -> bool:
    """Whether one file, not edited since, gives two things one name."""
    names = {getattr(own.make, "__qualname__", "") for own in (old, new)}
    same = new.file != "" and old.sha256 == new.sha256
    return same and len(names) == 2


def _sha256(file: Path) -> str:
    text = file.read_bytes().replace(b"\r\n", b"\n")  # git may write those
    return hashlib.sha256(text).hexdigest()


def _import_file(file: Path) -> None:
    """Run a Python file that registers parts. RunError if it cannot."""
    if file.is_dir():
        raise RunError(f"--import {file}: a folder, not a file")
    if not file.is_file():
        raise RunError(f"--import {file}: there is no such file")
    name = f"imported_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    if spec is None or spec.loader is None:
        raise RunError(f"--import {file}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        what = _told(error, str(file.resolve()))
        raise RunError(f"--import {file} failed: {what}") from error


@contextmanager
def own_code(kind: str, *names: str) -> Iterator[None]:
    """Context manager for a call of what is registered by these names:
    RunError, with its line, where that fails.
    """
    try:
        yield
    except (DataError, RunError, TrainingError, UsageError):
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        files = [find_registered(kind, name).file for name in names]
        what = _told(error, *files)
        raise RunError(f"{kind} {', '.join(names)}: {what}") from error


def _told(error: BaseException, *files: str) -> str:
    """An error, and the innermost line of these files that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [
        f" ({Path(frame.filename).name}, line {frame.lineno})"
        for frame in frames
        if frame.filename in files
    ]
    return f"{type(error).__name__}: {error}{''.join(lines[-1:])}"


def take_imports(args: Sequence[str]) -> list[str]:
    """A command's arguments without each --import FILE, which is run."""
    rest, words = [], iter(args)
    for word in words:
        option, _, file = word.partition("=")
        if option != "--import":
            rest.append(word)
        elif not (file := file or next(words, "")):
            raise UsageError("--import needs a file")
        else:
            _import_file(Path(file))
    return rest


def sources(*configs: Any) -> dict[str, str]:
    """The files that registered what these configurations name, and their
    SHA-256.
    """
    names = [
        (kind, name)
        for config in configs
        for kind, ours in OURS.items()
        for name in _named(config, kind)
        if name != ours
    ]
    own = [find_registered(*name) for name in names]
    return {Path(o.file).name: o.sha256 for o in own if o.file}


def _named(config: Any, kind: str) -> tuple[str, ...]:
    """What a configuration names of a kind."""
    if kind == "part":
        return getattr(config, "parts", ())
    return (getattr(config, kind, OURS[kind]),)


def check_sources(folder: Path, needed: Mapping[str, str]) -> None:
    """RunError unless the files that a run was trained with have been
    imported, and are the same. Nothing is run here.
    """
    have = {(Path(o.file).name, o.sha256) for o in _REGISTERED.values()}
    for file, sha256 in sorted(needed.items() - have):
        others = [other[:16] for name, other in have if name == file]
        if not others:
            raise RunError(
                f"{folder} was trained with parts of {file}: give --import "
                "and that file (a run folder never runs code by itself)"
            )
        raise RunError(
            f"{file} is not the file that {folder} was trained with: its "
            f"SHA-256 is {others[0]}…, not {sha256[:16]}…"
        )


# E32-change-the-model.md: Packed, padded or refused
@torch.no_grad()
def _tried(config: PartsConfig) -> str:
    """See PartsConfig.padded."""
    named = ", ".join(config.parts)
    small = replace(
        config, num_encoder_layers=1, num_decoder_layers=1, src_vocab=12,
        tgt_vocab=12, dropout=0.0, attention_dropout=0.0,
        activation_dropout=0.0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = config.kind(small).double().eval()
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    kept = dict(model.named_parameters(remove_duplicate=False))
    if lost := [name for name in model.state_dict() if name not in kept]:
        raise RunError(
            f"parts {named}: {lost[0]} is no parameter, and no checkpoint "
            "would have it; a buffer may be persistent=False"
        )
    src = torch.tensor([[4, 5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD, PAD]])
    tgt = torch.tensor([[BOS, 4, 5, 6, 7], [BOS, 8, 9, PAD, PAD]])
    both = model(src, tgt)
    if not _near(both[1:, :3], model(src[1:, :3], tgt[1:, :3])):
        raise RunError(
            f"parts {named}: what they compute for a sentence depends on "
            "the padding beside it"
        )
    tgt[0, -1] = 11
    if not _near(both[0, :-1], model(src, tgt)[0, :-1]):
        raise RunError(f"parts {named}: the decoder sees tokens to come")
    if config.kind is not Transformer:
        return f"{type(model).__name__} is a model of its own"
    fast = PackedTransformer(small).double().eval()
    fast.load_state_dict(model.state_dict())
    try:
        real = tgt != PAD
        same = _near(fast(src, tgt)[real], model(src, tgt)[real])
    except (RuntimeError, IndexError, TypeError, ValueError):
        same = False
    return "" if same else f"{named} needs whole sentences"


def _near(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other)


def build(config: TransformerConfig) -> Transformer:
    """The model of a configuration as it trains fastest, with new weights:
    packed, or padded where a part of its own needs that.
    """
    if isinstance(config, PartsConfig) and config.padded():
        return config.kind(config)
    return PackedTransformer(config)


def asks_for_maps(loss: str) -> bool:
    """Whether the loss of this name takes the attention maps."""
    if loss == OURS["loss"]:
        return False
    make = find_registered("loss", loss).make
    return "maps" in inspect.signature(make).parameters


def trainable(
    model: Transformer, loss: str = OURS["loss"]
) -> tuple[Transformer, str]:
    """The form of a model that trains fastest with this loss, with the
    same parameters, and why it runs on padded batches; "" if it runs
    packed. RunError, naming the part, where it has some that its config
    does not say.
    """
    config, reason = model.config, ""
    if isinstance(config, PartsConfig):
        reason = config.padded()
    if not reason:
        if type(model) is not PackedTransformer:
            model = packed(model)
    elif isinstance(model, PackedTransformer):
        raise RunError(f"{reason}: use build(config)")
    check_parts(model, hooks=True)
    if not reason and asks_for_maps(loss):
        reason = f"loss {loss} takes the maps"
    return (unpacked(model) if reason else model), reason
