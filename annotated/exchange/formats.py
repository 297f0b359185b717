"""Exported from the book; edit the chapter, then run `make export`."""

from annotated.engine.errors import RunError
from annotated.model import ModelShape

__all__ = ["FORMATS", "unsupported", "check_supported"]


# E11-export.md: What all formats share
FORMATS = "safetensors", "onnx", "ctranslate2", "transformers"


def unsupported(shape: ModelShape) -> dict[str, str]:
    """What of a shape a format cannot express, by format; those that
    express all of it are left out.
    """
    usual = (shape.d_model // shape.num_heads,) * 2
    odd, other = [], []
    if shape.window is not None:
        odd.append("a window")
    if (shape.key_size, shape.value_size) != usual:
        odd.append("a d_k or d_v other than d_model / num_heads")
    if shape.positions == "learned":
        other.append("learned positions")
    if shape.norm == "pre" and shape.tie != "all":
        other.append(f"norm pre with tie {shape.tie}")
    reasons = {"ctranslate2": odd, "transformers": odd + other}
    return {to: " and ".join(why) for to, why in reasons.items() if why}


def check_supported(shape: ModelShape, to: str) -> None:
    """RunError where a format cannot express something of a shape."""
    if why := unsupported(shape).get(to):
        raise RunError(f"{to} does not support {why}")
