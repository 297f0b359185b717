"""Exported from the book; edit the chapter, then run `make export`.

- 08-transformer.md: The Transformer
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

import torch
from torch import Tensor, nn

from annotated.attention import MultiHeadAttention, recorded_weights
from annotated.embeddings import (
    Embeddings,
    LearnedPositions,
    SinusoidalPositions,
)
from annotated.layers import DecoderLayer, EncoderLayer, FeedForward
from annotated.masks import causal_mask, padding_mask, window_mask

__all__ = [
    "Transformer", "Encoder", "Decoder", "ModelShape", "TransformerConfig",
    "check_config", "make_attention", "make_feed_forward", "make_positions",
    "make_last_norm", "count_parameters", "table3",
]  # fmt: skip


# 08-transformer.md: Figure 1 as a class
class Transformer(nn.Module):
    """The model of the paper (§3, Figure 1)."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(
            config.src_vocab, config.tgt_vocab, config.d_model, config.tie
        )
        self.src_positions = make_positions(config)
        self.tgt_positions = make_positions(config)
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """src (batch, src_len), tgt (batch, tgt_len), token ids, padding
        last -> logits (batch, tgt_len, tgt_vocab): at i, those of the
        token after tgt[:, : i + 1].
        """
        memory = self.encode(src)
        return self.embeddings.logits(self.decode(tgt, memory, src))

    def encode(self, src: Tensor) -> Tensor:
        """The left of Figure 1: (batch, src_len) -> (…, d_model)."""
        x = self.embeddings.read_source(src)
        x = self.dropout(x + self.src_positions(src.size(1)))
        return self.encoder(x, self.near(padding_mask(src)))

    def decode(self, tgt: Tensor, memory: Tensor, src: Tensor) -> Tensor:
        """The right of Figure 1, before the softmax: tgt (batch, tgt_len),
        memory as encode made it of src -> (batch, tgt_len, d_model).
        """
        x = self.embeddings.read_target(tgt)
        x = self.dropout(x + self.tgt_positions(tgt.size(1)))
        # padding comes last, where a causal query never looks
        past = self.near(causal_mask(tgt.size(1), tgt.device))
        return self.decoder(x, memory, past, padding_mask(src))

    def near(self, mask: Tensor) -> Tensor:
        """mask, within the window where the configuration has one (§4)."""
        r = self.config.window
        if r is None:
            return mask
        return mask & window_mask(mask.size(-1), r, mask.device)

    # 08-transformer.md: The configuration
    @torch.no_grad()
    def attention_maps(self, src: Tensor, tgt: Tensor) -> dict[str, Tensor]:
        """The weights of every head: {"encoder.0": (batch, heads, q_len,
        k_len), …, "decoder.0": …, "cross.0": …}, one row per query. Call
        eval() first.
        """
        blocks: dict[str, Any] = {}
        for i, layer in enumerate(self.encoder.layers):
            blocks[f"encoder.{i}"] = layer.attention
        for i, layer in enumerate(self.decoder.layers):
            blocks[f"decoder.{i}"] = layer.attention
            blocks[f"cross.{i}"] = layer.cross_attention
        with recorded_weights(blocks) as maps:
            self(src, tgt)
        return maps


class Encoder(nn.Module):
    """N encoder layers (§3.1); with norm "pre", a last LayerNorm."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.layers = nn.ModuleList(
            EncoderLayer(
                make_attention(config),
                make_feed_forward(config),
                config.dropout,
                config.norm,
            )
            for _ in range(config.num_encoder_layers)
        )
        self.norm = make_last_norm(config)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(batch, src_len, d_model) -> (batch, src_len, d_model)"""
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


