"""Exported from the book; edit the chapter, then run `make export`."""

import copy
import dataclasses
import math
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from annotated.attention import MultiHeadAttention
from annotated.batches import pad_rows
from annotated.engine.constraints import (
    Guide,
    Spellings,
    continuations,
    phrase_progress,
)
from annotated.engine.errors import RunError, UsageError, check_fields
from annotated.engine.hooks import attention_blocks, replace
from annotated.engine.machine import cores, evaluating
from annotated.engine.packing import NoCacheError, check_steps
from annotated.engine.processes import end_with_parent
from annotated.engine.tensors import check_numbers
from annotated.model import Transformer
from annotated.search import (
    Hypothesis,
    SearchConfig,
    length_penalty,
    log_probabilities,
    output_limit,
    source_rows,
    with_parts,
)
from annotated.tokens import BOS, EOS, PAD, UNK

__all__ = [
    "converted", "beam_search", "Sampling", "batches_by_length",
    "search_in_order",
]  # fmt: skip


# E6-search.md: Slots
def _row_compactor(done: Tensor) -> Callable[[Tensor], Tensor]:
    """A function that removes the done sentences, (batch,) of bool, from
    a tensor (batch, …) in place: unfinished rows from the end fill the
    free ones, so that as few rows as possible are copied.
    """
    left = len(done) - int(done.sum())
    free = done[:left].nonzero()[:, 0]
    last = (~done[left:]).nonzero()[:, 0] + left

    def compact(x: Tensor) -> Tensor:
        if len(free):
            x.index_copy_(0, free, x.index_select(0, last))
        return x[:left]

    return compact


class _SlotCache:
    """The keys and values of a batch, each (batch, heads, keys, d): those
    of the source once per sentence, those of the target once per slot.
    """

    def __init__(self, model: Transformer, src: Tensor, slots: int):
        self.model, self.src = model, src
        real = src != PAD
        self.mask = None if bool(real.all()) else real[:, None, None]
        self.length = 0  # positions
        self.source: list[_SourceAttention] = []
        self.target: list[_SlotAttention] = []
        self.memory = memory = model.encode(src)
        blocks, layers = attention_blocks(model), torch.nn.ModuleList()
        for i, layer in enumerate(model.decoder.layers):
            target = _SlotAttention(blocks[f"decoder.{i}"], memory, slots)
            source = _SourceAttention(blocks[f"cross.{i}"], memory)
            self.target.append(target)
            self.source.append(source)
            layers.append(
                with_parts(layer, attention=target, cross_attention=source)
            )
        self.decoder = with_parts(model.decoder, layers=layers)

    def next_logits(self, ids: Tensor, seen: Tensor) -> Tensor:
        """ids (batch, width), the newest tokens -> the logits of the next
        ones, (batch, width, vocab). seen (batch, width, slots) marks the
        slots of each hypothesis, including the new ones.
        """
        model, config = self.model, self.model.config
        self.length += 1
        x = model.embeddings.read_target(ids)
        x = x + model.tgt_positions(self.length)[-1]
        for slots in self.target:
            if slots.by_distance:
                # a hypothesis has one slot per position, in order
                slots.distance = self.length - seen.cumsum(dim=-1)
        if config.window is not None:
            nearest = self.length - config.window // 2
            seen = seen & (seen.cumsum(dim=-1) >= nearest)
        bias = _bias(seen[:, None], config.num_heads, x)
        source_bias = _bias(self.mask, config.num_heads, x)
        x = self.decoder(x, self.memory, bias, source_bias)
        return model.logits(x, self.memory, self.src)

    def keep_slots(self, kept: Tensor) -> None:
        """Keep only these slots of each sentence: (batch, slots)."""
        index = kept[:, None, :, None]
        for slots in self.target:
            slots.used = kept.size(1)
            for cache in (slots.k, slots.v):
                cache[:, :, : slots.used] = cache.take_along_dim(index, 2)

    def compact(self, rows: Callable[[Tensor], Tensor]) -> None:
        """Remove the finished sentences; rows is a _row_compactor."""
        if self.mask is not None:
            self.mask = rows(self.mask)
        self.memory, self.src = rows(self.memory), rows(self.src)
        for source in self.source:
            source.k, source.v = rows(source.k), rows(source.v)
        for slots in self.target:
            left = len(rows(slots.k[:, :, : slots.used]))
            rows(slots.v[:, :, : slots.used])
            slots.k, slots.v = slots.k[:left], slots.v[:left]


def _rotation(
    block: MultiHeadAttention,
) -> Callable[[Tensor, int], Tensor] | None:
    """block.turn(heads, first), which rotates queries or keys of the
    positions from first on; None if block has none.

    NoCacheError if block computes its weights in another way.
    """
    turn = getattr(block, "turn", None)
    usual = type(block).weights is MultiHeadAttention.weights
    if turn is None and not usual:
        raise NoCacheError(
            f"there is no cache for {type(block).__name__}: translate "
            "with plain_beam_search, or give it a method turn"
        )
    return turn


class _SourceAttention(torch.nn.Module):
    """Cross-attention of all hypotheses, x (batch, width, d_model), to
    their sentence. mask is additive, as _bias makes it.
    """

    def __init__(self, block: MultiHeadAttention, memory: Tensor):
        super().__init__()
        _rotation(block)  # refuses what no cache knows
        self.block = block
        self.k = block.split(block.w_k(memory)).contiguous()
        self.v = block.split(block.w_v(memory)).contiguous()

    def forward(
        self, x: Tensor, memory: Tensor, mask: Tensor | None
    ) -> Tensor:
        q = self.block.split(self.block.w_q(x))
        return _attend(self.block, q, self.k, self.v, mask)


