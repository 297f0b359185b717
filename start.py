"""From a clone to a trained translator, with Python and pip alone:

    python start.py         translate a sentence, then train a translator
    python start.py test    test the model, its training and search
    python start.py book    run every chapter and set the pages as site/

What is needed is installed into .venv beside this file, once.
"""

import os
import platform
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
if sys.version_info < (3, 10):  # noqa: UP036
    sys.exit("This needs Python 3.10 or newer.")
if hasattr(sys.stdout, "reconfigure"):
    sys.stdout.reconfigure(errors="replace")
WINDOWS = os.name == "nt"
PYTHON = ROOT / (
    ".venv/Scripts/python.exe" if WINDOWS else ".venv/bin/python"
)
SENTENCE = "Heute kauft diese junge Ärztin nicht ein , "
SENTENCE += "obwohl Anna nicht müde war ."
# what shows in a minute whether the heart of the package beats
STORY = (
    "masks attention multi_head layers model loss schedule batches tokens"
)
QUICK = [
    f"tests/story/test_{name}.py" for name in [*STORY.split(), "search"]
]
QUICK += [
    f"tests/engine/test_{name}.py" for name in ("trainer", "checkpoints")
]


def call(*arguments: object) -> None:
    """Python in .venv; its failure is ours."""
    command = [str(PYTHON), *map(str, arguments)]
    environment = {"OMP_NUM_THREADS": "1"} if "pytest" in command else {}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment)
    if done.returncode:
        sys.exit(done.returncode)


def has_pip() -> bool:
    """Whether .venv is whole; Debian makes it without pip unless its
    package python3-venv is there.
    """
    if not PYTHON.exists():
        return False
    asked = [str(PYTHON), "-m", "pip", "--version"]
    return subprocess.run(asked, capture_output=True).returncode == 0


def install(extras: str) -> None:
    """This folder into .venv, with the versions that the book has."""
    ready = ROOT / ".venv" / (".ready" if extras else ".started")
    sources = [ROOT / "pyproject.toml", ROOT / "requirements.lock"]
    for stamp in {ready, ROOT / ".venv/.ready"}:  # as make leaves it, too
        if stamp.exists() and all(
            stamp.stat().st_mtime > s.stat().st_mtime for s in sources
        ):
            return
    print(
        "Installing into .venv: some minutes, PyTorch is large.", flush=True
    )
    if not has_pip():
        venv.create(ROOT / ".venv", with_pip=True)
    mac = platform.mac_ver()[0]
    # the locked PyTorch wants macOS 14; an older one gets an older PyTorch
    locked = ["--constraint", "requirements.lock"]
    if mac and int(mac.split(".")[0]) < 14:
        locked = []
    call(
        "-m",
        "pip",
        "install",
        "--quiet",
        *locked,
        "--editable",
        f".{extras}",
    )
    ready.touch()


def main(what: str = "") -> None:
    if what not in ("", "test", "book"):
        sys.exit(__doc__)
    install("[book,press,dev]" if what else "")
    if what == "test":
        fast = "not slow and not exhaustive"
        call("-m", "pytest", "-q", "-m", fast, *QUICK)
    elif what == "book":
        call("-m", "press", "book")
    else:
        run = ROOT / "runs" / time.strftime("pocket-%Y-%m-%d-%H%M%S")
        print(f"\n{SENTENCE}\n", flush=True)
        call("-m", "annotated", "translate", "--run", "pocket", SENTENCE)
        print(
            "\nNow the same from scratch, in two to three minutes.",
            flush=True,
        )
        call("-m", "annotated", "train", "pocket", "--out", run)
        call("-m", "annotated", "translate", "--run", run, SENTENCE)
        print(f"\nYour translator is in {run}.")


if __name__ == "__main__":
    main(*sys.argv[1:2])
