"""Exported from the book; edit the chapter, then run `make export`."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from annotated.batches import Corpus, Sentences
from annotated.corpora.pairs import columns_of
from annotated.corpora.prepare import encode_sides
from annotated.corpora.sentencepieces import SentencePieces
from annotated.engine.errors import DataError
from annotated.engine.machine import evaluating
from annotated.engine.micro import PackedBatch
from annotated.engine.packing import PackedTransformer, check_parts
from annotated.engine.tensors import check_numbers
from annotated.model import Transformer
from annotated.search import alignment, length_penalty, log_probabilities
from annotated.tokens import EOS, SPECIALS, UNK, Tokenizer

__all__ = ["ForcedScore", "forced_scores", "word_alignment"]


# E35-beside-a-score.md: How probable is a translation?
_BATCH_TOKENS = {"cpu": 2000}  # on either side; on a GPU 32,000
_LOGITS = 2**24  # logits in memory at a time
_MOST = 4096  # tokens of a side, however far the positions reach


@dataclass(frozen=True)
class ForcedScore:
    """What models say of a translation that exists: of each of its tokens,
    EOS included, and of all; score is Hypothesis.score.
    """

    ids: list[int]
    log_p: list[float]
    log_probability: float
    score: float


def forced_scores(
    models: Sequence[Transformer],
    tokenizers: tuple[Tokenizer, Tokenizer],
    pairs: Sequence[tuple[str, str]],
    alpha: float,
    batch_tokens: int | None = None,
    first: int = 1,
) -> list[ForcedScore]:
    """How probable models that vote find the target of each pair, given
    its source; in order. Two blank lines have the score 0. DataError for
    a side with too many tokens, which first, the number of the first
    pair, helps to name; RunError for a packed model with changed parts.
    """
    for model in models:
        if isinstance(model, PackedTransformer):
            check_parts(model, hooks=True, narrow=True)
    sides = encode_sides(tokenizers, columns_of(pairs))
    _check_lengths(models, sides, first)
    corpus = Corpus(*map(Sentences.of, sides))
    device = next(models[0].parameters()).device.type
    most = batch_tokens or _BATCH_TOKENS.get(device, 32_000)
    found: list[list[float]] = [[] for _ in pairs]
    with ExitStack() as stack:
        for model in models:
            stack.enter_context(evaluating(model))
        for which in corpus.plan(most, seed=0, epoch=0):
            log_p = _label_log_p(models, PackedBatch.read(corpus, which))
            ends = corpus.tgt.lengths[which] + 1  # EOS, too
            rows = log_p.split(ends.tolist())
            for i, row in zip(which.tolist(), rows, strict=True):
                found[i] = row.tolist()
    return [
        _forced([*ids, EOS], log_p, alpha)
        if any(side.strip() for side in pair)
        else ForcedScore([], [], 0.0, 0.0)
        for pair, ids, log_p in zip(pairs, sides[1], found, strict=True)
    ]


def _forced(
    ids: list[int], log_p: list[float], alpha: float
) -> ForcedScore:
    total = math.fsum(log_p)
    penalty = length_penalty(len(ids), alpha)
    return ForcedScore(ids, log_p, total, total / penalty)


def _label_log_p(
    models: Sequence[Transformer], batch: PackedBatch
) -> Tensor:
    """The log of the mean of the models' probabilities of each label,
    (tokens,), sentence by sentence, on the CPU. RunError where one is no
    number.
    """
    batch = batch.to(next(models[0].parameters()).device)
    labels = batch.target.pack(batch.labels)
    each = torch.stack([_of_model(m, batch, labels) for m in models])
    log_p = each.logsumexp(dim=0) - math.log(len(each))
    check_numbers(log_p)
    return log_p.cpu()


def _of_model(
    model: Transformer, batch: PackedBatch, labels: Tensor
) -> Tensor:
    """log p of each label, (tokens,), by one model."""
    if not isinstance(model, PackedTransformer):
        logits = batch.target.pack(model(batch.src, batch.tgt))
        return _chosen(logits, labels)
    x, _ = model.hidden(batch.src, batch.tgt, batch.source, batch.target)
    some = max(1, _LOGITS // model.config.tgt_vocab)
    parts = zip(x.split(some), labels.split(some))
    logits_of = model.embeddings.logits
    return torch.cat([_chosen(logits_of(part), ids) for part, ids in parts])


def _chosen(logits: Tensor, labels: Tensor) -> Tensor:
    """log p of labels (tokens,), from logits (tokens, vocab)."""
    return log_probabilities(logits).gather(1, labels[:, None])[:, 0]


def _check_lengths(
    models: Sequence[Transformer],
    sides: tuple[list[list[int]], list[list[int]]],
    first: int,
) -> None:
    """DataError, with the pair, for a side that is too long."""
    reach = [
        model.config.max_len
        for model in models
        if model.config.positions == "learned"
    ]
    most = min([*reach, _MOST + 1]) - 1  # EOS or BOS takes a place
    for name, side in zip(("source", "target"), sides):
        for i, ids in enumerate(side, start=first):
            if len(ids) > most:
                raise DataError(
                    f"pair {i}: its {name} has {len(ids):,} tokens, but at "
                    f"most {most:,} can be scored: leave it out, or cut it"
                )


# E35-beside-a-score.md: Which word comes from which?
_ALIGNED = 1024  # its maps take memory by the square of the length


def word_alignment(
    models: Sequence[Transformer],
    tokenizers: tuple[Tokenizer, Tokenizer],
    src: str,
    tgt: str,
) -> list[tuple[int, int]]:
    """For each word of tgt the word of src at which the last decoder
    layer looks most while it writes it: (source, target), both from 0 and
    separated by spaces, a tag not counted. Empty where a line is blank, or
    has _ALIGNED tokens or more, or as many as learned positions reach.
    """
    [source], [target] = encode_sides(tokenizers, ([src], [tgt]))
    reach = [
        m.config.max_len for m in models if m.config.positions == "learned"
    ]
    if max(len(source), len(target)) >= min([*reach, _ALIGNED]):
        return []
    rows = _words_of(tokenizers[1], target)
    columns = _words_of(tokenizers[0], source)
    if max(rows, default=-1) < 0 or max(columns, default=-1) < 0:
        return []
    each = [alignment(m, source, target)[-1].mean(dim=0) for m in models]
    weights = torch.stack(each).mean(dim=0)[:-1, :-1]  # without EOS
    looks = _one_hot(rows).T @ weights.cpu().float() @ _one_hot(columns)
    best = looks.argmax(dim=1).tolist()
    return [(i, j) for j, i in enumerate(best)]


def _one_hot(words: Sequence[int]) -> Tensor:
    """(tokens, words): 1 where a token belongs to a word."""
    each = torch.arange(max(words) + 1)
    return (torch.tensor(words)[:, None] == each).float()


def _words_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """The number of the word to which each token belongs; -1 before the
    first.
    """
    if UNK in ids:  # has no text; a word, or in sentence pieces a part
        words = 2 - isinstance(tokenizer, SentencePieces)
        known = range(len(SPECIALS), len(tokenizer))
        twice = ((i, tokenizer.decode([[i, i]])[0].split()) for i in known)
        like = next(i for i, text in twice if len(text) == words)
        ids = [like if i == UNK else i for i in ids]
    begun = tokenizer.decode([ids[: i + 1] for i in range(len(ids))])
    return [len(text.split()) - 1 for text in begun]
