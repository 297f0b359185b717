"""annotated.pocket.

Exported from the book; edit the chapter, then run `make export`.

- E14-pocket-sentences.md: Sentences, and who may see them
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

from annotated.pocket.drawing import Draw, draw_front, draw_meaning
from annotated.pocket.english import english_sentence
from annotated.pocket.german import german_sentence
from annotated.pocket.meaning import Clause, Meaning
from annotated.pocket.trees import Tree
from annotated.pocket.words import BELOW

__all__ = [
    "SPLITS",
    "Pair",
    "realise",
    "split_of",
    "nesting",
    "pocket_pairs",
    "write_samples",
]


# E14-pocket-sentences.md: Pairs and splits
SPLITS = {  # shortest and longest sentence, on both sides
    "train": (2, 16),
    "valid": (2, 16),
    "test": (2, 16),
    "generalisation": (17, 30),
}


@dataclass(frozen=True)
class Pair:
    """A German sentence, its translation, and how they correspond.

    Words and punctuation stand between single spaces; only the first word
    and what is always capitalised begin with a capital. alignment:
    (source word, target word), from 0, sorted. front: see realise.
    """

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...]
    meaning: Meaning
    front: str = ""

    @property
    def source_tree(self) -> Tree:
        return _capitalised(german_sentence(self.meaning, self.front))

    @property
    def target_tree(self) -> Tree:
        return _capitalised(english_sentence(self.meaning, self.front))


def _capitalised(tree: Tree) -> Tree:
    """The tree with a capital at the beginning."""
    first, *rest = tree.leaves()
    word = first.word[0].upper() + first.word[1:]
    return tree.over(iter([first._replace(word=word), *rest])) or tree


def realise(meaning: Meaning, front: str = "") -> Pair:
    """Say a meaning in both languages.

    front: the role that German puts first, "" for the subject; "second"
    for the second clause.
    """
    german = german_sentence(meaning, front).leaves()
    english = english_sentence(meaning, front).leaves()
    places: dict[str, list[int]] = {}
    for j, leaf in enumerate(english):
        for key in leaf.keys:
            places.setdefault(key, []).append(j)
    links = {
        (i, j)
        for i, leaf in enumerate(german)
        for key in leaf.keys
        for j in places.get(key, ())
    }
    source, target = (
        " ".join(leaf.word for leaf in leaves)
        for leaves in (german, english)
    )
    return Pair(
        source[0].upper() + source[1:],
        target[0].upper() + target[1:],
        tuple(sorted(links)),
        meaning,
        front,
    )


def split_of(meaning: Meaning) -> str:
    """The split of a meaning, whatever German puts first.

    The sentence with its subject first names the meaning.
    """
    below = meaning.conjunction in BELOW
    depth = max(nesting(meaning.clause), below + nesting(meaning.second))
    if depth > 1:
        return "generalisation"
    name = german_sentence(meaning).words()
    bucket = zlib.crc32(name.encode()) % 10
    return {0: "test", 1: "valid"}.get(bucket, "train")


def nesting(clause: Clause | None) -> int:
    """How many clauses lie in one another below this one."""
    if clause is None:
        return 0
    phrases = (
        clause.subject,
        clause.accusative,
        clause.dative,
        clause.prepositional,
    )
    inner = [clause.complement]
    inner += [phrase.relative for phrase in phrases if phrase]
    return max(1 + nesting(c) if c else 0 for c in inner)


def pocket_pairs(
    count: int, split: str = "train", seed: int = 0
) -> list[Pair]:
    """So many different pairs: train, valid, test or generalisation.

    The same arguments give the same pairs everywhere. No meaning is in
    two splits, whatever the seeds; in generalisation all sentences are
    longer, and more deeply nested, than any of the others. ValueError
    names a wrong argument.
    """
    _check_arguments(count, split, seed)
    pairs: dict[str, Pair] = {}
    attempt, (shortest, longest) = 0, SPLITS[split]
    while len(pairs) < count:
        draw = Draw(f"{split} {seed} {attempt}")
        attempt += 1
        meaning = draw_meaning(draw, split == "generalisation")
        if split_of(meaning) != split:
            continue
        pair = realise(meaning, draw_front(draw, meaning))
        lengths = [s.count(" ") + 1 for s in (pair.source, pair.target)]
        if shortest <= min(lengths) and max(lengths) <= longest:
            pairs.setdefault(pair.source, pair)
    return list(pairs.values())


def _check_arguments(count: int, split: str, seed: int) -> None:
    """Raise ValueError, naming the argument that is wrong."""
    if split not in SPLITS:
        names = ", ".join(SPLITS)
        raise ValueError(f"split must be one of {names}, not {split!r}")
    for name, value in (("count", count), ("seed", seed)):
        if type(value) is not int or value < 0:
            raise ValueError(
                f"{name} must be a whole number, at least 0, not {value!r}"
            )


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
