"""Exported from the book; edit the chapter, then run `make export`."""

import importlib
import os
import sys
import time
import traceback
from collections.abc import Sequence

from annotated.engine.errors import (
    DataError,
    PeerError,
    RunError,
    Stopped,
    TrainingError,
    UsageError,
)

__all__ = ["COMMANDS", "ENVIRONMENT", "usage", "obey", "main"]


# E12-command-line.md: The program
COMMANDS = {
    "recipes": "list what can be trained",
    "data": "list, show or prepare corpora",
    "train": "train RECIPE --out RUN",
    "translate": "translate standard input with --run RUN",
    "evaluate": "score --run RUN on a test set",
    "average": "average checkpoints of --run RUN",
    "export": "write --run RUN --to FORM --out DIR for other programs",
    "sweep": "run the rows of a table in small, for --minutes N",
    "treebank": "make sentences and trees to train on of a treebank",
    "parse": "draw trees over standard input with --run RUN",
}


# what torch reads once, when it is imported
ENVIRONMENT = {
    "GOMP_SPINCOUNT": "1000",  # threads that wait do not spin for long
    "KMP_BLOCKTIME": "1",  # the same, for Intel's OpenMP
    "PYTORCH_ENABLE_MPS_FALLBACK": "1",  # the CPU helps Apple's GPU out
}


def usage() -> str:
    """What annotated --help prints."""
    each = "\n".join(
        f"  {name:10} {what}" for name, what in COMMANDS.items()
    )
    return (
        "usage: annotated SUBCOMMAND [options]\n\nThe Transformer of "
        f'"Attention Is All You Need", trained and used.\n\n{each}\n\n'
        "More: annotated SUBCOMMAND --help, annotated train RECIPE --help."
        "\n--debug, anywhere, shows the traceback of an error."
    )


def obey(args: Sequence[str]) -> None:
    """Do what a command line says. Raises what main tells."""
    name, rest = (args[0] if args else "--help"), list(args[1:])
    if name in ("-h", "--help"):
        print(usage())
        return
    if name not in COMMANDS:
        raise UsageError(
            f"no subcommand {name!r}; there are {', '.join(COMMANDS)}"
        )
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several and name not in ("train", "evaluate"):
        raise UsageError(f"{name} is for one process: leave torchrun out")
    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    importlib.import_module("annotated.engine.commands").obey(name, rest)


def main() -> None:
    """The command annotated: 0 for done, 2 for what a person can mend,
    128 + the number of the signal that stopped it.
    """
    args = [arg for arg in sys.argv[1:] if arg != "--debug"]
    debug = len(args) < len(sys.argv) - 1
    debug = debug or bool(os.environ.get("ANNOTATED_DEBUG"))
    try:
        obey(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader has gone: nothing is left to say, or to flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except PeerError:
        # process 0 is about to say why, and may be ended as soon as we go
        time.sleep(1)
        sys.exit(2)
    except Stopped as stopped:
        if os.environ.get("RANK", "0") == "0":
            _complain(str(stopped))
        sys.exit(128 + stopped.number)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        reason = _reason(error)
        if reason is None:
            raise  # a mistake of ours, not of the person's
        if debug:
            traceback.print_exc()
        _complain(reason)
        sys.exit(2)


def _reason(error: Exception) -> str | None:
    """What to tell of an error that a person can mend; None of others."""
    name, text = type(error).__name__, str(error)  # of torch, perhaps
    if name in ("MemoryError", "OutOfMemoryError") or (
        name == "RuntimeError" and "can't allocate memory" in text
    ):
        return "not enough memory: a smaller batch_tokens needs less"
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    mendable = DataError, RunError, TrainingError, UsageError, OSError
    return text if isinstance(error, mendable) else None


def _complain(what: str) -> None:
    """One line, whatever it is about."""
    rank = os.environ.get("RANK", "0")
    who = "annotated:" if rank == "0" else f"annotated, process {rank}:"
    print(who, " ".join(what.split()), file=sys.stderr)
