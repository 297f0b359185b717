"""annotated.decoding.

Exported from the book; edit the chapter, then run `make export`.

- 15-search.md: Search
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from annotated.attention import MultiHeadAttention, attend
from annotated.batches import pad_rows
from annotated.layers import DecoderLayer
from annotated.masks import Packing
from annotated.model import Transformer
from annotated.tokens import BOS, EOS, PAD
from annotated.training import evaluating

__all__ = [
    "length_penalty",
    "SearchConfig",
    "Hypothesis",
    "output_limit",
    "greedy_search",
    "plain_beam_search",
    "beam_search",
    "search_in_order",
]


# 15-search.md: Long sentences pay for every word
def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)^alpha, where length counts EOS (§6.1)."""
    return ((5 + length) / 6) ** alpha


@dataclass(frozen=True)
class SearchConfig:
    """The search of §6.1: beam 4, α 0.6, at most source + 50 tokens.

    A beam of 1 is greedy search. nbest is how many hypotheses to give
    back, at most beam. ValueError names a wrong field.
    """

    beam: int = 4
    alpha: float = 0.6
    extra: int = 50
    nbest: int = 1

    def __post_init__(self) -> None:
        for name in ("beam", "extra", "nbest"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(
                    f"{name} must be a whole number, at least 1, "
                    f"not {value!r}"
                )
        if self.nbest > self.beam:
            raise ValueError(
                f"nbest {self.nbest} is more than beam {self.beam}"
            )
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"alpha must be 0 or more, not {self.alpha!r}")


@dataclass(frozen=True)
class Hypothesis:
    """A translation: its tokens without EOS, the log-probability of them
    and EOS, and that divided by the length penalty.
    """

    ids: list[int]
    log_probability: float
    score: float


def output_limit(
    model: Transformer, length: int, config: SearchConfig
) -> int:
    """How many tokens, EOS counted, may answer length source tokens.

    Learned positions end at max_len, and so does the output.
    """
    limit = length + config.extra
    if model.config.positions == "learned":
        limit = min(limit, model.config.max_len)
    return limit


# 15-search.md: Thirty lines
def _next_log_p(
    model: Transformer, source: Tensor, ids: list[int]
) -> Tensor:
    """The log-probability of each token after ids: (vocab,)."""
    logits = model(source, torch.tensor([ids], device=source.device))
    log_p = logits[0, -1].float().log_softmax(dim=-1)
    log_p[[PAD, BOS]] = -math.inf
    return log_p


def greedy_search(
    model: Transformer, src: Sequence[int], config: SearchConfig
) -> Hypothesis:
    """The likeliest token, again and again, until it is EOS.

    src is without EOS. Where the limit comes first, EOS is put there.
    """
    device = next(model.parameters()).device
    source = torch.tensor([[*src, EOS]], device=device)
    limit = output_limit(model, len(src), config)
    ids, total = [BOS], 0.0
    with evaluating(model):
        for length in range(1, limit + 1):
            log_p = _next_log_p(model, source, ids)
            token = int(log_p.argmax()) if length < limit else EOS
            total += log_p[token].item()
            if token == EOS:
                break
            ids.append(token)
    score = total / length_penalty(length, config.alpha)
    return Hypothesis(ids[1:], total, score)


def plain_beam_search(
    model: Transformer, src: Sequence[int], config: SearchConfig
) -> list[Hypothesis]:
    """Beam search for one sentence, the whole model run at every step.

    The meaning of search, written to be read: the fast one must agree.
    src is without EOS. The best hypothesis comes first.
    """
    if config.beam == 1:
        return [greedy_search(model, src, config)]
    device = next(model.parameters()).device
    source = torch.tensor([[*src, EOS]], device=device)
    limit = output_limit(model, len(src), config)
    alive, ended = [([BOS], 0.0)], []
    with evaluating(model):
        for length in range(1, limit + 1):
            longer = []
            penalty = length_penalty(length, config.alpha)
            for ids, so_far in alive:
                log_p = _next_log_p(model, source, ids)
                total = so_far + log_p[EOS].item()
                ended.append(Hypothesis(ids[1:], total, total / penalty))
                log_p[EOS] = -math.inf
                for token in log_p.topk(min(config.beam, len(log_p)))[1]:
                    total = so_far + log_p[token].item()
                    longer.append(([*ids, int(token)], total))
            alive = sorted(longer, key=lambda h: -h[1])[: config.beam]
            alive = [h for h in alive if h[1] > -math.inf]
            ended = sorted(ended, key=lambda h: -h.score)[: config.nbest]
            # log-probabilities only fall: what no length could save is lost
            hope = max((total for _, total in alive), default=-math.inf)
            hope /= length_penalty(limit, config.alpha)
            if len(ended) == config.nbest and ended[-1].score >= hope:
                break
    return [h for h in ended if h.score > -math.inf]


# 15-search.md: Remembering
def _layers(model: Transformer) -> list[DecoderLayer]:
    return cast("list[DecoderLayer]", list(model.decoder.layers))


