"""README.md promises what is there."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
from pathlib import Path
from statistics import mean
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from annotated.book.results import ledger
from annotated.cli import COMMANDS
from annotated.costs import step_flops
from annotated.engine.recipes import RECIPES
from annotated.model import TransformerConfig
from annotated.pocket import pocket_pairs
from annotated.variations import small_runs
from press.chapters import read_book
from press.project import read_project
from tests.helpers import benchmark

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text("utf-8")
OURS = {"float32": "annotated", "bfloat16": "annotated, bfloat16"}


def test_its_commands_exist() -> None:
    lines = re.findall(r"^annotated (.+)", TEXT, re.M)
    assert len(lines) == 7
    for line in lines:
        command, *rest = shlex.split(line, comments=True)
        assert command in COMMANDS
        if command == "train":
            assert rest[0] in RECIPES
    assert lines[1] == "train pocket --out RUN"
    assert lines[0].startswith('translate --run pocket "Heute')


def start_script() -> Any:
    spec = importlib.util.spec_from_file_location(
        "start", ROOT / "start.py"
    )
    assert spec is not None and spec.loader is not None
    start = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(start)
    return start


def test_its_first_command_does_what_it_shows() -> None:
    """start.py, which is not run here: it installs and trains."""
    start = start_script()
    [source] = set(re.findall(r'"(Heute .+?)"', TEXT))
    assert source == start.SENTENCE
    assert all((ROOT / name).exists() for name in start.QUICK)
    for what in set(re.findall(r"python start.py ([a-z]+)", TEXT)):
        assert f"python start.py {what} " in start.__doc__


@pytest.mark.skipif(os.name == "nt", reason="its Pythons are scripts of sh")
def test_an_environment_without_pip_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Debian leaves it, or a stop while pip was put in."""
    start = start_script()
    made: list[Any] = []
    monkeypatch.setattr(start, "ROOT", tmp_path)
    monkeypatch.setattr(
        start.venv, "create", lambda *a, **k: made.append(k)
    )
    monkeypatch.setattr(start, "call", lambda *_: None)
    (tmp_path / ".venv").mkdir()
    for name, code in {"whole": 0, "without pip": 1}.items():
        python = tmp_path / name
        python.write_text(f"#!/bin/sh\nexit {code}\n")
        python.chmod(0o755)
        monkeypatch.setattr(start, "PYTHON", python)
        (tmp_path / ".venv/.started").unlink(missing_ok=True)
        for source in ("pyproject.toml", "requirements.lock"):
            (tmp_path / source).touch()
        start.install("")
        assert made == [{"with_pip": True}] * code


def test_it_counts_what_follows_the_chapters() -> None:
    rooms = [chapter.name[0] for chapter in read_book(ROOT)]
    words = " ".join(TEXT.split())
    assert rooms.count("A") == 7 and "Seven appendices (" in words
    follow = f"and {rooms.count('E')} pages of the engine room follow"
    assert follow in words


def test_its_line_on_table_3_has_as_many_seeds_as_its_runs() -> None:
    card = yaml.safe_load((ROOT / "book/cards.yml").read_text("utf-8"))
    seeds = {len(runs) for runs in small_runs(ledger()).values()}
    assert seeds == {5} and "five seeds" in card["23-variations"]


def test_it_leads_to_the_book_and_to_each_chapter() -> None:
    site = read_project(ROOT).site
    assert f"({site}/)" in TEXT[: TEXT.index("## ")]
    promises = yaml.safe_load((ROOT / "book/cards.yml").read_text("utf-8"))
    titles = {c.name: c.title for c in read_book(ROOT)}
    for name, promise in promises.items():
        if name[0].isdigit():
            link = f"[{name[:2]} {titles[name]}]({site}/{name}.html)"
            assert f"| {link} | {promise} |\n" in TEXT


def captions() -> list[dict[str, Any]]:
    """What the ledger has of the recipe's three runs."""
    names = "multi30k-cpu", "multi30k-seed1", "multi30k-seed2"
    return [ledger()[name]["metrics"] for name in names]


def captions_minutes() -> list[int]:
    """How long one takes: in bfloat16, and in float32, as timed."""
    [steps] = {run["steps"] for run in captions()}
    timed = [
        ledger()[f"multi30k-{precision}"]["metrics"]
        for precision in ("bfloat16", "float32")
    ]
    paces = [one["seconds"] / one["steps"] for one in timed]
    return [round(steps * pace / 60) for pace in paces]


def test_its_machines_are_the_ledgers_or_estimates() -> None:
    """A cell is measured, the paper's, or stands in italics."""
    rows = re.findall(r"^\| `(pocket|multi30k|wmt)\S*?`?,? .+", TEXT, re.M)
    assert len(rows) == 3
    for name in ("pocket", "multi30k"):
        run = json.loads(
            (ROOT / f"book/results/{name}-cpu.json").read_text()
        )
        minutes = [round(run["metrics"]["seconds"] / 60)]
        if name == "multi30k":
            minutes = captions_minutes()
        [row] = re.findall(rf"^\| `{name}`, (.+) \|$", TEXT, re.M)
        _, here, *others = row.split(" | ")
        said = re.findall(r"(\d+) minutes|(\d+) in float32", here)
        assert [int(a or b) for a, b in said] == minutes
        if name == "pocket":
            right = run["metrics"]["test"]["exact_match"]
            assert f"{right:.0f} % of sentences" in here
        assert all(o[0] == o[-1] == "*" or o == "no use" for o in others)


