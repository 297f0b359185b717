"""Nobody outlives whoever started it: engine.processes, page E3."""

from __future__ import annotations

import ast
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.helpers import ROOT, environment, nodes_of
from tests.lines import words

posix = pytest.mark.skipif(os.name == "nt", reason="needs groups and pipes")

STARTS = {  # what starts a process
    *("os.fork", "os.forkpty", "os.system", "os.popen", "os.startfile"),
    *("pty.fork", "pty.spawn", "os.posix_spawn", "os.posix_spawnp"),
    *(f"os.{kind}{end}" for kind in ("spawn", "exec")
      for end in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
    *("subprocess.run", "subprocess.Popen", "subprocess.call"),
    *("subprocess.check_call", "subprocess.check_output"),
    *("subprocess.getoutput", "subprocess.getstatusoutput"),
}  # fmt: skip
METHODS = {  # of whatever object
    *("Process", "Pool", "ProcessPoolExecutor", "Popen", "start_processes"),
    *("create_subprocess_exec", "create_subprocess_shell", "DataLoader"),
    *("start_new_kernel", "create_kernel_manager", "elastic_launch"),
}
TIED = {  # these end with the process that has started them
    "annotated/book/results.commit": "tied",
    "annotated/engine/search._in_processes": "end_with_parent",
    "annotated/school/examiner._apart": "end_with_parent",
    "annotated/school/examiner.started": "tied",
    "annotated/school/examiner._examined_anew": "tied",
    "press/build.sphinx": "tied",
    "press/pdf._print": "tied",
}
FREE = {  # and these do not, for a reason
    "annotated/commands/pages.act": "the user's browser, not ours",
    "press/serve.serve": "the user's browser, not ours",
    "press/execute._execute": "ipykernel looks itself whether its parent lives",
    "press/format._formatted": "ruff reads one cell and ends; what the "
    "press needs to make annotated/ cannot import it",
    "press/one_file._formatted": "ruff reads one file and ends; as above",
    "press/refuse.check_names": "ruff reads some files and ends; as above",
    "press/foot.commit_of": "git says one line and ends; as above",
    "press/checks._generated": "writes four small files and ends; as above",
}


def starts(node: ast.AST) -> bool:
    """Whether a part of a program starts a process."""
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func)
    last = name.rpartition(".")[2]
    return name in STARTS or last in METHODS or name == "webbrowser.open"


def test_every_process_that_we_start_is_tied_or_has_a_reason() -> None:
    found = {
        f"{module}.{home}": node
        for folder in ("annotated", "press")
        for module, home, node in nodes_of(folder)
        if starts(node)
    }
    assert found.keys() == TIED.keys() | FREE.keys()
    for place, how in TIED.items():
        path = (ROOT / place.partition(".")[0]).with_suffix(".py")
        text = path.read_text("utf-8")
        call = r"\*\*(tie\b|.*\(tied\(\)\))" if how == "tied" else how
        where = ast.unparse(found[place]) if how == "tied" else text
        assert re.search(call, where), place


# --- killed for real ------------------------------------------------------

BUSY = """
import os, signal
if os.fork() == 0:  # what it starts, which does not go when asked to
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write({out}, b"x")
sum(range(10**15))  # keeps Python's lock: no thread gets a turn
"""
WORKERS = """
import os, time
from annotated.engine.search import _in_processes

def job(which):
    os.write({out}, b"x")
    sum(range(10**15))

for _ in _in_processes(job, [[0], [1]], workers=2):
    pass
"""
TIED_COMMAND = """
import subprocess, sys, threading
from annotated.engine.processes import tied
with tied() as tie:
    tie["pass_fds"].append({out})
    begin = lambda: started.append(
        subprocess.Popen([sys.executable, "-c", {busy!r}], **tie)
    )
    started = []
    thread = threading.Thread(target=begin)  # which ends before it
    thread.start()
    thread.join()
    started[0].wait()
"""
WATCHED = """
import fcntl, os, time
from annotated.engine.processes import end_with_parent
vars(fcntl).pop("F_SETSIG", None)  # as on a Mac
line, held = os.pipe()
if os.fork() == 0:
    os.close(held)
    end_with_parent(line)
    if os.fork() == 0:
        os.write({out}, b"x")
    os.write({out}, b"x")
    while True:
        pass
time.sleep(600)
"""


def killed(command: list[str], out: int, into: int, count: int) -> bool:
    """Start a command whose processes hold out and write count bytes to
    it; kill the first one; whether all of them end."""
    env = environment(OMP_NUM_THREADS="1")
    first = subprocess.Popen(command, pass_fds=[out], env=env)
    os.close(out)
    try:
        said = b""
        while len(said) < count:
            assert select.select([into], [], [], 120)[0]
            assert (more := os.read(into, 9)), "it has ended by itself"
            said += more
        # not yet: else an end by itself would count
        assert not select.select([into], [], [], 0.2)[0]
        first.kill()
        # the last one that holds out closes it
        return bool(select.select([into], [], [], 60)[0])
    finally:
        first.kill()
        first.wait()
        os.close(into)


@posix
@pytest.mark.skipif(sys.platform != "linux", reason="needs F_SETSIG")
@pytest.mark.parametrize(
    ("what", "count"), [("exercises", 2), ("workers", 2), ("tied", 2)]
)
def test_all_of_them_end_when_the_first_is_killed(
    tmp_path: Path, what: str, count: int
) -> None:
    into, out = os.pipe()
    busy = BUSY.format(out=out)
    code = {
        "exercises": "",
        "workers": WORKERS.format(out=out),
        "tied": TIED_COMMAND.format(out=out, busy=busy),
    }[what]
    command = [sys.executable, "-c", code]
    if what == "exercises":
        (tmp_path / "mine.py").write_text(busy)
        line = (
            f"-m annotated exercises 5.1 --file {tmp_path}/mine.py --once"
        )
        command = [sys.executable, *words(line)]
    assert killed(command, out, into, count)


@posix
def test_where_no_signal_can_be_had_a_thread_watches() -> None:
    into, out = os.pipe()
    command = [sys.executable, "-c", WATCHED.format(out=out)]
    assert killed(command, out, into, 3)  # its child writes both


@posix
def test_a_parent_that_has_ended_already_counts() -> None:
    code = """
    import os, time
    from annotated.engine.processes import end_with_parent
    line, held = os.pipe()
    os.close(held)
    end_with_parent(line)
    time.sleep(600)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment()
    )
    assert done.returncode == -signal.SIGKILL


@posix
def test_what_is_left_of_a_command_ends_with_the_block() -> None:
    from annotated.engine.processes import tied

    into, out = os.pipe()
    with tied() as tie:
        tie["pass_fds"].append(out)
        started = subprocess.Popen(
            [sys.executable, "-c", BUSY.format(out=out)], **tie
        )
        os.close(out)
        assert select.select([into], [], [], 60)[0]
        assert os.read(into, 1)
    assert started.wait(60) == -signal.SIGKILL
    while select.select([into], [], [], 60)[0] and os.read(into, 9):
        continue
    os.close(into)
