"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from annotated.batches import Batch
from annotated.engine.hooks import attention_blocks
from annotated.engine.machine import evaluating
from annotated.model import Transformer
from annotated.pocket import Pair
from annotated.pocket.relations import Links, antecedent, word_links
from annotated.search import SearchConfig, plain_beam_search
from annotated.tokens import BOS, EOS, PAD, UNK, Tokenizer

__all__ = ["head_maps", "Job", "gold_jobs", "Head", "knocked_out", "judge"]


# 25-heads.md: Every head on one sentence
@dataclass(frozen=True)
class _HeadMaps:
    """Attention weights of every head on a sentence and its translation.

    source ends with </s>, target begins with <s>. weights has "encoder"
    (layers, heads, source, source), "decoder" (…, target, target) and
    "cross" (…, target, source); each row is a query and sums to 1.
    """

    source: list[str]
    target: list[str]
    weights: dict[str, NDArray[Any]]


def _known_ids(tokenizer: Tokenizer, line: str) -> list[int]:
    """Ids of space-separated words. Raises ValueError for unknown ones."""
    [ids] = tokenizer.encode([line])
    strange = [w for w, i in zip(line.split(), ids) if i == UNK]
    if strange:
        raise ValueError(f"unknown words: {', '.join(strange)}")
    return ids


def head_maps(
    model: Transformer,
    german: Tokenizer,
    english: Tokenizer,
    source: str,
    target: str | None = None,
) -> _HeadMaps:
    """The attention weights of all heads (Figures 3 to 5) as arrays.

    Words are separated by spaces. target defaults to the model's own
    greedy translation. Raises ValueError for unknown words.
    """
    src = _known_ids(german, source)
    if target is None:
        [best] = plain_beam_search(model, src, SearchConfig(beam=1))
        tgt = best.ids
    else:
        tgt = _known_ids(english, target)
    src, tgt = [*src, EOS], [BOS, *tgt]
    device = next(model.parameters()).device
    with evaluating(model):
        sides = (torch.tensor([x], device=device) for x in (src, tgt))
        maps = model.attention_maps(*sides)
    weights = {}
    for place in ("encoder", "decoder", "cross"):
        layers = [maps[name][0] for name in maps if place in name]
        weights[place] = torch.stack(layers).cpu().numpy()
    return _HeadMaps(german.tokens(src), english.tokens(tgt), weights)


# 25-heads.md: A job, and how well a head does it
_WRITTEN = {  # tags of the German word that is being translated
    "a noun": ("NN", "NE"),
    "a pronoun": ("PPER",),
    "an article or adjective": ("ART", "PDAT", "PPOSAT", "ADJA"),
    "a verb: finite half": ("VVFIN", "VAFIN", "VMFIN"),
    "a verb: other half": ("VVINF", "VVPP", "PTKVZ"),
}


def _gold_links(pair: Pair) -> dict[tuple[str, str], Links]:
    """The links of all possible jobs: {(place, job): {(query, key), …}}.

    Row j of the decoder has read j words and is about to write word j;
    its key 0 is <s>. Source key n, after the n words, is </s>.
    """
    (n, m), aligned = pair.lengths, pair.alignment
    german, english = pair.source_tree.leaves(), pair.target_tree.leaves()
    jobs: dict[tuple[str, str], Links] = {
        ("encoder", "the word itself"): {(i, i) for i in range(n)},
        ("encoder", "the word before"): {(i, i - 1) for i in range(1, n)},
        ("encoder", "the word after"): {(i, i + 1) for i in range(n)},
        ("encoder", "the end"): {(i, n) for i in range(n)},
        ("encoder", "pronoun → whom it means"): antecedent(pair),
        ("decoder", "the word just read"): {(j, j) for j in range(1, m)},
        ("decoder", "the one before"): {(j, j - 1) for j in range(2, m)},
        ("decoder", "the start"): {(j, 0) for j in range(1, m)},
        ("cross", "the same place"): {(j, j) for j in range(min(n, m))},
        ("cross", "the end"): {(j, n) for j in range(m)},
        ("cross", "the word just read"): {(j + 1, i) for i, j in aligned},
        ("cross", "writing any word"): {(j, i) for i, j in aligned},
    }
    for name, links in word_links(german).items():
        jobs["encoder", name] = links
    for name, links in word_links(english).items():
        past = {(a, b + 1) for a, b in links if b < a}
        jobs["decoder", f"writing: {name}"] = past
    for name, labels in _WRITTEN.items():
        links = {(j, i) for i, j in aligned if german[i].label in labels}
        jobs["cross", f"writing {name}"] = links
    return {job: links for job, links in jobs.items() if links}


