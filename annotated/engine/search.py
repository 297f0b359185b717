"""Exported from the book; edit the chapter, then run `make export`.

- E6-search.md: A faster search: a cache that stays where it is
"""

import copy
import itertools
import math
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch
from torch import Tensor

from annotated.attention import MultiHeadAttention
from annotated.batches import pad_rows
from annotated.engine.machine import cores, evaluating
from annotated.model import Transformer
from annotated.search import (
    Hypothesis,
    SearchConfig,
    decoder_layers,
    layer_step,
    length_penalty,
    output_limit,
)
from annotated.tokens import BOS, EOS, PAD

__all__ = [
    "Moves", "SlotCache", "Beams", "BeamSearch", "COMPACT",
    "best_continuations", "mean_log_p", "Models", "beam_search",
    "batches_by_length", "WORTH", "search_in_order", "Batches", "Answers",
    "HANGS", "WorkerError", "in_processes",
]  # fmt: skip


# E6-search.md: Slots
@dataclass(frozen=True)
class Moves:
    """Which sentences of a batch stay: the last ones that go on fill the
    gaps of those that are done, so that as few as possible are copied.
    """

    gaps: Tensor
    movers: Tensor
    left: int

    @classmethod
    def closing(cls, done: Tensor) -> "Moves":
        """The gaps are where done (batch,) is True."""
        left = len(done) - int(done.sum())
        gaps = done[:left].nonzero()[:, 0]
        return cls(gaps, (~done[left:]).nonzero()[:, 0] + left, left)

    def of(self, x: Tensor) -> Tensor:
        """x (batch, …), changed in place -> (left, …)"""
        if len(self.gaps):
            x.index_copy_(0, self.gaps, x.index_select(0, self.movers))
        return x[: self.left]


class SlotCache:
    """The keys and values of a batch, each (batch, heads, keys, d): of the
    source once per sentence, of the target once per slot.
    """

    def __init__(self, model: Transformer, src: Tensor, slots: int):
        self.model = model
        real = src != PAD
        self.words = None if bool(real.all()) else real[:, None, None]
        self.used = self.length = 0  # slots, positions
        self.source: list[tuple[Tensor, Tensor]] = []
        self.target: list[tuple[Tensor, Tensor]] = []
        memory = model.encode(src)
        for layer in decoder_layers(model):
            cross, own = layer.cross_attention, layer.attention
            k, v = cross.split(cross.w_k(memory)), cross.w_v(memory)
            v = cross.split(v).contiguous()
            self.source.append((k.contiguous(), v))
            room = (len(src), own.num_heads, slots)
            self.target.append(
                (v.new_empty(*room, own.d_k), v.new_empty(*room, own.d_v))
            )

    def next_logits(self, ids: Tensor, seen: Tensor) -> Tensor:
        """ids (batch, width), the newest tokens -> (batch, width, vocab):
        the logits of those that follow. seen (batch, width, slots) says
        which slots, the new ones included, each hypothesis came through.
        """
        model, config = self.model, self.model.config
        self.length += 1
        x = model.embeddings.read_target(ids)
        x = x + model.tgt_positions(self.length)[-1]
        new = slice(self.used, self.used + ids.size(1))
        self.used = new.stop
        if config.window is not None:
            # a hypothesis has one slot per position, in their order
            nearest = self.length - config.window // 2
            seen = seen & (seen.cumsum(dim=-1) >= nearest)
        heads = config.num_heads
        own = _bias(seen[:, None], heads, x)
        across = _bias(self.words, heads, x)
        for layer, target, source in zip(
            decoder_layers(model), self.target, self.source, strict=True
        ):
            x = layer_step(
                layer,
                x,
                _Writing(layer.attention, target, new, own),
                _Reading(layer.cross_attention, *source, across),
            )
        return model.embeddings.logits(model.decoder.norm(x))

    def compact(self, kept: Tensor) -> None:
        """Keep only these slots of each sentence: (batch, slots)."""
        self.used = kept.size(1)
        for cache in (cache for pair in self.target for cache in pair):
            places = kept[:, None, :, None].expand(
                -1, cache.size(1), -1, cache.size(3)
            )
            cache[:, :, : self.used] = cache.gather(2, places)

    def keep(self, moves: Moves) -> None:
        """Let the finished sentences go."""
        if self.words is not None:
            self.words = moves.of(self.words)
        self.source = [(moves.of(k), moves.of(v)) for k, v in self.source]
        for pair in self.target:
            for cache in pair:
                moves.of(cache[:, :, : self.used])
        left = moves.left
        self.target = [(k[:left], v[:left]) for k, v in self.target]


