"""Execute the chapters whose outputs are out of date, each on its own.

What a chapter's sentences claim is executed with it, and then taken out of
the notebook: what came of it stands in the notebook's record.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from press import files, fold, shaken
from press.chapters import Chapter, read_book, select
from press.keys import Package, key

# both formats: the site takes the SVG where it is small, else the PNG
IPYTHON_CONFIG = """\
c.InlineBackend.figure_formats = {"svg", "retina"}
c.HistoryManager.enabled = False

# a cell's value as one reads it: floats of four digits, wherever they are
# (all those before the point), and NumPy's numbers as Python's
import math
import numpy
from IPython.lib.pretty import _type_pprinters


def rounded(number, printer, cycle):
    x = float(number)
    if 0 < abs(x) < 1e-4:
        printer.text(f"{x:.1e}")
    elif 1e3 <= abs(x) < math.inf:
        printer.text(f"{x:.0f}")
    else:
        printer.text(repr(float(f"{x:.4g}")))


def plain(number, printer, cycle):
    printer.text(repr(number.item()))


c.PlainTextFormatter.type_printers = {
    **_type_pprinters,
    **dict.fromkeys([float, numpy.float64, numpy.float32], rounded),
    **dict.fromkeys([numpy.int64, numpy.int32, numpy.bool_], plain),
}
"""
MATPLOTLIB_CONFIG = """\
figure.facecolor: white
savefig.facecolor: white
svg.hashsalt: annotated
"""
Say = Callable[[str], None]
AGAIN = 2  # executions of a page with a false claim, with nothing beside it


@dataclass(frozen=True)
class World:
    """Another machine, as far as this one can play it."""

    name: str
    env: dict[str, str]  # of the kernel
    config: str = ""  # more lines of IPython's


HERE = World("here", {})


def execute(
    root: Path,
    names: list[str] | None = None,
    jobs: int | None = None,
    force: bool = False,
    say: Say = print,
) -> list[str]:
    """Bring build/executed/ up to date; what went wrong, by chapter."""
    chapters = select(read_book(root), names or [])
    package = Package(root)
    todo: list[tuple[Chapter, str]] = []
    for chapter in chapters:
        wanted = key(chapter, package)
        if force or not join(root, chapter, wanted):
            todo.append((chapter, wanted))
    fresh = len(chapters) - len(todo)
    say(f"{fresh} of {len(chapters)} chapters are executed already")
    jobs = jobs or _cores()
    # the longest first, so that none is left alone at the end
    todo.sort(key=lambda item: -_expected(root, item[0]))
    with tempfile.TemporaryDirectory(
        prefix="press-", ignore_cleanup_errors=True
    ) as within:
        pool = ThreadPoolExecutor(jobs)
        results = [
            pool.submit(_run, root, *item, say, within) for item in todo
        ]
        try:
            problems = [r.result() for r in results]
        except BaseException as error:
            # Ctrl-C: the kernels end with this process, which is next
            wait = not isinstance(error, KeyboardInterrupt)
            pool.shutdown(wait, cancel_futures=True)
            raise
        pool.shutdown()
    for i, item in enumerate(todo):
        for _ in range(AGAIN):
            if _false(item[0], problems[i]):
                say(f"{item[0].name}: a claim was false: again, alone")
                problems[i] = _run(root, *item, say)
    return [problem for problem in problems if problem]


def _false(chapter: Chapter, problem: str) -> bool:
    """Whether it is a claim that failed; time may have been measured in
    its page, and something else have run beside it.
    """
    return any(
        problem.startswith(f"{claim.place}: AssertionError")
        for claim in chapter.claims
    )


def _expected(root: Path, chapter: Chapter) -> float:
    """The seconds of the last time; the minutes allowed if there is none.

    Of two pages with the same minutes, that with more code comes first.
    """
    try:
        text = executed_path(root, chapter).read_text(encoding="utf-8")
        record = nbformat.reads(text, as_version=4).metadata["annotated"]
        return float(record["seconds"])
    except (OSError, ValueError, KeyError):
        code = sum(len(cell.source) for cell in chapter.code)
        return 60 * chapter.minutes + code / 1000


def _cores() -> int:
    """What this process may use, where the system can say so."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# --- what is on disk ------------------------------------------------------


