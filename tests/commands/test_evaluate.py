"""annotated evaluate, and runs that vote."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from annotated.commands import evaluate
from annotated.commands.evaluate import Evaluate
from annotated.engine import search as decoding
from annotated.engine.errors import DataError, RunError
from annotated.engine.runs import Run
from annotated.engine.translate import Translation
from annotated.tokens import SPECIALS, Tokenizer
from tests.commands.conftest import Call

KEYS = [
    "bleu", "signature", "chrf", "exact_match", "sentences", "seconds",
    "bleu_low", "bleu_high", "copied", "nearest",
]  # fmt: skip


def test_json_has_the_promised_keys(
    call: Call, run: Path, pair: str
) -> None:
    done = call(f"evaluate --run {run} {pair} --json")
    assert (done.code, done.out.count("\n")) == (0, 1)
    scores = json.loads(done.out)
    assert list(scores) == KEYS
    assert scores["sentences"] == 3
    assert scores["exact_match"] >= 33.3  # the blank line, at least
    assert "tok:13a|" in scores["signature"]


@pytest.mark.parametrize("count", [2, 0])
def test_a_file_with_both_sides_is_both(
    call: Call, run: Path, tmp_path: Path, count: int
) -> None:
    unit = "<trans-unit><source>a b</source>{}</trans-unit>"
    units = unit.format("<target>a b</target>") * count + unit.format("")
    file = tmp_path / "test.xlf"
    file.write_text(f"<xliff>{units}</xliff>")
    done = call(f"evaluate --run {run} --src {file} --ref {file} --json")
    if count:
        assert json.loads(done.out)["sentences"] == count
    else:
        assert "has nothing that is translated" in done.complaint


def test_without_json_there_is_a_table(
    call: Call, run: Path, pair: str
) -> None:
    done = call(f"evaluate --run {run} {pair}")
    assert [line.split()[0] for line in done.out.splitlines()] == KEYS


def test_split_compounds_adds_keys_of_its_own(
    call: Call, run: Path, pair: str
) -> None:
    done = call(f"evaluate --run {run} {pair} --split-compounds --json")
    scores = json.loads(done.out)
    split = ["split_bleu", "split_signature"]
    assert list(scores) == [*KEYS[:5], *split, *KEYS[5:]]
    assert "tok:13a|" in scores["signature"]
    assert "tok:13a+hyphens|" in scores["split_signature"]


def test_two_runs_are_compared(
    call: Call, run: Path, pair: str, tmp_path: Path
) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    line = f"evaluate --run {run} {pair} --against {other} --json"
    scores = json.loads(call(line).out)
    assert list(scores) == [*KEYS, "against"]
    assert scores["against"]["bleu"] == scores["bleu"]
    same = {"difference": 0.0, "low": 0.0, "high": 0.0, "p": 1.0}
    for name in ("bleu_difference", "chrf_difference"):
        assert scores["against"][name] == same


@pytest.mark.parametrize(
    ("known", "tag"), [(("<a>", "<b>"), "<a>"), (("<b>",), None)]
)
def test_the_other_run_is_searched_like_ours(
    call: Call, run: Path, pair: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, known: tuple[str, ...], tag: str | None,
) -> None:  # fmt: skip
    """In the same precision, alone, and with the tag, where it has it."""
    opened: list[Evaluate] = []
    searched: list[set[str]] = []
    real_open, real = Evaluate.open, Evaluate._translated

    def open_it(self: Evaluate) -> Run:
        opened.append(self)
        return real_open(dataclasses.replace(self, tag=None))

    def noted(self: Evaluate, run: Run, src: list[str]) -> list[str]:
        kinds = {type(part).__module__ for part in run.model.modules()}
        searched.append(kinds)
        return real(self, run, src)

    monkeypatch.setattr(evaluate, "tags_of", lambda source: known)
    monkeypatch.setattr(Evaluate, "open", open_it)
    monkeypatch.setattr(Evaluate, "_translated", noted)
    other = shutil.copytree(run, tmp_path / "other")
    line = f"evaluate --run {run} {pair} --against {other} --tag <a> --json"
    assert call(f"{line} --precision int8 --ensemble {run}").code == 0
    ours, theirs = opened
    alone = {"run": other, "ensemble": (), "tag": tag}
    assert theirs == dataclasses.replace(ours, **alone)
    assert searched[0] == searched[1]
    assert any("quantized" in kind for kind in searched[1])


def test_a_run_is_compared_with_translations_in_a_file(
    call: Call, run: Path, pair: str, tmp_path: Path
) -> None:
    file = tmp_path / "others.txt"
    file.write_bytes((tmp_path / "ref").read_bytes())
    line = f"evaluate --run {run} {pair} --against {file}"
    scores = json.loads(call(f"{line} --json").out)
    assert scores["against"]["exact_match"] == 100.0
    assert scores["against"]["chrf_difference"]["difference"] == (
        pytest.approx(scores["chrf"] - 100, abs=0.02)
    )
    table = call(line).out.splitlines()
    assert "100.0" in next(x for x in table if x.startswith("exact_match"))
    assert "p = " in next(x for x in table if "bleu_difference" in x)


def test_bleu_0_beside_lines_that_are_right_is_explained(
    call: Call, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Evaluate, "_translated", lambda *x: x[-1])
    for text, told in (("a b c\nb\n", True), ("a b c d\nb\n", False)):
        (tmp_path / "text").write_text(text)
        files = f"--src {tmp_path}/text --ref {tmp_path}/text --json"
        done = call(f"evaluate --run {run} {files}")
        assert json.loads(done.out)["exact_match"] == 100
        assert ("no translation has four tokens" in done.err) == told


def test_bleu_0_of_long_lines_that_are_wrong_is_not_laid_to_their_length(
    call: Call, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Evaluate, "_translated", lambda *x: x[-1])
    (tmp_path / "src").write_text("a b c d\n\n")
    (tmp_path / "ref").write_text("e f g h\n\n")
    files = f"--src {tmp_path}/src --ref {tmp_path}/ref --json"
    done = call(f"evaluate --run {run} {files}")
    scores = json.loads(done.out)
    assert (scores["bleu"], scores["exact_match"]) == (0, 50)
    assert "four tokens" not in done.err


@pytest.mark.parametrize("coding", ["utf-8-sig", "utf-16"])
def test_files_from_windows_are_scored_as_others_are(
    call: Call, run: Path, tmp_path: Path, coding: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(Evaluate, "_translated", lambda *x: x[-1])
    (tmp_path / "src").write_text("ä b c d\ne\n", "utf-8")
    (tmp_path / "ref").write_text("ä b c d\r\ne\r\n", coding)
    files = f"--src {tmp_path}/src --ref {tmp_path}/ref --json"
    done = call(f"evaluate --run {run} {files} --against {tmp_path}/ref")
    scores = json.loads(done.out)
    assert scores["exact_match"] == scores["against"]["exact_match"] == 100


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"a\nb\n", "has 2 lines, but the test set has 3"),
        (b"", "is empty"),
        (b"a\n\xff\nb\n", "line 2, byte 1: not UTF-8"),
    ],
)
def test_translations_that_do_not_belong_are_refused(
    call: Call, run: Path, pair: str, tmp_path: Path,
    content: bytes, complaint: str,
) -> None:  # fmt: skip
    (tmp_path / "others").write_bytes(content)
    line = f"evaluate --run {run} {pair} --against {tmp_path / 'others'}"
    assert complaint in call(line).complaint


def test_another_run_that_is_none_is_refused(
    call: Call, run: Path, pair: str, tmp_path: Path
) -> None:
    line = f"evaluate --run {run} {pair} --against"
    done = call(f"{line} {tmp_path / 'nowhere'}")
    assert "nowhere cannot be read" in done.complaint
    assert "is not a run folder" in call(f"{line} {tmp_path}").complaint


def test_a_run_of_other_languages_is_refused(
    call: Call, run: Path, pair: str, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    recipe = json.loads((other / "recipe.json").read_text())
    (other / "recipe.json").write_text(
        json.dumps(recipe | {"source": "en"})
    )
    done = call(f"evaluate --run {run} {pair} --against {other}")
    assert "translates en to symbols" in done.complaint


def test_two_baselines_and_an_interval_stand_beside_the_score(
    call: Call, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task is to copy, so what copies is right."""
    wrong = ["a b c d", "d c b a", "a a a a"]
    monkeypatch.setattr(Evaluate, "_translated", lambda *x: wrong)
    lines = "a b c d\nb c d e\na c e g i\n"
    (tmp_path / "src").write_text(lines)
    (tmp_path / "ref").write_text(lines)
    files = f"--src {tmp_path}/src --ref {tmp_path}/ref"
    line = f"evaluate --run {run} {files}"
    scores = json.loads(call(f"{line} --json").out)
    assert scores["copied"] == {"bleu": 100.0, "chrf": 100.0}
    assert 0 < scores["nearest"]["chrf"] < 100
    assert 0 <= scores["bleu_low"] < scores["bleu"] < scores["bleu_high"]
    rows = dict(x.split(None, 1) for x in call(line).out.splitlines())
    assert rows["copied"] == "bleu 100.0, chrf 100.0"


