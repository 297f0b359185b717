"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from annotated.corpora.pairs import columns_of
from annotated.corpora.reading import Text
from annotated.engine.errors import DataError, check_fields
from annotated.engine.files import new_folder, write_text
from annotated.parsing import bare, linearise, without_tags
from annotated.pocket.trees import Tree, leaf, node

__all__ = [
    "read_tree", "read_treebank", "reads", "TreeOptions", "prepare_trees",
]  # fmt: skip


# E18-treebanks.md: Reading brackets
def _read_trees(path: Path) -> Iterator[tuple[int, Tree]]:
    """Yield the trees of a file, each with the number of its first line. A
    tree may span lines; the file may be compressed (.gz, .xz, .bz2).

    An outermost bracket without a label becomes TOP. Raises DataError,
    with file and line, for anything that is not a tree.
    """
    return _trees_in(Text(path).lines(), str(path))


def read_tree(text: str) -> Tree:
    """Parse a text as one tree. Raises DataError if it is not one."""
    trees = [tree for _, tree in _trees_in(text.splitlines(), "the text")]
    if len(trees) != 1:
        raise DataError(f"expected one tree, found {len(trees)}")
    return trees[0]


def _trees_in(
    lines: Iterable[str], name: str
) -> Iterator[tuple[int, Tree]]:
    number, first = 0, 0
    open_: list[list[str | Tree]] = []  # contents of each open bracket
    pieces = (
        (i, piece)
        for i, line in enumerate(lines, 1)
        for piece in re.findall(r"[()]|[^\s()]+", line)
    )

    def wrong(what: str) -> DataError:
        return DataError(f"{name}, line {number}: {what}")

    for number, piece in pieces:
        if piece == "(":
            first = first if open_ else number
            open_.append([])
        elif not open_:
            raise wrong(f"{piece!r} is outside all brackets")
        elif piece != ")":
            open_[-1].append(piece)
        else:
            tree = _closed(open_.pop(), outermost=not open_)
            if isinstance(tree, str):
                raise wrong(tree)
            if open_:
                open_[-1].append(tree)
            else:
                yield first, tree
    if open_:
        count = len(open_)
        raise wrong(
            f"{count} bracket{'s are' if count > 1 else ' is'} never "
            f"closed in the tree that begins on line {first}"
        )


def _closed(inside: list[str | Tree], outermost: bool) -> Tree | str:
    """The contents of a bracket as a tree, or why they are not one."""
    names = [part for part in inside if isinstance(part, str)]
    children = [part for part in inside if isinstance(part, Tree)]
    if not inside:
        return "empty brackets, ()"
    if not names and outermost:
        names = ["TOP"]
    if len(names) == 1 and children:
        return node(names[0], *children)
    if len(names) > 1 and not children:
        return leaf(names[0], "_".join(names[1:]))
    what = " ".join([*names, *["(…)"] * len(children)])
    return (
        f"({what}) is neither a tag with a word nor a label with "
        "constituents"
    )


# E18-treebanks.md: What is trained on
def _clean_tree(tree: Tree) -> Tree | None:
    """The tree below a single TOP, without traces, constituents that they
    leave empty, function tags and indices; None if no word is left.

    Several roots become siblings below TOP.
    """
    while tree.label in _OUTERMOST and len(tree.children) == 1:
        tree = tree.children[0]
    leaves = [
        None if leaf.label == "-NONE-" else leaf for leaf in tree.leaves()
    ]
    full = tree.over(iter(leaves))
    if full is None:
        return None
    outer = full.label in _OUTERMOST and full.children
    return node("TOP", *map(_plain, full.children if outer else (full,)))


_OUTERMOST = "TOP", "ROOT", "S1", "VROOT"  # as treebanks and parsers say


def _plain(tree: Tree) -> Tree:
    """A copy whose labels have no functions, indices or alternatives."""
    children: list[list[Tree]] = [[]]  # of each open node
    for mark, part in tree.walk():
        if mark == "(":
            children.append([])
        elif mark == "":
            children[-1].append(part)
        else:
            label = bare(part.label).split("|")[0] or part.label
            inside = children.pop()
            children[-1].append(node(label, *inside))
    return children[0][0]


def read_treebank(path: Path) -> dict[str, list[Tree]]:
    """The cleaned trees of a treebank, by article: a folder with one file
    per article (.mrg, .tree, .parse …), or one file NAME.mrg, one tree per
    line, with a tab-separated index NAME.idx of article, first line and
    number of trees; without an index it is one article. Both may be
    compressed. Raises DataError.
    """
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if _MRG.search(p.name))
        if not files:
            raise DataError(f"{path} has no file ending in .mrg")
        return {
            str(p.relative_to(path)): _clean(t for _, t in _read_trees(p))
            for p in files
        }
    trees = dict(_read_trees(path))
    name = _MRG.sub("", path.name.replace(".oneline", ""))
    index = next(iter(sorted(path.parent.glob(f"{name}.idx*"))), None)
    if index is None:
        return {path.name: _clean(trees.values())}
    articles = {}
    for number, line in enumerate(Text(index).lines(), start=1):
        try:
            article, first, count = line.split("\t")
            lines = range(int(first), int(first) + int(count))
        except ValueError:
            raise DataError(
                f"{index}, line {number}: {line!r} is not an article, a "
                "line and a number of trees, with tabs between"
            ) from None
        if absent := [i for i in lines if i not in trees]:
            raise DataError(
                f"{index}, line {number}: no tree begins on line "
                f"{absent[0]} of {path}"
            )
        articles[article] = _clean(trees[i] for i in lines)
    return articles