class _SlotAttention(torch.nn.Module):
    """Like _SourceAttention, over the slots; fills the next ones first."""

    def __init__(
        self, block: MultiHeadAttention, memory: Tensor, slots: int
    ):
        super().__init__()
        self.block, self.used, self.position = block, 0, 0
        self.rotation = _rotation(block)
        self.by_distance = hasattr(block, "bias")  # page E32's
        self.distance = memory.new_zeros(0)  # (batch, width, slots)
        shape = (len(memory), block.num_heads, slots)
        self.k = memory.new_empty(*shape, block.d_k)
        self.v = memory.new_empty(*shape, block.d_v)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        new = slice(self.used, self.used + x.size(1))
        self.used = new.stop
        block = self.block
        self.k[:, :, new] = self.rotated(block.split(block.w_k(x)))
        self.v[:, :, new] = block.split(block.w_v(x))
        q = self.rotated(block.split(block.w_q(x)))
        self.position += 1
        k, v = self.k[:, :, : self.used], self.v[:, :, : self.used]
        if self.by_distance:
            mask = mask + self.nearness().to(mask.dtype)
        return _attend(block, q, k, v, mask)

    def nearness(self) -> Tensor:
        """What the block adds to a score by distance; -inf beyond its
        window: (batch · heads, width, slots), or 0.
        """
        block: Any = self.block
        bias = block.bias(self.distance)  # (heads, batch, width, slots)
        if block.window is not None:
            far = self.distance > block.window // 2
            edge = far.float().masked_fill(far, -math.inf)
            edge = edge.expand(block.num_heads, *edge.shape)
            bias = edge if bias is None else bias + edge
        if bias is None:
            return self.distance.new_zeros(())
        return bias.transpose(0, 1).flatten(0, 1)

    def rotated(self, heads: Tensor) -> Tensor:
        """heads (batch, heads, width, d_k), rotated by the newest
        position, which all hypotheses share.
        """
        if self.rotation is None:
            return heads
        heads = heads[:, :, :, None]
        return self.rotation(heads, self.position)[:, :, :, 0]


