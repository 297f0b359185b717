"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import shutil
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike
from tqdm import tqdm

from annotated.batches import Corpus, Sentences
from annotated.corpora.audit import (
    Finding,
    audit,
    length_ratio,
    near_duplicates,
)
from annotated.corpora.cleaning import Cleaning, Division, divide, remarks
from annotated.corpora.fetch import file_hash
from annotated.corpora.marks import (
    MarkedTokenizer,
    add_tokens,
    check_tags,
    protecting,
    shown,
    untagged,
    without_marks,
)
from annotated.corpora.pairs import TextPair, columns_of
from annotated.corpora.reading import CURES, Text, fault
from annotated.corpora.registry import data_folder, registry
from annotated.corpora.sentencepieces import (
    kind_of,
    load_tokenizer,
    tags_of,
    vocabulary,
)
from annotated.engine.errors import DataError, RunError, check_fields
from annotated.engine.files import move, new_folder, write_json
from annotated.tokens import Tokenizer

__all__ = [
    "Preparation", "usual_folder", "prepare", "count_lines", "encode_sides",
    "encode_pairs", "Prepared",
]  # fmt: skip


# E8-prepare.md: What to prepare
_FORMAT = 3  # version of a prepared folder
_CHUNK = 10_000  # pairs in memory at a time
_SIDES = "source", "target"


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """How to prepare a corpus. ValueError names an invalid field."""

    name: str
    source: str  # the language to translate from
    target: str  # the language to translate into
    # by split; what a model has translated back is "back", read last
    parts: dict[str, list[TextPair]]
    cleaning: Cleaning = Cleaning(max_words=250)
    division: Division = Division()
    vocab: int = 8000  # maximum vocabulary size
    tokenizer: Literal["bpe", "wordpiece", "word", "sentencepiece"] = "bpe"
    shared: bool = True  # one vocabulary for both sides
    vocab_pairs: int = 5_000_000  # maximum pairs to learn it from
    tokens: Path | None = None  # a folder to take the tokenizers from
    tags: tuple[str, ...] = ()  # tokens of your own, beside the vocabulary
    protect: tuple[str, ...] = ()  # regular expressions: placeholders

    def __post_init__(self) -> None:
        check_fields(self)
        check_tags(self.tags)
        protecting(self.protect)
        parts = [part for some in self.parts.values() for part in some]
        for tag in (part.tag for part in parts if part.tag):
            if tag not in self.tags:
                raise ValueError(f"the vocabulary has no tag {tag!r}")
        if self.cleaning.lower and "".join(self.tags).lower() != "".join(
            self.tags
        ):
            raise ValueError("lower would change a tag: write it so")
        if self.source == self.target:
            raise ValueError(f"source and target are both {self.source!r}")
        for name in _SIDES:  # part of the names of files
            if not re.fullmatch(r"\w[\w.-]*", getattr(self, name)):
                raise ValueError(
                    f"{name} must be the name of a language, not "
                    f"{getattr(self, name)!r}"
                )

    def settings(self) -> dict[str, Any]:
        """All fields as JSON values, and the hashes of the files."""
        paths = {
            path.resolve()
            for parts in self.parts.values()
            for part in parts
            for path in (part.src.path, part.tgt.path)
            if path.is_file()  # reading reports the others
        }
        if self.tokens is not None:
            paths |= {(self.tokens / f"{s}.json").resolve() for s in _SIDES}
        hashes = {str(path): file_hash(path) for path in sorted(paths)}
        values = dataclasses.asdict(self) | {"files": hashes}

        def absolute(path: Path) -> str:
            return str(path.resolve())

        return json.loads(json.dumps(values, default=absolute))

    def with_tokens(self, folder: Path) -> Preparation:
        """The same, with the tokenizers of a run or of a prepared folder.
        DataError if it has none.
        """
        source, target = _tokenizers_in(folder)
        return dataclasses.replace(
            self,
            tokens=folder,
            vocab=max(len(source), len(target)),
            tokenizer=kind_of(source),
            shared=vocabulary(source) == vocabulary(target),
            tags=tuple(tags_of(source)),
            protect=getattr(source, "protect", ()),
        )

    @classmethod
    def registered(
        cls,
        name: str,
        source: str | None = None,
        target: str | None = None,
        **changes: Any,
    ) -> Preparation:
        """A registered data set, with its files downloaded; changes
        override fields. DataError if it lacks a language.
        """
        entry = registry()[name]
        source, target = (
            source or entry["source"],
            target or entry["target"],
        )
        usual: dict[str, Any] = {
            "name": name,
            "source": source,
            "target": target,
            "parts": {
                split: TextPair.registered(name, split, source, target)
                for split in entry["splits"]
            },
            "cleaning": Cleaning(**entry.get("clean", {})),
            "division": Division(**entry.get("divide", {})),
            "vocab": entry["vocab"],
            "tokenizer": entry.get("tokenizer", "bpe"),
        }
        return cls(**usual | changes)

    @classmethod
    def of_folder(
        cls, folder: Path, source: str, target: str, **changes: Any
    ) -> Preparation:
        """A folder with train.LANGUAGE, valid.LANGUAGE and optionally
        test.LANGUAGE.
        """
        parts = {
            split: [TextPair.in_folder(folder, split, source, target)]
            for split in ("train", "valid", "test")
            if split != "test" or any(folder.glob("test.*"))
        }
        usual: dict[str, Any] = {
            "name": folder.name,
            "source": source,
            "target": target,
            "parts": parts,
        }
        return cls(**usual | changes)

    @classmethod
    def of_files(
        cls,
        src: Path,
        tgt: Path | None = None,
        *,
        valid: tuple[Path, Path] | None = None,
        test: tuple[Path, Path] | None = None,
        hold_out: int = 100,
        divide_by: Any = "source",  # as Division.by
        columns: tuple[str, str] | None = None,
        **changes: Any,
    ) -> Preparation:
        """Two files, or one with both sides, which may have columns, as
        may one that is given twice for valid or test. For each of these
        not given, one source in hold_out is held out, or one block or
        document, as divide_by says.
        """
        files = {"train": (src, tgt), "valid": valid, "test": test}
        ways = changes.get("source"), changes.get("target")
        parts = {}
        for split, given in files.items():
            if given:
                both = given[0] == given[1]
                both = both and TextPair.has_columns(given[0])
                own = columns if split == "train" or both else None
                parts[split] = TextPair.of_files(*given, own, ways)
        named = tgt if parts["train"].apart else None
        absent = [s for s in ("valid", "test") if s not in parts]
        if hold_out <= len(absent):
            raise ValueError(
                f"hold_out must be above {len(absent)}, not {hold_out}"
            )
        usual: dict[str, Any] = {
            "name": "pair",
            "source": _language(src, "source") if named else "source",
            "target": _language(named, "target") if named else "target",
            "parts": {split: [part] for split, part in parts.items()},
            "division": Division(
                divide_by, hold_out, **{s: i for i, s in enumerate(absent)}
            ),
        }
        return cls(**usual | changes)

    @classmethod
    def of_corpora(
        cls,
        srcs: Sequence[Path],
        tgts: Sequence[Path] = (),
        *,
        src_tags: Sequence[str] = (),
        weights: Sequence[int] = (),
        **changes: Any,
    ) -> Preparation:
        """One or more corpora, each as of_files has it. There is one of
        src_tags and weights for each, or none at all.
        """
        for name, values in (
            ("tgt", tgts),
            ("src_tags", src_tags),
            ("weights", weights),
        ):
            if values and len(values) != len(srcs):
                raise ValueError(
                    f"{name} must be {len(srcs)}, one for each src, not "
                    f"{len(values)}"
                )
        _check_weights(weights)
        apart = {"valid", "test"} & changes.keys()
        if apart and len(srcs) > 1:
            raise ValueError(
                f"{min(apart)} goes with one src: of several, some of each "
                "is held out"
            )
        tags = (*changes.pop("tags", ()), *src_tags)
        rows = zip_longest(srcs, tgts, src_tags, weights)
        made, parts = [], dict[str, list[TextPair]]()
        for src, tgt, tag, weight in rows:
            made.append(cls.of_files(src, tgt, **changes))
            for split, [part] in made[-1].parts.items():
                part = dataclasses.replace(
                    part, tag=tag or "", weight=weight or 1
                )
                parts.setdefault(split, []).append(part)
        return dataclasses.replace(
            made[0],
            source="-".join(dict.fromkeys(one.source for one in made)),
            target="-".join(dict.fromkeys(one.target for one in made)),
            parts=parts,
            tags=tuple(dict.fromkeys(tags)),
        )

    def with_back(
        self,
        texts: Sequence[tuple[Path, Path]],
        tag: str = "<bt>",
        weights: Sequence[int] = (),
    ) -> Preparation:
        """The same, with texts in the target language, the second of each
        pair of files, behind their translations, which get the tag.
        """
        _check_weights(weights)
        parts = [
            TextPair(Text(src), Text(tgt), tag=tag, weight=weight or 1)
            for (src, tgt), weight in zip_longest(texts, weights)
        ]
        tags = self.tags
        if tag and tag not in tags:
            if self.tokens is not None:
                raise ValueError(
                    f"the vocabulary of {self.tokens} has no tag {tag!r}: "
                    "translations without one have --back-tag ''"
                )
            tags = (*tags, tag)
        return dataclasses.replace(
            self, parts=self.parts | {"back": parts}, tags=tags
        )


