"""annotated.engine.prepare.

Exported from the book; edit the chapter, then run `make export`.

- 18-multi30k.md: Multi30k and IWSLT: real sentences
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from annotated.batches import Corpus, Sentences, id_type, join_sentences
from annotated.engine.errors import DataError
from annotated.engine.machine import cores
from annotated.engine.registry import data_folder, registry
from annotated.engine.text import (
    Cleaning,
    Division,
    Part,
    Text,
    divide,
    own_files,
    parts_of,
)
from annotated.tokens import Tokenizer

__all__ = [
    "FORMAT",
    "SHARD",
    "SLICE",
    "Preparation",
    "registered",
    "of_files",
    "of_folder",
    "usual_folder",
    "prepare",
    "encode_shard",
    "Prepared",
]


# 18-multi30k.md: Prepared once, used for ever
FORMAT = 1  # of a prepared folder


SHARD = 50_000  # pairs that are in memory at once


SLICE = 2000  # lines that are encoded at once


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What a prepared corpus is made of. ValueError names a field."""

    name: str
    source: str  # the language translated from
    target: str  # the language translated into
    parts: dict[str, list[Part]]  # by split
    cleaning: Cleaning = Cleaning(max_words=250)
    division: Division = Division()
    vocab: int = 8000  # tokens in a vocabulary, at most
    tokenizer: Literal["bpe", "wordpiece", "word"] = "bpe"
    shared: bool = True  # one vocabulary for both sides
    vocab_pairs: int = 5_000_000  # pairs it is learnt from, at most

    def __post_init__(self) -> None:
        for name in ("vocab", "vocab_pairs"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be at least 1, not {getattr(self, name)}"
                )
        if self.source == self.target:
            raise ValueError(f"both sides are called {self.source!r}")

    def settings(self) -> dict[str, Any]:
        """All of it as JSON has it, and the files as they are now."""
        values = dataclasses.asdict(self)
        values["files"] = {
            str(path): [path.stat().st_size, path.stat().st_mtime_ns]
            for parts in self.parts.values()
            for part in parts
            for path in (part.src.path, part.tgt.path)
        }
        return json.loads(json.dumps(values, default=str))


def registered(
    name: str,
    source: str | None = None,
    target: str | None = None,
    **changes: Any,
) -> Preparation:
    """The preparation of a registered data set, its files fetched; changes
    are other fields. DataError where it has not these languages.
    """
    entry = registry()[name]
    source, target = source or entry["source"], target or entry["target"]
    usual: dict[str, Any] = {
        "name": name,
        "source": source,
        "target": target,
        "parts": {
            split: parts_of(name, split, source, target)
            for split in entry["splits"]
        },
        "cleaning": Cleaning(**entry.get("clean", {})),
        "division": Division.of_entry(entry),
        "vocab": entry["vocab"],
        "tokenizer": entry.get("tokenizer", "bpe"),
    }
    return Preparation(**usual | changes)


def of_files(
    src: Path,
    tgt: Path | None = None,
    *,
    valid: tuple[Path, Path] | None = None,
    test: tuple[Path, Path] | None = None,
    hold_out: int = 100,
    **changes: Any,
) -> Preparation:
    """The preparation of two files, or of one with two columns. Of each
    split that is not given, one source in hold_out is held out for it.
    """
    given = {"train": (src, tgt or src)}
    given |= {"valid": valid} if valid else {}
    given |= {"test": test} if test else {}
    absent = [s for s in ("valid", "test") if s not in given]
    if hold_out <= len(absent):
        raise ValueError(
            f"hold_out must be more than {len(absent)}, not {hold_out}"
        )
    usual: dict[str, Any] = {
        "name": "pair",
        "source": _language(src, "source") if tgt else "source",
        "target": _language(tgt, "target") if tgt else "target",
        "parts": {split: [_part(*files)] for split, files in given.items()},
        "division": Division("source", hold_out, dict(enumerate(absent))),
    }
    return Preparation(**usual | changes)