def test_the_training_set_of_somewhere_else_is_not_asked_for(
    call: Call, run: Path, pair: str, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    recipe = json.loads((other / "recipe.json").read_text())
    for data in ("wmt14", str(tmp_path / "gone")):
        there = json.dumps(recipe | {"data": data})
        (other / "recipe.json").write_text(there)
        done = call(f"evaluate --run {other} {pair} --json")
        assert [*json.loads(done.out)] == KEYS[:-1]


def test_a_split_of_the_recipes_data_is_scored(
    call: Call, run: Path
) -> None:
    line = f"evaluate --run {run} --split valid --beam 1 --extra 1 --json"
    assert json.loads(call(line).out)["sentences"] == 1000
    done = call(f"evaluate --run {run} --split dev")
    assert "copy has no split 'dev'; it has train, valid" in done.complaint


def test_runs_vote(call: Call, run: Path, early: Path, pair: str) -> None:
    wish = f"translate --run {run} --beam 2 --json --precision float32"
    done = call(f"{wish} --ensemble {early}", b"a b c\n")
    [found] = json.loads(done.out)["translations"]
    runs = [Run.open(folder) for folder in (run, early)]
    search = dataclasses.replace(runs[0].recipe.search, beam=2)
    [[best]] = decoding.beam_search(
        [one.model for one in runs],
        runs[0].source.encode(["a b c"]),
        search,
    )
    assert found["log_probability"] == pytest.approx(best.log_probability)
    alone = json.loads(call(wish, b"a b c\n").out)["translations"][0]
    assert found["log_probability"] != pytest.approx(
        alone["log_probability"]
    )
    scored = call(f"evaluate --run {run} --ensemble {early} --json {pair}")
    assert json.loads(scored.out)["sentences"] == 3


@pytest.mark.parametrize("side", ["source", "target"])
def test_runs_that_vote_have_the_same_words(
    call: Call, run: Path, early: Path, side: str
) -> None:
    file = early / f"{side}.json"
    known = Tokenizer.load(file).inner.get_vocab()
    words = sorted(known.keys() - set(SPECIALS), key=known.__getitem__)
    Tokenizer.of_words(words[::-1]).save(file)
    done = call(f"translate --run {run} --ensemble {early}", b"a b\n")
    assert str(early) in done.complaint
    assert "their vocabularies differ" in done.complaint


def test_a_run_that_cannot_vote_is_told_of(
    call: Call, run: Path, tmp_path: Path
) -> None:
    absent = tmp_path / "absent"
    done = call(f"translate --run {run} --ensemble {absent}", b"a b\n")
    assert done.complaint.startswith(
        f"annotated: {absent} is not a run folder"
    )


@pytest.mark.parametrize("broken", ["[1]", '{"test": ', "\x00"])
def test_scores_that_are_damaged_are_named(
    tmp_path: Path, broken: str
) -> None:
    (tmp_path / "recipe.json").write_text("{}")
    (tmp_path / "scores.json").write_text(broken)
    own = Evaluate(run=tmp_path, split="test", keep=True)
    with pytest.raises((DataError, RunError), match=r"scores\.json"):
        own._keep({"bleu": 1.0})
    assert (tmp_path / "scores.json").read_text() == broken


def test_scores_that_cannot_be_kept_are_named_before_the_search(
    call: Call, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(*_: Any) -> list[str]:
        pytest.fail("it searched first")

    monkeypatch.setattr(Evaluate, "_translated", search)
    own = shutil.copytree(run, tmp_path / "own")
    (own / "scores.json").write_text("[1]")
    done = call(f"evaluate --run {own} --split test --keep")
    assert "scores.json is damaged" in done.complaint


def test_scores_are_never_kept_in_the_package(call: Call) -> None:
    done = call("evaluate --run pocket --split test --keep")
    assert done.code == 2 and "pocket is the package's" in done.complaint


def test_tokenised_translations_are_told_of_in_our_words(
    call: Call,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """sacreBLEU's own would name an argument that no option gives."""

    def translate(run: Run, lines: list[str], *_: Any, **__: Any) -> Any:
        return [[Translation("a b .", 0.0, 0.0)] for _ in lines]

    monkeypatch.setattr(Run, "translate", translate)
    (tmp_path / "x").write_text("a b .\n" * 200, encoding="utf-8")
    files = f"--src {tmp_path / 'x'} --ref {tmp_path / 'x'}"
    done = call(f"evaluate --run {run} {files} --against {tmp_path / 'x'}")
    assert done.code == 0 and done.err.count("are tokenised") == 1
    assert "force" not in done.err + caplog.text
