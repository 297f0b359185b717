"""annotated train, data prepare, and a run from end to end."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from annotated.commands.data import Prepare
from annotated.corpora import prepare as preparing
from annotated.engine.errors import UsageError
from annotated.engine.recipes import RECIPES
from annotated.engine.runs import Run, read_metrics
from tests.commands.conftest import TINY, Call
from tests.helpers import at_step, content


def test_a_folder_that_is_in_use_is_not_written_to(
    call: Call, run: Path
) -> None:
    before = content(run)
    done = call(f"train reverse --out {run} {TINY}")
    assert "is not empty" in done.complaint
    assert content(run) == before


def test_any_field_can_be_changed(run: Path) -> None:
    fields = json.loads((run / "recipe.json").read_text())
    assert fields["model"]["d_model"] == 16
    assert fields["training"]["keep"] == 2
    assert fields["tokenizer"] == RECIPES["copy"].tokenizer


def test_a_stopped_run_says_how_to_go_on_and_does(
    call: Call,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        at_step(patch, 7, lambda: os.kill(os.getpid(), signal.SIGTERM))
        done = call(f"train copy --out {folder} {TINY}")
    assert done.code == 128 + signal.SIGTERM
    assert done.out == ""
    last = done.err.splitlines()[-1]
    assert last == "annotated: stopped at step 7; continue with --resume"
    # what was given at the beginning need not be given again
    done = call(f"train copy --out {folder} --resume")
    assert done.code == 0
    assert "resuming at step 7" in done.err
    assert json.loads(done.out)["steps"] == 20
    one, other = (
        load_file(p / "model.safetensors") for p in (finished, folder)
    )
    assert all((one[name] == other[name]).all() for name in one)
    assert [e["step"] for e in read_metrics(folder) if "loss" in e] == [
        1,
        10,
        20,
    ]


def test_to_resume_with_another_field_is_refused(
    call: Call, run: Path
) -> None:
    before = content(run)
    done = call(f"train copy --out {run} --resume --d-ff 32")
    assert "started with d_ff 16: resume it with that" in done.complaint
    done = call(f"train reverse --out {run} --resume")
    assert "was started as 'say the input again" in done.complaint
    assert content(run) == before


def test_with_resume_a_run_can_be_made_longer(
    call: Call, run: Path
) -> None:
    done = call(f"train copy --out {run} --resume --max-steps 25")
    assert json.loads(done.out)["steps"] == 25


def test_minutes_end_a_run_too(call: Call, tmp_path: Path) -> None:
    line = f"train copy --out {tmp_path / 'run'} {TINY} --max-minutes 1e-9"
    assert json.loads(call(line).out)["steps"] == 1


def test_what_diverges_is_said_to(call: Call, tmp_path: Path) -> None:
    line = f"train copy --out {tmp_path / 'run'} {TINY} --warmup 1"
    done = call(f"{line} --rate 1e30")
    assert "has loss" in done.complaint
    assert "step " in done.complaint


def test_ones_own_files_can_be_trained_on(
    call: Call, tmp_path: Path
) -> None:
    for split, count in (("train", 60), ("valid", 9), ("test", 9)):
        for language, word in (("it", "cane"), ("en", "dog")):
            lines = "".join(f"{word} {i}\n" for i in range(count))
            (tmp_path / f"{split}.{language}").write_text(lines)
    run = tmp_path / "run"
    line = f"--data {tmp_path} --source it --target en --vocab 300"
    tiny = TINY.replace("--train-pairs 200", "")
    tiny = tiny.replace("--max-steps 20", "--max-steps 2")
    done = call(f"train multi30k --out {run} {line} {tiny}")
    assert done.code == 0, done.err
    done = call(f"evaluate --run {run} --split test --json --extra 5")
    assert json.loads(done.out)["sentences"] == 9


def test_data_that_were_moved_are_scored_where_they_are(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typed as seen from a folder, evaluated from another one."""
    home, run = tmp_path / "home", tmp_path / "run"
    (home / "own").mkdir(parents=True)
    for split, count in (("train", 60), ("valid", 9), ("test", 7)):
        for language, word in (("it", "cane"), ("en", "dog")):
            lines = "".join(f"{word} {i}\n" for i in range(count))
            (home / f"own/{split}.{language}").write_text(lines)
    line = "--data own --source it --target en --vocab 300 --max-steps 2"
    tiny = TINY.replace("--train-pairs 200", "").replace(
        "--max-steps 20", ""
    )
    monkeypatch.chdir(home)
    done = call(f"train pair --out {run} {line} {tiny}")
    assert done.code == 0, done.err
    monkeypatch.chdir(tmp_path)
    score = f"evaluate --run {run} --json --extra 5 --beam 1"
    before = json.loads(call(f"{score} --split test").out)
    assert before["sentences"] == 7
    (home / "own").rename(tmp_path / "moved")
    done = call(f"{score} --split test")
    assert f"no folder {home / 'own'}" in done.complaint
    assert "--data" in done.complaint
    after = json.loads(call(f"{score} --split test --data moved").out)
    for scores in (before, after):
        del scores["seconds"]
    assert after == before
    assert "unknown data set 'gone'" in (
        call(f"{score} --split test --data gone").complaint
    )
    files = f"--src moved/test.it --ref moved/test.en --data {tmp_path}"
    assert "--data goes with --split" in call(f"{score} {files}").complaint


