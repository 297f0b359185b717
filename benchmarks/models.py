"""The models that the benchmarks compare: one shape, in every library.

from models import Shape, marian_config
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from annotated.model import TransformerConfig
from annotated.tokens import EOS, PAD


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The size of the model; a benchmark's settings begin with it."""

    d_model: int = 256
    layers: int = 3
    """in the encoder, and again in the decoder"""
    num_heads: int = 4
    d_ff: int = 1024
    vocab: int = 4000

    free: ClassVar[set[str]] = set()  # fields that need not be 1 or more

    def __post_init__(self) -> None:
        for name in {f.name for f in fields(self)} - self.free:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")

    def config(self, **more: Any) -> TransformerConfig:
        """Our model of this shape."""
        return TransformerConfig(
            src_vocab=self.vocab,
            tgt_vocab=self.vocab,
            num_encoder_layers=self.layers,
            num_decoder_layers=self.layers,
            d_model=self.d_model,
            d_ff=self.d_ff,
            num_heads=self.num_heads,
            **more,
        )


def told(config: TransformerConfig) -> str:
    """A shape in words."""
    return (
        f"{config.num_encoder_layers}+{config.num_decoder_layers} layers, "
        f"d_model {config.d_model}, {config.num_heads} heads, "
        f"d_ff {config.d_ff}, vocabulary {config.tgt_vocab:,}"
    )


def marian_config(config: TransformerConfig, **more: Any) -> Any:
    """The same shape for Hugging Face's Marian: the paper's network,
    nothing dropped but what `dropout` says. ImportError where
    `transformers` is not installed.
    """
    from transformers import MarianConfig

    return MarianConfig(
        vocab_size=config.src_vocab,
        decoder_vocab_size=config.tgt_vocab,
        share_encoder_decoder_embeddings=config.tie == "all",
        d_model=config.d_model,
        encoder_layers=config.num_encoder_layers,
        decoder_layers=config.num_decoder_layers,
        encoder_attention_heads=config.num_heads,
        decoder_attention_heads=config.num_heads,
        encoder_ffn_dim=config.d_ff,
        decoder_ffn_dim=config.d_ff,
        dropout=config.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        forced_eos_token_id=None,
        **more,
    )
