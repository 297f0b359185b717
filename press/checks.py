"""Whether everything that is derived is what the book says."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from press import files
from press.chapters import PressError
from press.export import export
from press.modules import PACKAGE
from press.notebooks import notebooks

WRITE = """
import sys
from pathlib import Path
from annotated.pocket import write_samples
write_samples(Path(sys.argv[1]))
"""


def check(root: Path) -> list[str]:
    """One line for each derived file that has drifted."""
    return [
        *export(root, check=True),
        *notebooks(root, check=True),
        *samples(root, check=True),
    ]


def samples(root: Path, check: bool = False) -> list[str]:
    """Write data/pocket/*.tsv (or, to check, say what has drifted)."""
    pairs = root / PACKAGE / "pocket" / "__init__.py"
    whole = (root / PACKAGE / "__init__.py").is_file()
    if not (whole and pairs.is_file()):
        return []  # the exporter says so; another copy may be installed
    if "def write_samples(" not in pairs.read_text(encoding="utf-8"):
        return []
    folder = root / "data" / "pocket"
    expected = _generated(root, folder)
    present = sorted(folder.glob("*.tsv"))
    if check:
        return files.drift(expected, present, root)
    return files.write(expected, present, lambda path: True, root)


def _generated(root: Path, folder: Path) -> dict[Path, str]:
    """The samples as the package of this checkout writes them."""
    env = dict(os.environ, PYTHONPATH=str(root))
    with tempfile.TemporaryDirectory(prefix="press-") as scratch:
        command = [sys.executable, "-c", WRITE, scratch]
        done = subprocess.run(
            command, env=env, cwd=scratch, capture_output=True, text=True
        )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:]
            raise PressError(
                f"{PACKAGE}.pocket.write_samples failed: {''.join(last)}"
            )
        return {
            folder / path.name: path.read_bytes().decode("utf-8")
            for path in sorted(Path(scratch).glob("*.tsv"))
        }
