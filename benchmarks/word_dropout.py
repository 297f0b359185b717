"""Dropout of whole tokens (Sennrich and Zhang, 2019), as a part of one's own.

    annotated train multi30k --out run --import benchmarks/word_dropout.py \
        --parts word-dropout

While the model trains, one token in ten of either side is not read: all
numbers of its embedding are zero, its position stays. The output matrix,
which may be the same, has all its rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from annotated.embeddings import Embeddings
from annotated.engine.parts import PartsConfig, register

P = 0.1


@register("part", "word-dropout", of=Embeddings)
class WordDropout(Embeddings):
    """Embeddings of which training leaves out one token in ten."""

    def __init__(self, config: PartsConfig):
        c = config
        super().__init__(
            c.src_vocab, c.tgt_vocab, c.d_model, c.tie, c.output_bias
        )

    def read_source(self, ids: Tensor) -> Tensor:
        return self.thinned(super().read_source(ids))

    def read_target(self, ids: Tensor) -> Tensor:
        return self.thinned(super().read_target(ids))

    def thinned(self, x: Tensor) -> Tensor:
        """x (…, d_model) with some of its vectors zero, in training; the
        others grow by as much as these lack."""
        if not self.training:
            return x
        kept = torch.rand_like(x[..., :1]) >= P
        return x * kept / (1 - P)