def test_what_is_typed_is_kept_even_where_it_is_the_default(
    call: Call, tmp_path: Path
) -> None:
    for split in ("train", "valid"):
        for language in ("it", "en"):
            lines = "".join(f"cane {i}\n" for i in range(50))
            (tmp_path / f"{split}.{language}").write_text(lines)
    run, defaults = tmp_path / "run", RECIPES["pair"].training
    words = (
        f"train pair --data {tmp_path} --source it --target en "
        "--d-model 16 --d_ff=16 --batch-tokens 200 --max-steps 3 "
        f"--warmup {defaults.warmup} --save-every {defaults.save_every} "
    )
    done = call(f"{words} --out {run}")
    assert done.code == 0, done.err
    made = Run.open(run).recipe
    assert made.model.d_model == made.model.d_ff == 16
    assert made.training.warmup == defaults.warmup
    assert made.training.save_every == defaults.save_every
    # what was left open has been chosen
    assert made.model.num_encoder_layers == 2 and made.fit == ()
    # and a dry run is of what would be trained
    model = f"{json.loads(done.out)['parameters']:,} parameters"
    told = call(f"{words} --dry-run")
    assert told.out.split("\n")[0].endswith(f" {model}")
    assert "fitted to the corpus" in told.err


def test_a_dry_run_without_a_corpus_is_not_fitted(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("annotated.commands.train.dry_run", lambda *_: "")
    line = "train {} --out r --precision float32 --dry-run --device cpu"
    for name, told in (("pair", True), ("copy", False)):
        done = call(line.format(name))
        assert done.code == 0, done.err
        assert ("This recipe is fitted to its corpus" in done.err) == told
        assert ("give --data" in done.err) == told


ARRIVES = {  # options of data prepare pair: value, field, what it becomes
    "source": ("it", "source", "it"),
    "target": ("la", "target", "la"),
    "vocab": ("77", "vocab", 77),
    "tokenizer": ("word", "tokenizer", "word"),
    "separate": ("", "shared", False),
    "vocab_pairs": ("8", "vocab_pairs", 8),
    "hold_out": ("9", "division.of", 9),
    "min_words": ("2", "cleaning.min_words", 2),
    "max_words": ("3", "cleaning.max_words", 3),
    "ratio": ("1.5", "cleaning.ratio", 1.5),
    "lower": ("", "cleaning.lower", True),
    "unescape": ("", "cleaning.unescape", True),
    "detokenize": ("", "cleaning.detokenize", True),
    "drop_copies": ("", "cleaning.drop_copies", True),
    "dedup": ("", "cleaning.dedup", True),
    "divide_by": ("block", "division.by", "block"),
    "tags": ("'<a>' '<b>'", "tags", ("<a>", "<b>")),
    "src_tags": ("'<a>'", "tags", ("<a>",)),
    "weights": ("3", "parts.train.weight", 3),
    "protect": ("a+ b", "protect", ("a+", "b")),
    "valid": ("c.de c.en", "parts.valid", ["c.de", "c.en"]),
    "test": ("d.de d.en", "parts.test", ["d.de", "d.en"]),
}


def prepared_by(
    call: Call, monkeypatch: pytest.MonkeyPatch, options: str
) -> dict[str, Any]:
    """What data prepare pair is about to prepare, by field."""
    seen: list[Any] = []

    def prepare(preparation: Any, out: Path) -> None:
        seen.append(preparation)
        raise UsageError("enough")

    monkeypatch.setattr(preparing, "prepare", prepare)
    line = f"data prepare pair --src a.de --tgt b.en --out x {options}"
    assert "enough" in call(line).complaint
    found = vars(seen[0]) | {
        f"{name}.{key}": value
        for name in ("cleaning", "division")
        for key, value in vars(getattr(seen[0], name)).items()
    }
    for split, (part,) in seen[0].parts.items():
        files = part.src.path, part.tgt.path
        found[f"parts.{split}"] = [str(file) for file in files]
    found["parts.train.weight"] = seen[0].parts["train"][0].weight
    del found["parts"]
    return found


@pytest.mark.parametrize("name", ARRIVES)
def test_every_option_of_prepare_reaches_the_preparation(
    call: Call, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    value, field, becomes = ARRIVES[name]
    before = prepared_by(call, monkeypatch, "")
    option = f"--{name.replace('_', '-')} {value}"
    after = prepared_by(call, monkeypatch, option)
    assert after[field] == becomes != before.get(field)
    changed = {n for n in after if after[n] != before.get(n)}
    allowed = {field, field.split(".")[0], "division", "division.valid"}
    assert changed <= allowed | {"division.test"}


def test_no_option_of_prepare_is_left_out_here() -> None:
    names = {field.name for field in dataclasses.fields(Prepare)}
    others = {"name", "out", "src", "tgt", "tokens", "json"}
    others.add("columns")  # of one file: tests/corpora/test_formats.py
    # of text in one language: tests/commands/test_back.py
    others |= {"mono", "back", "back_tag", "back_beam", "back_sample"}
    assert names == {*ARRIVES, *others}


def test_a_run_goes_all_the_way_as_a_user_leads_it(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prepared, trained, the data moved, resumed, averaged, exported,
    imported again: what comes out translates as what went in.
    """
    monkeypatch.chdir(tmp_path)
    for language, word in (("it", "cane"), ("en", "dog")):
        lines = "".join(f"{word} {i}\n" for i in range(300))
        Path(f"raw.{language}").write_text(lines)

    def done(line: str, stdin: bytes = b"") -> str:
        told = call(line, stdin)
        assert told.code == 0, told.err
        return told.out

    files = "--src raw.it --tgt raw.en --hold-out 20 --vocab 280"
    done(f"data prepare pair {files} --out ready")
    tiny = TINY.replace("--train-pairs 200", "--norm post --cooldown 0")
    done(f"train pair --data ready --out run {tiny}")
    Path("ready").rename("moved")
    Path("run").rename("there")
    assert "no folder" in call("train pair --out there --resume").complaint
    line = "train pair --out there --resume --data moved --max-steps 30"
    assert json.loads(done(line))["steps"] == 30
    done("average --run there --last 2 --out mean")
    done("export --run mean --to safetensors --out exported")
    done("export --run mean --to transformers --out theirs")
    done("import marian theirs --out back")
    done("export --run back --to transformers --out again")
    done("import marian again --out twice")
    said, scores = set(), []
    for run in ("mean", "exported", "back", "twice"):
        options = f"--run {run} --precision float32 --beam 2 --extra 5"
        said.add(done(f"translate {options}", b"cane 3\ncane 299\n\n"))
        line = f"evaluate {options} --split test --data moved --json"
        scores.append(json.loads(done(line)) | {"seconds": 0})
    assert len(said) == 1 and said.pop().count("\n") == 3
    assert scores == scores[:1] * 4
