"""annotated.search.

Exported from the book; edit the chapter, then run `make export`.

- 15-search.md: Search
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from annotated.engine.machine import evaluating
from annotated.layers import DecoderLayer
from annotated.model import Transformer
from annotated.tokens import BOS, EOS, PAD

__all__ = [
    "length_penalty",
    "SearchConfig",
    "Hypothesis",
    "output_limit",
    "Models",
    "greedy_search",
    "plain_beam_search",
    "alignment",
]


# 15-search.md: Long sentences pay for every word
def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)^alpha, where length counts EOS (§6.1)."""
    return ((5 + length) / 6) ** alpha


@dataclass(frozen=True)
class SearchConfig:
    """The search of §6.1: beam 4, α 0.6, at most source + 50 tokens.

    A beam of 1 is greedy search. nbest is how many hypotheses to give
    back, at most beam; limit, where given, the most tokens of any output,
    its end counted. ValueError names a wrong field.
    """

    beam: int = 4  # hypotheses that search keeps
    alpha: float = 0.6  # exponent of the length penalty
    extra: int = 50  # tokens that a translation may be longer by
    nbest: int = 1  # hypotheses to give back
    limit: int | None = None  # tokens of any output, at most

    def __post_init__(self) -> None:
        for name in ("beam", "extra", "nbest", "limit"):
            value = getattr(self, name)
            if name == "limit" and value is None:
                continue
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
    limit = min(length + config.extra, config.limit or math.inf)
    if model.config.positions == "learned":
        limit = min(limit, model.config.max_len)
    return int(limit)


# 15-search.md: Thirty lines
Models = Transformer | Sequence[Transformer]


def _several(models: Models) -> list[Transformer]:
    return list(models) if isinstance(models, Sequence) else [models]


@contextmanager
def _evaluating(models: list[Transformer]) -> Iterator[None]:
    with ExitStack() as stack:
        for model in models:
            stack.enter_context(evaluating(model))
        yield


def _mean_log_p(logits: list[Tensor]) -> Tensor:
    """The logits of each model, (…, vocab) -> the logarithm of the mean of
    their probabilities.
    """
    each = [x.float().log_softmax(dim=-1) for x in logits]
    if len(each) == 1:
        return each[0]
    return torch.stack(each).logsumexp(dim=0) - math.log(len(each))


def _next_log_p(
    models: list[Transformer], source: Tensor, ids: list[int]
) -> Tensor:
    """The log-probability of each token after ids: (vocab,)."""
    tgt = torch.tensor([ids], device=source.device)
    log_p = _mean_log_p([model(source, tgt)[0, -1] for model in models])
    log_p[[PAD, BOS]] = -math.inf
    return log_p


def _only(log_p: Tensor, token: int) -> Tensor:
    """log_p (…, vocab), with no chance for any token but one."""
    rest = torch.full_like(log_p, -math.inf)
    rest[..., token] = log_p[..., token]
    return rest


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


def greedy_search(
    model: Models,
    src: Sequence[int],
    config: SearchConfig,
    prefix: Sequence[int] = (),
) -> Hypothesis:
    """The likeliest token, again and again, until it is EOS.

    src is without EOS. Where the limit comes first, EOS is put there.
    """
    models = _several(model)
    device = next(models[0].parameters()).device
    source = torch.tensor([[*src, EOS]], device=device)
    limit = _limit(models, src, config, prefix)
    ids, total = [BOS], 0.0
    with _evaluating(models):
        for length in range(1, limit + 1):
            log_p = _next_log_p(models, source, ids)
            token = int(log_p.argmax()) if length < limit else EOS
            if length <= len(prefix):
                token = prefix[length - 1]
            total += log_p[token].item()
            if token == EOS:
                break
            ids.append(token)
    score = total / length_penalty(length, config.alpha)
    return Hypothesis(ids[1:], total, score)


def plain_beam_search(
    model: Models,
    src: Sequence[int],
    config: SearchConfig,
    prefix: Sequence[int] = (),
) -> list[Hypothesis]:
    """Beam search for one sentence, the whole model run at every step.

    The meaning of search, written to be read: the fast one must agree.
    src is without EOS. The best hypothesis comes first.
    """
    if config.beam == 1:
        return [greedy_search(model, src, config, prefix)]
    models = _several(model)
    device = next(models[0].parameters()).device
    source = torch.tensor([[*src, EOS]], device=device)
    limit = _limit(models, src, config, prefix)
    alive, ended = [([BOS], 0.0)], []
    with _evaluating(models):
        for length in range(1, limit + 1):
            grown = []
            for ids, so_far in alive:
                log_p = _next_log_p(models, source, ids)
                if length <= len(prefix):
                    log_p = _only(log_p, prefix[length - 1])
                if length == limit:
                    log_p = _only(log_p, EOS)
                most = min(2 * config.beam, len(log_p))
                for token in log_p.topk(most)[1].tolist():
                    total = so_far + log_p[token].item()
                    grown.append(([*ids, token], total))
            grown = sorted(grown, key=lambda h: -h[1])[: 2 * config.beam]
            penalty = length_penalty(length, config.alpha)
            for ids, total in grown:
                if ids[-1] == EOS:
                    score = total / penalty
                    ended.append(Hypothesis(ids[1:-1], total, score))
            ended = sorted(ended, key=lambda h: -h.score)[: config.nbest]
            alive = [h for h in grown if h[0][-1] != EOS][: config.beam]
            alive = [h for h in alive if h[1] > -math.inf]
            # log-probabilities only fall: what no length could save is lost
            hope = max((total for _, total in alive), default=-math.inf)
            hope /= length_penalty(limit, config.alpha)
            if len(ended) == config.nbest and ended[-1].score >= hope:
                break
    return [h for h in ended if h.score > -math.inf]


# 15-search.md: Remembering
def _layers(model: Transformer) -> list[DecoderLayer]:
    return cast("list[DecoderLayer]", list(model.decoder.layers))


# 15-search.md: A beginning, a committee, a look
def alignment(
    model: Transformer, src: Sequence[int], ids: Sequence[int]
) -> Tensor:
    """How much each token of an output looked at each of its source:
    (layers, heads, len(ids) + 1, len(src) + 1), with EOS last in both.
    """
    device = next(model.parameters()).device
    source = torch.tensor([[*src, EOS]], device=device)
    target = torch.tensor([[BOS, *ids]], device=device)
    with evaluating(model):
        maps = model.attention_maps(source, target)
    layers = range(len(_layers(model)))
    return torch.stack([maps[f"cross.{i}"][0] for i in layers])