@dataclass(frozen=True)
class _Reading:
    """Attention of every hypothesis, (batch, width, d_model), over keys
    and values that their sentence has.
    """

    attention: MultiHeadAttention
    k: Tensor
    v: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        q = self.attention.split(self.attention.w_q(x))
        scores = torch.baddbmm(
            q.new_zeros(()) if self.bias is None else self.bias,
            q.flatten(0, 1),
            self.k.flatten(0, 1).transpose(1, 2),
            alpha=q.size(-1) ** -0.5,
        )
        heads = scores.softmax(dim=-1) @ self.v.flatten(0, 1)
        heads = heads.unflatten(0, q.shape[:2]).transpose(1, 2)
        return self.attention.w_o(heads.flatten(2))


@dataclass(frozen=True)
class _Writing:
    """The same over the slots, the new ones of which it fills first."""

    attention: MultiHeadAttention
    slots: tuple[Tensor, Tensor]
    new: slice
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        block, (keys, values) = self.attention, self.slots
        keys[:, :, self.new] = block.split(block.w_k(x))
        values[:, :, self.new] = block.split(block.w_v(x))
        k, v = (cache[:, :, : self.new.stop] for cache in self.slots)
        return _Reading(block, k, v, self.bias)(x)


def _bias(mask: Tensor | None, heads: int, like: Tensor) -> Tensor | None:
    """True -> 0, False -> -inf, which added to a score hides it: (batch,
    1, …, keys) -> (batch · heads, …, keys).
    """
    if mask is None:
        return None
    bias = like.new_zeros(mask.shape).masked_fill_(~mask, -math.inf)
    return bias.expand(-1, heads, -1, -1).flatten(0, 1)


# E6-search.md: What is known of a sentence
@dataclass
class Beams:
    """What a search knows of the sentences that are not done: row i of
    every tensor belongs to one sentence.
    """

    number: Tensor  # (batch,): its place among the results
    limit: Tensor  # (batch,): tokens that its output may have
    done: Tensor  # (batch,) of bool
    prefix: Tensor  # (batch, longest): tokens it must begin with, or PAD
    # of each living hypothesis, (batch, width)
    scores: Tensor  # the logarithm of its probability, float32
    ids: Tensor  # its last token
    nodes: Tensor  # where that stands in the tree
    seen: Tensor  # (batch, width, slots): what it came through
    # the tree, (batch, nodes)
    tokens: Tensor
    parents: Tensor
    # the best that have ended, (batch, nbest), the best first
    ended: Tensor  # their scores
    ended_nodes: Tensor

    @classmethod
    def begin(
        cls, limits: list[int], prefix: Tensor, nbest: int, beam: int
    ) -> "Beams":
        """One hypothesis per sentence, which has no token yet."""
        limit = torch.tensor(limits, device=prefix.device)
        batch, room = len(limits), 1 + (max(limits) - 1) * beam
        zeros = limit.new_zeros(batch, room)
        scores = torch.zeros(batch, 1, device=limit.device)
        return cls(
            number=torch.arange(batch, device=limit.device),
            limit=limit,
            done=limit < 0,
            prefix=prefix,
            scores=scores,
            ids=zeros[:, :1] + BOS,
            nodes=zeros[:, :1].clone(),
            seen=zeros[:, :1, None] == 0,
            tokens=zeros,
            parents=zeros.clone(),
            ended=scores.new_full((batch, nbest), -math.inf),
            ended_nodes=zeros[:, :1].repeat(1, nbest),
        )

    def keep(self, moves: Moves) -> "Beams":
        """Without the sentences that are done."""
        return Beams(*(moves.of(tensor) for tensor in vars(self).values()))


