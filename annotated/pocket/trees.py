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

    def walk(self) -> Iterator[tuple[str, Tree]]:
        """Around the tree, from left to right: each node twice, with "("
        before its children and ")" after them, each leaf once, with "".
        """
        todo = [("(" if self.children else "", self)]
        while todo:  # no recursion: a tree may be of any depth
            mark, tree = todo.pop()
            yield mark, tree
            if mark == "(":
                todo.append((")", tree))
                for child in tree.children[::-1]:
                    todo.append(("(" if child.children else "", child))

    def leaves(self) -> list[Tree]:
        """The leaves, labels over words, from left to right."""
        found, todo = [], [self]
        while todo:
            tree = todo.pop()
            if tree.children:
                todo += tree.children[::-1]
            else:
                found.append(tree)
        return found

    def words(self) -> str:
        """The words, joined by single spaces."""
        return " ".join(leaf.word for leaf in self.leaves())

    def over(self, leaves: Iterator[Tree | None]) -> Tree | None:
        """A copy with its leaves replaced in order; None removes a leaf."""
        children: list[list[Tree | None]] = [[]]  # of each open node
        for mark, part in self.walk():
            if mark == "(":
                children.append([])
            elif mark == "":
                children[-1].append(next(leaves))
            else:
                left = tuple(filter(None, children.pop()))
                new = part._replace(children=left) if left else None
                children[-1].append(new)
        return children[0][0]

    def __str__(self) -> str:
        pieces = []
        for mark, part in self.walk():
            if mark == "(":
                pieces.append(f" ({part.label}")
            elif mark == "":
                pieces.append(f" ({part.label} {part.word})")
            else:
                pieces.append(")")
        return "".join(pieces)[1:]


def leaf(label: str, word: str, *keys: str) -> Tree:
    """Make a leaf: a label over a word."""
    return Tree(label, (), word, keys)


def node(label: str, *children: Tree | None) -> Tree:
    """Make a node: a label over its children, leaving out any None."""
    return Tree(label, tuple(filter(None, children)))


Part = tuple[str, Tree]  # a part's role in its clause, and its tree
