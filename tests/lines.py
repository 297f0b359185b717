"""Command lines as tests write them, and the folder that they name."""

from __future__ import annotations

import re
import shlex

folder = ""  # where the tests of this process write: set in conftest.py


def words(line: str) -> list[str]:
    """The words of a command line. The tests' folder is part of a word, also
    where its name has a space or a backslash.
    """
    if folder:
        path = re.escape(folder) + r"[^\s'\"]*"
        line = re.sub(path, lambda match: _marked(match[0]), line)
    return [word.replace("\0", folder) for word in shlex.split(line)]


def _marked(path: str) -> str:
    return "\0" + path.removeprefix(folder).replace("\\", "/")
