"""Exported from the book; edit the chapter, then run `make export`."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "Embeddings", "sinusoids", "SinusoidalPositions", "LearnedPositions",
]  # fmt: skip


# 06-embeddings.md: Weight tying: one matrix, three uses
class Embeddings(nn.Module):
    """Token embeddings and the output projection (§3.4). tie says which
    of source, target and output are one matrix: "all", as in the paper,
    "decoder" (target and output) or "none".
    """

    def __init__(
        self,
        src_vocab: int,
        tgt_vocab: int,
        d_model: int,
        tie: str = "all",
        bias: bool = False,
    ):
        super().__init__()

        def table(vocab: int) -> nn.Parameter:  # components of size 1/√d
            return nn.Parameter(torch.randn(vocab, d_model) * d_model**-0.5)

        self.target = table(tgt_vocab)
        self.source = self.target if tie == "all" else table(src_vocab)
        self.output = table(tgt_vocab) if tie == "none" else self.target
        self.bias = nn.Parameter(torch.zeros(tgt_vocab)) if bias else None
        self.scale = math.sqrt(d_model)

    def read_source(self, ids: Tensor) -> Tensor:
        """Source ids (…) -> vectors (…, d_model), scaled by √d_model."""
        return F.embedding(ids, self.source) * self.scale

    def read_target(self, ids: Tensor) -> Tensor:
        """Target ids (…) -> vectors (…, d_model), scaled by √d_model."""
        return F.embedding(ids, self.target) * self.scale

    def logits(self, x: Tensor) -> Tensor:
        """x (…, d_model) -> logits (…, tgt_vocab), before the softmax."""
        return F.linear(x, self.output, self.bias)


# 07-positions.md: Sinusoids
def sinusoids(
    length: int, d_model: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Sinusoidal positional encodings (§3.5): (length, d_model).

    Column 2i is sin(pos / 10000^(2i/d_model)), column 2i + 1 the cosine.
    Computed in float64, to stay accurate at large positions.
    """
    position = torch.arange(length, dtype=torch.float64)[:, None]
    even = torch.arange(0, d_model, 2, dtype=torch.float64)
    angle = position / 10_000 ** (even / d_model)
    table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)
    return table[:, :d_model].to(dtype)


# 07-positions.md: Learned positions
class SinusoidalPositions(nn.Module):
    """Sinusoidal positions (§3.5), in a table that grows as needed."""

    table: Tensor

    def __init__(self, d_model: int, length: int = 256):
        super().__init__()
        table = sinusoids(length, d_model)
        self.dtype = table.dtype  # in which it was computed
        self.register_buffer("table", table, persistent=False)

    def forward(self, length: int) -> Tensor:
        """The encodings of positions 0 to length - 1: (length, d_model)."""
        old = self.table
        if length > len(old) or self.dtype != old.dtype:
            with torch.inference_mode(False):  # training may use it, too
                new = sinusoids(2 * length, old.size(1), old.dtype)
                self.table, self.dtype = new.to(old.device), old.dtype
        return self.table[:length]


class LearnedPositions(nn.Module):
    """One learned vector per position (§3.5; Table 3, row E)."""

    def __init__(self, d_model: int, length: int):
        super().__init__()
        # the same mean square as the sinusoids, 1/2
        self.table = nn.Parameter(torch.randn(length, d_model) * 0.5**0.5)

    def forward(self, length: int) -> Tensor:
        """(length, d_model). Raises ValueError if the table is shorter."""
        if length > len(self.table):
            raise ValueError(
                f"sentence has {length} tokens, but max_len is "
                f"{len(self.table)} for learned positions"
            )
        return self.table[:length]