class Decoder(nn.Module):
    """N decoder layers (§3.1); with norm "pre", a last LayerNorm."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.layers = nn.ModuleList(
            DecoderLayer(
                make_attention(config),
                make_attention(config),
                make_feed_forward(config),
                config.dropout,
                config.norm,
            )
            for _ in range(config.num_decoder_layers)
        )
        self.norm = make_last_norm(config)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """x (batch, tgt_len, d_model), memory (batch, src_len, d_model)
        -> the shape of x.
        """
        for layer in self.layers:
            x = layer(x, memory, mask, memory_mask)
        return self.norm(x)


# 08-transformer.md: The configuration
@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The base model (§3), whatever its words."""

    num_encoder_layers: int = 6  # layers of the encoder
    num_decoder_layers: int = 6  # layers of the decoder
    d_model: int = 512  # width of the model
    d_ff: int = 2048  # width inside the feed-forward networks
    num_heads: int = 8  # attention heads per layer
    d_k: int | None = None  # key size, if not d_model / num_heads
    d_v: int | None = None  # value size, if not d_model / num_heads
    dropout: float = 0.1  # residual dropout, P_drop
    attention_dropout: float = 0.0  # dropout of attention weights
    activation_dropout: float = 0.0  # dropout in the feed-forward
    norm: Literal["post", "pre"] = "post"  # where LayerNorm stands
    # how a position is written
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    # which of the embeddings and the softmax share their weights
    tie: Literal["all", "decoder", "none"] = "all"
    window: int | None = None  # tokens that self-attention sees, if not all
    max_len: int = 1024  # tokens in a sentence, for learned positions


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelShape):
    """Shape and vocabularies. ValueError names a wrong field."""

    src_vocab: int
    tgt_vocab: int
    bias: bool = True

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
        shape = {"d_model": 1024, "d_ff": 4096, "num_heads": 16}
        shape |= {"src_vocab": src_vocab, "tgt_vocab": tgt_vocab}
        return cls(**{"dropout": 0.3} | shape | changes)


def check_config(config: TransformerConfig) -> None:
    """Raise ValueError, naming the field, where config makes no model."""
    for name, kind in get_type_hints(TransformerConfig).items():
        value = getattr(config, name)
        choices = (True, False) if kind is bool else get_args(kind)
        if kind is float:
            wanted = "a number in [0, 1)"
            fine = type(value) in (int, float) and 0 <= value < 1
        elif kind is int or int in choices:
            wanted = "a whole number, at least 1"
            fine = type(value) is int and value >= 1
            fine = fine or (value is None and kind is not int)
        else:
            wanted = "one of " + ", ".join(map(str, choices))
            same = [type(c) is type(value) and c == value for c in choices]
            fine = any(same)
        if not fine:
            raise ValueError(f"{name} must be {wanted}, not {value!r}")
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


def make_attention(config: TransformerConfig) -> MultiHeadAttention:
    """An attention block of this shape."""
    return MultiHeadAttention(
        config.d_model,
        config.num_heads,
        config.key_size,
        config.value_size,
        config.attention_dropout,
        config.bias,
    )


def make_feed_forward(config: TransformerConfig) -> FeedForward:
    """A position-wise network of this shape."""
    return FeedForward(
        config.d_model, config.d_ff, config.activation_dropout, config.bias
    )


def make_positions(
    config: TransformerConfig,
) -> LearnedPositions | SinusoidalPositions:
    """Where in its sentence a token is."""
    if config.positions == "learned":
        return LearnedPositions(config.d_model, config.max_len)
    return SinusoidalPositions(config.d_model)


def make_last_norm(config: TransformerConfig) -> nn.Module:
    """A pre-norm stack ends un-normalised: its sums have grown."""
    pre = config.norm == "pre"
    return nn.LayerNorm(config.d_model) if pre else nn.Identity()


# 08-transformer.md: Counting parameters
def count_parameters(config: TransformerConfig) -> int:
    """How many numbers the model of this shape learns (Table 3)."""
    with torch.device("meta"):  # shapes without memory
        model = Transformer(config)
    return sum(parameter.numel() for parameter in model.parameters())


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
