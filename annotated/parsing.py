"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from annotated.pocket.trees import Tree, leaf, node

__all__ = [
    "linearise", "without_tags", "tree_over", "SKIPPED", "brackets", "bare",
    "Bracketing", "compare_trees", "compare_all", "right_branching",
    "TABLE4",
]  # fmt: skip


# 24-parsing.md: From a tree to tokens
def linearise(tree: Tree) -> list[str]:
    """A tree as a sequence of brackets and tags (§6.3): (NP DT NN )NP.

    The words are left out, since the input has them in the same order.
    """
    return [mark + part.label for mark, part in tree.walk()]


_PUNCTUATION = frozenset([",", ":", "``", "''", "."])  # tags, not words


def without_tags(tree: Tree) -> Tree:
    """A copy of tree with every tag replaced by XX, except those of
    punctuation, as in Vinyals et al. (2015).
    """
    leaves = [
        tag if tag.label in _PUNCTUATION else tag._replace(label="XX")
        for tag in tree.leaves()
    ]
    return tree.over(iter(leaves)) or tree


# 24-parsing.md: And back, whatever comes
def tree_over(words: Sequence[str], tokens: Iterable[str]) -> Tree:
    """Build a tree over words from any sequence of tokens.

    A closing bracket also closes every bracket opened after its partner.
    Closing brackets without a partner, tags without a word and brackets
    without words are ignored; words without a tag are attached to the
    root, TOP, as XX. Raises ValueError if there are no words.
    """
    if not words:
        raise ValueError("a tree needs at least one word")
    left = list(words)[::-1]
    open_: list[tuple[str, list[Tree]]] = [("TOP", [])]

    def close() -> str:
        label, children = open_.pop()
        if children:
            open_[-1][1].append(node(label, *children))
        return label

    for token in tokens:
        kind, label = token[:1], token[1:]
        if kind == "(":
            open_.append((label or "X", []))
        elif kind == ")":
            if label in [label for label, _ in open_[1:]]:
                while close() != label:
                    pass
        elif left:
            open_[-1][1].append(leaf(token, left.pop()))
    while len(open_) > 1:
        close()
    label, children = open_[0]
    return node(label, *children, *(leaf("XX", w) for w in left[::-1]))


# 24-parsing.md: How good is a tree?
SKIPPED = _PUNCTUATION | {"-NONE-"}


def brackets(tree: Tree) -> Counter[tuple[str, int, int]]:
    """Count constituents, (label, first word, word after the last), by
    the rules of evalb with COLLINS.prm.

    Punctuation and traces do not count as words; TOP and constituents
    without words are left out; labels end before - or =; PRT is ADVP.
    """
    counts: Counter[tuple[str, int, int]] = Counter()
    starts, words = [], 0  # of open constituents; words so far
    for mark, part in tree.walk():
        if mark == "(":
            starts.append(words)
        elif mark == "":
            words += part.label not in SKIPPED
        else:
            start, label = starts.pop(), bare(part.label)
            label = "ADVP" if label == "PRT" else label
            if words > start and label != "TOP":
                counts[label, start, words] += 1
    return counts


def bare(label: str) -> str:
    """A label without function tags and indices: NP-SBJ-1 -> NP."""
    return label.split("-")[0].split("=")[0]


@dataclass(frozen=True)
class Bracketing:
    """Bracket counts summed over sentences; precision, recall and F1 are
    in percent.
    """

    matched: int = 0
    gold: int = 0
    guessed: int = 0
    exact: int = 0  # sentences whose brackets all match
    sentences: int = 0
    errors: int = 0  # sentences skipped because their words differ

    def __add__(self, other: Bracketing) -> Bracketing:
        both = zip(vars(self).values(), vars(other).values())
        return Bracketing(*(a + b for a, b in both))

    @property
    def precision(self) -> float:
        return 100 * self.matched / max(1, self.guessed)

    @property
    def recall(self) -> float:
        return 100 * self.matched / max(1, self.gold)

    @property
    def f1(self) -> float:
        both = self.gold + self.guessed
        return 200 * self.matched / max(1, both)


def compare_trees(gold: Tree, guess: Tree) -> Bracketing:
    """Score guess against gold; if their words differ, count an error.
    Like evalb, skip a guess that is punctuation alone.
    """
    if not _spoken(guess):
        return Bracketing()
    if _spoken(gold) != _spoken(guess):
        return Bracketing(errors=1)
    ours, theirs = brackets(guess), brackets(gold)
    return Bracketing(
        matched=(ours & theirs).total(),
        gold=theirs.total(),
        guessed=ours.total(),
        exact=int(ours == theirs),
        sentences=1,
    )


def _spoken(tree: Tree) -> list[str]:
    """The words that evalb counts: no punctuation, no traces."""
    return [w.word for w in tree.leaves() if w.label not in SKIPPED]


def compare_all(
    gold: Iterable[Tree], guesses: Iterable[Tree]
) -> Bracketing:
    """Sum the scores of all pairs. Raises ValueError if lengths differ."""
    pairs = zip(gold, guesses, strict=True)
    return sum((compare_trees(*pair) for pair in pairs), Bracketing())


def right_branching(words: Sequence[str]) -> Tree:
    """A baseline: every word opens a bracket that ends at the last word."""
    *before, last = [leaf("XX", word) for word in words]
    tree = node("NP", last)
    for word in before[::-1]:
        tree = node("S", word, tree)
    return node("TOP", tree)


# 24-parsing.md: Real trees
TABLE4 = (  # parser, training, F1 on section 23 of WSJ
    ("Vinyals & Kaiser", "WSJ only", 88.3),
    ("Petrov (BerkeleyParser)", "WSJ only", 90.4),
    ("Zhu", "WSJ only", 90.4),
    ("Dyer", "WSJ only", 91.7),
    ("Transformer", "WSJ only", 91.3),
    ("Zhu", "semi-supervised", 91.3),
    ("Huang & Harper", "semi-supervised", 91.3),
    ("McClosky", "semi-supervised", 92.1),
    ("Vinyals & Kaiser", "semi-supervised", 92.1),
    ("Transformer", "semi-supervised", 92.7),
    ("Luong", "multi-task", 93.0),
    ("Dyer", "generative", 93.3),
)