def executed_path(root: Path, chapter: Chapter) -> Path:
    return root / "build" / "executed" / f"{chapter.name}.ipynb"


def join(root: Path, chapter: Chapter, wanted: str) -> bool:
    """Put the chapter's present prose around outputs that are current."""
    path = executed_path(root, chapter)
    try:
        old = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
    except (OSError, ValueError):
        return False
    record = old.metadata.get("annotated", {})
    done = [cell for cell in old.cells if cell.cell_type == "code"]
    if record.get("key") != wanted or len(done) != len(chapter.code):
        return False
    notebook = as_notebook(chapter)
    fresh = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell, before in zip(fresh, done, strict=True):
        cell.outputs = before.outputs
        cell.execution_count = before.execution_count
    notebook.metadata["annotated"] = record
    files.replace(path, nbformat.writes(notebook))
    return True


def as_notebook(chapter: Chapter) -> Any:
    """The chapter with its MyST as it is, and no outputs."""
    notebook = nbformat.v4.new_notebook()
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    notebook.metadata["language_info"] = {
        "name": "python",
        "pygments_lexer": "ipython3",
    }
    for row, cell in enumerate(chapter.cells):
        new = getattr(nbformat.v4, f"new_{cell.kind}_cell")
        metadata = dict(cell.metadata)
        if tags := fold.tags(chapter, cell):
            metadata["tags"] = tags
        notebook.cells.append(
            new(cell.source, id=f"cell-{row}", metadata=metadata)
        )
    return notebook


# --- one chapter ----------------------------------------------------------


def _run(
    root: Path,
    chapter: Chapter,
    wanted: str,
    say: Say,
    within: str | None = None,
) -> str:
    """Execute one chapter and keep it; or what went wrong."""
    say(f"{chapter.name}: executing")
    notebook, seconds, problem = run(root, chapter, within=within)
    if problem:
        say(f"{chapter.name}: FAILED\n{problem}")
        return problem.splitlines()[0]
    notebook.metadata["annotated"] |= {"key": wanted, "seconds": seconds}
    files.replace(executed_path(root, chapter), nbformat.writes(notebook))
    say(f"{chapter.name}: {seconds:.0f} s")
    if seconds > 60 * chapter.minutes:
        say(
            f"{chapter.name}: WARNING: ran {seconds / 60:.1f} minutes, "
            f"its front matter allows {chapter.minutes}"
        )
    return ""


def run(
    root: Path,
    chapter: Chapter,
    world: World | None = None,
    within: str | None = None,
) -> tuple[Any, float, str]:
    """The executed notebook, its seconds, and what went wrong, or "".
    Its temporary folder is made within another.
    """
    notebook = as_notebook(chapter)
    add_claims(notebook, chapter)
    start, problem = time.monotonic(), ""
    with tempfile.TemporaryDirectory(
        prefix="press-", dir=within
    ) as scratch:
        try:
            _execute(notebook, root, Path(scratch), chapter.minutes, world)
        except Exception as error:  # a kernel can end in many ways
            problem = _failure(chapter, notebook, error)
            problem += _last_words(Path(scratch) / "kernel.log")
    seconds = round(time.monotonic() - start, 1)
    notebook.metadata["annotated"] = {"claims": take_claims(notebook)}
    return notebook, seconds, problem


def add_claims(notebook: Any, chapter: Chapter) -> None:
    """Below the code cell that it stands below, each in its order."""
    script = repr(str(Path(shaken.__file__)))
    rows = [
        i for i, c in enumerate(notebook.cells) if c.cell_type == "code"
    ]
    for claim in reversed(chapter.claims):
        code = (
            f"__import__('runpy').run_path({script})['hold']"
            f"({claim.source!r}, globals())"
        )
        facts = {"claims": claim.place}
        cell = nbformat.v4.new_code_cell(code, metadata=facts)
        row = rows[claim.number - 1] + 1 if claim.number else 0
        notebook.cells.insert(row, cell)


