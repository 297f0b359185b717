"""annotated.engine.search.

Exported from the book; edit the chapter, then run `make export`.

- 15-search.md: Search
"""

import math
import sys
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from annotated.attention import MultiHeadAttention
from annotated.batches import pad_rows
from annotated.engine.machine import cores
from annotated.engine.packing import Packing
from annotated.layers import DecoderLayer
from annotated.model import Transformer
from annotated.search import (
    Hypothesis,
    Models,
    SearchConfig,
    _evaluating,
    _layers,
    _limit,
    _mean_log_p,
    _several,
    length_penalty,
)
from annotated.tokens import BOS, EOS, PAD

__all__ = [
    "beam_search",
    "SWEEP",
    "BLOCK",
    "batches_by_length",
    "WORTH",
    "search_in_order",
]


# 15-search.md: Remembering
class _Memory:
    """What the decoder keeps between steps: keys and values, of the source
    once a sentence, of the target once a slot.
    """

    def __init__(self, model: Transformer, src: Tensor, slots: int):
        packing = Packing.of(src != PAD)
        memory = packing.pack(model.encode(src))
        self.words = packing.mask  # of the source; None where all are
        self.source: list[tuple[Tensor, Tensor]] = []
        self.target: list[tuple[Tensor, Tensor]] = []
        for layer in _layers(model):
            cross, own = layer.cross_attention, layer.attention
            pair = cross.w_k(memory), cross.w_v(memory)
            k, v = (cross.split(packing.pad(x)).contiguous() for x in pair)
            self.source.append((k, v))
            room = (len(src), own.num_heads, slots)
            self.target.append(
                (k.new_empty(*room, own.d_k), k.new_empty(*room, own.d_v))
            )
        self.starts: list[int] = []  # the first slot of each position
        self.used = 0

    def take(self, width: int) -> slice:
        """The slots of the next position, for width hypotheses."""
        self.starts.append(self.used)
        self.used += width
        return slice(self.starts[-1], self.used)

    def sweep(self, kept: Tensor) -> None:
        """Keep these slots of each sentence, (batch, slots), alone."""
        self.used = kept.size(1)
        for pair in self.target:
            for cache in pair:
                places = kept[:, None, :, None].expand(
                    -1, cache.size(1), -1, cache.size(3)
                )
                cache[:, :, : self.used] = cache.gather(2, places)

    def close(self, gaps: Tensor, movers: Tensor, left: int) -> None:
        """Let the sentences at movers fill the gaps, and keep left."""
        if self.words is not None:
            self.words = _close(self.words, gaps, movers, left)
        self.source = [
            (_close(k, gaps, movers, left), _close(v, gaps, movers, left))
            for k, v in self.source
        ]
        for pair in self.target:
            for cache in pair:
                _close(cache[:, :, : self.used], gaps, movers, left)
        self.target = [(k[:left], v[:left]) for k, v in self.target]


def _close(x: Tensor, gaps: Tensor, movers: Tensor, left: int) -> Tensor:
    if len(gaps):
        x.index_copy_(0, gaps, x.index_select(0, movers))
    return x[:left]