def _language(path: Path, unknown: str) -> str:
    """What a file's name says: de of train.de.gz."""
    name = path.name
    for end in (".gz", ".xz", ".bz2", ".sgm", ".xml", ".txt"):
        name = name.removesuffix(end)
    end = name.rpartition(".")[2]
    return end if end != name and end.isalpha() else unknown


def _part(src: Path, tgt: Path) -> Part:
    """Two files, or one with two columns, in the form their name says."""
    form = "tsv" if src == tgt else "lines"
    if src.suffix in (".sgm", ".xml"):
        form = "segments"
    return Part(Text(src), Text(tgt), form)


def of_folder(
    folder: Path, source: str, target: str, **changes: Any
) -> Preparation:
    """The preparation of a folder with train.LANGUAGE, valid.LANGUAGE and
    perhaps test.LANGUAGE.
    """
    files = {
        split: own_files(folder, split, source, target)
        for split in ("train", "valid", "test")
        if split != "test" or any(folder.glob("test.*"))
    }
    usual: dict[str, Any] = {
        "name": folder.name,
        "source": source,
        "target": target,
        "parts": {split: [_part(*pair)] for split, pair in files.items()},
    }
    return Preparation(**usual | changes)


def usual_folder(name: str, source: str, target: str) -> Path:
    """Where a prepared data set is looked for, unless one says where."""
    return data_folder() / "prepared" / f"{name}.{source}-{target}"


def prepare(
    preparation: Preparation, out: Path, workers: int | None = None
) -> Prepared:
    """Read, clean, learn a vocabulary, encode, write; returns what came.

    Goes on where the same preparation was stopped. Memory does not grow
    with the corpus. DataError for data that cannot be used, and where
    out has something else in it.
    """
    settings = preparation.settings()
    if (out / "corpus.json").exists():
        there = Prepared.open(out)
        if there.manifest["settings"] == settings:
            _say(f"{out} is prepared already")
            return there
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} is not empty: choose another --out")
    work = out.parent / f".{out.name}.preparing"
    with _alone(work):
        _begin(work, settings)
        report = _clean(preparation, work)
        if preparation.settings() != settings:
            raise DataError(
                f"{preparation.name}: a file has changed while it was "
                "read; start again when nobody writes to it"
            )
        source, target = _vocabularies(preparation, work)
        _encode(work, source, target, workers)
        _finish(work, report, settings, source, target)
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.exists():
            out.rmdir()
        (work / "whole").rename(out)
    shutil.rmtree(work)
    return Prepared.open(out)


@contextlib.contextmanager
def _alone(work: Path) -> Iterator[None]:
    """Nobody else works in this folder: a file is locked as long as we
    live, and no longer. (Where files cannot be locked, we trust.)
    """
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as file:
        with contextlib.suppress(ImportError):  # as on Windows
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise DataError(
                    f"{work} is in use: another process prepares this "
                    "corpus"
                ) from None
        yield


def _begin(work: Path, settings: dict[str, Any]) -> None:
    """Keep what an earlier attempt has left, if it was the same one."""
    path = work / "settings.json"
    if path.exists() and _read(path) == settings:
        _say(f"going on with {work}")
        return
    for old in work.iterdir():
        if old.is_dir():
            shutil.rmtree(old)
        elif old.name != "lock":
            old.unlink()
    _write(path, settings)


def _write(path: Path, value: Any) -> None:
    """Write JSON, whole or not at all."""
    fresh = path.with_name(f".{path.name}")
    text = json.dumps(value, indent=1, ensure_ascii=False)
    fresh.write_text(text + "\n", "utf-8")
    fresh.replace(path)


