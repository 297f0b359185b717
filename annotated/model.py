"""annotated.model.

Exported from the book; edit the chapter, then run `make export`.

- 08-transformer.md: The Transformer
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from annotated.attention import MultiHeadAttention
from annotated.embeddings import (
    Embeddings,
    LearnedPositions,
    SinusoidalPositions,
)
from annotated.layers import (
    DecoderLayer,
    Dropout,
    EncoderLayer,
    FeedForward,
    LayerNorm,
)
from annotated.masks import Packing, window_mask

__all__ = [
    "COUNTS",
    "RATES",
    "CHOICES",
    "TransformerConfig",
    "check_config",
    "Encoder",
    "Decoder",
    "Transformer",
    "count_parameters",
    "table3",
]


# 08-transformer.md: The configuration
COUNTS = (
    "src_vocab",
    "tgt_vocab",
    "num_encoder_layers",
    "num_decoder_layers",
    "d_model",
    "d_ff",
    "num_heads",
    "d_k",
    "d_v",
    "window",
    "max_len",
)
RATES = ("dropout", "attention_dropout", "activation_dropout")
CHOICES: dict[str, tuple[Any, ...]] = {
    "norm": ("post", "pre"),
    "positions": ("sinusoidal", "learned"),
    "tie": ("all", "decoder", "none"),
    "bias": (True, False),
}


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The shape of a Transformer. The defaults are the base model (§3).

    d_k and d_v default to d_model / num_heads; dropout is P_drop of §5.4;
    window is the r of §4's restricted self-attention, None for all;
    max_len bounds learned positions only. Raises ValueError naming the
    field that is wrong.
    """

    src_vocab: int
    tgt_vocab: int
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    d_k: int | None = None
    d_v: int | None = None
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    norm: Literal["post", "pre"] = "post"
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    tie: Literal["all", "decoder", "none"] = "all"
    window: int | None = None
    max_len: int = 1024
    bias: bool = True
    pad_id: int = 0

    def __post_init__(self) -> None:
        check_config(self)

    @property
    def key_size(self) -> int:
        """d_k, or what it defaults to."""
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_size(self) -> int:
        """d_v, or what it defaults to."""
        return self.d_v or self.d_model // self.num_heads

    @classmethod
    def base(
        cls, *, src_vocab: int, tgt_vocab: int, **changes: Any
    ) -> TransformerConfig:
        """The base model (Table 3, first row), with changes."""
        return cls(src_vocab=src_vocab, tgt_vocab=tgt_vocab, **changes)

    @classmethod
    def big(
        cls, *, src_vocab: int, tgt_vocab: int, **changes: Any
    ) -> TransformerConfig:
        """The big model (Table 3, last row), with changes."""
        shape = {
            "d_model": 1024,
            "d_ff": 4096,
            "num_heads": 16,
            "dropout": 0.3,
        }
        return cls(
            src_vocab=src_vocab, tgt_vocab=tgt_vocab, **(shape | changes)
        )


def check_config(config: TransformerConfig) -> None:
    """Raise ValueError, naming the field, where config makes no model."""
    optional = ("d_k", "d_v", "window")
    for name in COUNTS:
        value = getattr(config, name)
        if value is None and name in optional:
            continue
        if type(value) is not int or value < 1:
            raise ValueError(
                f"{name} must be a whole number, at least 1, not {value!r}"
            )
    for name in RATES:
        value = getattr(config, name)
        if type(value) not in (int, float) or not 0 <= value < 1:
            raise ValueError(
                f"{name} must be a number in [0, 1), not {value!r}"
            )
    for name, choices in CHOICES.items():
        value = getattr(config, name)
        if type(value) is not type(choices[0]) or value not in choices:
            allowed = ", ".join(map(str, choices))
            raise ValueError(
                f"{name} must be one of {allowed}, not {value!r}"
            )
    divides = config.d_model % config.num_heads == 0
    if None in (config.d_k, config.d_v) and not divides:
        raise ValueError(
            f"num_heads {config.num_heads} does not divide d_model "
            f"{config.d_model}: give d_k and d_v"
        )
    if config.tie == "all" and config.src_vocab != config.tgt_vocab:
        raise ValueError(
            'tie "all" needs one vocabulary, but src_vocab is '
            f"{config.src_vocab} and tgt_vocab {config.tgt_vocab}"
        )
    vocab = min(config.src_vocab, config.tgt_vocab)
    if type(config.pad_id) is not int or not 0 <= config.pad_id < vocab:
        raise ValueError(
            f"pad_id {config.pad_id!r} is outside the vocabulary"
        )


