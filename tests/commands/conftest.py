"""What the tests of the command line share: a call, and a run."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from annotated.cli import main
from annotated.engine.runs import Run
from annotated.engine.translate import Translation
from tests.helpers import environment
from tests.lines import words

TINY = (
    "--train-pairs 200 --valid-pairs 50 --num-encoder-layers 1 "
    "--num-decoder-layers 1 --d-model 16 --d-ff 16 --num-heads 2 "
    "--batch-tokens 200 --max-steps 20 --save-every 10 --keep 2 "
    "--precision float32"
)


@dataclasses.dataclass(frozen=True)
class Done:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line that a refusal consists of."""
        assert self.code == 2, self
        assert self.out == ""
        assert self.err.endswith("\n")
        *before, line = self.err.splitlines()
        assert line.startswith("annotated: "), self.err
        assert "Traceback" not in self.err
        return line


Call = Callable[..., Done]


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Give a command line to main, and bytes to its standard input."""

    def run(line: str, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "argv", ["annotated", *words(line)])
        monkeypatch.setattr(
            sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))
        )
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the command line, in another process. Do not touch."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    done = process(f"train copy --out {folder} {TINY}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 20
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to do things to."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def process(
    line: str, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """The command line as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "annotated", *words(line)],
        env=environment(),
        stdin=subprocess.DEVNULL,
        **{"stdout": -1, "stderr": -1} | options,
    )


@pytest.fixture
def pair(tmp_path: Path) -> str:
    """Options for a test set of three lines."""
    (tmp_path / "src").write_bytes(b"a b\n\nc d e\n")
    (tmp_path / "ref").write_bytes(b"a b\n\nc d e\n")
    return f"--src {tmp_path / 'src'} --ref {tmp_path / 'ref'}"


@pytest.fixture
def early(run: Path, tmp_path: Path) -> Path:
    """The run with the weights that it had at step 10."""
    other = Path(shutil.copytree(run, tmp_path / "early"))
    shutil.copy(other / "checkpoints/00000010/model.safetensors", other)
    return other


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every run answer every fourth line, the first too, with nothing."""

    def translate(run: Run, lines: list[str], *_: Any, **__: Any) -> Any:
        texts = ["" if i % 4 == 0 else "word" for i in range(len(lines))]
        return [[Translation(t, 0.0, 0.0)] for t in texts]

    monkeypatch.setattr(Run, "translate", translate)
