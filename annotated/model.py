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
from annotated.engine.hooks import recorded_weights
from annotated.layers import DecoderLayer, EncoderLayer, FeedForward
from annotated.masks import causal_mask, padding_mask, window_mask

__all__ = [
    "Transformer", "Stack", "ModelShape", "TransformerConfig",
    "make_positions", "count_parameters",
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
        self.encoder = Stack(config, EncoderLayer)
        self.decoder = Stack(config, DecoderLayer)
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
        """The right of Figure 1; memory is encode(src) -> (…, d_model)."""
        x = self.embeddings.read_target(tgt)
        x = self.dropout(x + self.tgt_positions(tgt.size(1)))
        # padding comes last, where a causal query never looks
        past = self.near(causal_mask(tgt.size(1), tgt.device))
        return self.decoder(x, memory, past, padding_mask(src))

    def near(self, mask: Tensor) -> Tensor:
        """mask, within the window where the configuration has one (§4)."""
        r, length = self.config.window, mask.size(-1)
        return mask & window_mask(length, r, mask.device) if r else mask

    # 08-transformer.md: The configuration
    def attention_blocks(self) -> dict[str, MultiHeadAttention]:
        """By name: "encoder.0", …, "decoder.0", "cross.0", …"""
        blocks = {}
        for i, layer in enumerate(self.encoder.layers):
            blocks[f"encoder.{i}"] = layer.attention
        for i, layer in enumerate(self.decoder.layers):
            blocks[f"decoder.{i}"] = layer.attention
            blocks[f"cross.{i}"] = layer.cross_attention
        return blocks

    @torch.no_grad()
    def attention_maps(self, src: Tensor, tgt: Tensor) -> dict[str, Tensor]:
        """By block, (batch, heads, q_len, k_len). Call eval() first."""
        with recorded_weights(self.attention_blocks()) as maps:
            memory = Transformer.encode(self, src)  # always the plain form
            self.decode(tgt, memory, src)
        return maps


class Stack(nn.Module):
    """Layers of one kind (§3.1); with norm "pre", a last LayerNorm."""

    def __init__(self, c: TransformerConfig, kind: Any):
        super().__init__()
        self.layers: Any = nn.ModuleList()
        decodes = kind is DecoderLayer  # then it has two attentions
        layers = c.num_decoder_layers if decodes else c.num_encoder_layers
        heads = c.num_heads, c.d_k, c.d_v, c.attention_dropout, c.bias
        network = c.d_ff, c.activation_dropout, c.bias
        for _ in range(layers):
            blocks: list[nn.Module] = [
                MultiHeadAttention(c.d_model, *heads)
                for _ in range(1 + decodes)
            ]
            blocks.append(FeedForward(c.d_model, *network))
            self.layers.append(kind(*blocks, c.dropout, c.norm))
        pre = c.norm == "pre"
        self.norm = nn.LayerNorm(c.d_model) if pre else nn.Identity()

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        """(batch, length, d_model) -> the same; others as for a layer."""
        for layer in self.layers:
            x = layer(x, *others)
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
    norm: Literal["post", "pre"] = "post"  # LayerNorm after or before
    # how positions are encoded
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    # which of the embeddings and the softmax share weights
    tie: Literal["all", "decoder", "none"] = "all"
    window: int | None = None  # tokens self-attention sees (unset: all)
    max_len: int = 1024  # maximum sentence length (learned positions)


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelShape):
    """Shape and vocabularies. ValueError where a field is wrong."""

    src_vocab: int
    tgt_vocab: int
    bias: bool = True

    def __post_init__(self) -> None:
        check_fields(self, below=1.0)
        divides = self.d_model % self.num_heads == 0
        if None in (self.d_k, self.d_v) and not divides:
            raise ValueError(
                f"num_heads {self.num_heads} does not divide d_model "
                f"{self.d_model}: give d_k and d_v"
            )
        if self.tie == "all" and self.src_vocab != self.tgt_vocab:
            raise ValueError(
                'tie "all" needs one vocabulary, but src_vocab is '
                f"{self.src_vocab} and tgt_vocab {self.tgt_vocab}"
            )

    @property
    def key_size(self) -> int:
        """d_k, or what it defaults to."""
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_size(self) -> int:
        """d_v, or what it defaults to."""
        return self.d_v or self.d_model // self.num_heads

    @classmethod
    def base(cls, **fields: Any) -> TransformerConfig:
        """The base model (Table 3, first row): vocabularies, changes."""
        return cls(**fields)

    @classmethod
    def big(cls, **fields: Any) -> TransformerConfig:
        """The big model (Table 3, last row): vocabularies, changes."""
        shape = {"d_model": 1024, "d_ff": 4096, "num_heads": 16}
        return cls(**{"dropout": 0.3} | shape | fields)


def make_positions(
    config: TransformerConfig,
) -> SinusoidalPositions | LearnedPositions:
    """The position encoding that config asks for (§3.5)."""
    if config.positions == "learned":
        return LearnedPositions(config.d_model, config.max_len)
    return SinusoidalPositions(config.d_model)


# 08-transformer.md: Counting parameters
def count_parameters(config: TransformerConfig) -> int:
    """How many numbers the model of this shape learns (Table 3)."""
    with torch.device("meta"):  # shapes without memory
        model = Transformer(config)
    return sum(parameter.numel() for parameter in model.parameters())