# 08-transformer.md: The model by the paper
def _attention(config: TransformerConfig) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.d_model,
        config.num_heads,
        config.key_size,
        config.value_size,
        config.attention_dropout,
        config.bias,
    )


def _feed_forward(config: TransformerConfig) -> FeedForward:
    return FeedForward(
        config.d_model, config.d_ff, config.activation_dropout, config.bias
    )


def _last_norm(config: TransformerConfig) -> nn.Module:
    # a pre-norm stack ends un-normalised: its sums have grown all the way
    pre = config.norm == "pre"
    return LayerNorm(config.d_model) if pre else nn.Identity()


class Encoder(nn.Module):
    """N encoder layers (§3.1); with norm "pre", a last LayerNorm."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.layers = nn.ModuleList(
            EncoderLayer(
                _attention(config),
                _feed_forward(config),
                config.dropout,
                config.norm,
            )
            for _ in range(config.num_encoder_layers)
        )
        self.norm = _last_norm(config)
        self.window = config.window

    def forward(self, x: Tensor, packing: Packing) -> Tensor:
        """x: (tokens, d_model), packed -> (tokens, d_model)"""
        mask = packing.mask
        if self.window is not None:
            length = packing.real.size(1)
            near = window_mask(length, self.window, x.device)
            mask = near if mask is None else mask & near
        for layer in self.layers:
            x = layer(x, mask, packing)
        return self.norm(x)


class Decoder(nn.Module):
    """N decoder layers (§3.1); with norm "pre", a last LayerNorm."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.layers = nn.ModuleList(
            DecoderLayer(
                _attention(config),
                _attention(config),
                _feed_forward(config),
                config.dropout,
                config.norm,
            )
            for _ in range(config.num_decoder_layers)
        )
        self.norm = _last_norm(config)
        self.window = config.window

    def forward(
        self, x: Tensor, memory: Tensor, packing: Packing, src: Packing
    ) -> Tensor:
        """x (tokens, d_model) of the target, memory (tokens, d_model) of
        the source, each with its packing -> (tokens, d_model)
        """
        # padding comes last, where a causal query never looks
        mask = None
        if self.window is not None:
            length = packing.real.size(1)
            mask = window_mask(length, self.window, x.device)
        for layer in self.layers:
            x = layer(x, memory, mask, src.mask, packing, src)
        return self.norm(x)