# E6-search.md: The search
class BeamSearch:
    """A beam search for a batch of sentences, under way."""

    def __init__(
        self,
        models: list[Transformer],
        sentences: Sequence[Sequence[int]],
        config: SearchConfig,
        prefixes: Sequence[Sequence[int]],
    ):
        device = next(models[0].parameters()).device
        limits = [
            _limit(models, s, config, prefix)
            for s, prefix in zip(sentences, prefixes, strict=True)
        ]
        src = pad_rows([np.asarray(s) for s in sentences], after=EOS)
        prefix = pad_rows([np.asarray(p, dtype=int) for p in prefixes])
        beams = Beams.begin(
            limits, prefix.to(device), config.nbest, config.beam
        )
        slots = beams.tokens.size(1)
        self.caches = [SlotCache(m, src.to(device), slots) for m in models]
        self.config, self.beams = config, beams
        self.limits = set(limits)
        self.length, self.nodes = 0, 1
        self.results: list[list[Hypothesis]] = [[] for _ in sentences]
        # a GPU is asked seldom: the question makes it wait for the answer
        self.patience = 1 if device.type == "cpu" else 8

    def run(self) -> list[list[Hypothesis]]:
        """Search to the end; the results, sentence by sentence."""
        while len(self.beams.number):
            self.length += 1
            log_p = self.next_log_p()
            # greedy search looks at one continuation
            ranks = 2 * self.config.beam if self.config.beam > 1 else 1
            best = best_continuations(self.beams.scores, log_p, ranks)
            self.end(*best)
            if self.length < max(self.limits):
                self.live_on(*best)
            self.retire()
        return self.results

    def next_log_p(self) -> Tensor:
        """Of every continuation, in float32: (batch, width, vocab)."""
        beams = self.beams
        logits = [c.next_logits(beams.ids, beams.seen) for c in self.caches]
        log_p = mean_log_p(logits)
        log_p[:, :, PAD] = log_p[:, :, BOS] = -math.inf
        begun = self.length > beams.prefix.size(1)
        if begun and self.length not in self.limits:
            return log_p
        # no choice: the prefix's token, or the end at the limit
        token = torch.zeros_like(beams.limit)
        if not begun:
            token = beams.prefix[:, self.length - 1]
        token = token.masked_fill(beams.limit == self.length, EOS)
        token = token[:, None, None].expand(-1, log_p.size(1), 1)
        only = torch.full_like(log_p, -math.inf)
        only.scatter_(2, token, log_p.gather(2, token))
        return torch.where(token == PAD, log_p, only)

    def end(self, best: Tensor, parent: Tensor, token: Tensor) -> None:
        """Compare what ends with what has ended; all (batch, ranks)."""
        beams = self.beams
        penalty = length_penalty(self.length, self.config.alpha)
        lives = (token != EOS) | beams.done[:, None]
        scores = best.masked_fill(lives, -math.inf) / penalty
        scores = torch.cat([beams.ended, scores], dim=1)
        beams.ended, places = scores.topk(self.config.nbest, dim=1)
        parents = beams.nodes.gather(1, parent)
        nodes = torch.cat([beams.ended_nodes, parents], dim=1)
        beams.ended_nodes = nodes.gather(1, places)

    def live_on(self, best: Tensor, parent: Tensor, token: Tensor) -> None:
        """The best that do not end get a node and a slot each."""
        beams = self.beams
        best = best.masked_fill(token == EOS, -math.inf)
        width = min(self.config.beam, best.size(1))
        beams.scores, places = best.topk(width, dim=1)
        parent = parent.gather(1, places)
        beams.ids = token.gather(1, places)
        new = slice(self.nodes, self.nodes + width)
        beams.tokens[:, new] = beams.ids
        beams.parents[:, new] = beams.nodes.gather(1, parent)
        fresh = torch.arange(new.start, new.stop, device=best.device)
        beams.nodes = fresh.repeat(len(best), 1)
        self.nodes = new.stop
        rows = parent[:, :, None].expand(-1, -1, beams.seen.size(2))
        seen = beams.seen.gather(1, rows)
        if self.length % COMPACT == 0:
            seen = self.compacted(seen)
        itself = torch.eye(width, dtype=torch.bool, device=best.device)
        itself = itself.expand(len(best), -1, -1)
        beams.seen = torch.cat([seen, itself], dim=2)

    def compacted(self, seen: Tensor) -> Tensor:
        """Forget the slots that no living hypothesis came through."""
        lives = seen.any(dim=1)
        most = int(lives.sum(dim=1).max())
        if 4 * most > 3 * seen.size(2):
            return seen  # too little would be gained
        order = lives.byte().argsort(dim=1, descending=True, stable=True)
        kept = order[:, :most]
        for cache in self.caches:
            cache.compact(kept)
        return seen.gather(2, kept[:, None].expand(-1, seen.size(1), -1))

    def retire(self) -> None:
        """Take out the sentences that nothing alive can improve."""
        beams = self.beams
        if self.config.beam > 1:
            # log-probabilities only fall: what no length saves is lost
            penalty = ((5 + beams.limit) / 6) ** self.config.alpha
            hope = beams.scores[:, 0] / penalty
            beams.done |= beams.ended[:, -1] >= hope
        else:
            beams.done |= beams.ended[:, 0] > -math.inf
        beams.done |= beams.limit <= self.length
        if self.length % self.patience and self.length < max(self.limits):
            return
        if bool(beams.done.any()):
            self.report()
            moves = Moves.closing(beams.done)
            self.beams = beams.keep(moves)
            for cache in self.caches:
                cache.keep(moves)

    def report(self) -> None:
        """Read the results of the sentences that are done."""
        beams = self.beams
        columns = (
            beams.number,
            beams.ended,
            beams.ended_nodes,
            beams.tokens[:, : self.nodes],
            beams.parents[:, : self.nodes],
        )
        for number, scores, nodes, tokens, parents in zip(
            *(column[beams.done].tolist() for column in columns)
        ):
            for score, node in zip(scores, nodes):
                if score == -math.inf:
                    continue  # a beam wider than the language
                ids = []
                while node:  # the first one holds no token
                    ids.append(tokens[node])
                    node = parents[node]
                penalty = length_penalty(len(ids) + 1, self.config.alpha)
                found = Hypothesis(ids[::-1], score * penalty, score)
                self.results[number].append(found)


