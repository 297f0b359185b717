"""Exported from the book; edit the chapter, then run `make export`."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "RNN", "LSTM", "sequential_products", "AdditiveAttention",
    "EncoderDecoder", "Convolutions",
]  # fmt: skip


# 01-before-attention.md: A network that reads
class RNN(nn.Module):
    """A plain left-to-right recurrent layer (§1)."""

    def __init__(self, d_in: int, d_model: int):
        super().__init__()
        self.d_model = d_model
        self.linear = nn.Linear(d_in + d_model, d_model)

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        """One step: x (…, d_in), h (…, d_model) -> next h (…, d_model)."""
        return torch.tanh(self.linear(torch.cat([x, h], dim=-1)))

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, length, d_in) -> all h_t (batch, length, d_model)."""
        h = x.new_zeros(len(x), self.d_model)
        states = []
        for x_t in x.unbind(dim=1):
            h = self.step(x_t, h)
            states.append(h)
        return torch.stack(states, dim=1)


class LSTM(nn.Module):
    """A left-to-right long short-term memory layer (§1)."""

    def __init__(self, d_in: int, d_model: int):
        super().__init__()
        self.d_model = d_model
        self.linear = nn.Linear(d_in + d_model, 4 * d_model)

    def step(
        self, x: Tensor, h: Tensor, c: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One step: x (batch, d_in); h, c (batch, d_model) -> next h, c."""
        gates = self.linear(torch.cat([x, h], dim=-1))
        i, f, g, o = gates.chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, length, d_in) -> all h_t (batch, length, d_model)."""
        h = c = x.new_zeros(len(x), self.d_model)
        states = []
        for x_t in x.unbind(dim=1):
            h, c = self.step(x_t, h, c)
            states.append(h)
        return torch.stack(states, dim=1)


# 01-before-attention.md: One letter after another
def sequential_products(output: Tensor) -> int:
    """Count sequential operations (Table 1): the most matrix products on
    any path through the autograd graph of output.
    """
    longest: dict[object, int] = {}
    todo = [node for node in (output.grad_fn,) if node is not None]
    while todo:
        node = todo[-1]
        below = [n for n, _ in node.next_functions if n is not None]
        missing = [n for n in below if n not in longest]
        if missing:
            todo += missing
            continue
        name = node.name().lower()  # e.g. AddmmBackward0
        product = any(x in name for x in ("mm", "linear", "convolution"))
        deepest = max((longest[n] for n in below), default=0)
        longest[todo.pop()] = deepest + product
    return max(longest.values(), default=0)


# 01-before-attention.md: A bottleneck, and attention beside it
class AdditiveAttention(nn.Module):
    """Bahdanau's additive attention, scores wᵀ tanh(W q + U m) (§3.2.1)."""

    def __init__(self, d_model: int):
        super().__init__()
        self.w_q = nn.Linear(d_model, d_model, bias=False)
        self.w_k = nn.Linear(d_model, d_model, bias=False)
        self.w = nn.Linear(d_model, 1, bias=False)

    def weights(self, query: Tensor, memory: Tensor) -> Tensor:
        """query (batch, d), memory (batch, n, d) -> weights (batch, n)."""
        hidden = torch.tanh(self.w_q(query)[:, None] + self.w_k(memory))
        return self.w(hidden).squeeze(-1).softmax(dim=-1)

    def forward(self, query: Tensor, memory: Tensor) -> Tensor:
        """The attention-weighted sum of memory: (batch, d)."""
        weights = self.weights(query, memory)
        return (weights[:, None] @ memory).squeeze(1)


class EncoderDecoder(nn.Module):
    """An encoder layer followed by an LSTM decoder (§1).

    encoder maps (batch, length, d_model) to the same shape. Without
    attention, the decoder sees only the encoder's last vector. There is
    no mask, so all sources in a batch must have the same length.
    """

    def __init__(
        self,
        encoder: nn.Module,
        vocab: int,
        d_model: int = 64,
        attention: bool = True,
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocab, d_model)
        self.encoder = encoder
        self.attention = AdditiveAttention(d_model) if attention else None
        self.decoder = LSTM(2 * d_model, d_model)
        self.output = nn.Linear(2 * d_model, vocab)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """src (batch, n), tgt (batch, m) -> logits (batch, m, vocab)."""
        memory = self.encoder(self.embedding(src))
        h = context = memory[:, -1]
        c, logits = torch.zeros_like(h), []
        for y in self.embedding(tgt).unbind(dim=1):
            if self.attention is not None:
                context = self.attention(h, memory)
            h, c = self.decoder.step(torch.cat([y, context], -1), h, c)
            logits.append(self.output(torch.cat([h, context], -1)))
        return torch.stack(logits, dim=1)


# 01-before-attention.md: Windows in place of a chain
class Convolutions(nn.Module):
    """A stack of residual 1D convolutions over positions (§2).

    Each window spans kernel positions; if dilated, the gaps between them
    double with each layer. Raises ValueError if kernel is even.
    """

    def __init__(
        self,
        d_model: int,
        layers: int,
        kernel: int = 3,
        dilated: bool = False,
    ):
        super().__init__()
        if kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, not {kernel}")
        self.layers = nn.ModuleList()
        for layer in range(layers):
            gap = 2**layer if dilated else 1
            pad = gap * (kernel // 2)
            self.layers.append(
                nn.Conv1d(d_model, d_model, kernel, 1, pad, gap)
            )

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, length, d_model) -> same shape."""
        for layer in self.layers:
            x = x + F.relu(layer(x.transpose(1, 2))).transpose(1, 2)
        return x