def _read(path: Path) -> Any:
    """What _write wrote; None where it is not that."""
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError:
        return None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _clean(preparation: Preparation, work: Path) -> dict[str, Any]:
    """Write the shards of clean text; returns what became of the pairs."""
    if (work / "clean.json").exists():
        return _read(work / "clean.json")
    shards = _Shards(work / "text", preparation)
    report: dict[str, Any] = {}
    for split, parts in preparation.parts.items():
        dropped, count = Counter[str](), _Count(split)
        pairs = count.of(p for part in parts for p in part.pairs(False))
        if split == "train":
            rows = divide(
                pairs, preparation.cleaning, preparation.division, dropped
            )
        else:
            line = preparation.cleaning.line
            rows = ((split, line(s), line(t)) for s, t in pairs)
        for row in rows:
            shards.add(*row)
        if dropped["not UTF-8 text"] > 0.01 * count.number:
            raise DataError(
                f"{preparation.name}, {split}: "
                f"{dropped['not UTF-8 text']:,} of {count.number:,} pairs "
                "are not UTF-8; convert the files, with iconv for instance"
            )
        report[split] = {"read": count.number, "dropped": dict(dropped)}
    report["kept"] = shards.close()
    for split in ("train", "valid"):
        if not report["kept"].get(split):
            raise DataError(
                f"{preparation.name}: no pair is left for {split}; "
                f"{report.get('train')}"
            )
    _write(work / "clean.json", report)
    return report


class _Count:
    """Counts pairs as they pass, and says so now and then."""

    def __init__(self, split: str):
        self.split, self.number = split, 0

    def of(
        self, pairs: Iterable[tuple[str, str]]
    ) -> Iterator[tuple[str, str]]:
        said = time.monotonic()
        for self.number, pair in enumerate(pairs, start=1):
            if self.number % 10_000 == 0 and time.monotonic() - said > 10:
                said = time.monotonic()
                _say(f"{self.split}: {self.number:,} pairs read")
            yield pair


class _Shards:
    """Clean pairs, written in shards of SHARD: SPLIT-00000.src and .tgt.
    valid and test have one each, and keep the names of their languages.
    """

    def __init__(self, folder: Path, preparation: Preparation):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self.folder, self.kept = folder, Counter[str]()
        self.rows: dict[str, list[tuple[str, str]]] = {}

    def add(self, split: str, src: str, tgt: str) -> None:
        """One more pair."""
        rows = self.rows.setdefault(split, [])
        rows.append((src, tgt))
        if len(rows) == SHARD:
            self._write(split)

    def close(self) -> dict[str, int]:
        """Write what is left; how many pairs there are, by split."""
        for split in list(self.rows):
            self._write(split)
        return dict(self.kept)

    def _write(self, split: str) -> None:
        rows = self.rows.pop(split)
        number = self.kept[split] // SHARD
        self.kept[split] += len(rows)
        for side, name in enumerate(("src", "tgt")):
            path = self.folder / f"{split}-{number:05d}.{name}"
            text = "".join(row[side] + "\n" for row in rows)
            # half a character of a test set is read as Tokenizer reads it
            path.write_bytes(text.encode("utf-8", "replace"))


class _Lines:
    """Every step-th line of some shards, as often as one likes."""

    def __init__(self, shards: Sequence[Path], step: int):
        self.shards, self.step = shards, step

    def __iter__(self) -> Iterator[str]:
        for shard in self.shards:
            yield from _shard_lines(shard)[:: self.step]


def _shard_lines(path: Path) -> list[str]:
    text = path.read_bytes().decode("utf-8")
    return text.removesuffix("\n").split("\n")