COMPACT = 8  # steps between two compactions


def best_continuations(
    scores: Tensor, log_p: Tensor, ranks: int
) -> tuple[Tensor, Tensor, Tensor]:
    """scores (batch, width) of the hypotheses, log_p (batch, width, vocab)
    of what may follow -> the best totals, their parents and their tokens,
    each (batch, ranks), the best first.
    """
    best, token = log_p.topk(min(ranks, log_p.size(2)))
    each = best.size(2)
    total = (scores[:, :, None] + best).flatten(1)
    total, place = total.topk(min(ranks, total.size(1)))
    return total, place // each, token.flatten(1).gather(1, place)


def mean_log_p(logits: list[Tensor]) -> Tensor:
    """The logits of each model, (…, vocab) -> the logarithm of the mean of
    their probabilities, in float32.
    """
    each = [x.float().log_softmax(dim=-1) for x in logits]
    if len(each) == 1:
        return each[0]
    return torch.stack(each).logsumexp(dim=0) - math.log(len(each))


# E6-search.md: From outside
Models = Transformer | Sequence[Transformer]


def beam_search(
    model: Models,
    sentences: Sequence[Sequence[int]],
    config: SearchConfig = SearchConfig(),
    prefixes: Sequence[Sequence[int]] | None = None,
    dtype: torch.dtype | None = None,
) -> list[list[Hypothesis]]:
    """Beam search for a batch of sentences (§6.1), each without EOS.

    For each sentence its nbest hypotheses, the best first: those of
    plain_beam_search. Several models vote; each output begins with its
    prefix, where prefixes are given; dtype computes in another precision
    than the model's. ValueError names a wrong prefix.
    """
    if not len(sentences):
        return []
    models = _in_precision(_several(model), dtype)
    prefixes = prefixes or [()] * len(sentences)
    with _evaluating(models):
        return BeamSearch(models, sentences, config, prefixes).run()


def _several(models: Models) -> list[Transformer]:
    return list(models) if isinstance(models, Sequence) else [models]


def _in_precision(
    models: list[Transformer], dtype: torch.dtype | None
) -> list[Transformer]:
    """The models, copied where they have another dtype."""
    return [
        model
        if dtype in (None, next(model.parameters()).dtype)
        else copy.deepcopy(model).to(dtype)
        for model in models
    ]


@contextmanager
def _evaluating(models: list[Transformer]) -> Iterator[None]:
    with ExitStack() as stack:
        for model in models:
            stack.enter_context(evaluating(model))
        yield


