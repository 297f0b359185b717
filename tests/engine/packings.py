"""Token ids and shapes that the tests of packing share."""

from pathlib import Path

import torch
from hypothesis import settings

from annotated.engine import packing as packing_module
from annotated.model import TransformerConfig

PACKAGE = Path(packing_module.__file__).parents[1]
calm = settings(
    deadline=None, max_examples=25
)  # a busy machine is no failure
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def real_tokens(lengths):
    longest = max(*lengths, 1) if len(lengths) > 1 else max(lengths[0], 1)
    return torch.arange(longest) < torch.tensor(lengths)[:, None]


def small(**options):
    sizes = {
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "d_model": 16,
        "d_ff": 32,
        "num_heads": 2,
        "dropout": 0.0,
    }
    return TransformerConfig(src_vocab=30, tgt_vocab=30, **sizes | options)


def ids(lengths, seed=0):
    real = real_tokens(lengths)
    draw = torch.Generator().manual_seed(seed)
    words = torch.randint(4, 30, real.shape, generator=draw)
    return words.where(real, torch.zeros_like(words))
