"""Exported from the book; edit the chapter, then run `make export`."""

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
from annotated.engine.errors import check_fields
from annotated.engine.hooks import attention_blocks, recorded_weights
from annotated.layers import DecoderLayer, EncoderLayer, FeedForward
from annotated.masks import causal_mask, padding_mask, window_mask

__all__ = [
    "Transformer", "Encoder", "Decoder", "ModelShape", "TransformerConfig",
    "make_positions", "count_parameters",
]  # fmt: skip


# 08-transformer.md: Figure 1 as a class
class Transformer(nn.Module):
    """The model of the paper (§3, Figure 1)."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(
            config.src_vocab, config.tgt_vocab, config.d_model,
            config.tie, config.output_bias,
        )  # fmt: skip
        self.src_positions = make_positions(config)
        self.tgt_positions = make_positions(config)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.dropout = nn.Dropout(config.dropout)
        config.change(self)  # nothing yet: see page E32

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """src (batch, src_len), tgt (batch, tgt_len), token ids, padding
        last -> logits (batch, tgt_len, tgt_vocab): at i, those of the
        token after tgt[:, : i + 1].
        """
        memory = self.encode(src)  # (batch, src_len, d_model)
        x = self.decode(tgt, memory, src)  # (batch, tgt_len, d_model)
        return self.logits(x, memory, src)

    def encode(self, src: Tensor) -> Tensor:
        """The left of Figure 1: (batch, src_len) -> (…, d_model)."""
        length, window = src.size(1), self.config.window
        x = self.embeddings.read_source(src)
        x = self.dropout(x + self.src_positions(length))
        mask = padding_mask(src)  # (batch, 1, 1, src_len)
        if window is not None:  # restricted self-attention, §4
            mask = mask & window_mask(length, window, src.device)
        return self.encoder(x, mask)  # (batch, src_len, d_model)

    def decode(self, tgt: Tensor, memory: Tensor, src: Tensor) -> Tensor:
        """The right of Figure 1; memory is encode(src) -> (…, d_model)."""
        length, window = tgt.size(1), self.config.window
        x = self.embeddings.read_target(tgt)
        x = self.dropout(x + self.tgt_positions(length))
        # padding comes last, where a causal query never looks
        mask = causal_mask(length, tgt.device)  # (tgt_len, tgt_len)
        if window is not None:
            mask = mask & window_mask(length, window, tgt.device)
        return self.decoder(x, memory, mask, padding_mask(src))

    def logits(self, x: Tensor, memory: Tensor, src: Tensor) -> Tensor:
        """The logits of what decode returns. Every search calls this; a
        subclass may also use the source, for instance to copy words.
        """
        return self.embeddings.logits(x)

    # 08-transformer.md: The configuration
    @torch.no_grad()
    def attention_maps(self, src: Tensor, tgt: Tensor) -> dict[str, Tensor]:
        """By block, (batch, heads, q_len, k_len). Call eval() first."""
        with recorded_weights(attention_blocks(self)) as maps:
            self(src, tgt)
        return maps


class Encoder(nn.Module):
    """The stack on the left of Figure 1 (§3.1)."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        pre = config.norm == "pre"
        self.layers = nn.ModuleList()
        for _ in range(config.num_encoder_layers):
            parts = _attention(config), _network(config)
            self.layers.append(EncoderLayer(*parts, config.dropout, pre))
        # the last sum of a pre-norm stack has had no norm
        self.norm = nn.LayerNorm(config.d_model) if pre else nn.Identity()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x (batch, src_len, d_model) -> the same shape."""
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


class Decoder(nn.Module):
    """The stack on the right of Figure 1 (§3.1)."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        pre = config.norm == "pre"
        self.layers = nn.ModuleList()
        for _ in range(config.num_decoder_layers):
            parts = _attention(config), _attention(config), _network(config)
            self.layers.append(DecoderLayer(*parts, config.dropout, pre))
        self.norm = nn.LayerNorm(config.d_model) if pre else nn.Identity()

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """x (batch, tgt_len, d_model) -> the same shape."""
        for layer in self.layers:
            x = layer(x, memory, mask, memory_mask)
        return self.norm(x)