_MRG = re.compile(r"\.(mrg|tree|parse|ptb|brackets)(\.(gz|xz|bz2))?$")


def _clean(trees: Iterable[Tree]) -> list[Tree]:
    return [tree for tree in map(_clean_tree, trees) if tree is not None]


def _split_articles(names: Sequence[str]) -> dict[str, list[str]]:
    """Split articles into train, valid and test: of the Wall Street
    Journal, sections 02 to 21, 22 and 23, as usual; of others, one in 16
    each for valid and test. Raises DataError if there are too few.
    """
    split: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    wsj = (re.search(r"wsj_(\d\d)\d\d\.", name) for name in names)
    sections = [int(match[1]) for match in wsj if match]
    for i, name in enumerate(names):
        part = {4: "valid", 12: "test"}.get(i % 16, "train")
        if len(sections) == len(names):
            part = {22: "valid", 23: "test"}.get(sections[i], "train")
            if part == "train" and not 2 <= sections[i] <= 21:
                continue
        split[part].append(name)
    for part, articles in split.items():
        if not articles:
            raise DataError(
                f"none of {len(names)} articles is left for {part}: a "
                "treebank is split by article, and needs at least 13, or "
                "sections 02 to 23 of the Wall Street Journal"
            )
    return split


# E18-treebanks.md: Unknown words
def _word_class(word: str) -> str:
    """The class of a rare word: capitals, digits, hyphens, its ending."""
    marks = ""
    if word[:1].isupper():
        marks += "A" if word.isupper() and len(word) > 1 else "C"
    marks += "0" if any(c.isdigit() for c in word) else ""
    marks += "-" if "-" in word else ""
    end = word[-2:].lower() if word[-2:].isalpha() and len(word) > 4 else ""
    return f"<{marks}~{end}>"


def _known_words(trees: Sequence[Tree], vocab: int) -> set[str]:
    """The most common words that occur at least twice, as many as fit into
    vocab together with the classes of rare words.
    """
    counts = Counter(w.word for tree in trees for w in tree.leaves())
    classes = len({_word_class(word) for word in counts})
    twice = [word for word, count in counts.items() if count > 1]
    twice.sort(key=lambda word: (-counts[word], word))
    return set(twice[: max(0, vocab - classes - 4)])


def reads(words: Sequence[str], known: set[str]) -> str:
    """A sentence as the model reads it: rare words become classes."""
    return " ".join(w if w in known else _word_class(w) for w in words)


# E18-treebanks.md: A folder to train on
@dataclass(frozen=True, kw_only=True)
class TreeOptions:
    """How a treebank becomes sentences and linearised trees."""

    vocab: int = 16_000  # at most, words and word classes together
    max_words: int | None = None  # drop longer training sentences
    tags: bool = True  # write parts of speech, not XX
    withhold: float = 0.0  # share of training articles without trees
    silver: Path | None = None  # a file of additional training trees

    def __post_init__(self) -> None:
        check_fields(self, below=1)


def prepare_trees(
    path: Path, out: Path, options: TreeOptions = TreeOptions()
) -> dict[str, int]:
    """Write SPLIT.words and SPLIT.tree of a treebank into a new folder,
    and withheld.txt, sentences whose trees are left out. Returns the
    number of trees of each kind. Raises DataError, or RunError if there
    is something in out.
    """
    bank = read_treebank(path)
    split = _split_articles(list(bank))
    train = split["train"]
    # spread evenly, so that both parts are alike
    order = sorted(range(len(train)), key=lambda i: (i * 0.618) % 1)
    hidden = int(options.withhold * len(train))
    split["train"] = [train[i] for i in sorted(order[hidden:])]
    if hidden:
        split["withheld"] = [train[i] for i in order[:hidden]]
    trees = {
        name: [tree for article in articles for tree in bank[article]]
        for name, articles in split.items()
    }
    if options.silver is not None:
        trees["silver"] = _clean(t for _, t in _read_trees(options.silver))
    drawn = [*trees["train"], *trees.get("silver", [])]
    known = _known_words(drawn, options.vocab)
    most = options.max_words
    for name in trees.keys() & {"train", "silver"}:
        these = trees[name]
        if most is not None:
            trees[name] = [t for t in these if len(t.leaves()) <= most]
    counts = {name: len(these) for name, these in trees.items()}
    withheld = trees.pop("withheld", [])
    trees["train"] += trees.pop("silver", [])
    if not trees["train"]:
        raise DataError(
            f"{path}: no tree is left for train: drop fewer with "
            "--max-words, or withhold fewer"
        )
    with new_folder(out) as fresh:
        for name, these in trees.items():
            lines = []
            for tree in these:
                words = [leaf.word for leaf in tree.leaves()]
                shown = tree if options.tags else without_tags(tree)
                tokens = " ".join(linearise(shown)[1:-1])
                lines.append((reads(words, known), tokens))
            for kind, side in zip(("words", "tree"), columns_of(lines)):
                _write_lines(fresh / f"{name}.{kind}", side)
        if withheld:
            words = [tree.words() for tree in withheld]
            _write_lines(fresh / "withheld.txt", words)
    return counts


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    write_text(path, "\n".join(lines) + "\n")