def take_claims(notebook: Any) -> list[dict[str, Any]]:
    """Out of the notebook: each claim, its place, what turned it red."""
    found = []
    for cell in notebook.cells:
        if place := cell.metadata.get("claims"):
            for output in cell.outputs:
                _, mark, rest = output.get("text", "").rpartition(
                    shaken.MARK
                )
                for claim in json.loads(rest) if mark else []:
                    found.append({"place": place, **claim})
    notebook.cells = [
        c for c in notebook.cells if "claims" not in c.metadata
    ]
    return found


def _execute(
    notebook: Any,
    root: Path,
    scratch: Path,
    minutes: int,
    world: World | None = None,
) -> None:
    """Run all cells in a fresh kernel of this Python, in a new folder."""
    if not any(cell.cell_type == "code" for cell in notebook.cells):
        return
    profile = scratch / ".ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_kernel_config.py").write_text(
        IPYTHON_CONFIG + (world.config if world else "")
    )
    settings = scratch / ".matplotlibrc"
    settings.write_text(MATPLOTLIB_CONFIG)
    work = scratch / "work"
    work.mkdir()
    client = NotebookClient(
        notebook,
        timeout=600 * minutes,
        on_cell_start=lambda cell, cell_index: cell.metadata.update(
            begun=1
        ),
        coalesce_streams=True,
        resources={"metadata": {"path": str(work)}},
    )
    manager = client.create_kernel_manager()
    # no other folder: a kernel that the user registered is another Python
    manager.kernel_spec_manager = KernelSpecManager(
        kernel_dirs=[], ensure_native_kernel=True
    )
    manager.connection_file = str(scratch / "kernel.json")
    if os.name == "posix":  # no ports to race for, or to listen at
        manager.transport = "ipc"
        manager.ip = str(scratch / "kernel")
    with (scratch / "kernel.log").open("wb") as log:
        client.execute(
            env={**_environment(root, scratch), **(world or HERE).env},
            stdout=log,  # what goes past Python's sys.stdout
            stderr=log,
        )
    for cell in notebook.cells:
        cell.metadata.pop("begun", None)


def _environment(root: Path, scratch: Path) -> dict[str, str]:
    env = dict(os.environ)
    paths = [str(root), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    programs = [str(Path(sys.executable).parent), env.get("PATH", "")]
    env["PATH"] = os.pathsep.join(filter(None, programs))
    for name in ("TMPDIR", "TEMP", "TMP"):  # goes with the scratch folder
        env[name] = str(scratch)
    env["IPYTHONDIR"] = str(scratch / ".ipython")
    env["MATPLOTLIBRC"] = str(scratch / ".matplotlibrc")
    env["PYTHONHASHSEED"] = "0"
    env["SOURCE_DATE_EPOCH"] = "0"  # matplotlib writes the date into SVG
    env.pop("MPLBACKEND", None)
    # one thread: the same sums whatever else is running
    env["OMP_NUM_THREADS"] = env["MKL_NUM_THREADS"] = "1"
    return env


def _last_words(log: Path, most: int = 2000) -> str:
    """What a kernel wrote past its cells: why it died, perhaps."""
    if not log.exists():
        return ""
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    return f"\nthe kernel wrote: {text[-most:]}" if text else ""


def _failure(chapter: Chapter, notebook: Any, error: Exception) -> str:
    """Chapter, heading and cell in the first line; then the traceback."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    begun = [i for i, cell in enumerate(code) if "begun" in cell.metadata]
    origins = iter(chapter.code)
    places = [
        cell.metadata.get("claims") or next(origins).place for cell in code
    ]
    place = places[begun[-1] if begun else 0]
    text, kind = str(error), type(error).__name__
    if isinstance(error, CellExecutionError):
        for cell, origin in zip(code, places, strict=True):
            for output in cell.outputs:
                if output.output_type == "error":
                    place, kind = origin, f"{output.ename}: {output.evalue}"
                    text = "\n".join(output.traceback)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return f"{place}: {kind.splitlines()[0]}\n{plain}"
