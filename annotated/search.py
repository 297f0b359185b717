"""Exported from the book; edit the chapter, then run `make export`."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from annotated.attention import MultiHeadAttention, attention
from annotated.batches import pad_rows
from annotated.engine.errors import check_fields
from annotated.engine.hooks import attention_blocks
from annotated.engine.machine import evaluating
from annotated.engine.packing import check_steps
from annotated.engine.tensors import check_numbers
from annotated.masks import padding_mask
from annotated.model import Transformer
from annotated.tokens import BOS, EOS, PAD

__all__ = [
    "length_penalty", "SearchConfig", "Hypothesis", "output_limit", "After",
    "log_probabilities", "log_p_after", "greedy", "beam", "settled",
    "source_rows", "plain_beam_search", "CachedSelfAttention", "with_parts",
    "KVCache", "cached_beam_search", "alignment",
]  # fmt: skip


# 16-search.md: Long sentences pay for every word
_Length = TypeVar("_Length", float, Tensor)


def length_penalty(length: _Length, alpha: float) -> _Length:
    """((5 + length) / 6)^alpha, where length counts EOS (§6.1)."""
    return ((5 + length) / 6) ** alpha


@dataclass(frozen=True)
class SearchConfig:
    """How to search; by default as in the paper (§6.1).

    A beam of 1 is greedy search. nbest may not exceed beam. limit, if
    given, is the maximum length of any output, EOS included, however long
    the source. ValueError if a field is invalid.
    """

    beam: int = 4  # hypotheses kept at each step
    alpha: float = 0.6  # exponent of the length penalty
    extra: int = 50  # tokens by which an output may exceed its source
    nbest: int = 1  # hypotheses to return
    limit: int | None = None  # maximum tokens in any output

    def __post_init__(self) -> None:
        check_fields(self, below=10)
        if self.nbest > self.beam:
            raise ValueError(
                f"nbest {self.nbest} is more than beam {self.beam}"
            )


@dataclass(frozen=True)
class Hypothesis:
    """A translation: its tokens without EOS, their log-probability with
    EOS, and the score, which is that divided by the length penalty.
    """

    ids: list[int]
    log_probability: float
    score: float


def output_limit(
    model: Transformer, length: int, config: SearchConfig
) -> int:
    """The maximum output length, EOS included, for length source tokens.

    With learned positions, no output can be longer than max_len.
    """
    limit = min(length + config.extra, config.limit or math.inf)
    if model.config.positions == "learned":
        limit = min(limit, model.config.max_len)
    return int(limit)


# 16-search.md: Beam search in thirty lines
After = Callable[[list[int]], Tensor]  # ids -> log-probabilities (vocab,)


def log_probabilities(logits: Tensor) -> Tensor:
    """log p of each token, (…, vocab), in at least float32."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    return logits.log_softmax(dim=-1, dtype=wide)


def log_p_after(
    model: Transformer, source: Tensor, ids: list[int]
) -> Tensor:
    """Log-probabilities of the next token after ids, (vocab,). source is
    (1, src_len). PAD and BOS get -inf, since no output contains them.
    RunError where one is no number.
    """
    logits = model(source, torch.tensor([ids], device=source.device))
    log_p = log_probabilities(logits[0, -1])
    check_numbers(log_p)
    log_p[[PAD, BOS]] = -math.inf
    return log_p


def greedy(after: After, limit: int, config: SearchConfig) -> Hypothesis:
    """Greedy search: append the most probable token until it is EOS. If
    the limit is reached first, the last token is EOS.
    """
    ids, total = [BOS], 0.0
    for length in range(1, limit + 1):
        log_p = after(ids)
        token = int(log_p.argmax()) if length < limit else EOS
        ids, total = [*ids, token], total + log_p[token].item()
        if token == EOS:
            break
    score = total / length_penalty(length, config.alpha)
    return Hypothesis(ids[1:-1], total, score)


