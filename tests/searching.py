"""Models and sentences that the tests of the searches share."""

import numpy as np
import pytest
import torch

from annotated.model import Transformer, TransformerConfig
from annotated.tokens import EOS, SPECIALS

VOCAB = 11
KINDS = {
    "paper": {"tie": "all"},
    "pre-norm": {"norm": "pre"},
    "learned": {"positions": "learned", "max_len": 30},
    "window": {"window": 4},
    "sizes": {"d_k": 3, "d_v": 7},
    "deep": {"num_decoder_layers": 3, "num_heads": 4, "norm": "pre"},
    "silu": {"activation": "silu", "output_bias": True},
}


def push_end(model, by):
    """Make the model like EOS more, or less."""
    if by == 0.0:
        return model
    bias = model.embeddings.bias
    pushed = torch.zeros(VOCAB) if bias is None else bias.detach()
    pushed = pushed[: model.config.tgt_vocab].clone()
    pushed[EOS] += by
    model.embeddings.bias = torch.nn.Parameter(pushed)
    return model


def random_model(seed=0, sure=2.0, end=-2.0, kind=Transformer, **changes):
    """A model with random tastes: the surer, the more they differ; end
    is added to the logit of EOS, so that not every best output is empty.
    """
    torch.manual_seed(seed)
    shape = {
        "src_vocab": VOCAB,
        "tgt_vocab": VOCAB,
        "num_encoder_layers": 1,
        "num_decoder_layers": 2,
        "d_model": 16,
        "d_ff": 32,
        "num_heads": 2,
        "dropout": 0.5,  # search must switch it off
        "tie": "none",
    }
    model = kind(TransformerConfig(**(shape | changes)))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "bias" in name or "gain" in name:
                p += 0.1 * torch.randn_like(p)
        model.embeddings.output *= sure
        model.embeddings.output[EOS] *= 2
    return push_end(model, end)


def random_sentences(count, seed=0, longest=7, vocab=VOCAB):
    draw = np.random.default_rng(seed)
    return [
        draw.integers(len(SPECIALS), vocab, draw.integers(0, longest + 1))
        .astype(int)
        .tolist()
        for _ in range(count)
    ]


def assert_equal(one, other, tolerance=1e-4):
    """The same hypotheses in the same order, with the same numbers."""
    assert [h.ids for h in one] == [h.ids for h in other]
    for a, b in zip(one, other, strict=True):
        for x, y in (
            (a.score, b.score),
            (a.log_probability, b.log_probability),
        ):
            assert x == pytest.approx(y, abs=tolerance, rel=1e-6)


# --- independence ---------------------------------------------------------

MODEL = random_model(21)
