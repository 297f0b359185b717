"""Strangers' code, where it can do little harm (E26)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.helpers import ROOT

CONTAINED = ROOT / "press/contained.sh"
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin")
ATTACKS = {
    "loop": ("while True: pass", ""),
    "fork": (
        "import os, time\n"
        "for n in range(1000):\n"
        "    try:\n"
        "        if os.fork() == 0: time.sleep(99); os._exit(0)\n"
        "    except OSError: print('stopped'); break\n"
        "else: print('a thousand')",
        "stopped",
    ),
    "memory": (  # which is asked for, and not touched
        "import mmap\n"
        "x = []\n"
        "try:\n"
        "    for n in range(99): x.append(mmap.mmap(-1, 2**30))\n"
        "except OSError: print('stopped', 8 <= len(x) < 10)",
        "stopped True",
    ),
    "delete": (
        "import os\n"
        "try: os.remove('../precious')\n"
        "except OSError as error: print(error.strerror)",
        "Read-only file system",
    ),
    "network": (
        "import socket\n"
        "own = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(own.getsockname(), 5)\n"
        "try: socket.create_connection(('192.0.2.1', 80), 5)\n"
        "except OSError as error: print(error.strerror)",
        "Network is unreachable",
    ),
}


@pytest.fixture(scope="module")
def prison():
    """A course that anybody may write, and a file beside it."""
    probe = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
    drop = NOBODY if hasattr(os, "getuid") and os.getuid() == 0 else []
    try:
        done = subprocess.run([*drop, *probe, "true"], capture_output=True)
    except OSError:
        done = None
    if done is None or done.returncode or PYTHON is None:
        pytest.skip("this system has no namespaces for users")
    with tempfile.TemporaryDirectory() as name:
        top, course = Path(name), Path(name) / "classroom"
        course.mkdir()
        shutil.copy(CONTAINED, course / "contained")
        (top / "precious").write_text("kept")
        for path, mode in (
            (top, 0o777), (course, 0o777), (top / "precious", 0o666),
        ):  # fmt: skip
            path.chmod(mode)

        def run(code, **env):
            return subprocess.run(
                [*drop, "sh", "contained", PYTHON, "-c", code],
                cwd=course, env=os.environ | env, timeout=120,
                capture_output=True, text=True,
            )  # fmt: skip

        yield run, top


@pytest.mark.parametrize("attack", ATTACKS)
def test_strangers_code_can_do_little_harm(attack, prison):
    run, top = prison
    code, words = ATTACKS[attack]
    done = run(code, SECONDS_OF_CPU="1")
    if attack == "loop":  # its processor time is over
        assert done.returncode != 0
    else:
        assert done.stdout.strip() == words, done.stderr
        assert done.returncode == 0
    assert (top / "precious").read_text() == "kept"
    assert "can be written" not in done.stderr


def test_a_course_can_be_written_from_inside(prison):
    run, top = prison
    done = run("open('grades', 'w').write('1'); print('done')")
    assert done.stdout == "done\n", done.stderr
    assert (top / "classroom/grades").read_text() == "1"


def test_a_course_has_the_command_for_strangers_code(course):
    assert (course / "contained").read_text() == CONTAINED.read_text()