def beam(
    after: After, limit: int, config: SearchConfig
) -> list[Hypothesis]:
    """Beam search (§6.1): the nbest hypotheses found, best first."""
    alive: list[tuple[list[int], float]] = [([BOS], 0.0)]
    ended: list[Hypothesis] = []
    most = 2 * config.beam  # at most beam of these can have ended
    for length in range(1, limit + 1):
        grown = []
        for ids, so_far in alive:
            log_p = after(ids)  # (vocab,)
            tokens = log_p.topk(min(most, len(log_p))).indices.tolist()
            for token in tokens if length < limit else [EOS]:
                total = so_far + log_p[token].item()
                if total > -math.inf:
                    grown.append(([*ids, token], total))
        grown = sorted(grown, key=lambda h: -h[1])[:most]
        penalty = length_penalty(length, config.alpha)  # EOS counts
        for ids, total in grown:
            if ids[-1] == EOS:
                ended.append(Hypothesis(ids[1:-1], total, total / penalty))
        ended = sorted(ended, key=lambda h: -h.score)[: config.nbest]
        alive = [h for h in grown if h[0][-1] != EOS][: config.beam]
        best = alive[0][1] if alive else -math.inf
        if settled(ended, best, limit, config):
            break
    return ended


def settled(
    ended: list[Hypothesis], best: float, limit: int, config: SearchConfig
) -> bool:
    """Whether to stop: no live hypothesis can still be among the nbest.
    best is the highest log-probability of the live hypotheses.
    """
    hope = best / length_penalty(limit, config.alpha)
    enough = len(ended) == config.nbest and ended[-1].score >= hope
    return enough or best == -math.inf


def source_rows(
    model: Transformer, sentences: Sequence[Sequence[int]]
) -> Tensor:
    """Sentences -> (batch, src_len), EOS after each, padded, on the
    model's device. IndexError for an id beyond the source vocabulary.
    """
    rows = pad_rows([np.asarray(s) for s in sentences], after=EOS)
    vocab = model.config.src_vocab
    if len(wrong := rows[(rows < 0) | (rows >= vocab)]):
        raise IndexError(
            f"source id {wrong[0]} is not in the vocabulary of {vocab}"
        )
    return rows.to(next(model.parameters()).device)


def plain_beam_search(
    model: Transformer, src: Sequence[int], config: SearchConfig
) -> list[Hypothesis]:
    """Translate one sentence, src without EOS; the best hypothesis first.

    The whole model runs at every step: this is the reference version,
    written to be read. The fast searches must agree with it.
    """
    source = source_rows(model, [src])  # (1, src_len), with EOS
    limit = output_limit(model, len(src), config)
    with evaluating(model):
        after = partial(log_p_after, model, source)
        if config.beam == 1:
            best = greedy(after, limit, config)
            return [best] if best.score > -math.inf else []
        return beam(after, limit, config)


# 17-memory.md: What may be kept
class _CachedAttention(nn.Module):
    """An attention block that keeps keys and values between its calls:
    at first those of memory (rows, length, d_model).
    """

    def __init__(self, block: MultiHeadAttention, memory: Tensor):
        super().__init__()
        _check_cache(block)
        self.block = block
        self.k, self.v = self.keys_values(memory)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, length, d_model) -> two of (rows, heads, length, d)."""
        block = self.block
        return block.split(block.w_k(x)), block.split(block.w_v(x))

    def queries(self, x: Tensor) -> Tensor:
        """(rows, length, d_model) -> (rows, heads, length, d_k)"""
        return self.block.split(self.block.w_q(x))

    def attend(self, q: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend from queries (rows, heads, 1, d_k) to what is kept."""
        heads = attention(q, self.k, self.v, mask)
        return self.block.w_o(heads.transpose(1, 2).flatten(2))


