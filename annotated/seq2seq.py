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
    """A plain recurrent layer, from left to right (§1)."""

    def __init__(self, d_in: int, d_model: int):
        super().__init__()
        self.d_model = d_model
        self.linear = nn.Linear(d_in + d_model, d_model)

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        """x (…, d_in), h (…, d_model) -> the next h"""
        return torch.tanh(self.linear(torch.cat([x, h], dim=-1)))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, d_in) -> (batch, length, d_model): each h_t"""
        h = x.new_zeros(len(x), self.d_model)
        states = []
        for x_t in x.unbind(dim=1):
            h = self.step(x_t, h)
            states.append(h)
        return torch.stack(states, dim=1)


class LSTM(nn.Module):
    """Long short-term memory, from left to right (§1)."""

    def __init__(self, d_in: int, d_model: int):
        super().__init__()
        self.d_model = d_model
        self.linear = nn.Linear(d_in + d_model, 4 * d_model)

    def step(
        self, x: Tensor, h: Tensor, c: Tensor
    ) -> tuple[Tensor, Tensor]:
        """x (batch, d_in); h and c (batch, d_model) -> the next h, c"""
        gates = self.linear(torch.cat([x, h], dim=-1))
        i, f, g, o = gates.chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, d_in) -> (batch, length, d_model): each h_t"""
        h = c = x.new_zeros(len(x), self.d_model)
        states = []
        for x_t in x.unbind(dim=1):
            h, c = self.step(x_t, h, c)
            states.append(h)
        return torch.stack(states, dim=1)


# 01-before-attention.md: One letter after another
def sequential_products(output: Tensor) -> int:
    """Matrix products that wait for one another (Table 1's sequential
    operations, counted): the most on a chain of output's graph.
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
        name = node.name().lower()  # AddmmBackward0 and its like
        product = any(x in name for x in ("mm", "linear", "convolution"))
        deepest = max((longest[n] for n in below), default=0)
        longest[todo.pop()] = deepest + product
    return max(longest.values(), default=0)


# 01-before-attention.md: A bottleneck, and attention beside it
class AdditiveAttention(nn.Module):
    """Bahdanau's attention: scores wᵀ tanh(W q + U m), as in §3.2.1."""

    def __init__(self, d_model: int):
        super().__init__()
        self.w_q = nn.Linear(d_model, d_model, bias=False)
        self.w_k = nn.Linear(d_model, d_model, bias=False)
        self.w = nn.Linear(d_model, 1, bias=False)

    def weights(self, query: Tensor, memory: Tensor) -> Tensor:
        """query (batch, d), memory (batch, n, d) -> (batch, n)"""
        hidden = torch.tanh(self.w_q(query)[:, None] + self.w_k(memory))
        return self.w(hidden).squeeze(-1).softmax(dim=-1)

    def forward(self, query: Tensor, memory: Tensor) -> Tensor:
        """The weighted sum of memory: (batch, d)"""
        weights = self.weights(query, memory)
        return (weights[:, None] @ memory).squeeze(1)


class EncoderDecoder(nn.Module):
    """A layer that reads and an LSTM that writes (§1).

    encoder maps (batch, length, d_model) to the same shape. Without
    attention the decoder knows its last vector alone. All sources of a
    batch have one length: there is no mask.
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
        """ids (batch, src_len), (batch, tgt_len) -> logits"""
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
    """A stack of convolutions over positions, with residuals (§2).

    A window has kernel places; dilated, its gaps double from layer to
    layer. Raises ValueError where kernel is even: a window has a middle.
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
            raise ValueError(f"kernel is odd, not {kernel}")
        self.layers = nn.ModuleList()
        for layer in range(layers):
            gap = 2**layer if dilated else 1
            pad = gap * (kernel // 2)
            self.layers.append(
                nn.Conv1d(d_model, d_model, kernel, 1, pad, gap)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, d_model) -> the same shape"""
        for layer in self.layers:
            x = x + F.relu(layer(x.transpose(1, 2))).transpose(1, 2)
        return x
