"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Tree", "leaf", "node", "Part"]


# E13-pocket-grammar.md: Trees
class Tree(NamedTuple):
    """A label over its children or over a word; str() gives brackets.

    keys: what the word stands for. Words of two trees that share a key
    are aligned.
    """

    label: str
    children: tuple[Tree, ...] = ()
    word: str = ""
    keys: tuple[str, ...] = ()

    def leaves(self) -> list[Tree]:
        """The leaves, labels over words, from left to right."""
        found, todo = [], [self]
        while todo:
            tree = todo.pop()
            if tree.children:
                todo.extend(tree.children[::-1])
            else:
                found.append(tree)
        return found

    def words(self) -> str:
        """The words, joined by single spaces."""
        return " ".join(leaf.word for leaf in self.leaves())

    def over(self, leaves: Iterator[Tree | None]) -> Tree | None:
        """A copy with its leaves replaced in order; None removes a leaf."""
        if not self.children:
            return next(leaves)
        children = [child.over(leaves) for child in self.children]
        kept = tuple(child for child in children if child)
        return self._replace(children=kept) if kept else None

    def __str__(self) -> str:
        inside = self.word or " ".join(map(str, self.children))
        return f"({self.label} {inside})"


def leaf(label: str, word: str, *keys: str) -> Tree:
    """Make a leaf: a label over a word."""
    return Tree(label, (), word, keys)


def node(label: str, *children: Tree | None) -> Tree:
    """Make a node: a label over its children, leaving out any None."""
    return Tree(label, tuple(filter(None, children)))


Part = tuple[str, Tree]  # a part's role in its clause, and its tree