class _CachedCrossAttention(_CachedAttention):
    """Cross-attention whose keys and values are made once."""

    def forward(
        self, x: Tensor, memory: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        return self.attend(self.queries(x), mask)


class CachedSelfAttention(_CachedAttention):
    """Self-attention of the newest position; keeps the window newest
    keys and values, or all.
    """

    window: int | None = None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        k, v = self.keys_values(x)  # (rows, heads, 1, d)
        self.k = torch.cat([self.k, k], dim=2)
        self.v = torch.cat([self.v, v], dim=2)
        if self.window is not None:
            self.k = self.k[:, :, -self.window :]
            self.v = self.v[:, :, -self.window :]
        return self.attend(self.queries(x))


def _cache_of(
    block: MultiHeadAttention, memory: Tensor
) -> CachedSelfAttention:
    """The cache that block brings along, or that of the paper's."""
    make = getattr(block, "cache", None)
    return make(memory) if make else CachedSelfAttention(block, memory)


def _check_cache(block: MultiHeadAttention) -> None:
    """TypeError if block computes its weights in a way of its own and
    brings no cache along.
    """
    usual = type(block).weights is MultiHeadAttention.weights
    if not usual and not hasattr(block, "cache"):
        raise TypeError(
            f"there is no cache for {type(block).__name__}: translate "
            "with plain_beam_search, or give it a method cache"
        )


# 17-memory.md: One step through the decoder
_Part = TypeVar("_Part", bound=nn.Module)


def with_parts(module: _Part, **parts: nn.Module) -> _Part:
    """A copy of a module in which parts replace those of their names.
    Everything else, weights included, is shared with the module.
    """
    twin = copy.copy(module)
    twin._modules = {**module._modules, **parts}
    return twin


class KVCache:
    """The keys and values that a decoder keeps between search steps.

    src is (rows, src_len), with one row per hypothesis.
    """

    def __init__(self, model: Transformer, src: Tensor):
        self.model, self.src, self.length = model, src, 0
        self.memory, self.mask = model.encode(src), padding_mask(src)
        self.past: list[CachedSelfAttention] = []
        blocks, layers = attention_blocks(model), nn.ModuleList()
        for i, layer in enumerate(model.decoder.layers):
            nothing = self.memory[:, :0]  # (rows, 0, d_model)
            past = _cache_of(blocks[f"decoder.{i}"], nothing)
            if model.config.window is not None:
                past.window = 1 + model.config.window // 2
            cross = _CachedCrossAttention(blocks[f"cross.{i}"], self.memory)
            self.past.append(past)
            layers.append(
                with_parts(layer, attention=past, cross_attention=cross)
            )
        self.decoder = with_parts(model.decoder, layers=layers)

    def next_logits(self, ids: Tensor) -> Tensor:
        """The newest tokens (rows,) -> logits of the next (rows, vocab)."""
        self.length += 1
        x = self.model.embeddings.read_target(ids[:, None])
        x = x + self.model.tgt_positions(self.length)[-1]
        x = self.decoder(x, self.memory, None, self.mask)
        # x (rows, 1, d_model)
        return self.model.logits(x, self.memory, self.src)[:, 0]

    # 17-memory.md: A batch of beams
    def reorder(self, rows: Tensor) -> None:
        """Make row i continue from what is now row rows[i]."""
        for past in self.past:  # each (rows, heads, length, d)
            past.k = past.k.index_select(0, rows)
            past.v = past.v.index_select(0, rows)


# 17-memory.md: A batch of beams
def _best_of_batch(
    log_p: Tensor, totals: Tensor, at_limit: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """log_p (batch · beam, vocab) and live totals (batch, beam) -> totals,
    parents and tokens of the 2 · beam best continuations, each (batch,
    ranks). Where at_limit (batch,) is True, only EOS may follow. RunError
    where a total is no number.
    """
    vocab, beam = log_p.size(1), totals.size(1)
    ranks = 2 * beam if beam > 1 else 1  # greedy search needs only one
    words = torch.arange(vocab, device=log_p.device)
    log_p = log_p.unflatten(0, totals.shape)  # (batch, beam, vocab)
    log_p[:, :, [PAD, BOS]] = -math.inf
    barred = at_limit[:, None, None] & (words != EOS)
    log_p.masked_fill_(barred, -math.inf)
    grown = totals[:, :, None] + log_p
    grown = grown.flatten(1)  # (batch, beam · vocab)
    best, index = grown.topk(min(ranks, grown.size(1)))  # (batch, ranks)
    check_numbers(best)
    return best, index // vocab, index % vocab


def _collect_finished(
    ended: list[Hypothesis],
    ids: Tensor,
    best: Tensor,
    rows: Tensor,
    token: Tensor,
    config: SearchConfig,
) -> list[Hypothesis]:
    """The nbest of a sentence's ended hypotheses and of those that end
    now: token (ranks,) follows ids[rows], with log-probability best.
    """
    penalty = length_penalty(ids.size(1), config.alpha)
    ends = (token == EOS) & (best > -math.inf)
    now = [
        Hypothesis(ids[row, 1:].tolist(), total, total / penalty)
        for row, total in zip(rows[ends].tolist(), best[ends].tolist())
    ]
    return sorted(ended + now, key=lambda h: -h.score)[: config.nbest]


def _grow_beams(
    cache: KVCache, limit: Tensor, config: SearchConfig
) -> list[list[Hypothesis]]:
    """Beam search over the rows of a cache, config.beam per sentence."""
    batch, beam, limits = len(limit), config.beam, limit.tolist()
    ids = limit.new_full((batch * beam, 1), BOS)  # (rows, length)
    totals = torch.full((batch, beam), -math.inf, device=limit.device)
    totals[:, 0] = 0.0  # start with one empty hypothesis per sentence
    first = torch.arange(0, len(ids), beam, device=limit.device)[:, None]
    ended: list[list[Hypothesis]] = [[] for _ in limits]
    unfinished = [*range(batch)]
    while unfinished and cache.length < max(limits):
        log_p = log_probabilities(cache.next_logits(ids[:, -1]))
        at_limit = limit <= cache.length
        best, parent, token = _best_of_batch(log_p, totals, at_limit)
        rows = first + parent  # (batch, ranks), as best and token
        for i in unfinished:
            now = best[i], rows[i], token[i]
            ended[i] = _collect_finished(ended[i], ids, *now, config)
        totals, order = best.masked_fill(token == EOS, -math.inf).topk(beam)
        rows = rows.gather(1, order).flatten()  # (batch · beam,)
        cache.reorder(rows)
        ids = torch.hstack([ids[rows], token.gather(1, order).view(-1, 1)])
        top = totals[:, 0].tolist()
        unfinished = [
            i
            for i in unfinished
            if not settled(ended[i], top[i], limits[i], config)
        ]
    return ended


def cached_beam_search(
    model: Transformer,
    sentences: Sequence[Sequence[int]],
    config: SearchConfig = SearchConfig(),
) -> list[list[Hypothesis]]:
    """plain_beam_search for a batch of sentences, with a KV cache."""
    limits = [output_limit(model, len(s), config) for s in sentences]
    src = source_rows(model, sentences)
    with evaluating(model):
        check_steps(model, lambda src: KVCache(model, src).next_logits)
        cache = KVCache(model, src.repeat_interleave(config.beam, dim=0))
        return _grow_beams(cache, src.new_tensor(limits), config)


# 17-memory.md: A look at what was found
def alignment(
    model: Transformer, src: Sequence[int], ids: Sequence[int]
) -> Tensor:
    """Cross-attention weights from output tokens to source tokens:
    (layers, heads, len(ids) + 1, len(src) + 1), with EOS last in both.
    """
    source = source_rows(model, [src])
    target = torch.tensor([[BOS, *ids]], device=source.device)
    with evaluating(model):
        maps = model.attention_maps(source, target)
    layers = range(model.config.num_decoder_layers)
    return torch.stack([maps[f"cross.{i}"][0] for i in layers])
