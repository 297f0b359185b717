"""Exported from the book; edit the chapter, then run `make export`."""

import codecs
import errno
import importlib
import io
import os
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from shutil import get_terminal_size
from typing import Any

from annotated.engine.errors import (
    DataError,
    PeerError,
    RunError,
    Stopped,
    TrainingError,
    UsageError,
    unknown,
)

__all__ = ["COMMANDS", "dispatch", "load", "main"]


# E12-command-line.md: The program
COMMANDS = {  # what each does
    "recipes": "list what can be trained",
    "data": "list, show or prepare corpora",
    "train": "train RECIPE --out RUN",
    "adapt": "train --run RUN further on your own sentences, and compare",
    "translate": "translate sentences, or standard input, with --run RUN",
    "serve": "translate for other programs, over HTTP, with --run RUN",
    "evaluate": "translate a test set with --run RUN, and score that",
    "score": "say how probable --run RUN finds translations that exist",
    "average": "average checkpoints of --run RUN",
    "export": "write --run RUN --to FORMAT --out DIR for other programs",
    "import": "make a published model into a run: marian NAME --out RUN",
    "sweep": "run a table's rows at small scale, for --minutes N",
    "treebank": "make training sentences and trees from a treebank",
    "parse": "parse standard input into trees with --run RUN",
    "report": "write --run RUN as one page for the browser, --out FILE",
    "look": "show --run RUN in the browser: what it writes, where it looks",
    "paper": "keep your copy of the paper, and read it beside the cards",
    "exercises": "list the book's exercises, or check your file for one",
    "milestone": "run the book on the parts that you have written",
    "questions": "ask what the study guide asks",
    "classroom": "mend submitted notebooks, count mistakes (E26)",
    "doctor": "say what this machine has, and what is missing",
    "completion": "print what makes bash, zsh or fish complete a command",
}
_MODULES = {  # where each is: a class, which has the command's name
    "commands.train": ("recipes", "train"),
    "commands.data": ("data",),
    "commands.adapt": ("adapt",),
    "commands.translate": ("translate",),
    "commands.serve": ("serve",),
    "commands.evaluate": ("evaluate",),
    "commands.score": ("score",),
    "commands.average": ("average",),
    "commands.exchange": ("export", "import"),
    "book.sweep": ("sweep",),
    "commands.trees": ("treebank", "parse"),
    "commands.pages": ("report", "look", "paper"),
    "school.terminal": ("exercises", "milestone", "questions"),
    "school.classroom": ("classroom",),
    "commands.doctor": ("doctor",),
    "commands.completion": ("completion",),
}


# torch reads these when it is imported
_ENVIRONMENT = {
    "GOMP_SPINCOUNT": "1000",  # waiting threads do not spin for long
    "KMP_BLOCKTIME": "1",  # the same, for Intel's OpenMP
    "PYTORCH_ENABLE_MPS_FALLBACK": "1",  # Apple's GPU falls back to the CPU
}


def _usage() -> str:
    """The text of annotated --help."""
    each = "\n".join(
        f"  {name:10} {what}" for name, what in COMMANDS.items()
    )
    return (
        "usage: annotated SUBCOMMAND [options]\n\nTrain and use the "
        f'Transformer of "Attention Is All You Need".\n\n{each}\n\n'
        "More: annotated SUBCOMMAND --help, annotated train RECIPE --help."
        "\nAdd --debug anywhere to see the traceback of an error, and "
        "--import FILE for parts of your own (page E32)."
    )


def dispatch(args: Sequence[str]) -> None:
    """Run a command line. Raises the errors that main reports."""
    name, rest = (args[0] if args else "--help"), list(args[1:])
    if name in ("-h", "--help"):
        print(_usage())
        return
    if name.startswith("-"):
        raise UsageError(f"the subcommand comes first, before {name}")
    if name not in COMMANDS:
        raise UsageError(unknown("subcommand", name, COMMANDS))
    size = os.environ.get("WORLD_SIZE", "1")
    if not size.isdecimal():
        raise UsageError(f"WORLD_SIZE must be a number, not {size!r}")
    several = int(size) > 1
    if several and name not in ("train", "evaluate"):
        raise UsageError(f"{name} runs in one process: omit torchrun")
    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    if any(word.startswith("--import") for word in rest):
        parts = importlib.import_module("annotated.engine.parts")
        rest = parts.take_imports(rest)
    command = load(name)
    if name in ("train", "doctor"):  # they read their arguments themselves
        command(rest)
    else:
        options = importlib.import_module("annotated.commands.options")
        options.run(command, name, rest)