def _attend(
    block: MultiHeadAttention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """Attention of q (batch, heads, width, d_k) to k and v ->
    (batch, width, d_model).
    """
    scores = torch.baddbmm(
        q.new_zeros(()) if bias is None else bias,
        q.flatten(0, 1),
        k.flatten(0, 1).transpose(1, 2),
        alpha=q.size(-1) ** -0.5,
    )
    heads = scores.softmax(dim=-1) @ v.flatten(0, 1)
    heads = heads.unflatten(0, q.shape[:2]).transpose(1, 2)
    return block.w_o(heads.flatten(2))


def _bias(mask: Tensor | None, heads: int, like: Tensor) -> Tensor | None:
    """An additive mask, 0 for True and -inf for False: (batch, 1, …, keys)
    -> (batch · heads, …, keys).
    """
    if mask is None:
        return None
    bias = like.new_zeros(mask.shape).masked_fill_(~mask, -math.inf)
    return bias.expand(-1, heads, -1, -1).flatten(0, 1)


# E6-search.md: The state of a search
@dataclass
class _Beams:
    """The state of the unfinished sentences: row i of every tensor belongs
    to one sentence.
    """

    number: Tensor  # (batch,): its index in the results
    limit: Tensor  # (batch,): maximum tokens in its output
    done: Tensor  # (batch,) of bool
    prefix: Tensor  # (batch, longest): its required first tokens, or PAD
    # of each living hypothesis
    scores: Tensor  # (batch, width): its log-probability
    ids: Tensor  # (batch, width, length): BOS and its tokens so far
    seen: Tensor  # (batch, width, slots): the slots of its tokens
    # of the best finished hypotheses, best first
    ended: Tensor  # (batch, nbest): their scores
    ended_ids: Tensor  # (batch, nbest, longest): their tokens, then EOS

    @classmethod
    def begin(
        cls, limits: list[int], prefix: Tensor, nbest: int
    ) -> "_Beams":
        """One empty hypothesis per sentence."""
        limit = torch.tensor(limits, device=prefix.device)
        number = torch.arange(len(limits), device=prefix.device)
        ids = limit.new_full((len(limits), 1, 1), BOS)
        scores = torch.zeros(ids.shape[:2], device=ids.device)
        ended = scores.new_full((len(ids), nbest), -math.inf)
        ended_ids = ids.new_full((len(ids), nbest, max(limits)), EOS)
        done = torch.zeros_like(limit, dtype=torch.bool)
        state = limit, done, prefix, scores, ids, ids == BOS
        return cls(number, *state, ended, ended_ids)

    def compact(self, rows: Callable[[Tensor], Tensor]) -> "_Beams":
        """The state without the finished sentences."""
        return _Beams(*map(rows, vars(self).values()))


# E6-search.md: The search
class _BeamSearch:
    """A beam search in progress for a batch of sentences."""

    def __init__(
        self,
        models: list[Transformer],
        sentences: Sequence[Sequence[int]],
        config: SearchConfig,
        prefixes: Sequence[Sequence[int]],
        guide: Guide | None = None,
        required: Sequence[Sequence[Spellings]] | None = None,
    ):
        device = next(models[0].parameters()).device
        limits = [
            _limit(models, s, config, prefix)
            for s, prefix in zip(sentences, prefixes, strict=True)
        ]
        src = source_rows(models[0], sentences)
        prefix = pad_rows([np.asarray(p) for p in prefixes])
        if required is not None:
            config = _wide_enough(config, limits, prefixes, required)
        self.config, self.limits, self.length = config, set(limits), 0
        self.beams = _Beams.begin(limits, prefix.to(device), config.nbest)
        slots = 1 + (max(limits) - 1) * config.beam
        self.caches = [_SlotCache(m, src, slots) for m in models]
        self.results: list[list[Hypothesis]] = [[] for _ in sentences]
        self.allowed = guide and guide(sentences, device)
        self.required = required
        # check less often on a GPU, where each check waits for the device
        self.patience = 1 if device.type == "cpu" else 8

    def run(self) -> list[list[Hypothesis]]:
        """Run the search to its end; returns the results by sentence."""
        while len(self.beams.number):
            self.length += 1
            best = self.best(self.next_log_p())
            self.end(*best)
            if self.length < max(self.limits):
                self.extend(*best)
            self.retire()
        return self.results

    def next_log_p(self) -> Tensor:
        """log p of all continuations, (batch, width, vocab)."""
        beams = self.beams
        newest = beams.ids[:, :, -1]
        logits = [c.next_logits(newest, beams.seen) for c in self.caches]
        log_p = _mean_log_p(logits)
        log_p[:, :, PAD] = log_p[:, :, BOS] = -math.inf
        free = log_p
        if self.allowed:
            allowed = self.allowed(beams.ids, beams.number)
            free = log_p.masked_fill(~allowed, -math.inf)
        begun = self.length > beams.prefix.size(1)
        if begun and self.length not in self.limits:
            return free
        # forced: the prefix's token, or EOS at the limit
        token = torch.zeros_like(beams.limit)
        if not begun:
            token = beams.prefix[:, self.length - 1]
        token = token.masked_fill(beams.limit == self.length, EOS)
        rows = (token != PAD).nonzero()[:, 0]
        forced = token[rows]
        only = log_p[rows, :, forced]
        free[rows] = -math.inf
        free[rows, :, forced] = only
        return free

    def best(self, log_p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The totals, parents and tokens of the continuations to look at,
        each (batch, ranks).
        """
        beams, beam = self.beams, self.config.beam
        total = beams.scores[:, :, None] + log_p
        if self.required is None:
            # greedy search needs only one continuation
            return _best_continuations(total, 2 * beam if beam > 1 else 1)
        rows = [self.required[i] for i in beams.number.tolist()]
        return continuations(total, beams.ids, rows, beam)

    def end(self, best: Tensor, parent: Tensor, token: Tensor) -> None:
        """Update the best finished hypotheses; all (batch, ranks)."""
        beams = self.beams
        penalty = length_penalty(self.length, self.config.alpha)
        ends = (token == EOS) & ~beams.done[:, None]
        scores = best.masked_fill(~ends, -math.inf) / penalty
        scores = torch.cat([beams.ended, scores], dim=1)
        beams.ended, index = scores.topk(self.config.nbest)
        ids = beams.ids[:, :, 1:].take_along_dim(parent[:, :, None], 1)
        missing = beams.ended_ids.size(2) - ids.size(2)
        ids = F.pad(ids, (0, missing), value=EOS)
        ids = torch.cat([beams.ended_ids, ids], dim=1)
        beams.ended_ids = ids.take_along_dim(index[:, :, None], 1)

    def extend(self, best: Tensor, parent: Tensor, token: Tensor) -> None:
        """Give each of the best unfinished hypotheses a slot."""
        beams = self.beams
        best = best.masked_fill(token == EOS, -math.inf)
        width = min(self.config.beam, best.size(1))
        beams.scores, index = best.topk(width)
        rows = parent.gather(1, index)[:, :, None]
        token = token.gather(1, index)[:, :, None]
        ids = beams.ids.take_along_dim(rows, 1)
        beams.ids = torch.cat([ids, token], dim=2)
        seen = beams.seen.take_along_dim(rows, 1)
        if self.length % _COMPACT_STEPS == 0:
            seen = self.compacted(seen)
        itself = torch.eye(width, dtype=torch.bool, device=best.device)
        itself = itself.expand(len(best), -1, -1)
        beams.seen = torch.cat([seen, itself], dim=2)

    def compacted(self, seen: Tensor) -> Tensor:
        """Drop the slots that no living hypothesis uses."""
        used = seen.any(dim=1)
        most = int(used.sum(dim=1).max())
        if 4 * most > 3 * seen.size(2):
            return seen  # too little to gain
        order = used.byte().argsort(descending=True, stable=True)
        kept = order[:, :most]
        for cache in self.caches:
            cache.keep_slots(kept)
        return seen.take_along_dim(kept[:, None], 2)

    def retire(self) -> None:
        """Remove the sentences that no living hypothesis can improve."""
        beams = self.beams
        # log-probabilities only fall: hope bounds every later score
        limit = beams.limit.to(beams.scores.dtype)
        hope = beams.scores[:, 0] / length_penalty(limit, self.config.alpha)
        settled = beams.ended[:, -1] >= hope
        # a NaN is the best of its row, and ends the search
        lost = (beams.scores[:, 0] + beams.ended[:, 0]).isnan()
        beams.done = settled | (beams.limit <= self.length) | lost
        if self.length % self.patience and self.length < max(self.limits):
            return
        if bool(beams.done.any()):
            check_numbers(beams.scores + beams.ended[:, :1])
            self.report()
            rows = _row_compactor(beams.done)
            self.beams = beams.compact(rows)
            for cache in self.caches:
                cache.compact(rows)

    def report(self) -> None:
        """Collect the results of the finished sentences."""
        columns = self.beams.number, self.beams.ended, self.beams.ended_ids
        for number, scores, rows in zip(
            *(column[self.beams.done].tolist() for column in columns)
        ):
            self.results[number] = _hypotheses(scores, rows, self.config)


_COMPACT_STEPS = 8  # steps between compactions


def _best_continuations(
    total: Tensor, ranks: int
) -> tuple[Tensor, Tensor, Tensor]:
    """total (batch, width, vocab) of all continuations -> the best totals,
    their parents and their tokens, each (batch, ranks), best first.
    """
    vocab = total.size(2)
    best, index = total.flatten(1).topk(min(ranks, vocab * total.size(1)))
    return best, index // vocab, index % vocab


def _mean_log_p(logits: list[Tensor]) -> Tensor:
    """The logits of each model, (…, vocab) -> the log of the mean of their
    probabilities, in at least float32.
    """
    each = [log_probabilities(x) for x in logits]
    if len(each) == 1:
        return each[0]
    return torch.stack(each).logsumexp(dim=0) - math.log(len(each))


# E6-search.md: On a GPU: nothing moves at all
class _StillAttention(torch.nn.Module):
    """Attention over slots (batch, heads, slots, d) that stay where they
    are; place (width,) says which of them are next.
    """

    def __init__(
        self, block: MultiHeadAttention, k: Tensor, v: Tensor,
        place: Tensor,
    ):  # fmt: skip
        super().__init__()
        self.block, self.k, self.v, self.place = block, k, v, place

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        block, used = self.block, mask.size(-1)
        self.k.index_copy_(2, self.place, block.split(block.w_k(x)))
        self.v.index_copy_(2, self.place, block.split(block.w_v(x)))
        q = block.split(block.w_q(x))
        k, v = self.k[:, :, :used], self.v[:, :, :used]
        return _attend(block, q, k, v, mask)


class _StillCache:
    """What _SlotCache keeps, for rows sentences of source tokens and
    outputs of positions tokens, in tensors that are made once.
    """

    def __init__(
        self, model: Transformer, rows: int, source: int, positions: int,
        place: Tensor,
    ):  # fmt: skip
        self.model, self.place = model, place
        self.table = model.tgt_positions(positions)
        config, blocks = model.config, attention_blocks(model)
        self.layers, self.blocks = range(config.num_decoder_layers), blocks
        slots = positions * len(place)
        like = self.table
        self.src = place.new_full((rows, source), PAD)
        self.memory = like.new_zeros(rows, source, config.d_model)
        sizes = config.key_size, config.value_size
        self.source, self.target = (
            [
                [like.new_zeros(rows, config.num_heads, length, d)
                 for d in sizes]
                for _ in self.layers
            ]
            for length in (source, slots)
        )  # fmt: skip

    def tensors(self) -> list[Tensor]:
        """All that has a row for each sentence."""
        pairs = [x for pair in (*self.source, *self.target) for x in pair]
        return [self.src, self.memory, *pairs]

    def load(self, src: Tensor) -> None:
        """Read the sentences of a new batch."""
        self.src.copy_(src)
        self.memory.copy_(self.model.encode(src))
        for i, (k, v) in zip(self.layers, self.source):
            block = self.blocks[f"cross.{i}"]
            k.copy_(block.split(block.w_k(self.memory)))
            v.copy_(block.split(block.w_v(self.memory)))

    def next_logits(
        self, ids: Tensor, seen: Tensor, time: Tensor
    ) -> Tensor:
        """As of _SlotCache, for the first len(ids) rows; time (1,) is the
        position of ids.
        """
        model, config, rows = self.model, self.model.config, len(ids)
        layers = torch.nn.ModuleList()
        for i, layer in enumerate(model.decoder.layers):
            k, v = (x[:rows] for x in self.target[i])
            block = self.blocks[f"decoder.{i}"]
            target = _StillAttention(block, k, v, self.place)
            source = _SourceAttention.__new__(_SourceAttention)
            torch.nn.Module.__init__(source)
            source.block = self.blocks[f"cross.{i}"]
            source.k, source.v = (x[:rows] for x in self.source[i])
            layers.append(
                with_parts(layer, attention=target, cross_attention=source)
            )
        x = model.embeddings.read_target(ids)
        x = x + self.table.index_select(0, time)
        if config.window is not None:
            nearest = time + 1 - config.window // 2
            seen = seen & (seen.cumsum(dim=-1) >= nearest)
        bias = _bias(seen[:, None], config.num_heads, x)
        src, memory = self.src[:rows], self.memory[:rows]
        real = (src != PAD)[:, None, None]
        source_bias = _bias(real, config.num_heads, x)
        decoder = with_parts(model.decoder, layers=layers)
        x = decoder(x, memory, bias, source_bias)
        return model.logits(x, memory, src)


_Replay = Callable[[], None]
_BLOCK = 32  # positions by which the slots that a step looks at grow
_LATE = 4  # steps between a question and its answer


def _captured(step: _Replay, memory: Any) -> _Replay:
    """A recording of a step on the GPU, as a function; the step itself,
    with a warning, where a part of a reader's model cannot be recorded.
    memory is that of a search: none of its recordings needs what another
    has left.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool=memory):
            step()
    except RuntimeError as error:  # it waits for the device, say
        warnings.warn(f"search steps not recorded: {error}", stacklevel=2)
        return step
    return graph.replay


class _StillSearch:
    """Beam search for rows sentences, again and again, in place."""

    def __init__(
        self,
        models: list[Transformer],
        rows: int,
        source: int,
        positions: int,
        config: SearchConfig,
        capture: Callable[[_Replay, Any], _Replay] = _captured,
    ):
        self.models, self.config, self.capture = models, config, capture
        self.rows, self.positions = rows, positions
        device = next(models[0].parameters()).device
        gpu = device.type == "cuda"
        self.memory = torch.cuda.graph_pool_handle() if gpu else None
        beam, slots = config.beam, positions * config.beam
        self.time = torch.zeros(1, dtype=torch.int64, device=device)
        self.first = torch.arange(beam, device=device)
        self.place, self.itself = self.first.clone(), torch.eye(beam) > 0
        self.itself = self.itself.to(device)
        self.caches = [
            _StillCache(m, rows, source, positions, self.place)
            for m in models
        ]
        dtype = self.caches[0].table.dtype
        wide = torch.promote_types(dtype, torch.float32)
        penalties = [
            length_penalty(n, config.alpha) for n in range(positions + 1)
        ]
        self.penalty = torch.tensor(penalties, dtype=wide, device=device)
        ids = self.time.new_full((rows, beam, positions + 1), EOS)
        scores = self.penalty.new_zeros(rows, beam)
        first = ids[:, 0, 0]
        self.beams = _Beams(
            first.clone(), first.clone(), first == BOS,
            ids[:, 0, 1:].clone(), scores, ids,
            (ids[:, :, :1] == BOS).repeat(1, 1, slots),
            scores.new_zeros(rows, config.nbest),
            ids.new_zeros(rows, config.nbest, positions),
        )  # fmt: skip
        self.replays: dict[tuple[int, int], _Replay | None] = {}

    def load(
        self, sentences: Sequence[Sequence[int]], limits: list[int],
        prefixes: Sequence[Sequence[int]],
    ) -> None:  # fmt: skip
        """Begin with a new batch, of at most rows sentences."""
        free, b = self.rows - len(sentences), self.beams
        fill: list[Sequence[int]] = [()] * free
        src = source_rows(self.models[0], [*sentences, *fill])
        missing = self.caches[0].src.size(1) - src.size(1)
        for cache in self.caches:
            cache.load(F.pad(src, (0, missing), value=PAD))
        numbers = torch.arange(self.rows)
        b.number.copy_(numbers)
        b.limit.copy_(torch.tensor([*limits, *(1 for _ in fill)]))
        b.done.copy_(numbers >= len(sentences))
        begun = pad_rows([np.asarray(p) for p in [*prefixes, *fill]])
        b.prefix.fill_(PAD)
        b.prefix[:, : begun.size(1)] = begun.to(b.prefix.device)
        b.scores.fill_(-math.inf)
        b.scores[:, 0] = 0.0
        b.ids.fill_(EOS)
        b.ids[:, :, 0] = BOS
        b.seen.fill_(False)
        b.ended.fill_(-math.inf)
        b.ended_ids.fill_(EOS)
        self.time.zero_()

    def best(
        self, b: _Beams, log_p: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As of _best_continuations; a token that a prefix or the limit
        forces is the only one.
        """
        beam, vocab = log_p.shape[1:]
        ranks = 2 * beam if beam > 1 else 1
        values, tokens = log_p.topk(min(ranks, vocab))
        total = (b.scores[:, :, None] + values).flatten(1)
        best, index = total.topk(min(ranks, total.size(1)))
        parent = index // values.size(2)
        token = tokens.flatten(1).gather(1, index)
        forced = b.prefix.index_select(1, self.time)  # (rows, 1)
        at_limit = b.limit[:, None] == self.time + 1
        forced = forced.masked_fill(at_limit, EOS)
        which = forced[:, None].expand(-1, beam, -1)
        only = b.scores + log_p.gather(2, which)[:, :, 0]
        only, order = only.topk(beam)
        more = best.size(1) - beam
        only = F.pad(only, (0, more), value=-math.inf)
        yes = forced != PAD
        return (
            torch.where(yes, only, best),
            torch.where(yes, F.pad(order, (0, more)), parent),
            torch.where(yes, forced, token),
        )

    def step(self, rows: int, used: int) -> None:
        """One token more for the first rows, which look at used slots."""
        b, config = self.beams.compact(lambda x: x[:rows]), self.config
        beam, time = config.beam, self.time
        self.place.copy_(time * beam + self.first)
        itself = self.itself.expand(rows, -1, -1)
        b.seen.index_copy_(2, self.place, itself)
        newest = b.ids.index_select(2, time)[:, :, 0]
        seen = b.seen[:, :, :used]
        log_p = _mean_log_p(
            [c.next_logits(newest, seen, time) for c in self.caches]
        )
        log_p[:, :, PAD] = log_p[:, :, BOS] = -math.inf
        best, parent, token = self.best(b, log_p)
        # those that end
        penalty = self.penalty.index_select(0, time + 1)
        ends = (token == EOS) & ~b.done[:, None]
        scores = best.masked_fill(~ends, -math.inf) / penalty
        scores = torch.cat([b.ended, scores], dim=1)
        ended, index = scores.topk(config.nbest)
        ids = b.ids[:, :, 1:].take_along_dim(parent[:, :, None], 1)
        ids = torch.cat([b.ended_ids, ids], dim=1)
        b.ended.copy_(ended)
        b.ended_ids.copy_(ids.take_along_dim(index[:, :, None], 1))
        # those that live
        best = best.masked_fill(token == EOS, -math.inf)
        scores, index = best.topk(beam)
        order = parent.gather(1, index)[:, :, None]
        ids = b.ids.take_along_dim(order, 1)
        ids.index_copy_(2, time + 1, token.gather(1, index)[:, :, None])
        b.ids.copy_(ids)
        b.seen.copy_(b.seen.take_along_dim(order, 1))
        b.scores.copy_(scores)
        # those that nothing can improve, as in retire
        hope = scores[:, 0] / self.penalty.gather(0, b.limit)
        lost = (scores[:, 0] + ended[:, 0]).isnan()
        settled = (ended[:, -1] >= hope) | (b.limit <= time + 1) | lost
        b.done.logical_or_(settled)
        time.add_(1)

    def find(self, count: int, longest: int) -> list[list[Hypothesis]]:
        """The results of the count sentences that were loaded."""
        results: list[list[Hypothesis]] = [[] for _ in range(count)]
        rows, flags = self.rows, _Late(self.beams.done)
        for length in range(1, longest + 1):
            blocks = math.ceil(length / _BLOCK)
            used = min(blocks * _BLOCK, self.positions) * self.config.beam
            self.run(rows, used)
            if length % _LATE:
                continue
            done = flags.read()[:rows]
            flags.ask()
            left = rows - int(done.sum())
            if left == 0:
                break
            if left <= rows // 2 and rows > 1:
                self.report(done, results)
                rows = self.gather(done, rows)
                flags.forget()
        self.report(torch.ones(rows, dtype=torch.bool), results)
        return results

    def run(self, rows: int, used: int) -> None:
        """A step: the first of its size as it is, later ones recorded."""
        size = rows, used
        if size not in self.replays:
            self.replays[size] = None
            return self.step(rows, used)
        replay = self.replays[size]
        if replay is None:
            step = partial(self.step, rows, used)
            replay = self.capture(step, self.memory)
            self.replays[size] = replay
        return replay()

    def gather(self, done: Tensor, rows: int) -> int:
        """Move the sentences that are not done to the front; returns how
        many rows they take.
        """
        left = rows - int(done.sum())
        half = 1 << (left - 1).bit_length()
        order = done.byte().argsort(stable=True)[:half]
        order = order.to(self.time.device)
        tensors = [*vars(self.beams).values()]
        for x in tensors + [x for c in self.caches for x in c.tensors()]:
            x[:half] = x.index_select(0, order)
        # a row that is done stays so, and has been reported
        self.beams.number[left:half] = self.rows
        return half

    def report(self, done: Tensor, results: list[list[Hypothesis]]) -> None:
        """Collect what the sentences that are done have found."""
        b = self.beams.compact(lambda x: x[: len(done)][done.to(x.device)])
        check_numbers(b.scores + b.ended[:, :1])
        columns = b.number, b.ended, b.ended_ids
        for number, scores, ids in zip(*(c.tolist() for c in columns)):
            if number < len(results):
                results[number] = _hypotheses(scores, ids, self.config)


class _Late:
    """What a tensor of flags was when it was last asked for; nothing waits
    for the device but for what it was told before that.
    """

    def __init__(self, flags: Tensor):
        self.flags, gpu = flags, flags.device.type == "cuda"
        self.copy = torch.zeros_like(flags, device="cpu")
        self.copy = self.copy.pin_memory() if gpu else self.copy
        self.event = torch.cuda.Event() if gpu else None

    def ask(self) -> None:
        self.copy.copy_(self.flags, non_blocking=True)
        if self.event is not None:
            self.event.record()

    def read(self) -> Tensor:
        """The answer to the last question; at first, and after forget,
        no flag is set.
        """
        if self.event is not None:
            self.event.synchronize()
        return self.copy.clone()

    def forget(self) -> None:
        self.read()
        self.copy.zero_()


def _hypotheses(
    scores: list[float], rows: list[list[int]], config: SearchConfig
) -> list[Hypothesis]:
    """The finished hypotheses of a sentence, whose tokens end with EOS."""
    found = []
    for score, ids in zip(scores, rows):
        if score > -math.inf:  # there may be fewer than nbest
            ids = [*ids, EOS][: [*ids, EOS].index(EOS)]
            penalty = length_penalty(len(ids) + 1, config.alpha)
            found.append(Hypothesis(ids, score * penalty, score))
    return found


# E6-search.md: Ensembles, prefixes, precision
class _HalfLinear(torch.nn.Module):
    """A linear map that multiplies in a dtype of its own, whatever that of
    its input, which its output has.
    """

    _FLOAT_MODULE = (torch.nn.Linear,)  # whose place it takes, as in torch

    def __init__(self, linear: torch.nn.Linear, dtype: torch.dtype):
        super().__init__()
        linear = linear.to(dtype)
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        narrow = x.to(self.weight.dtype)
        return F.linear(narrow, self.weight, self.bias).to(x.dtype)


def converted(model: Transformer, dtype: torch.dtype) -> Transformer:
    """A copy of the model to search with in dtype. On a CPU, in 16 bits or
    in torch.qint8, its linear maps alone compute in it; in float32, their
    weights lie as a product with few rows reads them.
    """
    if dtype == torch.qint8:
        try:
            from torch.ao.quantization import quantize_dynamic
        except ImportError:  # it is moving to another package
            raise RunError(
                f"torch {torch.__version__} has no torch.ao.quantization: "
                "choose another --precision than int8"
            ) from None
        engines = torch.backends.quantized
        if engines.engine == "none":  # as on a Mac: none is chosen there
            usable = [e for e in engines.supported_engines if e != "none"]
            if not usable:
                raise RunError(
                    "this torch multiplies no int8: choose another "
                    "--precision than int8"
                )
            engines.engine = usable[0]
        with warnings.catch_warnings():
            # torch warns that this is moving to another package
            warnings.simplefilter("ignore")
            return quantize_dynamic(model)  # a copy of it
    model = copy.deepcopy(model)
    if next(model.parameters()).device.type != "cpu":
        return model.to(dtype)

    def convert(linear: torch.nn.Linear) -> torch.nn.Module:
        if type(linear) is not torch.nn.Linear:
            return linear  # it may compute something else
        if dtype != torch.float32:
            return _HalfLinear(linear, dtype)
        linear.weight.data = linear.weight.data.t().contiguous().t()
        return linear

    replace(model, torch.nn.Linear, convert)
    return model


_Models = Transformer | Sequence[Transformer]


def beam_search(
    model: _Models,
    sentences: Sequence[Sequence[int]],
    config: SearchConfig = SearchConfig(),
    prefixes: Sequence[Sequence[int]] | None = None,
    guide: Guide | None = None,
    searches: Any = None,
    required: Sequence[Sequence[Spellings]] | None = None,
) -> list[list[Hypothesis]]:
    """Beam search for a batch of sentences (§6.1), each without EOS.

    Returns the nbest hypotheses of each sentence, best first, the same as
    plain_beam_search but for ties: here sums are rounded otherwise.
    Several models vote; each output begins with its prefix, if one is
    given, and contains only tokens that the guide allows, and all phrases
    that are required of it, for which the beam may be widened. Sampling
    draws in place of a search. searches keeps a
    GPU's graphs from one batch to the next, a dict that is empty at first.
    ValueError for an invalid prefix, and for phrases that leave no room.
    """
    if not len(sentences):
        return []
    prefixes = prefixes or [()] * len(sentences)
    models = list(model) if isinstance(model, Sequence) else [model]
    with ExitStack() as stack:
        for each in models:
            stack.enter_context(evaluating(each))
            check_steps(each, partial(_steps, each))
        if isinstance(config, Sampling):
            if required is not None:
                raise ValueError("required words are searched, not drawn")
            return _drawn(models, sentences, config, prefixes, guide)
        if required is None and _may_be_recorded(models, guide):
            kept = {} if searches is None else searches
            return _recorded(kept, models, sentences, config, prefixes)
        search = _BeamSearch(
            models, sentences, config, prefixes, guide, required
        )
        return search.run()


_Searches = dict[tuple[int, ...], _StillSearch]


def _may_be_recorded(
    models: list[Transformer], guide: Guide | None
) -> bool:
    """Whether a search is on the current GPU, the only one that records,
    and its steps ask Python nothing.
    """
    devices = [next(m.parameters()).device for m in models]
    gpu = all(
        d.type == "cuda" and d.index == torch.cuda.current_device()
        for d in devices
    )
    blocks = [b for m in models for b in attention_blocks(m).values()]
    plain = not any(_rotation(block) for block in blocks)
    return gpu and guide is None and plain


def _recorded(
    searches: _Searches,
    models: list[Transformer],
    sentences: Sequence[Sequence[int]],
    config: SearchConfig,
    prefixes: Sequence[Sequence[int]],
) -> list[list[Hypothesis]]:
    """beam_search by one of the searches, or by one that is added."""
    limits = [
        _limit(models, s, config, prefix)
        for s, prefix in zip(sentences, prefixes, strict=True)
    ]
    rows = 1 << (len(sentences) - 1).bit_length()
    source = _source_size(max(map(len, sentences)))
    most = max(output_limit(m, source - 1, config) for m in models)
    positions = _BLOCK * math.ceil(most / _BLOCK)
    for model in models:
        if model.config.positions == "learned":
            positions = min(positions, model.config.max_len)
    size = rows, source, positions
    if size not in searches:
        searches.clear()  # sizes come one after the other
        searches[size] = _StillSearch(models, *size, config)
    search = searches[size]
    search.load(sentences, limits, prefixes)
    return search.find(len(sentences), max(limits))


def _source_size(length: int) -> int:
    """The places for a source of length tokens and EOS: a power of two."""
    return max(16, 1 << length.bit_length())


def _steps(model: Transformer, src: Tensor) -> Callable[[Tensor], Tensor]:
    """The steps of a search of one hypothesis, as check_steps wants."""
    cache = _SlotCache(model, src, 64)

    def step(ids: Tensor) -> Tensor:
        seen = ids.new_ones(len(ids), 1, cache.length + 1).bool()
        return cache.next_logits(ids[:, None], seen)[:, 0]

    return step


def _limit(
    models: list[Transformer],
    src: Sequence[int],
    config: SearchConfig,
    prefix: Sequence[int],
) -> int:
    """The output limit of a sentence. ValueError if the prefix leaves no
    room or contains a token that is not a word.
    """
    limit = min(output_limit(m, len(src), config) for m in models)
    if len(prefix) >= limit:
        raise ValueError(
            f"a prefix of {len(prefix)} tokens leaves no room: the output "
            f"may have {limit} tokens, including its end"
        )
    for token in prefix:
        if not UNK <= token < models[0].config.tgt_vocab:
            raise ValueError(f"prefix token {token} is not a word")
    return limit


def _wide_enough(
    config: SearchConfig,
    limits: Sequence[int],
    prefixes: Sequence[Sequence[int]],
    required: Sequence[Sequence[Spellings]],
) -> SearchConfig:
    """config, with a beam that is wide enough for every sentence.
    ValueError if prefix and phrases of a sentence leave no room for its
    end.
    """
    for limit, prefix, phrases in zip(
        limits, prefixes, required, strict=True
    ):
        tokens = sum(min(map(len, phrase)) for phrase in phrases)
        missing = tokens - phrase_progress(list(prefix), phrases)[0]
        if len(prefix) + missing >= limit:
            after = f" after a prefix of {len(prefix)}" if prefix else ""
            raise ValueError(
                f"required words of {missing} tokens{after} leave no room: "
                f"the output may have {limit} tokens, including its end"
            )
    beam = max(_beam_for(config, phrases) for phrases in required)
    return dataclasses.replace(config, beam=beam)


def _beam_for(config: SearchConfig, phrases: Sequence[Spellings]) -> int:
    """A sentence's beam: at least one hypothesis for each bank, that of
    hypotheses that have no token of the phrases included.
    """
    tokens = sum(min(map(len, phrase)) for phrase in phrases)
    return max(config.beam, 1 + tokens)


# E6-search.md: Drawing instead of searching
@dataclass(frozen=True)
class Sampling(SearchConfig):
    """Draw nbest outputs, in place of a search: each token by its
    probability at a temperature, among the top_k most probable tokens,
    and among the fewest of these that have the probability top_p.

    A score is the log-probability of an output, by the model as it is.
    The outputs of a sentence depend on it, on seed and on these fields
    alone. ValueError if a field is invalid.
    """

    beam: int = dataclasses.field(init=False, default=1)  # is nbest
    alpha: float = 0.0
    temperature: float = 1.0
    top_k: int | None = None  # all
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        positive = {"temperature", "top_p"}
        check_fields(self, zero={"seed"}, positive=positive, below=10)
        if self.top_p > 1:
            raise UsageError(f"top_p must be at most 1, not {self.top_p}")
        object.__setattr__(self, "beam", self.nbest)


_NUCLEUS = 500  # tokens to try for top_p before all are sorted


def _chances(log_p: Tensor, config: Sampling) -> tuple[Tensor, Tensor]:
    """log_p (rows, vocab) -> chances (rows, n), 0 where cut, and the
    tokens that they belong to; rows need not sum to 1.
    """
    best, vocab = log_p.amax(dim=1, keepdim=True), log_p.size(1)
    p = ((log_p - best) / config.temperature).softmax(dim=1)
    if config.top_k is None and config.top_p == 1:
        token = torch.arange(vocab, device=p.device)
        return p, token.expand(p.shape)
    chances, token = p.topk(min(config.top_k or _NUCLEUS, vocab))
    if config.top_k is not None:
        chances = chances / chances.sum(dim=1, keepdim=True)
    elif bool((chances.sum(dim=1) < config.top_p).any()):
        chances, token = p.sort(descending=True)
    before = chances.cumsum(dim=1) - chances
    if config.top_p < 1:
        chances = chances.masked_fill(before >= config.top_p, 0.0)
    return chances, token


def _draw(log_p: Tensor, uniform: Tensor, config: Sampling) -> Tensor:
    """A token for each row of log_p (rows, vocab), by a number in [0, 1)
    for each: (rows, 1) -> (rows, 1).
    """
    chances, token = _chances(log_p, config)
    sums = chances.cumsum(dim=1)
    most = sums[:, -1:].contiguous()
    place = torch.searchsorted(sums, uniform * most, right=True)
    # rounding must lead to no token whose chance is 0
    place = place.minimum(torch.searchsorted(sums, most))
    place = place.clamp(max=sums.size(1) - 1)  # where all are NaN
    return token.gather(1, place)


class _Draws(_BeamSearch):
    """One output per row, drawn: draws says which of its sentence's."""

    config: Sampling

    def __init__(
        self,
        models: list[Transformer],
        sentences: Sequence[Sequence[int]],
        config: Sampling,
        prefixes: Sequence[Sequence[int]],
        guide: Guide | None,
        draws: Sequence[int],
    ):
        super().__init__(models, sentences, config, prefixes, guide)
        most = max(self.limits)
        rows = [
            np.random.default_rng([config.seed, draw, *sentence])
            .random(most, dtype=np.float32)
            for draw, sentence in zip(draws, sentences, strict=True)
        ]  # fmt: skip
        table = torch.from_numpy(np.stack(rows))
        self.uniform = table.to(self.beams.prefix.device)

    def best(self, log_p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The total, parent and token of what is drawn: (batch, 1)."""
        uniform = self.uniform[self.beams.number, self.length - 1]
        rows = log_p[:, 0]
        uniform = uniform[:, None].to(rows.dtype)
        token = _draw(rows, uniform, self.config)
        total = self.beams.scores + rows.gather(1, token)
        return total, torch.zeros_like(token), token


def _drawn(
    models: list[Transformer],
    sentences: Sequence[Sequence[int]],
    config: Sampling,
    prefixes: Sequence[Sequence[int]],
    guide: Guide | None,
) -> list[list[Hypothesis]]:
    """The nbest draws of each sentence, in the order of drawing."""
    one, n = dataclasses.replace(config, nbest=1), config.nbest
    rows = [s for s in sentences for _ in range(n)]
    begun = [p for p in prefixes for _ in range(n)]
    draws = [*range(n)] * len(sentences)
    found = _Draws(models, rows, one, begun, guide, draws).run()
    return [sum(found[i : i + n], []) for i in range(0, len(rows), n)]


# E6-search.md: Any number of sentences
def batches_by_length(
    sentences: Sequence[Sequence[int]], batch_tokens: int, batch_size: int
) -> list[list[int]]:
    """The indices of the sentences in each batch, longest first: at most
    batch_size sentences and batch_tokens tokens, with padding and EOS (one
    sentence alone may have more).
    """
    order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
    batches, first = [], 0
    while first < len(order):
        widest = len(sentences[order[first]]) + 1
        most = max(1, min(batch_size, batch_tokens // widest))
        batches.append(order[first : first + most])
        first += most
    return batches


def _batches_by_beam(
    sentences: Sequence[Sequence[int]],
    beams: Sequence[int],
    batch_tokens: int,
    batch_size: int,
) -> list[list[int]]:
    """batches_by_length, each of sentences with the same beam."""
    if len({*beams}) < 2:
        return batches_by_length(sentences, batch_tokens, batch_size)
    batches = []
    for beam in sorted({*beams}):
        some = [i for i, own in enumerate(beams) if own == beam]
        for batch in batches_by_length(
            [sentences[i] for i in some], batch_tokens, batch_size
        ):
            batches.append([some[i] for i in batch])
    return batches


def _gpu_batches(
    models: Sequence[Transformer],
    sentences: Sequence[Sequence[int]],
    config: SearchConfig,
    memory: float,
    batch_tokens: int = 32_000,
) -> list[list[int]]:
    """The indices of the sentences in each batch, longest first: of one
    size of source, a power of two of them at most, and no more than fit
    into memory bytes.
    """
    order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
    batches: list[list[int]] = []
    first = 0
    rows_each = config.beam if isinstance(config, Sampling) else 1
    while first < len(order):
        longest = len(sentences[order[first]])
        size, each = _source_size(longest), 0.0
        read = rows_each * size
        for model in models:
            c, limit = model.config, output_limit(model, longest, config)
            places = read + config.beam * (limit + _BLOCK)
            heads = c.num_heads * (c.key_size + c.value_size)
            width = next(model.parameters()).element_size()
            kept = places * heads * c.num_decoder_layers
            each += width * (kept + read * c.d_model)
            each += (width + 12) * config.beam * c.tgt_vocab
        most = min(batch_tokens // read, int(memory / each))
        rows = 1 << max(0, most.bit_length() - 1)
        batch = order[first : first + rows]
        sizes = {i: _source_size(len(sentences[i])) for i in batch}
        batch = [i for i in batch if sizes[i] == size]
        batches.append(batch)
        first += len(batch)
    return batches


def _room(model: Transformer) -> float | None:
    """Half the bytes free on its GPU; None elsewhere."""
    device = next(model.parameters()).device
    cuda = device.type == "cuda"
    return torch.cuda.mem_get_info(device)[0] / 2 if cuda else None


_PROCESS_TOKENS = 300  # source tokens that justify starting a process


def search_in_order(
    model: _Models,
    sentences: Sequence[Sequence[int]],
    config: SearchConfig = SearchConfig(),
    batch_tokens: int | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
    workers: int = 1,
    batch_size: int = 128,
    guide: Guide | None = None,
    required: Sequence[Sequence[Spellings]] | None = None,
) -> list[list[Hypothesis]]:
    """beam_search for any number of sentences, batched by similar length:
    at most batch_size sentences and batch_tokens source tokens at a time,
    by default 2000; on a GPU as many as fit. Results are in the order
    given.

    On a CPU, workers are single-threaded processes, at most one per core,
    that share the batches. RunError if one of them dies or hangs. (On
    systems other than Linux they are spawned, which takes seconds, and a
    script that uses them needs `if __name__ == "__main__":`.)
    """
    models = list(model) if isinstance(model, Sequence) else [model]
    workers = min(workers, cores())
    if workers > 1 and next(models[0].parameters()).device.type == "cpu":
        tokens = sum(len(s) + 1 for s in sentences)
        share = max(_PROCESS_TOKENS, math.ceil(tokens / workers))
        batch_tokens = min(batch_tokens or 2000, share)
    else:
        workers = 1  # a GPU's context does not survive a fork
    searches: _Searches | None = None
    draws = config.nbest if isinstance(config, Sampling) else 0
    room = _room(models[0]) if required is None else None
    if room is not None:
        most = batch_tokens or 32_000
        batches = _gpu_batches(models, sentences, config, room, most)
        if not draws and _may_be_recorded(models, guide):
            searches = {}
    else:
        most, each = batch_tokens or 2000, max(draws, 1)
        size = most // each, batch_size // each
        # what one sentence needs never widens another's beam
        beams = [_beam_for(config, phrases) for phrases in required or ()]
        batches = _batches_by_beam(sentences, beams, *size)
    about = models, sentences, config, prefixes, guide, searches, required
    job = partial(_search_some, *about)
    workers = min(workers, len(batches))
    answered: Iterable[tuple[int, Any]] = enumerate(map(job, batches))
    if workers > 1:
        answered = _in_processes(job, batches, workers)
    results: list[list[Hypothesis]] = [[] for _ in sentences]
    for number, answers in answered:
        for i, hypotheses in zip(batches[number], answers):
            results[i] = hypotheses
    return results


# E6-search.md: A batch for each core
def _search_some(
    models: list[Transformer],
    sentences: Sequence[Sequence[int]],
    config: SearchConfig,
    prefixes: Sequence[Sequence[int]] | None,
    guide: Guide | None,
    searches: _Searches | None,
    required: Sequence[Sequence[Spellings]] | None,
    which: list[int],
) -> list[list[Hypothesis]]:
    """Translate a batch, given by the indices of its sentences."""
    chosen = prefixes and [prefixes[i] for i in which]
    asked = required and [required[i] for i in which]
    some = [sentences[i] for i in which]
    about = models, some, config, chosen, guide, searches, asked
    try:
        return beam_search(*about)
    except NoCacheError as error:
        if isinstance(config, Sampling):  # nothing else can draw
            raise RunError(f"no samples: {error}") from None
        raise


_TIMEOUT = 3600.0  # seconds without any answer


def _failed(why: str) -> RunError:
    return RunError(
        f"a search process failed ({why}), perhaps for lack of memory: try "
        "fewer workers or a smaller batch_tokens"
    )


def _in_processes(
    job: Callable[[list[int]], Any], batches: list[list[int]], workers: int
) -> Iterator[tuple[int, Any]]:
    """Yield each batch's number and answers, as they arrive. Raises what
    a job raises; RunError if a process dies or none answers within
    _TIMEOUT seconds.
    """
    # forking takes no time, where it is safe
    method = "fork" if sys.platform == "linux" else "spawn"
    context: Any = get_context(method)
    todo = list(enumerate(batches))[::-1]  # the next one is the last
    processes: dict[Any, Any] = {}  # by connection
    busy: dict[Any, int] = {}  # by connection, the batch in work
    try:
        for _ in range(workers):
            line, theirs = context.Pipe()
            process = context.Process(
                target=_work, args=(job, theirs), daemon=True
            )
            process.start()
            processes[line] = process
            theirs.close()  # so that the line closes with its process
            busy[line], batch = todo.pop()
            with suppress(OSError):  # it is dead: below, nothing comes
                line.send(batch)
        while busy:
            ready: list[Any] = wait([*busy], timeout=_TIMEOUT)
            if not ready:
                raise _failed(f"no answer in {_TIMEOUT:.0f} seconds")
            for line in ready:
                number = busy.pop(line)
                try:
                    answers, error, where = line.recv()
                    if todo:
                        busy[line], batch = todo.pop()
                        line.send(batch)
                except (EOFError, OSError):
                    processes[line].join()
                    code = processes[line].exitcode
                    why = f"a process died with exit code {code}"
                    raise _failed(why) from None
                if error is not None:
                    raise error from RuntimeError(where)
                yield number, answers
    finally:
        for process in processes.values():
            process.kill()
            process.join()


def _work(job: Callable[[list[int]], Any], line: Connection) -> None:
    """Run the jobs from the line for as long as the parent is alive."""
    end_with_parent()
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it
    while True:
        which = line.recv()
        try:
            line.send((job(which), None, ""))
        except Exception as error:
            line.send((None, error, traceback.format_exc()))