def _tokenizers_in(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of a run or of a prepared folder. DataError if they
    are missing or damaged.
    """
    files = [folder / f"{side}.json" for side in _SIDES]
    for file in files:
        if not file.is_file():
            raise DataError(f"{folder} has no vocabulary: no {file.name}")
    try:
        source, target = map(load_tokenizer, files)
    except ValueError as error:
        raise DataError(str(error)) from None
    return source, target


def usual_folder(name: str, source: str, target: str) -> Path:
    """The default folder of a prepared data set."""
    return data_folder() / "prepared" / f"{name}.{source}-{target}"


def _check_weights(weights: Sequence[int]) -> None:
    """ValueError for one below 1."""
    if bad := [weight for weight in weights if weight < 1]:
        raise ValueError(f"weights must be at least 1, not {bad[0]}")


def _language(path: Path, unknown: str) -> str:
    """The language in a file's name: de in train.de.gz."""
    name = path.name
    for end in (".gz", ".xz", ".bz2", ".sgm", ".xml", ".txt"):
        if name.lower().endswith(end):
            name = name[: -len(end)]
    end = name.rpartition(".")[2]
    return end if end != name and end.isalpha() else unknown


# E8-prepare.md: Stage by stage
def prepare(preparation: Preparation, out: Path) -> Prepared:
    """Read and clean a corpus, learn its vocabulary, encode and write it.

    Memory use does not grow with the corpus. DataError for unusable data,
    RunError if out contains something else.
    """
    settings = preparation.settings()
    if (out / "corpus.json").exists():
        present = Prepared.open(out)
        if present.settings == settings:
            print(f"{out} is already prepared", file=sys.stderr)
            return present
        changed = ", ".join(_unlike(settings, present.settings))
        raise RunError(
            f"{out} was prepared with another {changed}: delete it, or "
            "choose another --out"
        )
    with new_folder(out) as fresh:
        work = fresh.with_name(f"{out.name}.text")
        work.mkdir()
        cards, notes = _clean(preparation, work)
        for note in notes:
            print(f"{preparation.name}: {note}", file=sys.stderr)
        texts = {
            split: _Untagged(*_sides(work, split), tags=preparation.tags)
            for split in cards
        }
        protect = preparation.protect
        found = audit(texts, protecting(protect) if protect else None)
        pairs = cards["train"]["pairs"]
        tokenizers = _vocabularies(preparation, work, pairs)
        for side, tokenizer in zip(_SIDES, tokenizers):
            tokenizer.save(fresh / f"{side}.json")
        for split, card in cards.items():
            _encode(work, fresh, split, tokenizers, card)
            if not card["pairs"]:  # as of blank lines, given for valid
                card = {"read": sum(card["dropped"].values())} | card
                raise DataError(_nothing_left(preparation, split, card))
            parts = card["parts"]
            if len(parts) == 1 and (
                parts[0]["tag"],
                parts[0]["weight"],
            ) == ("", 1):
                del card["parts"]
            for side in _SIDES if split != "train" else ():
                language = getattr(preparation, side)
                text = work / f"{split}.{side}"
                move(text, fresh / f"{split}.{language}")
        found += _near_duplicates(fresh, cards, tokenizers[0])
        _write_manifest(fresh, cards, settings, tokenizers, notes, found)
        shutil.rmtree(work, ignore_errors=True)  # before it is named
    return Prepared.open(out)


def _sides(work: Path, split: str) -> tuple[Text, Text]:
    """The clean text of a split."""
    src, tgt = (Text(work / f"{split}.{side}") for side in _SIDES)
    return src, tgt


@dataclass(frozen=True)
class _Untagged(TextPair):
    """Two texts, the first without the tags that its lines begin with."""

    tags: tuple[str, ...] = ()

    def pairs(self, strict: bool = True) -> Iterator[tuple[str, str]]:
        for src, tgt in super().pairs(strict):
            yield untagged(src, self.tags), tgt


def _near_duplicates(
    folder: Path, splits: Iterable[str], tokenizer: Tokenizer
) -> list[Finding]:
    """What is held out and nearly in the training set."""
    sides = {s: Sentences.load(folder / f"{s}.src") for s in splits}
    train = sides.pop("train")

    def text(ids: Sequence[Any]) -> list[str]:
        return [shown(line) for line in tokenizer.decode(ids)]

    found = [
        near_duplicates(split, held, train, text)
        for split, held in sides.items()
    ]
    return [finding for finding in found if finding is not None]


def _unlike(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The names of settings that differ; of files, their paths."""
    names = []
    for name in sorted(one.keys() | other.keys()):
        a, b = one.get(name), other.get(name)
        if a != b and isinstance(a, dict) and isinstance(b, dict):
            names += _unlike(a, b)
        elif a != b:
            names.append(name)
    return names


def _clean(
    preparation: Preparation, work: Path
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Write the clean text to SPLIT.source and SPLIT.target. Returns, by
    split, how many pairs were read, kept and dropped, and why; and any
    remarks. DataError if more than 1 % is not text or no pair is left.
    """
    cards: dict[str, dict[str, Any]] = {}
    files: dict[str, list[Any]] = {}
    kept, first = Counter[str](), list[str]()
    counts = defaultdict[str, Counter[tuple[str, int]]](Counter)
    held = _HeldOut(set(), set())
    with ExitStack() as stack:
        for split, parts in preparation.parts.items():
            dropped, before = Counter[str](), kept.total()
            by = preparation.division.by if split == "train" else ""
            reading = _Reading(parts, documents=by == "document")
            pairs = tqdm(
                reading, f"reading {split}", unit=" pairs", disable=None
            )
            cleaning, division = preparation.cleaning, preparation.division
            into = split
            if split == "back":
                pairs = _usable(pairs, cleaning, held, first, dropped)
                into, division = "train", Division()
            rules = cleaning, division
            rows = divide(into, pairs, *rules, dropped, reading.tag)
            for to, *sides in rows:
                if to != "train":
                    held.add(*sides)
                if to not in files:
                    opened = _opened(work, to)
                    files[to] = list(map(stack.enter_context, opened))
                if tag := reading.tag():
                    sides[0] = f"{tag} {sides[0]}"
                for file, line in zip(files[to], sides):
                    file.write(line.encode() + b"\n")
                kept[to] += 1
                counts[to][split, reading.number] += 1
                if len(first) < _CHUNK:
                    first += sides
            read = kept.total() - before + dropped.total()
            _need_text(f"{preparation.name}, {split}", read, dropped, parts)
            if kept.total() == before and split == "back":
                card = {"read": read, "dropped": dropped}
                raise DataError(_nothing_left(preparation, split, card))
            _add_counts(cards, into, read, dropped)
    for split in ("train", "valid"):
        if not kept[split]:
            card = cards.get(split, cards["train"])
            raise DataError(_nothing_left(preparation, split, card))
    counted = {
        split: {"dropped": {}}
        | cards.get(split, {})
        | {"pairs": count, "parts": _parts(counts, split, preparation)}
        for split, count in kept.items()
    }
    return counted, remarks(first)


def _opened(work: Path, split: str) -> list[Any]:
    """The files of a split's sides, to be written."""
    return [(work / f"{split}.{side}").open("wb") for side in _SIDES]


def _add_counts(
    cards: dict[str, dict[str, Any]],
    split: str,
    read: int,
    dropped: Counter[str],
) -> None:
    card = cards.setdefault(split, {"read": 0, "dropped": {}})
    card["read"] += read
    card["dropped"] = dict(Counter(card["dropped"]) + dropped)


class _Reading:
    """The pairs of some pieces of a corpus, and which of them is read."""

    def __init__(self, parts: Sequence[TextPair], documents: bool):
        self.parts, self.number, self.documents = parts, 0, documents

    def tag(self) -> str:
        """The tag of the pair just read."""
        return self.parts[self.number].tag

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for number, part in enumerate(self.parts):
            self.number = number
            yield from part.pairs(strict=False)
            if self.documents:  # a file's end is also a document's
                yield "", ""


def _parts(
    counts: dict[str, Counter[tuple[str, int]]],
    split: str,
    preparation: Preparation,
) -> list[dict[str, Any]]:
    """What a split has of each piece that was given, in their order; one
    that was given twice is two.
    """
    return [
        {
            "file": part.src.path.name,
            "tag": part.tag,
            "pairs": count,
            "weight": part.weight if split == "train" else 1,
        }
        for (of, number), count in counts[split].items()
        for part in [preparation.parts[of][number]]
    ]


def _nothing_left(
    preparation: Preparation, split: str, card: dict[str, Any]
) -> str:
    """That a split has no pairs, why, and what to do."""
    whys = card["dropped"].items()
    dropped = "; ".join(f"{n:,} dropped, {why}" for why, n in whys)
    read = f"{card['read']:,} read, {dropped or 'none dropped'}"
    told = f"{preparation.name}: no pairs left for {split} ({read})"
    if split == "back":
        return f"{told}: look at what the run of --back has written"
    if split in preparation.parts:
        return f"{told}: it needs more text, or rules that drop less"
    what, of = preparation.division.by, preparation.division.of
    ends, others = _ENDS.get(what, ""), _OTHERS.get(what, "")
    return (
        f"{told}: one {what} in {of} is held out for it{ends}; give more "
        f"text, a smaller --hold-out, or two files for --{split}{others}"
    )


_ENDS = {
    "document": " (it ends with its file, and where both sides have a "
    "blank line)"
}
_OTHERS = {"source": ", or --divide-by block, if it was divided before"}


def _need_text(
    name: str, read: int, dropped: Counter[str], parts: Iterable[TextPair]
) -> None:
    """DataError if more than 1 % of the pairs read is not text; the parts
    are read again to say where the first of these is.
    """
    wrong = {why: dropped[why] for why in CURES if dropped[why]}
    if sum(wrong.values()) <= 0.01 * read:
        return
    told = [f"{n:,} of {read:,} pairs: {why}" for why, n in wrong.items()]
    try:
        for part in parts:
            deque(part.pairs(), maxlen=0)
        told += [CURES[why] for why in wrong]
    except DataError as first:
        told.append(f"the first: {first}")
    raise DataError(f"{name}: {'; '.join(told)}")


@dataclass(frozen=True)
class _HeldOut:
    """The held-out sentences of each side, by their words."""

    src: set[int]
    tgt: set[int]

    def add(self, src: str, tgt: str) -> None:
        self.src.add(_key(src))
        self.tgt.add(_key(tgt))

    def has(self, src: str, tgt: str) -> bool:
        """Whether one of these stands there."""
        return _key(src) in self.src or _key(tgt) in self.tgt


def _key(line: str) -> int:
    return hash(" ".join(re.findall(r"\w+", line.casefold())) or line)


def _usable(
    pairs: Iterable[tuple[str, str]],
    cleaning: Cleaning,
    held: _HeldOut,
    real: Sequence[str],
    dropped: Counter[str],
) -> Iterator[tuple[str, str]]:
    """The pairs of a translation and its original that are good for
    training beside real pairs, whose sides follow each other; dropped
    counts the others by reason.
    """
    sides = zip(real[::2], real[1::2])
    usual = median([length_ratio(*pair) for pair in sides] or [0.0])
    for src, tgt in pairs:
        clean = cleaning.line(src), cleaning.line(tgt)
        if bad := fault(tgt):
            why = bad[0]
        elif not clean[1].strip():
            why = "a blank side"
        elif not clean[0].strip():
            why = "an empty translation"
        elif abs(length_ratio(*clean) - usual) > math.log(3):
            why = "a translation of quite another length"
        elif held.has(*clean):
            why = "it is in the held-out text"
        else:
            yield src, tgt
            continue
        dropped[why] += 1


def count_lines(path: Path) -> int:
    """The lines of a text. DataError if more than 1 % is not text."""
    lines, dropped = 0, Counter[str]()
    for line in Text(path).lines(strict=False):
        lines += 1
        if bad := fault(line):
            dropped[bad[0]] += 1
    part = TextPair(Text(path), Text(path))
    _need_text(str(path), lines, dropped, [part])
    return lines


class _Lines:
    """Every step-th line of some files, without its tags and placeholders;
    can be iterated repeatedly.
    """

    def __init__(
        self,
        files: Sequence[Path],
        step: int,
        tags: Sequence[str] = (),
        protect: Sequence[str] = (),
    ):
        self.files, self.step, self.tags = files, step, tags
        self.pattern = protecting(protect) if protect else None

    def __iter__(self) -> Iterator[str]:
        for file in self.files:
            lines = islice(Text(file).lines(), None, None, self.step)
            if not self.tags and self.pattern is None:
                yield from lines
                continue
            for line in lines:
                yield from without_marks(line, self.tags, self.pattern)


def _vocabularies(
    preparation: Preparation, work: Path, pairs: int
) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers, learned from the clean text of so many pairs, or
    those of another folder.
    """
    if preparation.tokens is not None:
        return _tokenizers_in(preparation.tokens)
    files = work / "train.source", work / "train.target"
    step = -(-pairs // preparation.vocab_pairs)
    texts = [files] if preparation.shared else [files[:1], files[1:]]
    kinds: Any = preparation.vocab, preparation.tokenizer
    marks = preparation.tags, preparation.protect
    learned = [
        add_tokens(
            Tokenizer.train(_Lines(text, step, *marks), *kinds), *marks
        )
        for text in texts
    ]
    return learned[0], learned[-1]


def encode_sides(
    tokenizers: tuple[Tokenizer, Tokenizer],
    sides: tuple[list[str], list[str]],
) -> tuple[list[list[int]], list[list[int]]]:
    """The ids of source and target lines; a target has the slots of its
    source.
    """
    source, target = tokenizers
    ours = source.encode(sides[0])
    if isinstance(target, MarkedTokenizer):
        return ours, target.encode_beside(sides[1], sides[0])
    return ours, target.encode(sides[1])


def encode_pairs(
    tokenizers: tuple[Tokenizer, Tokenizer],
    sides: tuple[list[str], list[str]],
    kind: DTypeLike = np.int32,
) -> Corpus:
    """The ids of source and target lines, without the pairs that have no
    tokens on one side.
    """
    rows = zip(*encode_sides(tokenizers, sides), strict=True)
    both = [pair for pair in rows if all(pair)]
    return Corpus(
        Sentences.of([src for src, _ in both], kind),
        Sentences.of([tgt for _, tgt in both], kind),
    )


def _id_type(vocab: int) -> type:
    """The narrowest type that holds every id of a vocabulary."""
    return np.uint16 if vocab <= 2**16 else np.int32


def _encode(
    work: Path,
    out: Path,
    split: str,
    tokenizers: tuple[Tokenizer, Tokenizer],
    card: dict[str, Any],
) -> None:
    """Write the ids of a split and add its counts to card."""
    kind = _id_type(max(map(len, tokenizers)))
    pairs = _weighted(TextPair(*_sides(work, split)), card["parts"])
    wanted = sum(part["pairs"] * part["weight"] for part in card["parts"])
    with (
        closing(_Rows(out / f"{split}.src", kind)) as src,
        closing(_Rows(out / f"{split}.tgt", kind)) as tgt,
    ):
        read = 0
        while chunk := list(islice(pairs, _CHUNK)):
            read += len(chunk)
            rows = encode_pairs(tokenizers, columns_of(chunk), kind)
            src.add(rows.src)
            tgt.add(rows.tgt)
    if read != wanted:
        raise DataError(
            f"{split}: {wanted:,} clean pairs were written, but "
            f"{read:,} read back: the corpus would be misaligned"
        )
    if lost := read - src.sentences:
        card["dropped"]["a side without tokens"] = lost
    card["pairs"] = src.sentences
    card["source_tokens"], card["target_tokens"] = src.tokens, tgt.tokens


def _weighted(
    text: TextPair, parts: Sequence[dict[str, Any]]
) -> Iterator[tuple[str, str]]:
    """The clean pairs of each piece, as many times as its weight says."""
    if all(part["weight"] == 1 for part in parts):
        yield from text.pairs(strict=False)
        return
    pairs = text.pairs(strict=False)
    for part in parts:  # some pairs at a time, so that all is read once
        left = part["pairs"]
        while block := list(islice(pairs, min(left, _CHUNK))):
            for _ in range(part["weight"]):
                yield from block
            left -= len(block)


class _Rows:
    """Writes sentences to STEM.ids.npy and STEM.starts.npy as they arrive;
    the headers, which contain their number, are completed last.
    """

    def __init__(self, stem: Path, kind: DTypeLike):
        self.kind, self.sentences, self.tokens = kind, 0, 0
        names = (Path(f"{stem}.{name}.npy") for name in ("ids", "starts"))
        self.ids, self.starts = (name.open("wb") for name in names)
        self._heads()
        self.starts.write(np.int64(0).tobytes())

    def _heads(self) -> None:
        for file, kind, length in (
            (self.ids, self.kind, self.tokens),
            (self.starts, np.int64, self.sentences + 1),
        ):
            descr, shape = np.dtype(kind).str, (length,)
            head = {"descr": descr, "fortran_order": False, "shape": shape}
            file.seek(0)
            np.lib.format.write_array_header_1_0(file, head)

    def add(self, rows: Sentences) -> None:
        """Append sentences."""
        self.ids.write(rows.ids.tobytes())
        self.starts.write((rows.starts[1:] + self.tokens).tobytes())
        self.tokens += len(rows.ids)
        self.sentences += len(rows)

    def close(self) -> None:
        self._heads()
        self.ids.close()
        self.starts.close()


def _write_manifest(
    folder: Path,
    cards: dict[str, dict[str, Any]],
    settings: dict[str, Any],
    tokenizers: tuple[Tokenizer, Tokenizer],
    notes: list[str],
    found: list[Finding],
) -> None:
    """Write corpus.json, the last of the folder's files."""
    manifest = {
        "format": _FORMAT,
        "source_vocab": len(tokenizers[0]),
        "target_vocab": len(tokenizers[1]),
        "splits": cards,
        "remarks": notes,
        "findings": [dataclasses.asdict(finding) for finding in found],
        "settings": settings,
        "files": {
            path.name: {
                "bytes": path.stat().st_size,
                "sha256": file_hash(path),
            }
            for path in sorted(folder.iterdir())
        },
    }
    write_json(folder / "corpus.json", manifest)


# E8-prepare.md: Opening it again
@dataclass(frozen=True)
class Prepared:
    """A prepared corpus: a folder and its manifest."""

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, folder: Path) -> Prepared:
        """Read the manifest. DataError if there is none, if it is damaged
        or of another format, or if a file is missing or has another size
        than it says.
        """
        path = folder / "corpus.json"
        if not path.is_file():
            raise DataError(
                f"{folder} is not a prepared corpus: no corpus.json"
            )
        try:
            manifest = json.loads(path.read_bytes())
            form, files = manifest["format"], manifest["files"]
        except (ValueError, TypeError, KeyError):
            raise DataError(
                f"{path} is damaged: prepare the corpus again"
            ) from None
        if form != _FORMAT:
            raise DataError(
                f"{folder} has format {form}, but this version reads "
                f"format {_FORMAT}: prepare the corpus again"
            )
        for name, card in files.items():
            file = folder / name
            size = file.stat().st_size if file.exists() else None
            if size != card["bytes"]:
                now = "is missing" if size is None else f"has {size:,}"
                raise DataError(
                    f"{file} should have {card['bytes']:,} bytes but "
                    f"{now}: prepare the corpus again"
                )
        return cls(folder, manifest)

    @property
    def settings(self) -> dict[str, Any]:
        """How it was made: the fields of its Preparation."""
        return self.manifest["settings"]

    @property
    def fingerprint(self) -> str:
        """Equal for equal ids, in the same order, and equal texts and
        tokenizers, on any machine.
        """
        files = sorted(self.manifest["files"].items())
        text = "".join(card["sha256"] for _, card in files)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def corpus(self, split: str, source: str | None = None) -> Corpus:
        """A split, memory-mapped; swapped if source is its target.
        DataError if there is no such split, or its files are damaged.
        """
        if split not in self.manifest["splits"]:
            raise DataError(
                f"{self.folder} has no split {split!r}; it has "
                f"{', '.join(self.manifest['splits'])}"
            )
        try:
            corpus = Corpus.load(self.folder / split)
        except (ValueError, OSError) as error:
            raise DataError(f"{error}: prepare the corpus again") from None
        if source == self.settings["target"]:
            return Corpus(corpus.tgt, corpus.src)
        return corpus

    def tokenizers(
        self, source: str | None = None
    ) -> tuple[Tokenizer, Tokenizer]:
        """The tokenizers of both sides, ordered as in corpus."""
        src, tgt = _tokenizers_in(self.folder)
        back = source == self.settings["target"]
        return (tgt, src) if back else (src, tgt)

    def check(self) -> None:
        """Verify the hash of every file. DataError names a changed one."""
        for name, card in self.manifest["files"].items():
            if file_hash(self.folder / name) != card["sha256"]:
                raise DataError(
                    f"{self.folder / name} has changed since it was made: "
                    "prepare the corpus again"
                )

    @property
    def findings(self) -> list[Finding]:
        """What looked dirty when it was prepared."""
        return [
            Finding(**found) for found in self.manifest.get("findings", [])
        ]

    def report(self) -> str:
        """A readable summary of the pairs kept and dropped, and of what
        looks dirty.
        """
        lines = []
        for split, card in self.manifest["splits"].items():
            tokens = card["source_tokens"], card["target_tokens"]
            lines.append(
                f"{split}: {card['pairs']:,} pairs, {tokens[0]:,} + "
                f"{tokens[1]:,} tokens"
            )
            parts = card.get("parts", [])
            parts = sorted(parts, key=lambda part: -part["pairs"])
            for part in parts[:_SHOWN]:
                tag = f", {part['tag']}" if part["tag"] else ""
                often = f", {part['weight']} times" * (part["weight"] > 1)
                lines.append(
                    f"  {part['file']}{tag}: {part['pairs']:,}{often}"
                )
            if rest := parts[_SHOWN:]:
                pairs = sum(part["pairs"] for part in rest)
                lines.append(f"  {len(rest)} other files: {pairs:,}")
            for why, count in sorted(card["dropped"].items()):
                lines.append(f"  dropped, {why}: {count:,}")
        if found := self.findings:
            lines += ["what looks dirty, with three examples each:"]
            lines += map(str, found)
        return "\n".join(lines)


_SHOWN = 10  # files of a split, the largest first
