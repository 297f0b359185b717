"""For all tests: the longest files come first, Ctrl-C works also where they
run in the background, no test leaves what it registered to the next, no file
its number of threads, none makes its process larger than 2 GiB, what is
measured of the machine is not kept in the user's folder, a test is named
alike in every process that collects it, and Hypothesis draws anew in each run
and prints how to repeat what has failed.

ANNOTATED_PRECISION=bfloat16 or float32 is what auto means in all tests, and
in the processes that they start.
"""

import atexit
import ctypes
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import settings

from tests import lines

# a shell without job control switches it off for what it starts with &
signal.signal(signal.SIGINT, signal.default_int_handler)

if "ANNOTATED_MEASURED" not in os.environ:  # else from pytest-xdist
    place = tempfile.mkdtemp(prefix="annotated-measured-")
    os.environ["ANNOTATED_MEASURED"] = place
    atexit.register(shutil.rmtree, place, ignore_errors=True)

# where CI is set, its own profile would draw the same examples for ever
settings.register_profile(
    "drawn", deadline=None, derandomize=False, print_blob=True
)
settings.load_profile("drawn")


def pytest_make_parametrize_id(
    config: pytest.Config, val: object, argname: str
) -> str | None:
    """Bytes are named by their number: gzip writes the second into its
    header, and pytest-xdist wants the same names of all its processes."""
    return f"{len(val)}-bytes" if isinstance(val, bytes) else None


# from a quarter of a minute on, the longest first: with one of them at the
# end, one of two processes waits for the other
FIRST = (
    "school/test_exercises.py",
    "story/test_solutions.py",
    "engine/test_distributed.py",
    "site/test_site.py",
    "engine/test_faults.py",
    "engine/test_distributed_commands.py",
    "engine/test_distributed_accidents.py",
    "site/test_moving.py",
    "engine/test_resume.py",
    "engine/test_gpu.py",
    "school/test_classroom.py",
    "school/test_examiner.py",
    "commands/test_translate.py",
    "figures/test_figures.py",
    "story/test_training.py",
    "engine/test_interrupted.py",
    "benchmarks/test_recipe_runs.py",
    "book/test_sweep.py",
    "press/test_api.py",
    "pocket/test_drawn.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(FIRST)}
    here = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        name = item.path.relative_to(here).as_posix()
        return places.get(name, len(FIRST))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """A run begins with a full collection, which takes half a second among
    the objects of 8,000 tests, and would do so hundreds of times. What it
    freezes after that it freezes as ever.
    """
    if runner := sys.modules.get("annotated.engine.runner"):
        vars(runner)["gc"] = SimpleNamespace(
            collect=lambda: None, freeze=gc.freeze, unfreeze=gc.unfreeze
        )


@pytest.fixture(autouse=True, scope="session")
def lines_know_the_folder(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    lines.folder = str(tmp_path_factory.getbasetemp())


@pytest.fixture(autouse=True, scope="module")
def threads_are_put_back() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def own_parts_are_forgotten() -> Iterator[None]:
    """What a test registers, by --import or itself, is gone after it: the
    next file of tests may have a file of that name, too."""
    parts = sys.modules.get("annotated.engine.parts")
    before = dict(parts._REGISTERED) if parts else {}
    yield
    if parts := sys.modules.get("annotated.engine.parts"):
        parts._REGISTERED.clear()
        parts._REGISTERED.update(before)


MEMORY = 2048  # MiB
STATUS = Path("/proc/self/status")


def held(what: str) -> int:
    """The memory of this process, in MiB: VmRSS now, VmHWM the most since
    `forget` (0 where the system does not tell)."""
    if not STATUS.exists():
        return 0
    (line,) = (x for x in STATUS.read_text().splitlines() if what in x)
    return int(line.split()[1]) // 1024


def give_back() -> None:
    """Let the system have the memory that is free, where that can be."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def forget() -> None:
    """Give back what earlier files have let go, and count from here. The
    collector looks for it only where there is much: see above."""
    if held("VmRSS") > MEMORY / 2:
        gc.collect()
    give_back()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


@pytest.fixture(autouse=True, scope="module")
def memory_stays_small(request: pytest.FixtureRequest) -> Iterator[None]:
    """A machine of 8 GiB runs two processes of tests, and a browser."""
    forget()
    before = held("VmHWM")
    yield
    if before <= MEMORY < (after := held("VmHWM")):
        pytest.fail(
            f"with {request.node.name} this process grew from {before} to "
            f"{after} MiB, and {MEMORY} is the most: what is not let go, or "
            "larger than it need be?"
        )
