"""README.md promises what is there."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from annotated.cli import COMMANDS
from annotated.engine.recipes import RECIPES
from annotated.pocket import pocket_pairs

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text("utf-8")


def test_its_commands_exist() -> None:
    lines = re.findall(r"(?:^|\| |\n  )annotated (.+)", TEXT, re.M)
    assert len(lines) == 7
    for line in lines:
        command, *rest = shlex.split(line, comments=True)
        assert command in COMMANDS
        if command == "train":
            assert rest[0] in RECIPES
    assert lines[:2] == ["translate --run pocket", "train pocket --out RUN"]


def test_its_translation_is_right_and_was_not_trained_on() -> None:
    [source] = set(re.findall(r'echo "(Heute .+?)"', TEXT))
    [target] = re.findall(r"```text\n(.+?)\n```", TEXT)
    known = {(p.source, p.target) for p in pocket_pairs(40, "test")}
    assert (source, target) in known


def test_its_figure_is_of_the_ledger() -> None:
    file = ROOT / "book/results/multi30k-cpu.json"
    run = json.loads(file.read_text())["metrics"]
    [bleu] = re.findall(r"([\d.]+) BLEU", TEXT)
    [minutes] = re.findall(r"about (\d+) minutes on two cores; ", TEXT)
    assert float(bleu) == pytest.approx(run["test"]["bleu"], abs=0.051)
    assert float(minutes) == pytest.approx(run["seconds"] / 60, abs=1)
