"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import tyro

from annotated.commands.options import Flag, given, usage_errors
from annotated.corpora.marks import missing
from annotated.corpora.reading import CURES, decoded
from annotated.corpora.sentencepieces import tagged, unknown_words
from annotated.engine.constraints import (
    Glossary,
    Limits,
    as_phrases,
    as_prefixes,
)
from annotated.engine.distributed import all_gather, rank
from annotated.engine.errors import UsageError, check_whole
from annotated.engine.machine import HALF, pick_device, pick_precision
from annotated.engine.runs import Run
from annotated.engine.scoring import word_alignment
from annotated.engine.search import Sampling, converted
from annotated.engine.speed import search_device
from annotated.engine.translate import Translation
from annotated.search import SearchConfig
from annotated.tokens import Tokenizer

__all__ = [
    "RunOptions", "SearchOptions", "VoteOptions", "Wish",
    "ConstraintOptions", "Translate", "tell_gaps", "arriving",
]  # fmt: skip


# E12-command-line.md: Translate
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options that say which model searches, and how."""

    run: Path  # the run folder
    ensemble: tuple[Path, ...] = ()  # other runs to form an ensemble with
    beam: int | None = None  # hypotheses per step (unset: the recipe's)
    # exponent of the length penalty (unset: the recipe's)
    alpha: float | None = None
    # tokens by which an output may exceed its source
    extra: int | None = None
    # one of the run's tags, put before each line that begins with none
    tag: str | None = None
    # cpu, cuda or mps (unset: a GPU; on a Mac the quicker)
    device: str | None = None
    # number format of the search; auto picks the fastest here
    precision: Literal["auto", "float32", "bfloat16", "float16", "int8"] = (
        "auto"
    )
    ctranslate2: Flag = False  # let CTranslate2 search (page A6)

    def open(self) -> Run:
        """Load the run and those that vote with it onto the device.
        RunError or UsageError, before any work is done.
        """
        device = pick_device(self.device)
        run = Run.open(self.run, *self.ensemble)
        if not self.ctranslate2:
            search = run.recipe.search
            device = search_device(run.model, search, self.device)
        for each in (run.model, *run.others):
            each.to(device)
        if self.tag is not None:
            source = tagged(run.source, self.tag)
            run = dataclasses.replace(run, source=source)
        if self.ctranslate2:
            return self.engine(run)
        choice, why = str(self.precision), "as requested"
        if choice == "auto":  # process 0 decides
            first = rank() == 0
            own = pick_precision(device) if first else (choice, why)
            choice, why = all_gather(own)[0]
        if choice == "float32" and device != "cpu":
            return run
        if choice == "int8" and device != "cpu":
            raise UsageError(
                f"--precision int8 needs --device cpu, not {device}"
            )
        if choice != "float32" and rank() == 0:
            print(f"searching in {choice}: {why}", file=sys.stderr)
        kinds = {"float32": torch.float32, "int8": torch.qint8} | HALF
        model, *others = (
            converted(each, kinds[choice])
            for each in (run.model, *run.others)
        )
        return dataclasses.replace(run, model=model, others=tuple(others))

    def engine(self, run: Run) -> Run:
        """The run, to be searched by CTranslate2."""
        from annotated.exchange.export import with_ctranslate2

        kind = "float32" if self.precision == "auto" else self.precision
        return with_ctranslate2(run, kind, torch.get_num_threads())

    def search(self, run: Run, **changes: Any) -> SearchConfig:
        """The recipe's search, as changed by the command line."""
        changes |= given(self, "beam", "alpha", "extra")
        with usage_errors():
            return dataclasses.replace(run.recipe.search, **changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions(RunOptions):
    """The options that translate, evaluate and parse share."""

    # search processes on a CPU (unset: torch's threads on Linux, else 1)
    workers: int | None = None

    def open(self) -> Run:
        """The run, opened once the number of workers makes sense."""
        if self.workers is not None:
            check_whole("workers", self.workers, least=1)
        return super().open()

    def processes(self, run: Run) -> int:
        """The number of processes to search with."""
        if next(run.model.parameters()).device.type != "cpu":
            return 1
        # on systems other than Linux they take seconds to start
        usual = torch.get_num_threads() if sys.platform == "linux" else 1
        return self.workers or usual


@dataclasses.dataclass(frozen=True, kw_only=True)
class VoteOptions(SearchOptions):
    """The options that translate and evaluate share."""

    # draws that vote for the translation most like them (unset: none)
    mbr: int | None = None

    def open(self) -> Run:
        """The run, once it is clear that it can be asked to vote."""
        if self.mbr is not None:
            check_whole("mbr", self.mbr, least=1)
            if self.ctranslate2:
                raise UsageError("--ctranslate2 does not know --mbr")
        return super().open()

    def translate(
        self,
        run: Run,
        lines: Sequence[str],
        search: SearchConfig,
        batch_tokens: int | None = None,
        **asked: Any,
    ) -> list[list[Translation]]:
        """The translations of lines, those of least risk first if there is
        a vote. UsageError if its beam is of one hypothesis.
        """
        asked["batch_tokens"] = batch_tokens
        asked["workers"] = self.processes(run)
        if self.mbr is None:
            return run.translate(lines, search, **asked)
        if search.beam < 2:  # there is nothing to choose from
            raise UsageError("--mbr needs a beam of two or more")
        from annotated.engine.mbr import by_risk

        wide = dataclasses.replace(search, nbest=search.beam)
        found = run.translate(lines, wide, **asked)
        shape: dict[str, Any] = {
            "extra": search.extra, "limit": search.limit,
        }  # fmt: skip
        drawn = {k: v for k, v in asked.items() if k != "required"}
        draw = Sampling(nbest=self.mbr, **shape)
        draws = run.translate(lines, draw, **drawn)
        ordered = by_risk(found, draws)
        for line, some in zip(lines, ordered):  # placeholders come first
            some.sort(key=lambda one: _lost(run.source, line, one.text))
        return [some[: search.nbest] for some in ordered]


def _lost(source: Tokenizer, line: str, text: str) -> int:
    """How many placeholders of a line a translation lacks."""
    return sum(map(len, missing(source, [line], [text])))


Wish = tuple[str, Sequence[str]]  # of a line: its prefix, required words


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConstraintOptions(RunOptions):
    """The options that say what a translation must be like (page E39)."""

    prefix: str = ""  # text with which each translation begins
    # text that each translation has, or one|other; may be repeated
    require: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    # file of terms, tab, their translations: where one stands, so does
    # the other
    glossary: Path | None = None
    min_length: int = 0  # minimum tokens in a translation
    # no sequence of this many tokens comes twice (0: it may)
    no_repeat: int = 0

    def check_constraints(self) -> None:
        """UsageError for what no run could do."""
        for name in ("min_length", "no_repeat"):
            check_whole(name, getattr(self, name), least=0)
        for name in self.constraints() if self.ctranslate2 else ():
            raise UsageError(f"--ctranslate2 does not know {_option(name)}")

    def constraints(self) -> list[str]:
        """The names of those that are given."""
        names = "prefix", "require", "glossary", "min_length", "no_repeat"
        return [name for name in names if getattr(self, name)]

    def wishes(self, run: Run) -> Callable[..., dict[str, Any]]:
        """What Run.translate is told of the constraints of some lines,
        each with what is asked of it alone.
        """
        guide = None
        if self.min_length or self.no_repeat:
            vocab = run.model.config.tgt_vocab
            guide = Limits(vocab, self.min_length, self.no_repeat)
        terms = None if self.glossary is None else Glossary(self.glossary)
        as_prefixes([self.prefix], run.target)  # refused before any work
        as_phrases(self.require, run.target)
        if terms is not None:
            try:
                as_phrases(list(terms.terms.values()), run.target)
            except UsageError as error:
                raise UsageError(f"{self.glossary}: {error}") from None

        def wishes(
            lines: Sequence[str], own: Sequence[Wish] = ()
        ) -> dict[str, Any]:
            made: dict[str, Any] = {"guide": guide} if guide else {}
            own = own or [("", ())] * len(lines)
            begun = [prefix or self.prefix for prefix, _ in own]
            due = [
                [
                    *self.require,
                    *words,
                    *(terms.required(line) if terms else ()),
                ]
                for line, (_, words) in zip(lines, own, strict=True)
            ]
            made |= {"prefixes": begun} if any(begun) else {}
            return made | ({"required": due} if any(due) else {})

        return wishes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translate(ConstraintOptions, VoteOptions):
    """Translate sentences, or standard input line by line, to standard
    output.
    """

    # what to translate (unset: standard input); options come before it
    sentences: tyro.conf.Positional[tuple[str, ...]] = ()
    nbest: int = 1  # translations per line; above 1, numbered and scored
    json: Flag = False  # write JSON, one object per input line
    # source tokens per batch (unset: 2000; on a GPU what fits)
    batch_tokens: int | None = None
    # say from which source word each word comes (page E35)
    align: Flag = False
    sample: Flag = False  # draw translations instead of searching
    # below 1 the draws are less varied (unset: 1)
    temperature: float | None = None
    # each token is one of the K most probable (unset: any)
    top_k: int | None = None
    # each token is one of the fewest that together have probability P
    top_p: float | None = None
    seed: int | None = None  # another one draws others (unset: 0)

    def act(self) -> None:
        """Read, translate, write, until the input ends."""
        if self.batch_tokens is not None:
            check_whole("batch_tokens", self.batch_tokens, least=1)
        self.check_constraints()
        self.check_sampling()
        run = self.open()
        search = self.search(run, nbest=self.nbest)
        wishes = self.wishes(run)
        self.translate(run, [], search, **wishes([]))  # refused at once
        told: set[str] = set()  # unknown words
        typed = "".join(f"{line}\n" for line in self.sentences)
        asked = [typed.encode("utf-8", "surrogateescape")]

        def translate(lines: Sequence[str]) -> list[list[Translation]]:
            strange = unknown_words(run.source, lines)
            if fresh := [word for word in strange if word not in told]:
                print(_unread(fresh, run.source), file=sys.stderr)
                told.update(fresh)
            return self.translate(
                run, lines, search, self.batch_tokens, **wishes(lines)
            )

        blocks = arriving(asked if self.sentences else None)
        for number, lines, translated in _answered(translate, blocks):
            best = [each[0].text for each in translated]
            lost = missing(run.source, lines, best)
            tell_gaps(lines, best, lost, number)
            for i, (line, found) in enumerate(zip(lines, translated)):
                some = lost[i] if lost else None
                for text in self.written(
                    run, number + i, line, found, some
                ):
                    out = f"{text}\n".encode("utf-8", "replace")
                    sys.stdout.buffer.write(out)
            sys.stdout.buffer.flush()

    def written(
        self,
        run: Run,
        number: int,
        line: str,
        found: Sequence[Translation],
        lost: Sequence[str] | None,
    ) -> list[str]:
        """What is written of a line: one line, or one for each
        translation.
        """
        each = [dataclasses.asdict(one) for one in found]
        texts = [one.text for one in found]
        if self.nbest > 1:
            texts = [
                f"{number}\t{one.score:.4f}\t{one.text}" for one in found
            ]
        models, both = (run.model, *run.others), (run.source, run.target)
        for i, one in enumerate(found) if self.align else ():
            links = word_alignment(models, both, line, one.text)
            each[i]["alignment"] = links
            texts[i] += "\t" + " ".join(f"{i}-{j}" for i, j in links)
        if not self.json:
            return texts if self.nbest > 1 else texts[:1]
        answer: dict[str, Any] = {"line": number, "translations": each}
        if lost is not None:
            answer["missing"] = lost
        return [json.dumps(answer, ensure_ascii=False)]

    def check_sampling(self) -> None:
        """UsageError for options that do not go together."""
        others = _SEARCHING if self.sample else _SAMPLING
        for name in given(self, *others):
            if not self.sample:
                raise UsageError(f"{_option(name)} needs --sample")
            raise UsageError(f"--sample does not go with {_option(name)}")

    def search(self, run: Run, **changes: Any) -> SearchConfig:
        """The recipe's search as changed by the command line, or what to
        draw.
        """
        if not self.sample:
            return super().search(run, **changes)
        usual = run.recipe.search
        changes |= {"extra": usual.extra, "limit": usual.limit}
        changes |= given(self, "extra", *_SAMPLING)
        return Sampling(**changes)


_Translate = Callable[[Sequence[str]], list[list[Translation]]]
_Block = tuple[int, Sequence[str], list[list[Translation]]]


def _answered(
    translate: _Translate, blocks: Iterable[Sequence[str]]
) -> Iterator[_Block]:
    """Each block with the number of lines before it and its translations.
    UsageError with the number of the first line that has none, after the
    lines before it.
    """
    number, waiting = 0, list[Sequence[str]]()
    for block in blocks:
        waiting.append(block)
        while waiting:
            lines = waiting.pop()
            try:
                found = translate(lines)
            except UsageError as error:
                if len(lines) == 1:
                    why = f"line {number + 1}: {error}"
                    raise UsageError(why) from None
                half = len(lines) // 2
                waiting += [lines[half:], lines[:half]]
                continue
            yield number, lines, found
            number += len(lines)


_SAMPLING = "temperature", "top_k", "top_p", "seed"
_SEARCHING = "beam", "alpha", "require", "glossary", "ctranslate2", "mbr"


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def tell_gaps(
    lines: Sequence[str],
    texts: Sequence[str],
    lost: Sequence[Sequence[str]],
    before: int = 0,
) -> None:
    """Say on standard error which lines, after this many others, have an
    empty translation without being blank, and which lost placeholders.
    """
    pairs = enumerate(zip(lines, texts), start=before + 1)
    gaps = {
        "empty translation of": [
            f"{i}" for i, (line, text) in pairs if line.strip() and not text
        ],
        "placeholders lost in": [
            f"{i} ({' '.join(some)[:60]})"
            for i, some in enumerate(lost, start=before + 1)
            if some
        ],
    }
    for what, where in gaps.items():
        listed = ", ".join(where[:10]) + " …" * (len(where) > 10)
        if where:
            print(f"{what} line {listed}", file=sys.stderr)


def _unread(words: Sequence[str], tokenizer: Tokenizer) -> str:
    """What standard error says of words that the model cannot read."""
    listed = ", ".join(w[:40] + "…" * (len(w) > 40) for w in words[:10])
    listed += " …" * (len(words) > 10)
    hint = ""
    for word in words:
        bare = word.rstrip(".,!?;:")
        if bare not in ("", word) and not unknown_words(tokenizer, [bare]):
            hint = f"; put a space before punctuation: {bare}"
            hint += f" {word.removeprefix(bare)}"
            break
    return f"not in the run's vocabulary: {listed}{hint}"


def arriving(
    blocks: Iterable[bytes] | None = None,
) -> Iterator[list[str]]:
    """Yield lines of what was given in place of standard input, or of
    that as they arrive, read as Text.lines reads a file. DataError, after
    the lines before, as there.
    """
    name = "standard input" if blocks is None else "what was given"
    if blocks is None:
        source: Any = sys.stdin.buffer
        blocks = iter(partial(source.read1, 2**16), b"")
    told = False
    for text in decoded(blocks, name, cures=CURES | _TYPED):
        if not told and (lost := _LOST.search(text)):
            told = True
            print(
                f"{lost[0]}: if the shell has put ? for a letter, {_UTF8}",
                file=sys.stderr,
            )
        yield text.removesuffix("\n").split("\n")


_UTF8 = (  # how to send any letter to a program
    "on Windows first type chcp 65001 (in cmd) or $OutputEncoding = "
    "[Text.Encoding]::UTF8 (in PowerShell); elsewhere use iconv"
)
_TYPED = {"not UTF-8 text": _UTF8}
# a word in which a shell may have put ? for a letter; of a long one, a part
_LOST = re.compile(r"\w{0,40}\?[^\W\d]\w{0,40}")
