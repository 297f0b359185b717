"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from annotated.corpora.sentencepieces import vocabulary
from annotated.corpora.treebanks import reads
from annotated.engine.constraints import Allowed, Guide
from annotated.engine.runs import Run
from annotated.parsing import (
    Bracketing,
    brackets,
    compare_all,
    compare_trees,
    linearise,
    tree_over,
)
from annotated.pocket.trees import Tree
from annotated.search import SearchConfig
from annotated.tokens import EOS, PAD, SPECIALS

__all__ = [
    "tree_scores", "levels", "f1_by", "recall_by_label", "tree_guide",
    "parse_lines", "OnlyTrees",
]  # fmt: skip


# E18-treebanks.md: Parsing, and how good it is
def tree_scores(
    sentences: Sequence[str], guesses: Sequence[str], gold: Sequence[str]
) -> dict[str, Any]:
    """Bracketing scores of linearised trees, guesses against gold, one per
    sentence (§6.3), in percent. repaired counts outputs that were not
    trees over the words.

    A guessed tree gets the gold tree's tags, so that the same punctuation
    is left out of both.
    """
    ours, theirs, repaired = [], [], 0
    for words, guess, right in zip(sentences, guesses, gold, strict=True):
        tree = tree_over(words.split(), guess.split())
        repaired += linearise(tree)[1:-1] != guess.split()
        theirs.append(tree_over(words.split(), right.split()))
        ours.append(tree.over(iter(theirs[-1].leaves())) or tree)
    total = compare_all(theirs, ours)
    exact = total.exact / max(1, total.sentences)
    return {
        "f1": round(total.f1, 2),
        "precision": round(total.precision, 2),
        "recall": round(total.recall, 2),
        "exact_match": round(100 * exact, 2),
        "sentences": total.sentences,
        "errors": total.errors,
        "repaired": repaired,
    }


def levels(tree: Tree) -> int:
    """The depth of a tree in nodes, including the leaf."""
    deepest = depth = 1
    for mark, _ in tree.walk():
        depth += {"(": 1, "": 0, ")": -1}[mark]
        deepest = max(deepest, depth)
    return deepest


def f1_by(
    gold: Sequence[Tree],
    guesses: Sequence[Tree],
    key: Callable[[Tree], int],
    steps: Sequence[int],
) -> list[tuple[str, float]]:
    """F1 of the sentences whose gold tree has a key from one step up to,
    but not including, the next, for each such range.
    """
    rows = []
    for low, high in itertools.pairwise(steps):
        pairs = zip(gold, guesses, strict=True)
        chosen = [pair for pair in pairs if low <= key(pair[0]) < high]
        total = sum((compare_trees(*pair) for pair in chosen), Bracketing())
        rows.append((f"{low}–{high - 1}", total.f1))
    return rows


def recall_by_label(
    gold: Sequence[Tree], guesses: Sequence[Tree], least: int = 50
) -> list[tuple[str, float]]:
    """Recall, in percent, of every label that gold has least times or
    more, worst first.
    """
    counts, recalled = Counter[str](), Counter[str]()
    for tree, guess in zip(gold, guesses, strict=True):
        right = brackets(tree)
        both = right & brackets(guess)
        counts.update(label for label, *_ in right.elements())
        recalled.update(label for label, *_ in both.elements())
    rows = [
        (label, 100 * recalled[label] / count)
        for label, count in counts.items()
        if count >= least
    ]
    return sorted(rows, key=lambda row: row[1])


def tree_guide(run: Run) -> Guide | None:
    """A guide that lets a parsing run write only trees, else None."""
    if run.recipe.target != "tree":
        return None
    return OnlyTrees(tuple(vocabulary(run.target)))


def parse_lines(
    run: Run, lines: Sequence[str], search: SearchConfig, workers: int = 1
) -> list[Tree | None]:
    """Parse each line into a tree over its words, None for a blank line.
    Raises RunError if a worker dies.
    """
    known = set(run.source.inner.get_vocab())
    sentences = [_escaped(line).split() for line in lines]
    outputs = run.translate(
        [reads(words, known) for words in sentences],
        search,
        workers=workers,
        guide=tree_guide(run),
    )
    return [
        tree_over(words, best[0].text.split()) if words else None
        for words, best in zip(sentences, outputs, strict=True)
    ]


def _escaped(text: str) -> str:
    """Write brackets that are words as -LRB- and -RRB-, as treebanks do."""
    return text.replace("(", "-LRB-").replace(")", "-RRB-")


# E18-treebanks.md: Trees and nothing else
@dataclass(frozen=True)
class OnlyTrees:
    """A guide that lets a search write only trees over the words of its
    sentence. An object, so that it can be sent to another process.
    """

    names: Sequence[str]  # of the output tokens, by id

    def __call__(
        self, sentences: Sequence[Sequence[int]], device: torch.device
    ) -> Allowed:
        ids_of = {name: i for i, name in enumerate(self.names)}
        kinds = [
            n[0] if n[0] in "()" else n in SPECIALS for n in self.names
        ]
        partners = [ids_of.get(f"){name[1:]}", PAD) for name in self.names]
        opens, closes, tags = (
            torch.tensor([k == kind for k in kinds], device=device)
            for kind in ("(", ")", False)
        )
        partner = torch.tensor(partners, device=device)
        words = torch.tensor([len(s) for s in sentences], device=device)

        def allowed(ids: Tensor, number: Tensor) -> Tensor:
            left = words[number, None] - tags[ids].sum(dim=2)
            depth = (opens[ids].long() - closes[ids].long()).cumsum(dim=2)
            now = depth[:, :, -1:]
            level = opens[ids] & (depth == now)
            last = level * torch.arange(ids.size(2), device=device)
            inner = ids.gather(2, last.argmax(dim=2, keepdim=True))
            may = (left > 0)[:, :, None] & (opens | tags)
            closing = (now > 0) & ~opens[ids[:, :, -1:]]
            may.scatter_(2, partner[inner], closing)
            may[:, :, EOS] = (left == 0) & (now[:, :, 0] == 0)
            return may

        return allowed
