"""annotated.cli.

Exported from the book; edit the chapter, then run `make export`.

- A5-command-line.md: The command line
"""

import contextlib
import dataclasses
import io
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tyro

from annotated.corpora import read_pair
from annotated.decoding import SearchConfig
from annotated.evaluation import score
from annotated.recipes import (
    RECIPES,
    Recipe,
    Run,
    RunError,
    Stopped,
    load_text,
    pick_device,
    read_recipe,
    train_recipe,
)
from annotated.training import TrainingError

__all__ = [
    "Train",
    "Translate",
    "Evaluate",
    "UsageError",
    "VERBS",
    "obey",
    "main",
]


# A5-command-line.md: Train
@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """Train a recipe. Its fields are options, with its values."""

    recipe: tyro.conf.OmitArgPrefixes[Recipe]

    out: Path
    """the run's folder, new unless you resume"""

    resume: tyro.conf.FlagCreatePairsOff[bool] = False
    """go on from the newest checkpoint in --out"""

    device: str | None = None
    """cpu or cuda; unless given, a GPU where there is one"""

    def obey(self) -> None:
        """Train, and print the run's summary as JSON."""
        summary = train_recipe(
            self.recipe, self.out, resume=self.resume, device=self.device
        )
        print(json.dumps(summary))


