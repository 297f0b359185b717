"""What somebody brings along: parts, losses, an optimizer, and so on."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from annotated.attention import MultiHeadAttention
from annotated.engine.optimizers import ChainedOptimizer
from annotated.engine.parts import ComposedAttention, register
from annotated.layers import FeedForward
from annotated.model import Transformer


@register("part", "scale-norm", of=nn.LayerNorm)
class ScaleNorm(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor([config.d_model**0.5]))

    def forward(self, x):
        return self.gain * F.normalize(x, dim=-1)


@register("part", "near", of=MultiHeadAttention)
class Near(ComposedAttention):
    """Looks near, more or less: one number learns how much."""

    def __init__(self, config, layer):
        super().__init__(config, layer)
        if layer is not None:  # no distance between two sentences
            self.slope = nn.Parameter(torch.ones(config.num_heads))

    def bias(self, distance):
        slope = self.slope.view(-1, *(1,) * distance.dim())
        return -slope * distance.abs().float().sqrt()


@register("part", "shifted", of=FeedForward)
class Shifted(nn.Module):
    """Each token also sees the one before it."""

    def __init__(self, config):
        super().__init__()
        self.inner = nn.Linear(2 * config.d_model, config.d_ff)
        self.outer = nn.Linear(config.d_ff, config.d_model)

    def forward(self, x):
        before = F.pad(x, (0, 0, 1, 0))[..., :-1, :]
        return self.outer(self.inner(torch.cat([x, before], -1)).relu())


@register("part", "copier", of=Transformer)
class Copier(Transformer):
    """A gate between the model's words and those of the source."""

    def __init__(self, config):
        super().__init__(config)
        self.gate = nn.Linear(config.d_model, 1)

    def logits(self, x, memory, src):
        scores = x @ memory.transpose(-2, -1) / memory.size(-1) ** 0.5
        real = (src != 0)[:, None]
        where = scores.masked_fill(~real, -math.inf).softmax(dim=-1)
        copied = x.new_zeros(*x.shape[:-1], self.config.tgt_vocab)
        index = src[:, None].expand(*where.shape)
        copied = copied.scatter_add(-1, index, where)
        p = self.gate(x).sigmoid()
        words = super().logits(x, memory, src).softmax(dim=-1)
        return (p * words + (1 - p) * copied + 1e-9).log()


@register("loss", "focal")
def focal(logits, labels, config):
    nll = F.cross_entropy(logits, labels, reduction="none")
    return (1 - (-nll).exp()) ** 2 * nll


@register("loss", "sharp")
def sharp(logits, labels, config, maps):
    """Heads are pushed to look at few tokens."""
    nll = F.cross_entropy(logits, labels, reduction="none")
    return nll - 0.1 * sum(w.square().sum() for w in maps.values()) / len(
        nll
    )


@register("batching", "random")
def random(corpus, config, epoch):
    order = np.random.default_rng([config.seed, epoch])
    return np.array_split(order.permutation(len(corpus)), 3)


@register("schedule", "cosine")
def cosine(step, config, d_model):
    warm = min(1.0, step / config.warmup)
    return 0.01 * warm * (1 + math.cos(math.pi * step / config.max_steps))


@register("optimizer", "two-kinds")
def two_kinds(parameters, config):
    """Matrices are pushed with momentum, the rest as by Adam."""
    matrices = [p for p in parameters.values() if p.dim() == 2]
    others = [p for p in parameters.values() if p.dim() != 2]
    return ChainedOptimizer(
        torch.optim.SGD(matrices, lr=0.0, momentum=0.9),
        torch.optim.AdamW(others, lr=0.0),
    )