def _vocabularies(
    preparation: Preparation, work: Path
) -> tuple[Tokenizer, Tokenizer]:
    """Learn the tokenizers, or load those that have been learnt."""
    paths = work / "source.json", work / "target.json"
    if not paths[1].exists():
        _say("learning the vocabulary")
        shards = sorted((work / "text").glob("train-*.src"))
        step = -(-len(shards) * SHARD // preparation.vocab_pairs)
        sides = [shards, [s.with_suffix(".tgt") for s in shards]]
        if preparation.shared:
            sides = [sides[0] + sides[1]] * 2
        for path, side in zip(paths, sides, strict=True):
            if preparation.shared and path == paths[1]:
                shutil.copy(paths[0], work / ".target.json")
            else:
                Tokenizer.train(
                    _Lines(side, step),
                    preparation.vocab,
                    preparation.tokenizer,
                ).save(work / f".{path.name}")
            (work / f".{path.name}").replace(path)
    return Tokenizer.load(paths[0]), Tokenizer.load(paths[1])


def _encode(
    work: Path,
    source: Tokenizer,
    target: Tokenizer,
    workers: int | None = None,
) -> None:
    """Encode every shard that is not encoded yet."""
    (work / "ids").mkdir(exist_ok=True)
    shards = sorted(p.stem for p in (work / "text").glob("*.src"))
    left = [s for s in shards if not (work / "ids" / f"{s}.done").exists()]
    most = workers or cores()
    if min(most, len(left)) < 2:
        for shard in left:
            encode_shard(work, shard, source, target)
        return
    # not fork: the tokenizers' threads would not come along
    fresh = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(
            min(most, len(left)), fresh, _start_worker, (work,)
        ) as pool:
            jobs = [pool.submit(_work, work, shard) for shard in left]
            for number, job in enumerate(as_completed(jobs), start=1):
                job.result()
                if number % 20 == 0:
                    _say(f"{number} of {len(left)} shards encoded")
    except BrokenProcessPool:
        raise DataError(
            "a process that encoded has died, for lack of memory perhaps: "
            "the same command goes on from here; --workers 1 needs least"
        ) from None


_loaded: list[Tokenizer] = []  # of this process, if it is a worker


def _start_worker(work: Path) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core a process
    _loaded[:] = [
        Tokenizer.load(work / f"{side}.json")
        for side in ("source", "target")
    ]


def _work(work: Path, shard: str) -> None:
    encode_shard(work, shard, *_loaded)


def encode_shard(
    work: Path, shard: str, source: Tokenizer, target: Tokenizer
) -> None:
    """Write the ids of one shard, without the pairs of which a side has
    no tokens.
    """
    src, tgt = (
        _encode_lines(work / "text" / f"{shard}.{name}", tokenizer)
        for name, tokenizer in (("src", source), ("tgt", target))
    )
    full = (src.lengths > 0) & (tgt.lengths > 0)
    kind = id_type(max(len(source), len(target)))
    for name, side in (("src", src), ("tgt", tgt)):
        if not full.all():
            chosen = np.flatnonzero(full).tolist()
            side = Sentences.of([side[i].tolist() for i in chosen])
        narrow = Sentences(side.ids.astype(kind), side.starts)
        narrow.save(work / "ids" / f"{shard}.{name}")
    (work / "ids" / f"{shard}.done").touch()


def _encode_lines(path: Path, tokenizer: Tokenizer) -> Sentences:
    """The ids of a file's lines, a slice at a time."""
    lines = _shard_lines(path)
    slices = [
        Sentences.of(tokenizer.encode(lines[i : i + SLICE]))
        for i in range(0, len(lines), SLICE)
    ]
    starts = np.zeros(len(lines) + 1, dtype=np.int64)
    np.cumsum(np.concatenate([s.lengths for s in slices]), out=starts[1:])
    return Sentences(np.concatenate([s.ids for s in slices]), starts)


def _finish(
    work: Path,
    report: dict[str, Any],
    settings: dict[str, Any],
    source: Tokenizer,
    target: Tokenizer,
) -> None:
    """Put the folder together, under work/whole."""
    whole = work / "whole"
    shutil.rmtree(whole, ignore_errors=True)
    whole.mkdir()
    splits = {
        split: _join(work, split, report, settings)
        for split in report["kept"]
    }
    source.save(whole / "source.json")
    target.save(whole / "target.json")
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(whole.iterdir())
    }
    manifest = {
        "format": FORMAT,
        "source_vocab": len(source),
        "target_vocab": len(target),
        "splits": splits,
        "settings": settings,
        "files": files,
    }
    _write(whole / "corpus.json", manifest)


