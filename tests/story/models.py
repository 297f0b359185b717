"""Small models that the tests of chapter 08 share."""

from annotated.model import TransformerConfig

VOCAB = 13


def small(**changes):
    shape = {
        "src_vocab": VOCAB,
        "tgt_vocab": VOCAB,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "d_model": 12,
        "d_ff": 20,
        "num_heads": 2,
        "max_len": 30,
    }
    return TransformerConfig(**(shape | changes))