# A5-command-line.md: Translate
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Use:
    run: Path
    """the run's folder"""

    beam: int | None = None
    """hypotheses kept at each step; unless given, the recipe's"""

    alpha: float | None = None
    """exponent of the length penalty; unless given, the recipe's"""

    extra: int | None = None
    """tokens that a translation may be longer than its source"""

    device: str | None = None
    """cpu or cuda; unless given, a GPU where there is one"""

    def open(self) -> Run:
        """The run, its model on the device. RunError, before any work."""
        device = pick_device(self.device)
        run = Run.open(self.run)
        run.model.to(device)
        return run

    def search(self, run: Run, **changes: Any) -> SearchConfig:
        """The recipe's search with what the command line changes."""
        for name in ("beam", "alpha", "extra"):
            if getattr(self, name) is not None:
                changes[name] = getattr(self, name)
        return dataclasses.replace(run.recipe.search_config(), **changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translate(_Use):
    """Translate standard input to standard output, line by line."""

    nbest: int = 1
    """translations a line; if several: line number, score, text"""

    def obey(self) -> None:
        """Read, translate, write, until the input ends."""
        run = self.open()
        search = self.search(run, nbest=self.nbest)
        number = 0
        for lines in _chunks():
            for found in run.translate(lines, search):
                for one in found:
                    start = f"{number}\t{one.score:.4f}\t" * (
                        self.nbest > 1
                    )
                    line = start + one.text + "\n"
                    sys.stdout.buffer.write(line.encode("utf-8", "replace"))
                number += 1
            sys.stdout.buffer.flush()


def _chunks() -> Iterator[list[str]]:
    """Lines of standard input; only \\n ends one. A person sees each
    answered at once; a pipe is read many at a time, for speed, but not
    so many that they fill the memory.
    """
    most = 1 if sys.stdin.isatty() else 1000
    lines: list[str] = []
    size = 0
    for line in sys.stdin.buffer:
        text = line.removesuffix(b"\n").decode("utf-8", "replace")
        lines.append(text.removesuffix("\r"))
        size += len(line)
        if len(lines) == most or size > 2**20:
            yield lines
            lines, size = [], 0
    if lines:
        yield lines


# A5-command-line.md: Evaluate
@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate(_Use):
    """Translate a test set and score it against its references."""

    split: str | None = None
    """a split of the recipe's data: valid or test"""

    src: Path | None = None
    """a file to translate instead; needs --ref"""

    ref: Path | None = None
    """its reference translations"""

    split_compounds: tyro.conf.FlagCreatePairsOff[bool] = False
    """BLEU as the paper counted it: words split at hyphens"""

    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print JSON, one object on one line"""

    def obey(self) -> None:
        """Translate, score, print."""
        if (self.split is None) == (self.src is None):
            raise UsageError("evaluate: give --split, or --src with --ref")
        if (self.src is None) != (self.ref is None):
            raise UsageError("evaluate: --src and --ref go together")
        run = self.open()
        search = self.search(run)
        if self.src is not None and self.ref is not None:
            src, ref = read_pair(self.src, self.ref)
        else:
            src, ref = load_text(run.recipe, str(self.split))
        started = time.perf_counter()
        found = [best[0].text for best in run.translate(src, search)]
        seconds = round(time.perf_counter() - started, 2)
        scores = score(found, ref, split_compounds=self.split_compounds)
        scores |= {"seconds": seconds}
        if self.json:
            print(json.dumps(scores))
            return
        for name, value in scores.items():
            print(f"{name:12} {value}")


# A5-command-line.md: Help, and what cannot be obeyed
class UsageError(ValueError):
    """A command line that cannot be obeyed."""


VERBS = {
    "recipes": "list what can be trained",
    "train": "train RECIPE --out RUN",
    "translate": "translate standard input with --run RUN",
    "evaluate": "score --run RUN on a test set",
}


def _help() -> str:
    verbs = "\n".join(f"  {name:10} {what}" for name, what in VERBS.items())
    return (
        "usage: annotated VERB [options]\n\nThe Transformer of "
        f'"Attention Is All You Need", trained and used.\n\n{verbs}\n\n'
        "More: annotated VERB --help, annotated train RECIPE --help."
    )


def _recipes() -> str:
    width = max(map(len, RECIPES))
    return "\n".join(
        f"{name:{width}}  {recipe.about}"
        for name, recipe in RECIPES.items()
    )


def obey(args: Sequence[str]) -> None:
    """Do what a command line says. Raises ValueError, OSError, …"""
    verb, rest = (args[0] if args else "--help"), list(args[1:])
    if verb in ("-h", "--help"):
        print(_help())
    elif verb == "recipes":
        print(_recipes())
    elif verb == "train":
        _train(rest)
    elif verb == "translate":
        _parse(Translate, rest, verb).obey()
    elif verb == "evaluate":
        _parse(Evaluate, rest, verb).obey()
    else:
        raise UsageError(f"no verb {verb!r}; there are {', '.join(VERBS)}")


def _train(args: list[str]) -> None:
    if not args or args[0] in ("-h", "--help"):
        print(f"usage: annotated train RECIPE --out RUN\n\n{_recipes()}")
        return
    if args[0] not in RECIPES:
        raise UsageError(
            f"no recipe {args[0]!r}; there are {', '.join(RECIPES)}"
        )
    name, rest = f"train {args[0]}", args[1:]
    blank = Train(recipe=RECIPES[args[0]], out=tyro.MISSING)
    train: Train = _parse(Train, rest, name, default=blank)
    if train.resume:
        # what is not given is as the run has it, not as the recipe has it
        begun = read_recipe(train.out)
        if begun.data != train.recipe.data:
            raise RunError(
                f"{train.out} was begun with data {begun.data!r}, which "
                f"{name} does not train on"
            )
        blank = Train(recipe=begun, out=tyro.MISSING)
        train = _parse(Train, rest, name, default=blank)
    train.obey()


def _parse(verb: type, args: list[str], name: str, **extra: Any) -> Any:
    """What tyro makes of args; its complaint becomes one line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                verb, args=args, prog=f"annotated {name}", **extra
            )
    except SystemExit as stop:
        if not stop.code:
            raise
    lines = [
        line.strip("│╭╮╰╯─|+ ") for line in said.getvalue().splitlines()
    ]
    # the first line is the box's title; rules are dashes alone
    what = " ".join(line for line in lines[1:] if line.strip("-"))
    what = re.split(r" (?:Argument|For full) helptext", what)[0]
    raise UsageError(f"{name}: {what} (annotated {name} --help)")


def main() -> None:
    """The command annotated: 0 for done, 2 for what a person can mend,
    128 + the number of the signal that stopped it.
    """
    try:
        obey(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader has gone: nothing is left to say, or to flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Stopped as stopped:
        _complain(stopped)
        sys.exit(128 + stopped.number)
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError, TrainingError) as error:
        _complain(error)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise  # a mistake of ours, not of the person's
        _complain("not enough memory: a smaller batch_tokens needs less")
        sys.exit(2)


def _complain(what: object) -> None:
    """One line, whatever it is about."""
    if isinstance(what, OSError) and what.filename and what.strerror:
        what = f"{what.filename}: {what.strerror}"
    print("annotated:", " ".join(str(what).split()), file=sys.stderr)
