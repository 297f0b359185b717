"""What each page's sentences claim, and whether anything turns it red.

A page is executed with its claims; each was then tried on results in which
it should be false (press/shaken.py). One that stays green for all of them
counts as none.
"""

from __future__ import annotations

from pathlib import Path

import nbformat

from press.chapters import read_book, select
from press.execute import Say, execute, executed_path


def shake(root: Path, names: list[str], say: Say = print) -> list[str]:
    """Bring these pages up to date; the claims that nothing turns red."""
    problems = execute(root, names, say=say)
    if problems:
        return problems
    green, told = [], 0
    for chapter in select(read_book(root), names):
        if not chapter.claims:
            continue
        notebook = nbformat.read(executed_path(root, chapter), as_version=4)
        for claim in notebook.metadata["annotated"]["claims"]:
            told += 1
            if claim["red"]:
                by = ", ".join(claim["red"])
                say(f"{chapter.name}: {claim['says']}\n    red by: {by}")
            else:
                green.append(
                    f"{claim['place']}: {claim['says']} holds whatever "
                    "the results are: it claims nothing"
                )
    say(f"{told} claims, {told - len(green)} seen red")
    return green
