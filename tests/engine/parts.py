"""Models with each of the parts of page E32, and their plain forms."""

from typing import Any

import torch

from annotated.engine.parts import PartsConfig
from annotated.tokens import BOS, EOS, PAD

# by name: what a configuration says
PARTS: dict[str, dict[str, Any]] = {
    "RMSNorm": {"norm_kind": "rms"},
    "gated": {"gated": True, "activation": "silu"},
    "by tanh": {"activation": "gelu", "approximate": "tanh"},
    "none": {"positions": "none"},
    "rotary": {"positions": "rotary"},
    "groups": {"num_kv_heads": 2},
    "qk_norm": {"qk_norm": True},
    "alibi": {"positions": "alibi"},
    "relative": {"positions": "relative"},
    "windows": {"windows": (3, 0)},
    "all": {
        "norm_kind": "rms", "gated": True, "positions": "rotary",
        "num_kv_heads": 1, "qk_norm": True, "windows": (3, 0),
        "norm": "pre", "tie": "none",
    },
    "all by distance": {
        "positions": "relative", "num_kv_heads": 2, "windows": (5, 3),
        "d_k": 6, "d_v": 6, "activation": "gelu", "gated": True,
    },
}  # fmt: skip
SRC = torch.tensor(
    [[4, 5, 6, 7, 8, EOS], [9, EOS, PAD, PAD, PAD, PAD], [EOS] + [PAD] * 5]
)
TGT = torch.tensor(
    [[BOS, 4, 5, 6, 7], [BOS, PAD, PAD, PAD, PAD], [BOS, 9, 10, 11, PAD]]
)


def config_of(part: str, **changes: Any) -> PartsConfig:
    shape: dict[str, Any] = {
        "src_vocab": 12, "tgt_vocab": 12, "num_encoder_layers": 2,
        "num_decoder_layers": 2, "d_model": 16, "d_ff": 24,
        "num_heads": 4, "dropout": 0.0,
    }  # fmt: skip
    return PartsConfig(**shape | PARTS[part] | changes)


def shaken(model: Any, seed: int = 0) -> Any:
    """The model with numbers in every parameter, large enough to tell."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return model
