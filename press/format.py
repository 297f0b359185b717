"""Format the exported cells in place, as ruff formats the package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from press import files
from press.chapters import COLUMNS, read_book

CELL = re.compile(
    r"^(?P<fence>`{3,})\{code-cell\}.*\n"
    r"(?P<options>(?:---\n(?:.*\n)*?---\n|(?::.*\n)+)?\n*)"
    r"(?P<source>(?:.*\n)*?)"
    r"(?P=fence)$",
    re.M,
)
RUFF = [sys.executable, "-m", "ruff", "format", "--quiet", "--isolated"]
OPTIONS = ["--line-length", str(COLUMNS), "--target-version", "py310", "-"]


def format_book(root: Path) -> list[str]:
    """Rewrite the chapters whose exported cells ruff would change."""
    done = []
    for chapter in read_book(root):
        text = chapter.path.read_text(encoding="utf-8")
        if files.replace(chapter.path, CELL.sub(_formatted, text)):
            done.append(f"formatted book/{chapter.file}")
    return done


def _formatted(match: re.Match[str]) -> str:
    if "export" not in match["options"]:
        return match[0]
    done = subprocess.run(
        [*RUFF, *OPTIONS],
        input=match["source"],
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    if done.returncode:  # the exporter says what is wrong, and where
        return match[0]
    start = match.start("source") - match.start()
    return match[0][:start] + done.stdout + match["fence"]
