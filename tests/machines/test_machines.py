"""Other people's machines, simulated on Linux: the package on Windows, for a
user without a name or a home, and from a checkout of Git for Windows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.helpers import ROOT, environment

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(
        sys.platform != "linux", reason="simulated on Linux"
    ),
]
SENTENCE = "Die Ärztin ist müde ."


def run(*command: object, **options: object) -> str:
    """What a process says; it has to end well."""
    done = subprocess.run(
        [*map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        **{"env": environment(OMP_NUM_THREADS="1")} | options,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def test_a_user_of_windows_trains_translates_and_solves(
    tmp_path: Path,
) -> None:
    said = run(
        sys.executable, "-m", "tests.machines.as_windows", cwd=tmp_path
    )
    assert said.endswith("done\n")


FILES = (  # what concerns files, text and the command line
    "commands/test_average.py", "commands/test_doctor.py",
    "commands/test_errors.py", "corpora/test_text.py",
    "corpora/test_pairs.py", "engine/test_lock.py", "engine/test_runs.py",
    "engine/test_checkpoints.py", "story/test_model.py",
)  # fmt: skip


PYTEST = (
    sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
    "-m", "not slow and not exhaustive", "--tb=short",
)  # fmt: skip
# a user who owns nothing; may read everything, since this Python may be root's
NOBODY = (
    "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
    "--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search",
)  # fmt: skip


def test_tests_pass_on_windows() -> None:
    files = [f"tests/{name}" for name in FILES]
    run(*PYTEST, "-p", "tests.machines.windows", *files, cwd=ROOT)


def test_what_the_workflow_runs_on_windows_is_collected() -> None:
    """Its own line: no test imports what is not there."""
    flow = (ROOT / ".github/workflows/test.yml").read_text("utf-8")
    steps = yaml.safe_load(flow)["jobs"]["package"]["steps"]
    [line] = [s["run"] for s in steps if "-m pytest" in s.get("run", "")]
    words = line.replace("-n 2 --dist loadfile", "").split()[1:]
    run(
        sys.executable, *words, "-p", "tests.machines.windows",
        "-p", "no:cacheprovider", "--collect-only", cwd=ROOT,
    )  # fmt: skip


@pytest.fixture(scope="module")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This commit, as Git for Windows checks it out."""
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("this is no clone")
    folder = tmp_path_factory.mktemp("My Projects") / f"Übung {'x' * 150}"
    run("git", "clone", "-q", "-c", "core.autocrlf=true", ROOT, folder)
    return folder


def test_a_checkout_of_git_for_windows_has_not_drifted(
    cloned: Path,
) -> None:
    here = os.environ | {"PYTHONPATH": str(cloned)}
    for what in ("export", "notebooks", "samples"):
        run(
            sys.executable, "-m", "press", "--root", cloned, what, "--check",
            env=here,
        )  # fmt: skip


@pytest.mark.parametrize("system", ["linux", "windows"])
def test_tests_pass_for_nobody_in_that_checkout(
    cloned: Path, tmp_path: Path, system: str
) -> None:
    """With a space and an umlaut in its name, and CRLF in its files."""
    if os.getuid() or not shutil.which("setpriv"):
        pytest.skip("only root becomes somebody else")
    own = tmp_path / "Ünser Ordner"
    own.mkdir()
    os.chown(own, 65534, 65534)
    roots = ("ANNOTATED_DATA", "ANNOTATED_MEASURED", "XDG_CACHE_HOME")
    env = {k: v for k, v in os.environ.items() if k not in roots}
    env |= {"PYTHONPATH": str(cloned), "HOME": str(own), "USER": "nobody"}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    as_windows = ("-p", "tests.machines.windows") * (system == "windows")
    run(
        *NOBODY, *PYTEST, "--basetemp", own / "temp", *as_windows,
        *(f"tests/{name}" for name in FILES), cwd=cloned, env=env,
    )  # fmt: skip


NAMELESS = """
import pwd

def nobody(uid):
    raise KeyError(uid)

pwd.getpwuid = nobody
from annotated.cli import main

main()
"""


def test_someone_without_a_name_and_a_home_translates_and_trains(
    cloned: Path, tmp_path: Path
) -> None:
    """As in containers, under cron and under Slurm."""
    gone = ("HOME", "USER", "ANNOTATED_DATA", "ANNOTATED_MEASURED")
    env = {k: v for k, v in os.environ.items() if k not in gone}
    env |= {"PYTHONPATH": str(cloned), "OMP_NUM_THREADS": "1"}

    def annotated(*line: str) -> str:
        command = [sys.executable, "-c", NAMELESS, *line]
        return run(*command, env=env, cwd=tmp_path)

    said = annotated("translate", "--run", "pocket", SENTENCE)
    assert said.endswith("The doctor is tired .\n")
    before = os.umask(0o022)
    try:
        annotated(
            "train", "pocket", "--out", "run", "--max-steps", "2",
            "--train-pairs", "300",
        )  # fmt: skip
    finally:
        os.umask(before)
    for path in (tmp_path / "run").rglob("*"):
        assert path.stat().st_mode & 0o044 == 0o044, path