# 08-transformer.md: The configuration
@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The shape of a model; the defaults are the base model's (§3)."""

    num_encoder_layers: int = 6  # layers of the encoder
    num_decoder_layers: int = 6  # layers of the decoder
    d_model: int = 512  # width of the model
    d_ff: int = 2048  # width inside the feed-forward networks
    num_heads: int = 8  # attention heads per layer
    d_k: int | None = None  # key size (unset: d_model / num_heads)
    d_v: int | None = None  # value size (unset: d_model / num_heads)
    dropout: float = 0.1  # residual dropout, P_drop
    attention_dropout: float = 0.0  # dropout of attention weights
    activation_dropout: float = 0.0  # dropout inside the feed-forward
    activation: Literal["relu", "silu", "gelu"] = "relu"  # in feed-forward
    norm: Literal["post", "pre"] = "post"  # LayerNorm after or before
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"  # encoding
    # which of the embeddings and the softmax share weights
    tie: Literal["all", "decoder", "none"] = "all"
    output_bias: bool = False  # add a learned number to each logit
    window: int | None = None  # tokens self-attention sees (unset: all)
    max_len: int = 1024  # maximum sentence length (learned positions)

    @property
    def key_size(self) -> int:
        """d_k, or what it defaults to."""
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_size(self) -> int:
        """d_v, or what it defaults to."""
        return self.d_v or self.d_model // self.num_heads


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelShape):
    """Shape and vocabularies. ValueError where a field is wrong."""

    src_vocab: int
    tgt_vocab: int
    bias: bool = True

    def __post_init__(self) -> None:
        check_fields(self, below=1.0)
        if self.d_model % self.num_heads and not (self.d_k and self.d_v):
            raise ValueError(
                f"num_heads {self.num_heads} does not divide d_model "
                f"{self.d_model}: give d_k and d_v"
            )
        if self.tie == "all" and self.src_vocab != self.tgt_vocab:
            raise ValueError(
                'tie "all" needs one vocabulary, but src_vocab is '
                f"{self.src_vocab} and tgt_vocab {self.tgt_vocab}"
            )

    def change(self, model: Transformer) -> None:
        """Put later parts into a model (page E32): here, none."""

    @classmethod
    def base(cls, **fields: Any) -> TransformerConfig:
        """The base model (Table 3, first row), with the given fields."""
        return cls(**fields)

    @classmethod
    def big(cls, **fields: Any) -> TransformerConfig:
        """The big model (Table 3, last row), with the given fields."""
        shape = {"d_model": 1024, "d_ff": 4096, "num_heads": 16}
        return cls(**{"dropout": 0.3} | shape | fields)


def _attention(c: TransformerConfig) -> MultiHeadAttention:
    """The attention of any of the three places (§3.2.3)."""
    return MultiHeadAttention(
        c.d_model, c.num_heads, c.d_k, c.d_v, c.attention_dropout, c.bias
    )


def _network(c: TransformerConfig) -> FeedForward:
    """The feed-forward network of a layer (§3.3)."""
    return FeedForward(
        c.d_model, c.d_ff, c.activation_dropout, c.bias, c.activation
    )


def make_positions(c: TransformerConfig) -> nn.Module:
    """What is added to the embeddings of a stack (§3.5)."""
    if c.positions == "learned":
        return LearnedPositions(c.d_model, c.max_len)
    return SinusoidalPositions(c.d_model)


# 08-transformer.md: Counting parameters
def count_parameters(config: TransformerConfig) -> int:
    """How many numbers the model of this shape learns (Table 3)."""
    with torch.device("meta"):  # shapes without memory
        # kind: what makes it, where that is your own (page E32)
        model = getattr(config, "kind", Transformer)(config)
    return sum(parameter.numel() for parameter in model.parameters())