def _join(
    work: Path, split: str, report: dict[str, Any], settings: dict[str, Any]
) -> dict[str, Any]:
    """Join the shards of a split; what the manifest says of it."""
    stem = work / "whole" / split
    for side, name in (("src", "source"), ("tgt", "target")):
        done = sorted((work / "ids").glob(f"{split}-*.done"))
        parts = [d.with_name(f"{d.stem}.{side}") for d in done]
        join_sentences(parts, stem.with_name(f"{split}.{side}"))
        if split != "train":
            place = stem.with_name(f"{split}.{settings[name]}")
            with place.open("wb") as file:
                for text in sorted(
                    (work / "text").glob(f"{split}-*.{side}")
                ):
                    file.write(text.read_bytes())
    corpus = Corpus.load(stem)
    card = report.get(split, {"dropped": {}})
    dropped = dict(card["dropped"])
    if lost := report["kept"][split] - len(corpus):
        dropped["a side without tokens"] = lost
    return card | {
        "dropped": dropped,
        "pairs": len(corpus),
        "source_tokens": len(corpus.src.ids),
        "target_tokens": len(corpus.tgt.ids),
    }


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus: a folder and its manifest."""

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, folder: Path) -> Prepared:
        """Read the manifest. DataError where the folder is not whole."""
        path = folder / "corpus.json"
        if not path.is_file():
            raise DataError(
                f"{folder} is no prepared corpus: it has no corpus.json"
            )
        manifest = _read(path)
        if not isinstance(manifest, dict) or "files" not in manifest:
            raise DataError(f"{path} is damaged: prepare the corpus again")
        if manifest.get("format") != FORMAT:
            raise DataError(
                f"{folder} was prepared in form {manifest.get('format')}, "
                f"this version reads {FORMAT}: prepare it again"
            )
        for name, card in manifest["files"].items():
            file = folder / name
            size = file.stat().st_size if file.exists() else None
            if size != card["bytes"]:
                there = "absent" if size is None else f"{size:,} bytes"
                raise DataError(
                    f"{file} should have {card['bytes']:,} bytes and is "
                    f"{there}: prepare the corpus again"
                )
        return cls(folder, manifest)

    @property
    def settings(self) -> dict[str, Any]:
        """How it was made: the fields of its Preparation."""
        return self.manifest["settings"]

    @property
    def fingerprint(self) -> str:
        """The same for the same ids in the same order, on any machine."""
        files = sorted(self.manifest["files"].items())
        text = "".join(card["sha256"] for _, card in files)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def corpus(self, split: str, source: str | None = None) -> Corpus:
        """A split, mapped; backwards if source is the other language."""
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
        """Of both sides, in the order of corpus."""
        src, tgt = (
            Tokenizer.load(self.folder / f"{side}.json")
            for side in ("source", "target")
        )
        return (
            (tgt, src) if source == self.settings["target"] else (src, tgt)
        )

    def check(self) -> None:
        """Compare every file with its hash. DataError names one."""
        for name, card in self.manifest["files"].items():
            if _sha256(self.folder / name) != card["sha256"]:
                raise DataError(
                    f"{self.folder / name} has changed since it was made: "
                    "prepare the corpus again"
                )

    def report(self) -> str:
        """What became of the pairs, for a person."""
        lines = []
        for split, card in self.manifest["splits"].items():
            tokens = card["source_tokens"], card["target_tokens"]
            lines.append(
                f"{split}: {card['pairs']:,} pairs, {tokens[0]:,} + "
                f"{tokens[1]:,} tokens"
            )
            for why, count in sorted(card.get("dropped", {}).items()):
                lines.append(f"  dropped, {why}: {count:,}")
        return "\n".join(lines)
