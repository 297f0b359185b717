"""A small model whose sizes are all different, and two sentences for it."""

from __future__ import annotations

from typing import Any

import torch

from annotated.model import Transformer, TransformerConfig

SRC = torch.tensor([[3, 4, 5, 6, 7]])
TGT = torch.tensor([[1, 8, 9, 10]])


def model(**changes: Any) -> Transformer:
    """A small one in float64, with sizes that are all different."""
    shape = {
        "src_vocab": 13, "tgt_vocab": 13, "num_encoder_layers": 2,
        "num_decoder_layers": 3, "d_model": 12, "d_ff": 20, "num_heads": 2,
    }  # fmt: skip
    torch.manual_seed(0)
    config = TransformerConfig(**(shape | changes))
    return Transformer(config).double().eval()