def load(name: str) -> Any:
    """The options of a subcommand, a class or several; of train and
    doctor, the function.
    """
    [module] = [m for m, names in _MODULES.items() if name in names]
    home = importlib.import_module(f"annotated.{module}")
    own = name in ("train", "doctor")
    return getattr(home, name if own else name.title())


def main() -> None:
    """The command annotated. Exits with 0 on success, 2 on an error that
    the user can fix, 128 + the signal's number if a signal stopped it.
    """
    null = os.devnull, os.O_RDWR  # in place of streams that are closed
    sys.stdin = sys.stdin or os.fdopen(os.open(*null))
    sys.stderr = sys.stderr or os.fdopen(os.open(*null), "w")
    _make_streams_legible()
    if get_terminal_size().columns < 40:  # too few for tyro's pages
        os.environ["COLUMNS"] = "40"
    args = [arg for arg in sys.argv[1:] if arg != "--debug"]
    debug = len(args) < len(sys.argv) - 1
    debug = debug or bool(os.environ.get("ANNOTATED_DEBUG"))
    try:
        if sys.stdout is None:
            raise UsageError("standard output is closed: > FILE opens it")
        dispatch(args)
        sys.stdout.flush()
    except PeerError:
        # let process 0 print why before our exit makes torchrun end it
        time.sleep(1)
        sys.exit(2)
    except Stopped as stopped:
        if os.environ.get("RANK", "0") == "0":
            _complain(str(stopped))
        sys.exit(128 + stopped.number)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if _reader_gone(error):  # there is nothing to flush
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        reason = _reason(error)
        if reason is None:
            raise  # our bug, not the user's mistake
        if debug:
            traceback.print_exc()
        _complain((isinstance(error, OSError) and _unwritten()) or reason)
        sys.exit(2)


def _unwritten() -> str:
    """Why what was printed cannot be written; "" if it has been."""
    try:
        sys.stdout.flush()
    except OSError as error:  # or Python tries it again as it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return f"standard output: {error.strerror}"
    return ""


def _reader_gone(error: Exception) -> bool:
    """Whether the pipe that we write to has been closed."""
    if os.name == "nt" and isinstance(error, OSError):
        unnamed = error.filename is None  # no file of the user's
        return unnamed and error.errno in (errno.EPIPE, errno.EINVAL)
    return isinstance(error, BrokenPipeError)


def _reason(error: Exception) -> str | None:
    """The message for an error that the user can fix; None for others."""
    name, text = type(error).__name__, str(error)  # perhaps torch's
    if name in ("MemoryError", "OutOfMemoryError") or (
        name == "RuntimeError" and "can't allocate memory" in text
    ):
        return (
            "out of memory: try a smaller batch_tokens, or in a search "
            "beam or extra"
        )
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    mendable = DataError, RunError, TrainingError, UsageError, OSError
    return text if isinstance(error, mendable) else None


def _complain(what: str) -> None:
    """Print an error as one line."""
    rank = os.environ.get("RANK", "0")
    who = "annotated:" if rank == "0" else f"annotated, process {rank}:"
    print(who, " ".join(what.split()), file=sys.stderr)


_SIMILAR = str.maketrans(
    {
        "✓": "+", "✗": "x", "★": "*", "•": "*", "·": "-", "→": "->",
        "…": "...", "–": "-", "−": "-", "“": '"', "”": '"', "×": "x",
        "─": "-", "│": "|", "╭": "+", "╮": "+", "╰": "+", "╯": "+",
    }
)  # fmt: skip


def _similar(error: UnicodeError) -> tuple[str, int]:
    """ASCII for what an encoding lacks: what looks like it, or a number."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_SIMILAR)
    return text.encode("ascii", "backslashreplace").decode(), error.end


def _make_streams_legible() -> None:
    """No character that is printed or typed ends the program."""
    codecs.register_error("similar", _similar)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="similar")
    if isinstance(sys.stdin, io.TextIOWrapper):
        with suppress(io.UnsupportedOperation):  # it has been read from
            sys.stdin.reconfigure(errors="replace")


if __name__ == "__main__":
    main()
