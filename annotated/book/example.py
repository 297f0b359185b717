"""Exported from the book; edit the chapter, then run `make export`."""

import string
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annotated.engine.hooks import attention_blocks, replace
from annotated.layers import DecoderLayer, EncoderLayer, FeedForward
from annotated.model import Transformer, TransformerConfig
from annotated.tokens import BOS, EOS, SPECIALS

__all__ = [
    "LETTERS", "VOCAB", "reversal_model", "letter_ids", "reversal_batch",
    "train_reversal", "write", "exact", "without",
]  # fmt: skip


# E15-running-example.md: The model and its data
LETTERS = string.ascii_lowercase
VOCAB = len(SPECIALS) + len(LETTERS)


def reversal_model(seed: int = 0, **changes: Any) -> Transformer:
    """The model of the preface: 1+1 layers, d_model 64, 4 heads.

    changes set fields of TransformerConfig: num_heads=1, norm="pre", …
    """
    torch.manual_seed(seed)
    vocab = {"src_vocab": VOCAB, "tgt_vocab": VOCAB}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    shape = {"d_model": 64, "d_ff": 256, "num_heads": 4, "dropout": 0.0}
    fields: dict[str, Any] = vocab | layers | shape | changes
    return Transformer(TransformerConfig(**fields))


def letter_ids(word: str) -> list[int]:
    """The token ids of a word; ValueError unless all letters are a to z."""
    if other := set(word) - set(LETTERS):
        raise ValueError(f"{min(other)!r} in {word!r} is not one of a to z")
    return [len(SPECIALS) + LETTERS.index(letter) for letter in word]


def reversal_batch(
    length: int, words: int = 64, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """src, tgt and labels for random words, each (words, length + 1).

    src is the word and EOS, tgt is BOS and the word backwards, and labels
    is tgt shifted left by one, followed by EOS.
    """
    shape = (words, length)
    word = torch.randint(len(SPECIALS), VOCAB, shape, generator=generator)
    back = word.flip(1)
    start, end = torch.full((words, 1), BOS), torch.full((words, 1), EOS)
    return (
        torch.cat([word, end], dim=1),
        torch.cat([start, back], dim=1),
        torch.cat([back, end], dim=1),
    )


# E15-running-example.md: Training
def train_reversal(
    model: nn.Module,
    steps: int = 400,
    seed: int = 0,
    lengths: Sequence[int] = (9,),
    watch: Callable[[int], object] | None = None,
    batch: Callable[..., tuple[Tensor, Tensor, Tensor]] = reversal_batch,
    factor: float = 1.0,
) -> list[float]:
    """Train on random words; the loss of each step, in nats per token.

    model maps (src, tgt) to logits; each batch has one of the lengths.
    watch(step) is called after each step, and with 0 before the first.
    batch takes reversal_batch's arguments; another one sets another task.
    factor multiplies the learning rate of every step.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(
        model.parameters(), betas=(0.9, 0.98), eps=1e-9
    )
    watch = watch or (lambda step: None)
    watch(0)
    losses = []
    for step in range(1, steps + 1):
        model.train()  # watch may have called eval()
        rate = factor * 64**-0.5 * min(step**-0.5, step * 100**-1.5)
        rate *= min(1.0, (steps - step + 1) / 100)
        for group in optimizer.param_groups:
            group["lr"] = rate
        drawn = torch.randint(len(lengths), (1,), generator=generator)
        length = lengths[int(drawn)]
        src, tgt, labels = batch(length, generator=generator)
        logits = model(src, tgt)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        watch(step)
    return losses


# E15-running-example.md: Asking
@torch.no_grad()
def _greedy(model: nn.Module, src: Tensor, limit: int) -> Tensor:
    """Greedy search for each row of src: token ids, (words, limit).

    Everything after the first EOS is EOS.
    """
    model.eval()
    tgt = torch.full((len(src), 1), BOS)
    for _ in range(limit):
        token = model(src, tgt)[:, -1].argmax(dim=-1, keepdim=True)
        tgt = torch.cat([tgt, token], dim=1)
    over = (tgt == EOS).cumsum(dim=1) > 0
    return tgt.masked_fill(over, EOS)[:, 1:]


def write(model: nn.Module, word: str, limit: int | None = None) -> str:
    """What the model writes for a word, up to EOS or limit letters.

    limit is by default three more than the length of the word. Special
    tokens other than EOS are shown as dots.
    """
    src = torch.tensor([[*letter_ids(word), EOS]])
    limit = len(word) + 3 if limit is None else limit
    ids = [*_greedy(model, src, limit)[0].tolist(), EOS]
    return "".join([*"····", *LETTERS][i] for i in ids[: ids.index(EOS)])


def exact(model: nn.Module, length: int = 9, words: int = 200) -> float:
    """The share of new random words that the model reverses exactly."""
    generator = torch.Generator().manual_seed(2017)
    src, _, labels = reversal_batch(length, words, generator)
    written = _greedy(model, src, length + 1)
    return (written == labels).all(dim=1).float().mean().item()


# E15-running-example.md: Taking a part out
class _Nothing(nn.Module):
    """In place of a part: zeros of its shape, which change no sum."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


class _Unmasked(nn.Module):
    """An attention that ignores its mask."""

    def __init__(self, attention: nn.Module):
        super().__init__()
        self.attention = attention

    def forward(
        self, x: Tensor, memory: Any = None, mask: Any = None
    ) -> Tensor:
        return self.attention(x)


class _NoPositions(nn.Module):
    """Position encodings that say nothing: zeros, (length, 1)."""

    def forward(self, length: int) -> Tensor:
        return torch.zeros(length, 1)


def _longer(d_k: int) -> Callable[..., Tensor]:
    """A hook that makes queries √d_k times as long."""
    return lambda linear, x, queries: queries * d_k**0.5


class _EncoderReplaces(nn.Module):
    """An encoder layer whose sub-layers replace their input."""

    def __init__(self, layer: Any):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        part = self.layer
        x = part.norm1(part.attention(x, mask=mask))
        return part.norm2(part.feed_forward(x))


class _DecoderReplaces(_EncoderReplaces):
    """A decoder layer whose sub-layers replace their input."""

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        part = self.layer
        x = part.norm1(part.attention(x, mask=mask))
        x = part.norm2(part.cross_attention(x, memory, memory_mask))
        return part.norm3(part.feed_forward(x))


def without(model: Transformer, part: str) -> None:
    """Take a part out of the model of the preface: "factor", 1/√d_k of
    the scores (chapter 02), "mask", the decoder's causal one (03),
    "networks", "norms" or "residuals" (05), "root", √d_model of the
    embeddings (06), or "positions" (07). ValueError for another.
    """
    match part:
        case "factor":
            for block in attention_blocks(model).values():
                block.w_q.register_forward_hook(_longer(block.d_k))
        case "mask":
            layers: Any = model.decoder.layers
            for layer in layers:
                layer.attention = _Unmasked(layer.attention)
        case "networks":
            replace(model, FeedForward, lambda part: _Nothing())
        case "norms":
            replace(model, nn.LayerNorm, lambda part: nn.Identity())
        case "residuals":
            replace(model, EncoderLayer, _EncoderReplaces)
            replace(model, DecoderLayer, _DecoderReplaces)
        case "root":
            model.embeddings.scale = 1.0
        case "positions":
            for side in ("src_positions", "tgt_positions"):
                setattr(model, side, _NoPositions())
        case _:
            raise ValueError(f"there is no part {part!r} to take out")