def _next_logits(
    model: Transformer,
    ids: Tensor,
    memory: _Memory,
    seen: Tensor | None = None,
) -> Tensor:
    """ids (batch, width), the tokens at the next position -> (batch ·
    width, vocab): the logits of those after them. seen (batch, width,
    slots) says which slots, these included, each may see; None is all.
    """
    step = len(memory.starts)
    x = model.embeddings.read_target(ids.flatten())
    x = x + model.tgt_positions(step + 1)[-1]
    new = memory.take(ids.size(1))
    first, window = 0, model.config.window
    if window is not None:
        first = memory.starts[max(0, step - window // 2)]
    past = slice(first, memory.used)
    heads = model.config.num_heads
    own = None if seen is None else _bias(seen[:, None, :, past], heads, x)
    words = memory.words
    across = None if words is None else _bias(words, heads, x)
    for layer, target, source in zip(
        _layers(model), memory.target, memory.source, strict=True
    ):
        x = _layer_step(layer, x, target, source, new, past, own, across)
    return model.embeddings.logits(model.decoder.norm(x))


def _bias(mask: Tensor, heads: int, like: Tensor) -> Tensor:
    """True -> 0, False -> -inf, which added to a score hides it: (batch,
    1, …, keys) -> (batch · heads, …, keys).
    """
    bias = like.new_zeros(mask.shape).masked_fill_(~mask, -math.inf)
    return bias.expand(-1, heads, -1, -1).flatten(0, 1)


def _layer_step(
    layer: DecoderLayer,
    x: Tensor,
    target: tuple[Tensor, Tensor],
    source: tuple[Tensor, Tensor],
    new: slice,
    past: slice,
    own: Tensor | None,
    across: Tensor | None,
) -> Tensor:
    """One position through a decoder layer: (rows, d_model), the same."""
    batch = len(target[0])

    def look_back(x: Tensor) -> Tensor:
        attention = layer.attention
        each = attention.w_q(x), attention.w_k(x), attention.w_v(x)
        q, *pair = (_by_head(y, batch, attention) for y in each)
        for cache, fresh in zip(target, pair, strict=True):
            cache[:, :, new] = fresh
        k, v = (cache[:, :, past] for cache in target)
        return attention.w_o(_mix(q, k, v, own))

    def look_across(x: Tensor) -> Tensor:
        attention = layer.cross_attention
        q = _by_head(attention.w_q(x), batch, attention)
        return attention.w_o(_mix(q, *source, across))

    if layer.pre_norm:
        x = x + look_back(layer.norm1(x))
        x = x + look_across(layer.norm2(x))
        return x + layer.feed_forward(layer.norm3(x))
    x = layer.norm1(x + look_back(x))
    x = layer.norm2(x + look_across(x))
    return layer.norm3(x + layer.feed_forward(x))


def _by_head(x: Tensor, batch: int, layer: MultiHeadAttention) -> Tensor:
    """(batch · width, heads · d) -> (batch, heads, width, d)"""
    return layer.split(x.unflatten(0, (batch, -1)))


def _mix(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Equation 1: q (batch, heads, width, d_k), k (batch, heads, keys,
    d_k), v (batch, heads, keys, d_v), bias (batch · heads, width or 1,
    keys) -> (batch · width, heads · d_v).
    """
    batch, heads = q.shape[:2]
    if bias is None:
        bias = q.new_zeros(())
    scores = torch.baddbmm(
        bias,
        q.flatten(0, 1),
        k.flatten(0, 1).transpose(1, 2),
        alpha=q.size(-1) ** -0.5,
    )
    mixed = torch.bmm(scores.softmax(dim=-1), v.flatten(0, 1))
    mixed = mixed.unflatten(0, (batch, heads)).transpose(1, 2)
    return mixed.flatten(2).flatten(0, 1)


# 15-search.md: The fast search
def beam_search(
    model: Models,
    sentences: Sequence[Sequence[int]],
    config: SearchConfig = SearchConfig(),
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """Beam search for a batch of sentences (§6.1), each without EOS.

    For each sentence its nbest hypotheses, the best first: those of
    plain_beam_search. Several models vote; each output begins with its
    prefix, where prefixes are given. ValueError names a wrong prefix.
    """
    if not len(sentences):
        return []
    models = _several(model)
    prefixes = prefixes or [()] * len(sentences)
    with _evaluating(models):
        return _Search(models, sentences, config, prefixes).run()


SWEEP = 8  # steps between two sweeps


class _Search:
    """A beam search under way, for the sentences that are not done."""

    def __init__(
        self,
        models: list[Transformer],
        sentences: Sequence[Sequence[int]],
        config: SearchConfig,
        prefixes: Sequence[Sequence[int]],
    ):
        device = next(models[0].parameters()).device
        self.models, self.config = models, config
        limits = [
            _limit(models, s, config, prefix)
            for s, prefix in zip(sentences, prefixes, strict=True)
        ]
        self.longest, batch = max(limits), len(sentences)
        slots = 1 + (self.longest - 1) * config.beam
        src = pad_rows([np.asarray(s) for s in sentences], after=EOS)
        src = src.to(device)
        self.memories = [_Memory(model, src, slots) for model in models]
        self.limits = torch.tensor(limits, device=device)
        self.ends = set(limits)
        starts = [np.asarray(p, dtype=np.int64) for p in prefixes]
        self.prefixes = pad_rows(starts).to(device)
        self.left = torch.arange(batch, device=device)
        self.done = torch.zeros_like(self.left, dtype=torch.bool)
        # of each hypothesis that lives, (batch, width): the logarithm of
        # its probability, its last token and slot; (batch, width, slots):
        # the slots that it may see
        self.scores = torch.zeros(batch, 1, device=device)
        self.ids = torch.full((batch, 1), BOS, device=device)
        self.slots = torch.zeros_like(self.ids)
        self.seen = torch.ones_like(self.ids, dtype=torch.bool)[:, :, None]
        # of each slot that was ever used: its token and its parent
        self.used = 1
        self.tokens = self.ids.expand(-1, slots).contiguous()
        self.parents = torch.zeros_like(self.tokens)
        # the nbest that have ended, the best first: score and last slot
        self.ended = self.scores.new_full((batch, config.nbest), -math.inf)
        self.ended_slots = self.slots.expand_as(self.ended).contiguous()
        self.results: list[list[Hypothesis]] = [[] for _ in sentences]
        self.length = 0
        # a GPU is asked seldom: the question makes it wait for the answer
        self.patience = 1 if device.type == "cpu" else 8

    def run(self) -> list[list[Hypothesis]]:
        """Search to the end; the results, sentence by sentence."""
        going_on = True
        while going_on:
            going_on = self.step()
        return self.results

    def step(self) -> bool:
        """Add a token to every hypothesis; False when all are done."""
        log_p = self._ask()
        self.length += 1
        if self.length <= self.prefixes.size(1) or self.length in self.ends:
            log_p = self._force(log_p)
        log_p[:, :, [PAD, BOS]] = -math.inf
        ranks = 2 * self.config.beam if self.config.beam > 1 else 1
        self._grow(*_best(self.scores, log_p, ranks))
        return self._retire()

    def _ask(self) -> Tensor:
        """Every continuation's log-probability: (batch, width, vocab)."""
        seen = self.seen if self.config.beam > 1 else None
        log_p = _mean_log_p(
            [
                _next_logits(model, self.ids, memory, seen)
                for model, memory in zip(self.models, self.memories)
            ]
        )
        return log_p.unflatten(0, self.scores.shape)

    def _force(self, log_p: Tensor) -> Tensor:
        """Leave no choice: the prefix's token, and the end at the limit."""
        token = torch.zeros_like(self.limits)
        if self.length <= self.prefixes.size(1):
            token = self.prefixes[:, self.length - 1]
        token = token.masked_fill(self.limits == self.length, EOS)
        token = token[:, None, None].expand(-1, log_p.size(1), 1)
        only = torch.full_like(log_p, -math.inf)
        only.scatter_(2, token, log_p.gather(2, token))
        return torch.where(token == PAD, log_p, only)

    def _grow(self, best: Tensor, parent: Tensor, token: Tensor) -> None:
        """What ends is compared with what has ended, and the beam best of
        the rest live on. All three are (batch, ranks), the best first.
        """
        slots = self.slots.gather(1, parent)
        ends = token == EOS
        penalty = length_penalty(self.length, self.config.alpha)
        new = best.masked_fill(~ends | self.done[:, None], -math.inf)
        scores = torch.cat([self.ended, new / penalty], dim=1)
        self.ended, places = scores.topk(self.config.nbest, dim=1)
        slots_of = torch.cat([self.ended_slots, slots], dim=1)
        self.ended_slots = slots_of.gather(1, places)
        if self.length == self.longest:
            return
        best = best.masked_fill(ends, -math.inf)
        most = min(self.config.beam, best.size(1))
        self.scores, places = best.topk(most, dim=1)
        self.ids = token.gather(1, places)
        used = self.used
        self.tokens[:, used : used + most] = self.ids
        self.parents[:, used : used + most] = slots.gather(1, places)
        self.used = used + most
        fresh = torch.arange(used, self.used, device=best.device)
        self.slots = fresh.repeat(len(best), 1)
        if self.config.beam > 1:
            self._see(parent.gather(1, places))

    def _see(self, parent: Tensor) -> None:
        """A hypothesis sees what its parent saw, and itself."""
        rows = parent[:, :, None].expand(-1, -1, self.seen.size(2))
        seen = self.seen.gather(1, rows)
        if self.length % SWEEP == 0:
            seen = self._sweep(seen)
        itself = torch.eye(
            parent.size(1), dtype=torch.bool, device=parent.device
        )
        itself = itself.expand(len(parent), -1, -1)
        self.seen = torch.cat([seen, itself], dim=2)

    def _sweep(self, seen: Tensor) -> Tensor:
        """Forget the slots that none that lives has come through."""
        if any(model.config.window is not None for model in self.models):
            return seen  # a window counts slots
        lives = seen.any(dim=1)
        most = int(lives.sum(dim=1).max())
        if 4 * most > 3 * seen.size(2):
            return seen  # too little would be gained
        order = lives.byte().argsort(dim=1, descending=True, stable=True)
        kept = order[:, :most]
        for memory in self.memories:
            memory.sweep(kept)
        places = kept[:, None].expand(-1, seen.size(1), -1)
        return seen.gather(2, places)

    def _retire(self) -> bool:
        """Take out the sentences that nothing alive can improve."""
        # log-probabilities only fall: what no length could save is lost
        if self.config.beam > 1:
            penalty = ((5 + self.limits) / 6) ** self.config.alpha
            hope = self.scores[:, 0] / penalty
            self.done |= self.ended[:, -1] >= hope
        else:
            self.done |= self.ended[:, 0] > -math.inf
        self.done |= self.limits <= self.length
        last = self.length == self.longest
        if self.length % self.patience and not last:
            return True
        done = self.done.nonzero()[:, 0]
        if not len(done):
            return True
        self._report(done)
        left = len(self.done) - len(done)
        if left:
            movers = (~self.done[left:]).nonzero()[:, 0] + left
            self._close(done[done < left], movers, left)
        return left > 0

    def _close(self, gaps: Tensor, movers: Tensor, left: int) -> None:
        for memory in self.memories:
            memory.close(gaps, movers, left)
        for name in (
            "limits", "prefixes", "left", "done", "scores", "ids", "slots",
            "seen", "tokens", "parents", "ended", "ended_slots",
        ):  # fmt: skip
            rows = _close(getattr(self, name), gaps, movers, left)
            setattr(self, name, rows)

    def _report(self, done: Tensor) -> None:
        """Read the results of the sentences that are done."""
        columns = (
            self.left, self.ended, self.ended_slots,
            self.tokens[:, : self.used],
            self.parents[:, : self.used],
        )  # fmt: skip
        for place, scores, slots, tokens, parents in zip(
            *(column[done].tolist() for column in columns)
        ):
            for score, slot in zip(scores, slots):
                if score == -math.inf:
                    continue  # a beam wider than the language
                ids = []
                while slot:  # the first one holds BOS
                    ids.append(tokens[slot])
                    slot = parents[slot]
                total = score * length_penalty(
                    len(ids) + 1, self.config.alpha
                )
                found = Hypothesis(ids[::-1], total, score)
                self.results[place].append(found)


BLOCK = 32


def _best(
    scores: Tensor, log_p: Tensor, ranks: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The ranks best continuations of a sentence's hypotheses: scores
    (batch, width), log_p (batch, width, vocab) -> their log-probability,
    their parent and their token, each (batch, ranks), the best first.
    """
    batch, width, vocab = log_p.shape
    blocks = vocab // BLOCK
    whole = blocks * BLOCK
    places = torch.arange(width * vocab, device=log_p.device)
    if blocks * width <= ranks:
        places = places.expand(batch, -1)
    else:
        inside = log_p[:, :, :whole].unflatten(2, (blocks, BLOCK))
        maxima = scores[:, :, None] + inside.amax(dim=3)
        first = maxima.flatten(1).topk(ranks)[1][:, :, None]
        first = first // blocks * vocab + first % blocks * BLOCK
        rest = places.view(width, vocab)[:, whole:].flatten()
        places = first + places[:BLOCK]
        rest = rest.expand(batch, -1)
        places = torch.cat([places.flatten(1), rest], dim=1)
    total = log_p.flatten(1).gather(1, places)
    total = total + scores.gather(1, places // vocab)
    total, found = total.topk(min(ranks, places.size(1)), dim=1)
    places = places.gather(1, found)
    return total, places // vocab, places % vocab


# 15-search.md: A batch for each core
class _Batches(Dataset[list[list[Hypothesis]]]):
    """Batches of sentences, translated where they are asked for."""

    def __init__(
        self,
        model: Models,
        sentences: Sequence[Sequence[int]],
        config: SearchConfig,
        prefixes: Sequence[Sequence[int]] | None,
    ):
        self.model, self.config = model, config
        self.sentences = sentences
        self.prefixes = prefixes or [()] * len(sentences)

    def __getitem__(self, which: Sequence[int]) -> list[list[Hypothesis]]:
        return beam_search(
            self.model,
            [self.sentences[i] for i in which],
            self.config,
            [self.prefixes[i] for i in which],
        )


def batches_by_length(
    sentences: Sequence[Sequence[int]], batch_tokens: int, batch_size: int
) -> list[list[int]]:
    """Which sentences make each batch, the longest first: at most
    batch_size, of batch_tokens tokens, padding and end signs counted.
    """
    order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
    batches, first = [], 0
    while first < len(order):
        widest = len(sentences[order[first]]) + 1
        most = max(1, min(batch_size, batch_tokens // widest))
        batches.append(order[first : first + most])
        first += most
    return batches


WORTH = 300  # source tokens for which it pays to start a process


def search_in_order(
    model: Models,
    sentences: Sequence[Sequence[int]],
    config: SearchConfig = SearchConfig(),
    batch_tokens: int = 2000,
    prefixes: Sequence[Sequence[int]] | None = None,
    workers: int = 1,
    batch_size: int = 128,
) -> list[list[Hypothesis]]:
    """beam_search for any number of sentences, batched by like length: at
    most batch_size sentences of batch_tokens source tokens at once.
    Results in the order given.

    On a CPU, several workers are processes of one thread each, as many as
    there are cores at most, which share the batches. RuntimeError where
    one of them dies. (Except on Linux they start afresh, which takes
    seconds, and a script that asks for them needs the usual
    `if __name__ == "__main__":`.)
    """
    workers = min(workers, cores())
    if workers > 1:
        tokens = sum(len(s) + 1 for s in sentences)
        share = max(WORTH, math.ceil(tokens / workers))
        batch_tokens = min(batch_tokens, share)
    batches = batches_by_length(sentences, batch_tokens, batch_size)
    search = _Batches(model, sentences, config, prefixes)
    found: Iterable[list[list[Hypothesis]]] = map(
        search.__getitem__, batches
    )
    workers = min(workers, len(batches))
    if workers > 1:
        found = DataLoader(
            search,
            batch_size=None,  # an index is a batch already
            sampler=batches,
            collate_fn=list,  # as it comes, nothing made a tensor
            num_workers=workers,
            # as copies of this process, where that is safe: at once
            multiprocessing_context=(
                "fork" if sys.platform == "linux" else None
            ),
            generator=torch.Generator(),  # leave torch's own alone
        )
    results: list[list[Hypothesis]] = [[] for _ in sentences]
    for which, answers in zip(batches, found, strict=True):
        for i, hypotheses in zip(which, answers, strict=True):
            results[i] = hypotheses
    return results