class _Memory:
    """What the decoder keeps between steps: keys and values, of the source
    once a sentence, of the target once a row and position.
    """

    def __init__(
        self, model: Transformer, src: Tensor, beam: int, length: int
    ):
        packing = Packing.of(src != PAD)
        memory = packing.pack(model.encode(src))
        self.mask = packing.mask
        self.source: list[tuple[Tensor, Tensor]] = []
        self.target: list[tuple[Tensor, Tensor]] = []
        for layer in _layers(model):
            cross, own = layer.cross_attention, layer.attention
            pair = cross.keys_values(memory)
            k, v = (cross.split(packing.pad(x)).contiguous() for x in pair)
            self.source.append((k, v))
            room = (len(src) * beam, own.num_heads, length)
            self.target.append(
                (k.new_empty(*room, own.d_k), k.new_empty(*room, own.d_v))
            )

    def reorder(self, rows: Tensor, length: int) -> None:
        """Row i goes on from the first length positions of rows[i]."""
        for pair in self.target:
            for cache in pair:
                used = cache[:, :, :length]
                used.copy_(used.index_select(0, rows))

    def keep(self, sentences: Tensor, rows: Tensor) -> None:
        """Forget all but these sentences, and all but these rows."""
        if self.mask is not None:
            self.mask = self.mask[sentences]
        self.source = [(k[sentences], v[sentences]) for k, v in self.source]
        self.target = [(k[rows], v[rows]) for k, v in self.target]


def _next_logits(
    model: Transformer, ids: Tensor, step: int, memory: _Memory
) -> Tensor:
    """ids (batch · beam,), the token at position step -> (batch · beam,
    vocab): the logits of the one after it.
    """
    place = torch.full_like(ids, step)
    x = model.embeddings.read_target(ids)
    x = x + model.tgt_positions(place, step + 1)
    for layer, own, source in zip(
        _layers(model), memory.target, memory.source, strict=True
    ):
        x = _layer_step(
            layer, x, step, model.config.window, own, source, memory.mask
        )
    return model.embeddings.logits(model.decoder.norm(x))


def _layer_step(
    layer: DecoderLayer,
    x: Tensor,
    step: int,
    window: int | None,
    own: tuple[Tensor, Tensor],
    source: tuple[Tensor, Tensor],
    mask: Tensor | None,
) -> Tensor:
    """One position through a decoder layer: (rows, d_model), the same."""
    x = layer.around_attention(
        x, lambda x: _look_back(layer.attention, x, step, window, own)
    )
    x = layer.around_cross_attention(
        x, lambda x: _look_across(layer.cross_attention, x, source, mask)
    )
    return layer.around_feed_forward(x, layer.feed_forward)


