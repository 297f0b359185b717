"""benchmarks/split_bleu.py damages text as it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.helpers import benchmark

LINES = [
    "Der SPD-Politiker fordert eine EU-weite Regelung.",
    "Die Rhein-Main-Region wächst weiter - und weiter.",
    "Haus- und Hofhund bellen im Nord-Ost-Sturm.",
] * 20


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with benchmark("split_bleu") as found:
        yield found


def test_words_come_apart_and_together_again(script: ModuleType) -> None:
    for line in LINES:
        assert script.join(script.as_wholes(line)) == line
        assert script.join(script.as_parts(line)) == line
    assert len(script.as_parts("Rhein-Main-Region")) == 3
    assert len(script.as_parts("Haus- und - ja")) == 4


def test_damage_hits_the_share_that_it_should(script: ModuleType) -> None:
    lines = [[f"{i}-{j}" for j in range(50)] for i in range(100)]
    draw = np.random.default_rng(0)
    damaged = script.damage(lines, 0.3, draw)
    assert script.damage(lines, 0.0, draw) == lines
    left = sum(len(line) for line in damaged)
    assert left == pytest.approx(5000 * 0.9, rel=0.05)  # a third drops
    own = [set(a) & set(b) for a, b in zip(damaged, lines)]
    assert sum(map(len, own)) == pytest.approx(5000 * 0.8, rel=0.05)


def test_a_run_writes_a_ledger_file(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    references, file = tmp_path / "ref", tmp_path / "new" / "split.json"
    references.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    line = [f"--references={references}", f"--hypotheses={references}"]
    assert script.main([*line, "--rates", "0.3", f"--json={file}"]) == 0
    metrics = json.loads(file.read_text("utf-8"))["metrics"]
    assert metrics["words_with_hyphens"] == 4 * 20
    assert metrics["real"]["bleu"] == 100
    for kind in ("wholes", "parts"):
        (row,) = metrics[kind]
        assert 0 < row["bleu"] < 100 and row["split_bleu"] > 0
    assert "words have hyphens inside" in capsys.readouterr().out


def test_without_the_references_it_says_where_to_put_them(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ANNOTATED_DATA", str(tmp_path))
    assert script.main([]) == 2
    said = capsys.readouterr().err
    assert "newstest2013.en-de.de is not there" in said
    assert "sacrebleu -t wmt13" in said
