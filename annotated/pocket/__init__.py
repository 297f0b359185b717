"""Pocket German, a small language made by a grammar: a meaning is drawn and
said in German and in English, as two trees whose words are aligned. Read
words, meaning, german and english; then drawing, and the pairs here.

In the order of the book: trees (E13), words (E13), german (E13), meaning
(E13), english (E13), drawing (E14), relations (E14).

Exported from the book; edit the chapter, then run `make export`.
"""

import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from annotated.engine.errors import check_whole
from annotated.pocket import words
from annotated.pocket.drawing import Draw, draw_front, draw_meaning
from annotated.pocket.english import english_sentence
from annotated.pocket.german import german_sentence
from annotated.pocket.meaning import Clause, Meaning, Phrase
from annotated.pocket.trees import Tree

__all__ = [
    "SPLITS", "Pair", "realise", "depth", "draw_pairs", "pocket_pairs",
    "write_samples",
]  # fmt: skip


# E14-pocket-sentences.md: Pairs and splits
SPLITS = {  # fewest and most words, in both languages
    "train": (2, 16),
    "valid": (2, 16),
    "test": (2, 16),
    "generalisation": (17, 30),
}


@dataclass(frozen=True)
class Pair:
    """A German sentence, its translation, and their word alignment.

    Words and punctuation are separated by single spaces; only the first
    word and words that always have a capital begin with one. alignment:
    sorted (source word, target word) indices from 0. front: see realise.
    """

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...]
    meaning: Meaning
    front: str = ""

    @property
    def lengths(self) -> tuple[int, int]:
        """The number of words in the source and in the target."""
        return self.source.count(" ") + 1, self.target.count(" ") + 1

    @property
    def source_tree(self) -> Tree:
        return _capitalised(german_sentence(self.meaning, self.front))

    @property
    def target_tree(self) -> Tree:
        return _capitalised(english_sentence(self.meaning, self.front))


def _capitalised(tree: Tree) -> Tree:
    """The tree with its first letter capitalised."""
    first, *rest = tree.leaves()
    word = first.word[0].upper() + first.word[1:]
    return tree.over(iter([first._replace(word=word), *rest])) or tree


def realise(meaning: Meaning, front: str = "") -> Pair:
    """Express a meaning in both languages.

    front: the role that German puts first, "" for the subject, "second"
    for the second clause.
    """
    german = german_sentence(meaning, front).leaves()
    english = english_sentence(meaning, front).leaves()
    indices: dict[str, list[int]] = {}
    for j, leaf in enumerate(english):
        for key in leaf.keys:
            indices.setdefault(key, []).append(j)
    links = {
        (i, j)
        for i, leaf in enumerate(german)
        for key in leaf.keys
        for j in indices.get(key, ())
    }
    sides = [" ".join(leaf.word for leaf in x) for x in (german, english)]
    source, target = (side[0].upper() + side[1:] for side in sides)
    return Pair(source, target, tuple(sorted(links)), meaning, front)


def depth(meaning: Meaning) -> int:
    """How deeply clauses are nested below the main clause."""
    first, second = _nesting(meaning.clause), 0
    if meaning.second is not None:
        below = meaning.conjunction in words.SUBORDINATING
        second = below + _nesting(meaning.second)
    return max(first, second)


def _nesting(clause: Clause) -> int:
    phrases = [part for part in clause if isinstance(part, Phrase)]
    inner = [clause.complement, *(phrase.relative for phrase in phrases)]
    return max((1 + _nesting(c) for c in inner if c), default=0)


def _split_of(pair: Pair) -> str:
    """The split of a pair, regardless of what German puts first.

    The German sentence with its subject first identifies the meaning.
    """
    if depth(pair.meaning) > 1:
        return "generalisation"
    name = pair.source
    if pair.front:
        name = _capitalised(german_sentence(pair.meaning)).words()
    bucket = zlib.crc32(name.encode()) % 10
    return {0: "test", 1: "valid"}.get(bucket, "train")


def draw_pairs(name: str, deep: bool = False) -> Iterator[Pair]:
    """Endless pairs, of every split and length; name is the seed."""
    for attempt in itertools.count():
        draw = Draw(f"{name} {attempt}")
        meaning = draw_meaning(draw, deep)
        yield realise(meaning, draw_front(draw, meaning))


def pocket_pairs(
    count: int, split: str = "train", seed: int = 0
) -> list[Pair]:
    """The first count pairs of train, valid, test or generalisation.

    The same arguments give the same pairs everywhere, without duplicates.
    No meaning is in two splits, whatever the seeds; all sentences in
    generalisation are longer and more deeply nested than any of the
    others. Raises ValueError for an invalid argument.
    """
    if split not in SPLITS:
        names = ", ".join(SPLITS)
        raise ValueError(f"split must be one of {names}, not {split!r}")
    check_whole("count", count, least=0)
    check_whole("seed", seed, least=0)
    pairs: dict[str, Pair] = {}
    shortest, longest = SPLITS[split]
    drawn = draw_pairs(f"{split} {seed}", split == "generalisation")
    while len(pairs) < count:
        pair = next(drawn)
        few, many = sorted(pair.lengths)
        fits = shortest <= few and many <= longest
        if fits and _split_of(pair) == split:
            pairs.setdefault(pair.source, pair)
    return list(pairs.values())


def write_samples(folder: Path, count: int = 200) -> None:
    """Write SPLIT.tsv with the first pairs of each split."""
    names = ("source", "target", "alignment", "source_tree", "target_tree")
    for split in SPLITS:
        lines = ["\t".join(names)]
        for pair in pocket_pairs(count, split):
            links = " ".join(f"{i}-{j}" for i, j in pair.alignment)
            trees = str(pair.source_tree), str(pair.target_tree)
            lines.append(
                "\t".join([pair.source, pair.target, links, *trees])
            )
        text = "".join(f"{line}\n" for line in lines)
        (folder / f"{split}.tsv").write_bytes(text.encode())