def _limit(
    models: list[Transformer],
    src: Sequence[int],
    config: SearchConfig,
    prefix: Sequence[int],
) -> int:
    """The output limit of a sentence. ValueError where the prefix leaves
    no room, or holds what is no word.
    """
    limit = min(output_limit(m, len(src), config) for m in models)
    if len(prefix) >= limit:
        raise ValueError(
            f"a prefix of {len(prefix)} tokens and its end: the output may "
            f"have {limit}"
        )
    vocab = min(model.config.tgt_vocab for model in models)
    for token in prefix:
        if token in (PAD, BOS, EOS) or not 0 <= token < vocab:
            raise ValueError(f"a prefix holds token {token}, no word")
    return limit


# E6-search.md: Any number of sentences
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
    dtype: torch.dtype | None = None,
) -> list[list[Hypothesis]]:
    """beam_search for any number of sentences, batched by similar length:
    at most batch_size sentences of batch_tokens source tokens at once.
    Results in the order given.

    On a CPU, several workers are processes of one thread each, at most as
    many as there are cores, which share the batches. WorkerError where
    one of them dies or hangs. (Except on Linux they start afresh, which
    takes seconds, and a script that asks for them needs the usual
    `if __name__ == "__main__":`.)
    """
    models = _in_precision(_several(model), dtype)
    workers = min(workers, cores())
    if workers > 1 and next(models[0].parameters()).device.type == "cpu":
        tokens = sum(len(s) + 1 for s in sentences)
        share = max(WORTH, math.ceil(tokens / workers))
        batch_tokens = min(batch_tokens, share)
    else:
        workers = 1  # a GPU's context does not survive in a copy
    batches = batches_by_length(sentences, batch_tokens, batch_size)
    job = _Job(models, sentences, config, prefixes)
    workers = min(workers, len(batches))
    found: Iterable[tuple[int, Answers]] = enumerate(map(job, batches))
    if workers > 1:
        found = in_processes(job, batches, workers)
    results: list[list[Hypothesis]] = [[] for _ in sentences]
    for number, answers in found:
        for i, hypotheses in zip(batches[number], answers, strict=True):
            results[i] = hypotheses
    return results


# E6-search.md: A batch for each core
@dataclass(frozen=True)
class _Job:
    """Translates a batch, given by the places of its sentences."""

    models: list[Transformer]
    sentences: Sequence[Sequence[int]]
    config: SearchConfig
    prefixes: Sequence[Sequence[int]] | None

    def __call__(self, which: list[int]) -> list[list[Hypothesis]]:
        prefixes = self.prefixes and [self.prefixes[i] for i in which]
        sentences = [self.sentences[i] for i in which]
        return beam_search(self.models, sentences, self.config, prefixes)


Batches = list[list[int]]
Answers = list[list[Hypothesis]]
HANGS = 3600.0  # seconds without any answer


class WorkerError(RuntimeError):
    """A process that searches has died, or hangs."""


def in_processes(
    job: Callable[[list[int]], Answers], batches: Batches, workers: int
) -> Iterator[tuple[int, Answers]]:
    """The number of a batch and its answers, as they come. WorkerError
    where a process dies, or none answers within HANGS seconds.
    """
    # as copies of this process, where that is safe: at once
    method = "fork" if sys.platform == "linux" else "spawn"
    context: Any = get_context(method)
    todo = iter(enumerate(batches))
    processes: dict[Any, Any] = {}  # by the line to each
    busy: dict[Any, int] = {}  # the batch that each works at
    try:
        for _ in range(workers):
            line, theirs = context.Pipe()
            busy[line], batch = next(todo)
            line.send(batch)
            processes[line] = context.Process(
                target=_work, args=(job, theirs), daemon=True
            )
            processes[line].start()
            theirs.close()  # so that the line ends with its process
        while busy:
            ready: list[Any] = wait([*busy], timeout=HANGS)
            if not ready:
                raise WorkerError(f"no answer in {HANGS:.0f} seconds")
            for line in ready:
                try:
                    yield busy.pop(line), line.recv()
                    for busy[line], batch in itertools.islice(todo, 1):
                        line.send(batch)
                except (EOFError, OSError):
                    processes[line].join()
                    code = processes[line].exitcode
                    raise WorkerError(
                        f"a process died: exit code {code}"
                    ) from None
    finally:
        for process in processes.values():
            process.kill()
            process.join()


def _work(job: Callable[[list[int]], Answers], line: Connection) -> None:
    """Do what comes down the line, for as long as somebody is there."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    parent = parent_process()
    while parent is not None and parent.is_alive():
        if line.poll(1.0):
            line.send(job(line.recv()))