def test_its_estimate_for_two_cores_is_of_the_ledgers_speed() -> None:
    config = TransformerConfig.base(src_vocab=37_000, tgt_vocab=37_000)
    run = ledger()["train-speed-base"]["metrics"]["as they come"]
    days = {
        precision: 100_000 * step_flops(config) / 86_400 / speed
        / run["contenders"][name]["peak_share"] / 1e9
        for precision, name in OURS.items()
        for speed in [run["peak_gflops"][precision]]
    }  # fmt: skip
    assert "*three weeks in bfloat16, two months in float32*" in TEXT
    assert round(days["bfloat16"] / 7) == 3
    assert round(days["float32"] / 30) == 2


def test_its_sentence_on_a_gpu_is_the_ledgers() -> None:
    run = ledger()["first-peers"]["metrics"]["contenders"]
    said = "torch.nn` or Marian took a quarter longer than ours."
    assert said in " ".join(TEXT.split())
    for name in ("torch.nn", "Marian"):
        assert run[name]["ratio"] == pytest.approx(1.25, abs=0.02)


def test_its_translation_is_right_and_was_not_trained_on() -> None:
    [source] = set(re.findall(r'"(Heute .+?)"', TEXT))
    [target] = re.findall(r"```text\n(.+?)\n```", TEXT)
    known = {(p.source, p.target) for p in pocket_pairs(40, "test")}
    assert (source, target) in known


def test_its_figure_is_of_the_ledger() -> None:
    runs = captions()
    # the paper's apart
    [bleu] = set(re.findall(r"([\d.]+) BLEU(?! \(the)", TEXT))
    [minutes] = re.findall(r"some (\d+) minutes on two cores; ", TEXT)
    [size] = re.findall(r"`multi30k`, ([\d.]+) million", TEXT)
    scores = mean(run["test"]["bleu"] for run in runs)
    assert float(bleu) == pytest.approx(scores, abs=0.051)
    assert captions_minutes() == pytest.approx([int(minutes)] * 2, abs=1)
    assert float(size) == round(runs[0]["parameters"] / 1e6, 1)


PEERS = "torch.nn", "Marian", "JoeyNMT"


def test_its_table_of_speed_is_the_ledgers() -> None:
    rows = re.findall(r"^\| (a training|translating) .+", TEXT, re.M)
    assert len(rows) == 6

    def ratios(
        name: str, *path: str, precision: str = ""
    ) -> list[float | None]:
        at = json.loads((ROOT / f"book/results/{name}.json").read_text())
        at = at["metrics"]
        for key in path:
            at = at[key]
        at = at["contenders"]
        # the faster of its two ways
        ways = ("CTranslate2", "CTranslate2 (workers)")
        fastest = [at[way]["ratio"] for way in ways if way in at]
        peers = [peer + precision for peer in PEERS]
        others = [at.get(name, {}).get("ratio") for name in peers]
        return [*others, min(fastest, default=None)]

    table = {
        "a training step, batches as they come": ratios(
            "train-speed", "as they come"
        ),
        "a training step, as they come, all in bfloat16": ratios(
            "train-speed", "as they come", precision=", bfloat16"
        ),
        "a training step, batches without padding": ratios(
            "train-speed", "full"
        ),
        "a training step, without padding, all in bfloat16": ratios(
            "train-speed", "full", precision=", bfloat16"
        ),
        "translating with four beams, width 256": ratios("decode-small"),
        "translating with four beams, width 512": ratios("decode-base"),
    }
    for name, expected in table.items():
        cells = [f"{x:.2f} ×" if x else "" for x in expected]
        line = " | ".join([f"| {name}", *cells]) + " |"
        assert re.sub(" +", " ", line) in re.sub(" +", " ", TEXT)


def test_its_picture_is_what_the_shipped_run_looks_at() -> None:
    with benchmark("picture") as made:
        source, target, weights = made.looked(made.SENTENCE)
        assert made.SENTENCE in TEXT
    drawn = (ROOT / "book/writing.svg").read_text("utf-8")
    told = re.search("<title>(.+?) — (.+?)</title>", drawn)
    assert told and told.groups() == (" ".join(source), " ".join(target))
    look = dict(re.findall(r"([^\s>]+) looks most at (\S+), \d+%", drawn))
    for word, row in zip(target, weights, strict=True):
        if target.count(word) == 1 and max(row) > 0.6:
            assert look[word] == source[row.index(max(row))]
    # as the caption says
    shop = dict(zip(source, weights[target.index("shop")], strict=True))
    assert sorted(shop, key=shop.__getitem__)[-2:] == ["ein", "kauft"]


def test_its_picture_says_each_word_and_each_strong_line() -> None:
    weights = [[0.9, 0.05], [0.3, 0.7], [0.0, 1.0]]
    with benchmark("picture") as made:
        drawn = made.picture(["<a>", "b"], ["x", "y", "&"], weights)
    assert drawn.count('class="word"') == 3
    assert drawn.count("<path") == 4  # 0.05 is too faint
    assert (
        "&lt;a&gt;" in drawn and "x looks most at &lt;a&gt;, 90%" in drawn
    )
    tree = ElementTree.fromstring(drawn)
    assert tree.get("role") == "img"