@dataclass(frozen=True)
class Job:
    """A job that heads may do on given pairs, with baseline scores.

    links (links, 3) holds sentence, query, key; words (words, 2) holds
    sentence and position of the target words that the job helps to write.
    """

    place: str
    name: str
    links: Tensor
    words: Tensor
    uniform: float  # score of a head that attends to all keys equally
    distance: float  # score of the best head with a fixed offset

    @property
    def positional(self) -> bool:
        """Whether a fixed offset alone does the job perfectly."""
        return self.distance == 1.0 or self.name.startswith("the ")

    def score(self, weights: Tensor) -> Tensor:
        """Mean weight on the correct keys: weights (batch, heads, q_len,
        k_len) for the same pairs -> (heads,), from 0 to 1.
        """
        s, q, k = self.links.T
        right = weights[s, :, q, k].sum(dim=0)
        return right / len(self.links[:, :2].unique(dim=0))

    def skill(self, score: float) -> float:
        """1 for a perfect head, 0 for one no better than the baselines."""
        least = self.uniform
        if not self.positional:
            least = max(least, self.distance)
        return (score - least) / (1 - least)


def gold_jobs(pairs: Sequence[Pair]) -> list[Job]:
    """All jobs that occur in these pairs."""
    links: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    helped: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for s, pair in enumerate(pairs):
        for job, found in _gold_links(pair).items():
            links.setdefault(job, []).extend((s, *x) for x in found)
            here = {q for q, _ in found}
            if job[0] == "encoder":  # the translations of its words
                here = {j for i, j in pair.alignment if i in here}
            helped.setdefault(job, set()).update((s, j) for j in here)
    jobs = []
    for (place, name), rows in links.items():
        count = len({row[:2] for row in rows})
        keys = [pairs[s].lengths[0] + 1 for s, _, _ in rows]
        if place == "decoder":
            keys = [q + 1 for _, q, _ in rows]
        steps = Counter(k - q for _, q, k in rows)
        jobs.append(Job(
            place, name, torch.tensor(rows),
            torch.tensor(sorted(helped[place, name])),
            uniform=sum(1 / n for n in keys) / count,
            distance=max(steps.values()) / count,
        ))  # fmt: skip
    return jobs


# 25-heads.md: Take the head away
Head = tuple[str, int]  # name in attention_blocks, index from 0


@contextmanager
def knocked_out(
    model: Transformer, heads: Collection[Head], evenly: bool = False
) -> Iterator[None]:
    """Context manager that silences heads by zeroing their part of the
    input of W^O or, if evenly, makes them attend to all keys equally by
    zeroing their queries. Raises ValueError if a head does not exist.
    """
    blocks = attention_blocks(model)
    with ExitStack() as stack:
        for name, number in heads:
            block = blocks.get(name)
            if block is None or number not in range(block.num_heads):
                raise ValueError(f"there is no head {number} in {name!r}")
            hook = partial(_erase, block.num_heads, number)
            if evenly:
                handle = block.w_q.register_forward_hook(hook)
            else:
                handle = block.w_o.register_forward_pre_hook(hook)
            stack.callback(handle.remove)
        yield


def _erase(
    heads: int, number: int, layer: Any, args: Any, output: Any = None
) -> Tensor:
    """A layer's input, or its output if given, with one head zeroed."""
    x = args[0] if output is None else output
    parts = x.unflatten(-1, (heads, -1)).clone()
    parts[..., number, :] = 0.0
    return parts.flatten(-2)


def judge(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor]:
    """How well a model predicts the reference translations of a batch.

    Returns (batch,), whether greedy search would write the reference
    exactly, and (batch, tgt_len), the loss of each of its tokens in nats,
    0 for padding.
    """
    with evaluating(model):
        logits = model(batch.src, batch.tgt)
    wrong = (logits.argmax(dim=-1) != batch.labels) & (batch.labels != PAD)
    nats = F.cross_entropy(
        logits.transpose(1, 2),
        batch.labels,
        ignore_index=PAD,
        reduction="none",
    )
    return ~wrong.any(dim=1), nats