def _look_back(
    attention: MultiHeadAttention,
    x: Tensor,
    step: int,
    window: int | None,
    cache: tuple[Tensor, Tensor],
) -> Tensor:
    """Self-attention of position step over the cache, which it joins."""
    q, k, v = attention.projection(x).split(attention.sizes, dim=-1)
    heads = (attention.num_heads, -1)
    keys, values = cache
    keys[:, :, step] = k.unflatten(-1, heads)
    values[:, :, step] = v.unflatten(-1, heads)
    first = 0 if window is None else max(0, step - window // 2)
    seen = slice(first, step + 1)
    q = q.unflatten(-1, heads)[:, :, None]  # (rows, heads, 1, d_k)
    mixed = attend(q, keys[:, :, seen], values[:, :, seen])
    return attention.output(mixed.flatten(1))


def _look_across(
    attention: MultiHeadAttention,
    x: Tensor,
    source: tuple[Tensor, Tensor],
    mask: Tensor | None,
) -> Tensor:
    """Attention over the source: a sentence's beams are its queries, so
    its keys and values are kept once.
    """
    keys, values = source
    q = attention.queries(x).unflatten(0, (len(keys), -1))
    # (batch, heads, beam, d_k) by (batch, heads, src_len, d_k)
    mixed = attend(attention.split(q), keys, values, mask)
    return attention.output(mixed.transpose(1, 2).flatten(2).flatten(0, 1))


# 15-search.md: The fast search
def beam_search(
    model: Transformer,
    sentences: Sequence[Sequence[int]],
    config: SearchConfig = SearchConfig(),
) -> list[list[Hypothesis]]:
    """Beam search for a batch of sentences (§6.1), each without EOS.

    For each sentence its nbest hypotheses, the best first: those of
    plain_beam_search.
    """
    if not len(sentences):
        return []
    with evaluating(model):
        search = _Search(model, sentences, config)
        while search.step():
            pass
    return search.results


class _Search:
    """A beam search under way, for the sentences that are not done."""

    def __init__(
        self,
        model: Transformer,
        sentences: Sequence[Sequence[int]],
        config: SearchConfig,
    ):
        device = next(model.parameters()).device
        self.model, self.config = model, config
        src = pad_rows([np.asarray(s) for s in sentences], after=EOS)
        batch, beam = len(sentences), config.beam
        limits = [output_limit(model, len(s), config) for s in sentences]
        self.limits = torch.tensor(limits, device=device)
        self.memory = _Memory(model, src.to(device), beam, max(limits))
        # (batch, beam): log-probability of each hypothesis that lives; at
        # first all are the empty one, and one of it is enough
        self.scores = torch.full((batch, beam), -math.inf, device=device)
        self.scores[:, 0] = 0.0
        self.ids = torch.full(
            (batch, beam, max(limits) + 1), PAD, device=device
        )
        self.ids[:, :, 0] = BOS
        # the nbest that have ended, the best first
        self.ended = self.scores.new_full((batch, config.nbest), -math.inf)
        self.ended_ids = self.ids[:, : config.nbest].clone()
        self.left = torch.arange(batch, device=device)
        self.results: list[list[Hypothesis]] = [[] for _ in sentences]
        self.length = 0

    def step(self) -> bool:
        """Add a token to every hypothesis; False when all are done."""
        ids = self.ids[:, :, self.length].flatten()
        logits = _next_logits(self.model, ids, self.length, self.memory)
        self.length += 1
        log_p = logits.float().log_softmax(dim=-1)
        log_p[:, [PAD, BOS]] = -math.inf
        log_p = log_p.unflatten(0, self.scores.shape)
        self._end(log_p)
        self._extend(log_p)
        return self._retire()

    def _end(self, log_p: Tensor) -> None:
        """End every hypothesis here, and keep the best: log_p is (batch,
        beam, vocab). A greedy one ends where EOS is likeliest.
        """
        totals = self.scores + log_p[:, :, EOS]
        if self.config.beam == 1:
            goes_on = log_p[:, :, EOS] < log_p.amax(dim=-1)
            goes_on &= (self.length < self.limits)[:, None]
            totals = totals.masked_fill(goes_on, -math.inf)
        penalty = length_penalty(self.length, self.config.alpha)
        scores = torch.cat([self.ended, totals / penalty], dim=1)
        ids = torch.cat([self.ended_ids, self.ids], dim=1)
        self.ended, best = scores.topk(self.config.nbest, dim=1)
        rows = best[:, :, None].expand(-1, -1, ids.size(2))
        self.ended_ids = ids.gather(1, rows)

    def _extend(self, log_p: Tensor) -> None:
        """Go on with the beam best continuations of each sentence."""
        batch, beam, vocab = log_p.shape
        log_p[:, :, EOS] = -math.inf
        totals = (self.scores[:, :, None] + log_p).flatten(1)
        self.scores, best = totals.topk(beam, dim=1)
        parent, token = best // vocab, best % vocab
        if beam > 1:
            first = torch.arange(batch, device=best.device)[:, None] * beam
            rows = (first + parent).flatten()
            self.ids = self.ids.flatten(0, 1)[rows]
            self.ids = self.ids.unflatten(0, (batch, beam))
            self.memory.reorder(rows, self.length)
        self.ids[:, :, self.length] = token

    def _retire(self) -> bool:
        """Take out the sentences that nothing alive can improve."""
        if self.config.beam == 1:
            done = self.ended[:, 0] > -math.inf
        else:
            # log-probabilities only fall: what no length could save is lost
            penalty = ((5 + self.limits) / 6) ** self.config.alpha
            done = self.ended[:, -1] >= self.scores[:, 0] / penalty
            done |= self.limits <= self.length
        if not done.any():
            return True
        for i in done.nonzero().squeeze(1).tolist():
            self.results[int(self.left[i])] = self._hypotheses(i)
        keep = (~done).nonzero().squeeze(1)
        beam = self.config.beam
        places = torch.arange(beam, device=keep.device)
        rows = keep[:, None] * beam + places
        self.memory.keep(keep, rows.flatten())
        state = ("limits", "scores", "ids", "ended", "ended_ids", "left")
        for name in state:
            setattr(self, name, getattr(self, name)[keep])
        return len(keep) > 0

    def _hypotheses(self, i: int) -> list[Hypothesis]:
        found = []
        for score, ids in zip(
            self.ended[i].tolist(), self.ended_ids[i].tolist(), strict=True
        ):
            if score == -math.inf:
                continue  # a beam wider than the language
            ids = ids[1:]
            ids = ids[: ids.index(PAD)] if PAD in ids else ids
            total = score * length_penalty(len(ids) + 1, self.config.alpha)
            found.append(Hypothesis(ids, total, score))
        return found


def search_in_order(
    model: Transformer,
    sentences: Sequence[Sequence[int]],
    config: SearchConfig = SearchConfig(),
    batch_tokens: int = 2000,
) -> list[list[Hypothesis]]:
    """beam_search for any number of sentences, batched by like length:
    at most batch_tokens source tokens at once. Results in the order given.
    """
    order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
    results: list[list[Hypothesis]] = [[] for _ in sentences]
    while order:
        widest = len(sentences[order[0]]) + 1
        now = order[: max(1, batch_tokens // widest)]
        order = order[len(now) :]
        found = beam_search(model, [sentences[i] for i in now], config)
        for i, hypotheses in zip(now, found, strict=True):
            results[i] = hypotheses
    return results