# 08-transformer.md: The whole
class Transformer(nn.Module):
    """The model of the paper (§3, Figure 1).

    Everything that works position by position runs on real tokens alone,
    packed; only attention sees the padded batch.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(
            config.src_vocab, config.tgt_vocab, config.d_model, config.tie
        )
        self.src_positions: LearnedPositions | SinusoidalPositions
        self.tgt_positions: LearnedPositions | SinusoidalPositions
        if config.positions == "learned":
            size = (config.d_model, config.max_len)
            self.src_positions = LearnedPositions(*size)
            self.tgt_positions = LearnedPositions(*size)
        else:
            self.src_positions = SinusoidalPositions(config.d_model)
            self.tgt_positions = self.src_positions
        self.dropout = Dropout(config.dropout)
        self.encoder, self.decoder = Encoder(config), Decoder(config)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """src (batch, src_len), tgt (batch, tgt_len), token ids, padding
        last -> logits (batch, tgt_len, tgt_vocab): at i, those of the
        token after tgt[:, : i + 1]; zeros where tgt is padding.
        """
        x, packing = self.hidden(src, tgt)
        return packing.pad(self.embeddings.logits(x))

    def hidden(self, src: Tensor, tgt: Tensor) -> tuple[Tensor, Packing]:
        """The decoder's output before the softmax: (tokens, d_model) of
        the target's real tokens in their order, and their packing.
        """
        memory, src_packing = self._encode(src)
        packing = Packing.of(tgt != self.config.pad_id)
        return self._decode(tgt, packing, memory, src_packing), packing

    def encode(self, src: Tensor) -> Tensor:
        """(batch, src_len) -> (batch, src_len, d_model), 0 at padding."""
        x, packing = self._encode(src)
        return packing.pad(x)

    def decode(self, tgt: Tensor, memory: Tensor, src: Tensor) -> Tensor:
        """tgt (batch, tgt_len), memory (batch, src_len, d_model) as encode
        made it of src -> (batch, tgt_len, d_model), before the softmax.
        """
        src_packing = Packing.of(src != self.config.pad_id)
        packing = Packing.of(tgt != self.config.pad_id)
        memory = src_packing.pack(memory)
        return packing.pad(self._decode(tgt, packing, memory, src_packing))

    def _encode(self, src: Tensor) -> tuple[Tensor, Packing]:
        packing = Packing.of(src != self.config.pad_id)
        x = self.embeddings.read_source(packing.pack(src))
        x = x + self.src_positions(packing.positions, src.size(1))
        return self.encoder(self.dropout(x), packing), packing

    def _decode(
        self, tgt: Tensor, packing: Packing, memory: Tensor, src: Packing
    ) -> Tensor:
        x = self.embeddings.read_target(packing.pack(tgt))
        x = x + self.tgt_positions(packing.positions, tgt.size(1))
        return self.decoder(self.dropout(x), memory, packing, src)

    @torch.no_grad()
    def attention_maps(self, src: Tensor, tgt: Tensor) -> dict[str, Tensor]:
        """The weights of every head: {"encoder.0": (batch, heads, q_len,
        k_len), …, "decoder.0": …, "cross.0": …}, one row a query; the row
        of a query that is padding means nothing. Call eval() before.
        """
        maps: dict[str, Tensor] = {}
        hooks = []

        def watch(name: str, attention: MultiHeadAttention) -> None:
            def record(module: nn.Module, args: Any, kwargs: Any) -> None:
                maps[name] = attention.weights(*args, **kwargs)

            hook = attention.register_forward_pre_hook
            hooks.append(hook(record, with_kwargs=True))

        for path, module in self.named_modules():
            if isinstance(module, MultiHeadAttention):
                stack, _, i, role = path.split(".")
                kind = "cross" if role == "cross_attention" else stack
                watch(f"{kind}.{i}", module)
        try:
            self.hidden(src, tgt)
        finally:
            for hook in hooks:
                hook.remove()
        return maps


# 08-transformer.md: Counting parameters
def count_parameters(config: TransformerConfig) -> int:
    """How many numbers the model of this shape learns (Table 3)."""
    with torch.device("meta"):  # shapes without memory
        model = Transformer(config)
    return sum(parameter.numel() for parameter in model.parameters())


# 08-transformer.md: Table 3, the parameter column
def table3(vocab: int) -> dict[str, TransformerConfig]:
    """Every row of Table 3 that changes the model, by name.

    Row (D)'s label smoothing is the recipe's business, not the model's.
    """
    changes: dict[str, dict[str, Any]] = {"base": {}}
    for h, d in [(1, 512), (4, 128), (16, 32), (32, 16)]:
        changes[f"A-h{h}"] = {"num_heads": h, "d_k": d, "d_v": d}
    for d_k in (16, 32):
        changes[f"B-dk{d_k}"] = {"d_k": d_k, "d_v": 64}
    for n in (2, 4, 8):
        stacks = ("num_encoder_layers", "num_decoder_layers")
        changes[f"C-N{n}"] = dict.fromkeys(stacks, n)
    for d_model, d in [(256, 32), (1024, 128)]:
        changes[f"C-d{d_model}"] = {"d_model": d_model, "d_k": d, "d_v": d}
    for d_ff in (1024, 4096):
        changes[f"C-ff{d_ff}"] = {"d_ff": d_ff}
    for p in (0.0, 0.2):
        changes[f"D-drop{p}"] = {"dropout": p}
    changes["E-learned"] = {"positions": "learned"}
    shape = {"src_vocab": vocab, "tgt_vocab": vocab}
    rows = {
        name: TransformerConfig.base(**shape, **change)
        for name, change in changes.items()
    }
    return rows | {"big": TransformerConfig.big(**shape)}
