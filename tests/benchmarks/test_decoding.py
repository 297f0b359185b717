"""The benchmark of search, and its oracle."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.helpers import benchmark

# --- decode_speed.py ------------------------------------------------------


@pytest.fixture(scope="module")
def decode() -> Iterator[ModuleType]:
    with benchmark("decode_speed") as script:
        yield script


SMALL = [
    "--d-model=16", "--layers=2", "--num-heads=2", "--d-ff=32",
    "--vocab=60", "--sentences=5", "--length=8", "--output=7",
    "--batches=2", "--rounds=2", "--threads=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def task(decode: ModuleType):
    return decode.draw_task(
        decode.Settings(
            d_model=16, layers=2, num_heads=2, d_ff=32, vocab=60,
            sentences=5, length=8, output=7, batches=2, threads=1,
        )
    )  # fmt: skip


def test_every_translation_is_as_long_as_was_asked(
    decode: ModuleType, task, tmp_path: Path
) -> None:
    found = decode.ours(task, tmp_path)(task.sentences)
    assert [len(answer) for answer in found] == [6] * 10


@pytest.mark.parametrize("beam", [1, 4])
def test_torchs_search_finds_what_ours_does(
    decode: ModuleType, task, tmp_path: Path, beam: int
) -> None:
    task = replace(task, beam=beam)
    found = decode.torch_model(task, tmp_path)(task.sentences)
    assert found == decode.ours(task, tmp_path)(task.sentences)


@pytest.mark.parametrize(
    ("engine", "package"),
    [
        ("ctranslate2", "ctranslate2"),
        ("ctranslate2_workers", "ctranslate2"),
        pytest.param("marian", "transformers", marks=pytest.mark.slow),
    ],
)
def test_another_engine_does_the_same_work(
    decode: ModuleType, task, tmp_path: Path, engine: str, package: str
) -> None:
    pytest.importorskip(package)
    task = replace(task, beam=1)
    found = getattr(decode, engine)(task, tmp_path)(task.sentences)
    assert found == decode.ours(task, tmp_path)(task.sentences)


def test_a_comparison_leaves_out_who_is_absent_and_writes_the_ledger(
    decode: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("transformers", "ctranslate2"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(decode.time, "sleep", lambda seconds: None)
    slow = ("float32", "it is")
    monkeypatch.setattr(decode, "pick_precision", lambda device: slow)
    file = tmp_path / "new" / "speed.json"
    assert decode.main([*SMALL, "--no-memory", f"--json={file}"]) == 0
    said = capsys.readouterr().out
    assert "Marian is left out" in said
    assert "pip install ctranslate2" in said
    written = json.loads(file.read_text())
    assert written["command"].startswith(
        "python benchmarks/decode_speed.py --d-model 16 --layers 2 "
    )
    assert "--no-memory" in written["command"]
    assert "--json" not in written["command"]
    contenders = written["metrics"]["contenders"]
    assert set(contenders) == {
        "annotated", "annotated (one process)", "torch.nn", "annotated int8"
    }  # fmt: skip
    assert contenders["annotated"]["ratio"] == 1.0
    assert contenders["torch.nn"]["same"] > 0.9


def test_every_precision_takes_part_where_it_is_fast(
    decode: ModuleType,
    speed: ModuleType,
    task: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fast = ("bfloat16", "it is")
    for script in (decode, speed):
        monkeypatch.setattr(script, "pick_precision", lambda device: fast)
    assert decode.Settings().names == list(decode.MAKERS)
    assert speed.Settings().precisions == ("float32", "bfloat16")
    asked = speed.Settings(precision=("bfloat16",))
    assert asked.precisions == ("bfloat16",)


def test_each_contender_can_be_asked_for_alone(decode: ModuleType) -> None:
    # as it is where the memory is measured
    for name in decode.MAKERS:
        assert decode.Settings(only=name).names == [name]


@pytest.mark.parametrize(
    ("engine", "package"),
    [
        ("ours_in_bfloat16", "torch"),
        ("ours_in_int8", "torch"),
        ("ctranslate2_int8", "ctranslate2"),
        ("ctranslate2_workers_int8", "ctranslate2"),
    ],
)
def test_fewer_digits_find_much_the_same(
    decode: ModuleType, task: Any, tmp_path: Path, engine: str, package: str
) -> None:
    pytest.importorskip(package)
    best = decode.ours(task, tmp_path)(task.sentences)
    found = getattr(decode, engine)(task, tmp_path)(task.sentences)
    assert [len(ids) for ids in found] == [6] * 10
    worth = decode.worth(task, found) / decode.worth(task, best)
    assert worth == pytest.approx(1.0, abs=0.05)


def test_a_worse_translation_is_no_answer(decode: ModuleType) -> None:
    good = decode.Outcome("annotated", 1.0, 1.0, 1.0, 1.0, 1.0, -20.0)
    lazy = replace(good, name="lazy", same=0.1, log_probability=-30.0)
    assert decode.doubts([good, replace(good, same=0.1)]) == []
    assert "lazy found 10%" in decode.doubts([good, lazy])[0]


# --- oracle.py ------------------------------------------------------------


@pytest.fixture(scope="module")
def oracle() -> Iterator[ModuleType]:
    with benchmark("oracle") as script:
        yield script


def test_the_oracle_and_the_fast_search_agree(
    oracle: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert oracle.main(["--count=30", "--batch=6"]) == 0
    assert "30 sentences" in capsys.readouterr().out


def test_the_oracle_sees_a_difference(oracle: ModuleType) -> None:
    one = oracle.Hypothesis([4, 5], -2.0, -1.0)
    other = oracle.Hypothesis([4, 6], -2.0, -1.0)
    assert oracle.compare([one], [one], 1e-4) == (True, True)
    assert oracle.compare([one], [other], 1e-4) == (False, True)
    worse = oracle.Hypothesis([4, 5], -3.0, -1.5)
    assert oracle.compare([worse], [one], 1e-4) == (False, False)
    assert oracle.compare([], [one], 1e-4) == (False, False)
