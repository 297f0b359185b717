"""The tables of appendix A5 for those who come from another toolkit: each
command in them runs, and what is not there is said.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from annotated.commands.serve import Serve
from annotated.pocket import pocket_pairs
from tests.commands.conftest import TINY, Call
from tests.engine.groups import SHARDED_ONLY
from tests.helpers import ROOT, environment

PAGE = (ROOT / "book/A5-command-line.md").read_text("utf-8")
SECTION = PAGE.split("## If you come from another toolkit")[1]
SECTION = SECTION.split("\n## ")[0]
COMMANDS = [
    command
    for row in SECTION.splitlines()
    if row.startswith("| ")
    for command in re.findall(r"`([^`]+)`", row.rsplit(" | ", 1)[1])
]
GIVEN = {  # what stands for … in a command
    "translate": "--run pocket",
    "score": "--run pocket",
    "evaluate": "--run pocket",
    "serve": "--run pocket --port 0",
    "report": "--run pocket --out report.html",
    "average": "--run finished",
    "train": f"copy --out out {TINY}",
}
ELSEWHERE = {  # recipes other than the copy task's, and what they need
    "bpe": f"pair --data corpus --source en --target de --out out {TINY}",
    "--init": "pocket --out out --train-pairs 200 --valid-pairs 50 "
    "--max-steps 5 --save-every 5 --warmup 2 --cooldown 2 --keep 1",
    "--config": "--out out",
}
MINE = '''"""A loss of one's own."""
import torch.nn.functional as F

from annotated.engine.parts import register


@register("loss", "mine")
def mine(logits, labels, config):
    return F.cross_entropy(logits, labels, reduction="none")
'''


def texts() -> None:
    """Files of Pocket German, English first, and a corpus of them."""
    Path("corpus").mkdir()
    for name, count, split in (
        ("a", 300, "train"), ("b", 40, "valid"),
        ("corpus/train", 300, "train"), ("corpus/valid", 40, "valid"),
    ):  # fmt: skip
        pairs = pocket_pairs(count, split)
        for side, lines in (
            ("de", [pair.source for pair in pairs]),
            ("en", [pair.target for pair in pairs]),
        ):
            text = "".join(f"{line}\n" for line in lines)
            Path(f"{name}.{side}").write_text(text, "utf-8")
    for name, file in (
        ("src", "b.de"),
        ("tgt", "b.en"),
        ("more.de", "b.de"),
    ):
        shutil.copy(file, name)


@pytest.fixture
def place(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder that has what the commands name."""
    monkeypatch.chdir(tmp_path)
    texts()
    Path("terms.tsv").write_text("Hund\tdog\n", "utf-8")
    Path("my_parts.py").write_text(MINE, "utf-8")
    steps = "recipe = 'copy'\n[training]\nmax_steps = 2\n"
    Path("recipe.toml").write_text(steps, "utf-8")
    shutil.copytree(finished, "finished")
    return tmp_path


def whole(command: str) -> str:
    """The command with what stands for … ."""
    verb = command.split("annotated ")[-1].split()[0]
    given = GIVEN.get(verb, "")
    for part, other in ELSEWHERE.items():
        if verb == "train" and part in command:
            given = other
    for option in re.findall(r"--[\w-]+", command):  # which it gives itself
        given = re.sub(rf"{option} \S+ ?", "", given)
    if "…" in command:
        line = command.replace("…", given)
    else:
        line = f"{command} {given if verb == 'train' else '--out prepared'}"
    return (
        f"{line} -- 'Anna sieht den Hund .'" * (verb == "translate") or line
    )


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(c, marks=SHARDED_ONLY if "--shard" in c else ())
        for c in COMMANDS
    ],
)
def test_every_command_runs(
    command: str, call: Call, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "--ctranslate2" in command:
        pytest.importorskip("ctranslate2")
    if command.startswith("serve"):
        pytest.importorskip("uvicorn")

    async def serve(self: Serve, *given: object) -> None:
        return None

    monkeypatch.setattr(Serve, "serve", serve)
    line = whole(command)
    if line.startswith("torchrun"):
        options = line.removeprefix("torchrun ")
        launcher = [sys.executable, "-m", "torch.distributed.run"]
        launched = subprocess.run(
            [*launcher, "--standalone", *shlex.split(options)],
            env=environment(), capture_output=True, text=True,
        )  # fmt: skip
        assert launched.returncode == 0, launched.stderr
        return
    done = call(line)
    assert done.code == 0, (line, done.err)


def test_the_tables_are_whole() -> None:
    """No row without a command, and each absence with its reason."""
    rows = [x for x in SECTION.splitlines() if x.startswith("| ")]
    rows = [row for row in rows if not row.startswith(("| when", "|--"))]
    assert len(rows) >= 30 and len(COMMANDS) >= len(rows)
    missing = re.findall(r"^- \*(.+?)\.\* (.+)$", SECTION, re.M)
    assert len(missing) >= 8
    assert all(len(reason) > 60 for _, reason in missing)
