"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

import tyro

from annotated.commands.options import Flag, given, usage_errors
from annotated.corpora.pairs import splits_of
from annotated.corpora.registry import data_folder, registry
from annotated.engine.errors import DataError, UsageError, unknown

__all__ = ["List", "Show", "Prepare", "Data"]


# E12-command-line.md: Data
@dataclasses.dataclass(frozen=True)
class List:
    """List the data sets, and which of them are on this machine."""

    def act(self) -> None:
        for name, entry in registry().items():
            print(f"{name:12} {entry['about']}; {_here(name, entry)}")
            print(f"{'':12} {entry['title']}")


def _here(name: str, entry: dict[str, Any]) -> str:
    """The state of a data set in the data folder."""
    folder = data_folder() / entry.get("folder", name)
    # hidden is what has not arrived
    files = (p for p in folder.rglob("[!.]*") if p.is_file())
    full = any(files)
    ready = list(data_folder().glob(f"prepared/{name}.*/corpus.json"))
    return "prepared" if ready else "here" if full else "not downloaded"


@dataclasses.dataclass(frozen=True)
class Show:
    """Show the card of a data set, or how a folder was prepared."""

    name: tyro.conf.Positional[str]  # a data set, or a prepared folder

    def act(self) -> None:
        if (Path(self.name) / "corpus.json").is_file():
            self._show_prepared(Path(self.name))
            return
        known = registry()
        if self.name not in known:
            listed = (
                "annotated data list lists them; or give a folder that "
                "data prepare made"
            )
            raise DataError(unknown("data set", self.name, known, listed))
        entry = known[self.name]
        rows = {
            "title": entry["title"],
            "pairs": entry["about"],
            "languages": ", ".join(entry["languages"]),
            "splits": ", ".join(splits_of(entry)),
            "clean": entry.get("clean", "as it is"),
            "from": entry["url"],
            "homepage": entry["homepage"],
            "licence": entry["licence"],
            "cite": entry["citation"],
            "folder": data_folder() / entry.get("folder", self.name),
            "state": _here(self.name, entry),
        }
        for key, value in rows.items():
            print(f"{key:10} {value}")

    def _show_prepared(self, folder: Path) -> None:
        from annotated.corpora.prepare import Prepared

        corpus = Prepared.open(folder)
        corpus.check()
        print(json.dumps(corpus.settings, indent=1, ensure_ascii=False))
        print(f"{corpus.report()}\n{corpus.fingerprint}: intact")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepare:
    """Clean and encode a corpus into a folder that opens instantly."""

    name: tyro.conf.Positional[str]  # data set, your own folder, or pair
    out: Path | None = None  # the folder to create
    # pair: the source file; of several corpora, one of each
    src: tuple[Path, ...] = ()
    # pair: its translation, unless src has it; as many as src
    tgt: tuple[Path, ...] = ()
    # pair: a tag for each src, put before its sentences
    src_tags: tuple[str, ...] = ()
    # pair: for each src, then each mono, how many times an epoch has it
    weights: tuple[int, ...] = ()
    # pair: texts in the target language alone, for --back to translate
    mono: tuple[Path, ...] = ()
    # pair: the run that translates --mono into the source language
    back: Path | None = None
    # pair: the tag of these translations (unset: <bt>; '' for none)
    back_tag: str | None = None
    # pair: hypotheses per step of that search (unset: the run's)
    back_beam: int | None = None
    # pair: draw the translations instead of searching
    back_sample: Flag = False
    # pair: where src has its sides: two keys, names or numbers of columns
    columns: tuple[str, str] | None = None
    # pair: two files for validation (unset: hold out part of src)
    valid: tuple[Path, Path] | None = None
    # pair: two files for the test (unset: hold out part of src)
    test: tuple[Path, Path] | None = None
    # pair: hold out one in this many source sentences (unset: 100)
    hold_out: int | None = None
    # pair: hold out sentences, blocks of 50 lines, or documents
    divide_by: Literal["source", "block", "document"] | None = None
    source: str | None = None  # the language to translate from
    target: str | None = None  # the language to translate into
    vocab: int | None = None  # maximum vocabulary size
    # kind of tokens
    tokenizer: Literal["bpe", "wordpiece", "word"] | None = None
    separate: Flag = False  # one vocabulary per side
    # maximum number of pairs to learn the vocabulary from
    vocab_pairs: int | None = None
    # take the vocabulary of this run or prepared folder instead
    tokens: Path | None = None
    # tokens of your own, such as <formal>, that are never cut
    tags: tuple[str, ...] = ()
    # regular expressions: placeholders and markup that are kept whole
    protect: tuple[str, ...] = ()
    min_words: int | None = None  # drop pairs with fewer words on a side
    max_words: int | None = None  # drop pairs with more words on a side
    # drop pairs with one side more than this many times longer
    ratio: float | None = None
    lower: Flag = False  # convert to lower case
    unescape: Flag = False  # decode &quot; and other HTML entities
    detokenize: Flag = False  # rejoin punctuation to words
    drop_copies: Flag = False  # drop pairs whose sides are the same
    dedup: Flag = False  # keep the first of equal pairs
    json: Flag = False  # print the report as JSON, on one line

    def act(self) -> None:
        from annotated.corpora.prepare import prepare, usual_folder

        self._check_back()
        with usage_errors():
            preparation = self._preparation()
        if self.out is None and self.name not in registry():
            raise UsageError("data prepare: give --out, a new folder")
        languages = preparation.source, preparation.target
        out = self.out or usual_folder(preparation.name, *languages)
        if self.mono and self.back is not None:
            from annotated.commands.back import add_back

            preparation = add_back(
                preparation, self.back, self.mono, out,
                tag="<bt>" if self.back_tag is None else self.back_tag,
                weights=self.weights[len(self.src) :], beam=self.back_beam,
                sample=self.back_sample,
            )  # fmt: skip
        corpus = prepare(preparation, out)
        if self.json:
            names = "splits", "findings"
            print(json.dumps({n: corpus.manifest[n] for n in names}))
        else:
            print(f"{corpus.report()}")
            print(f"{corpus.folder}: {corpus.fingerprint}")

    def _preparation(self) -> Any:
        """The preparation asked for. UsageError or ValueError if it is
        invalid.
        """
        from annotated.corpora.prepare import Preparation

        names = ("source", "target", "vocab", "tokenizer", "vocab_pairs")
        changes = given(self, *names, "tags", "protect")
        if self.separate:
            changes["shared"] = False
        apart = "divide_by", "columns", "src_tags", "weights"
        more = "valid", "test", "hold_out"
        alone = given(self, "src", "tgt", *more, *apart)
        if alone and self.name != "pair":
            named = f"--{next(iter(alone))}".replace("_", "-")
            raise UsageError(f"data prepare: {named} goes with pair")
        if self.name == "pair":
            if not self.src:
                raise UsageError("data prepare pair: give --src and --tgt")
            changes |= given(self, *more, *apart)
            ours = len(self.src) if self.mono else None
            changes["weights"] = self.weights[:ours]
            preparation = Preparation.of_corpora(
                self.src, self.tgt, **changes
            )
        elif self.name in registry():
            preparation = Preparation.registered(self.name, **changes)
        elif Path(self.name).is_dir():
            if not (self.source and self.target):
                raise UsageError(
                    "data prepare: a folder needs --source and --target"
                )
            preparation = Preparation.of_folder(Path(self.name), **changes)
        else:
            known = ["pair", *registry()]
            listed = (
                "use pair, a folder, or a name that annotated data list "
                "lists"
            )
            raise UsageError(unknown("data set", self.name, known, listed))
        rules = ["min_words", "max_words", "ratio"]
        rules += ["lower", "unescape", "detokenize"]
        rules += ["drop_copies", "dedup"]
        cleaning = dataclasses.replace(
            preparation.cleaning, **given(self, *rules)
        )
        preparation = dataclasses.replace(preparation, cleaning=cleaning)
        if self.tokens is None:
            return preparation
        from annotated.engine.runs import run_folder

        clash = given(self, "vocab", "tokenizer", "vocab_pairs", "separate")
        clash |= given(self, "tags", "protect")
        if clash:
            raise UsageError(
                "data prepare: --tokens brings a vocabulary, so omit "
                f"{', '.join(f'--{n}' for n in clash).replace('_', '-')}"
            )
        return preparation.with_tokens(run_folder(self.tokens))

    def _check_back(self) -> None:
        """UsageError unless the options of back-translation fit."""
        if not self.mono and self.back is None:
            for name in given(self, "back_tag", "back_beam", "back_sample"):
                option = f"--{name}".replace("_", "-")
                raise UsageError(f"data prepare: {option} goes with --mono")
            return
        if self.name != "pair":
            raise UsageError("data prepare: --mono goes with pair")
        if not self.mono or self.back is None:
            raise UsageError("data prepare: --mono goes with --back")
        texts = len(self.src) + len(self.mono)
        if self.weights and len(self.weights) != texts:
            raise UsageError(
                f"weights must be {texts}, one for each of --src and of "
                f"--mono, not {len(self.weights)}"
            )


Data = List | Show | Prepare
