"""annotated data prepare pair --mono FILE --back RUN: text in the target
language alone is translated, kept, gone on with, and added.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from annotated.corpora.prepare import Prepared
from annotated.corpora.synthetic import synthetic_pairs
from annotated.engine.runs import Run
from annotated.engine.search import Sampling
from annotated.engine.translate import Translation
from tests.commands.conftest import Call

LINE = (
    "data prepare pair --src real.en --tgt real.de --mono more.de "
    "--back pocket --tokenizer word --vocab 600 --hold-out 10 --out new"
)
BACK = Path("new.back/more.de.en")


def write(name: str, lines: list[str]) -> None:
    Path(name).write_bytes("".join(f"{x}\n" for x in lines).encode())


@pytest.fixture(autouse=True)
def more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Real pairs in real.en and real.de, and the text of more.de."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANNOTATED_PRECISION", "float32")
    german, english = synthetic_pairs("pocket", "train", 140, seed=0)
    write("real.en", english[:100])
    write("real.de", german[:100])
    lines = german[100:123]
    lines[7] = ""
    write("more.de", lines)
    return lines


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is given to the run, which answers in capitals, in pieces of
    five lines.
    """
    given: list[list[str]] = []

    def translate(run: Run, lines: list[str], *_: Any, **__: Any) -> Any:
        given.append(lines)
        return [[Translation(x.upper(), 0.0, 0.0)] for x in lines]

    monkeypatch.setattr(Run, "translate", translate)
    monkeypatch.setattr("annotated.commands.back._CHUNK", 5)
    return given


def test_one_command_translates_and_prepares(
    call: Call, more: list[str]
) -> None:
    done = call(f"{LINE} --weights 2 3")
    assert done.code == 0, done
    translated = BACK.read_text("utf-8").splitlines()
    expected = [
        best[0].text for best in Run.open(Path("pocket")).translate(more)
    ]
    assert translated == expected and translated[7] == ""
    corpus = Prepared.open(Path("new"))
    card = corpus.manifest["splits"]["train"]
    own, back = card["parts"]
    assert (own["tag"], own["weight"]) == ("", 2)
    assert (back["tag"], back["weight"]) == ("<bt>", 3)
    assert back["pairs"] == 22 and card["dropped"] == {"a blank side": 1}
    rows, (source, target) = corpus.corpus("train"), corpus.tokenizers()
    last = len(rows) - 1
    assert target.decode([rows.tgt[last]]) == [more[-1]]
    assert source.decode([rows.src[last]]) == [f"<bt> {translated[-1]}"]
    # a second time there is nothing to do
    again = call(f"{LINE} --weights 2 3")
    assert again.code == 0 and "already prepared" in again.err
    assert "translating" not in again.err


def test_what_was_interrupted_goes_on(
    call: Call, more: list[str], spoken: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    whole = [line.upper() for line in more]
    answer = Run.translate

    def stopped(run: Run, lines: list[str], *rest: Any, **more: Any) -> Any:
        if len(spoken) == 3:
            raise KeyboardInterrupt
        return answer(run, lines, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "translate", stopped)
        assert call(LINE).code == 130
    assert BACK.read_text("utf-8").splitlines() == whole[:15]
    assert not Path("new").exists()
    with BACK.open("ab") as file:  # killed in the middle of a line
        file.write("HALF A LINE, HALF A L\u00dc".encode()[:-1])
    spoken.clear()
    done = call(LINE)
    assert done.code == 0, done
    assert "15 of 23 lines are there" in done.err
    assert spoken == [more[15:20], more[20:]]
    assert BACK.read_text("utf-8").splitlines() == whole


def test_the_text_is_clean_before_it_is_translated(
    call: Call, spoken: list[list[str]]
) -> None:
    write("more.de", ["Er &amp; sie", "NUL \0", *["Ja ."] * 200])
    assert call(f"{LINE} --unescape --lower").code == 0
    assert spoken[0] == ["er & sie", "", *["ja ."] * 3]
    card = Prepared.open(Path("new")).manifest["splits"]["train"]
    assert card["dropped"]["a NUL byte"] == 1


def test_every_text_has_its_translation(
    call: Call, spoken: list[list[str]]
) -> None:
    write("b.de", ["Anna sieht ihn .", "Er kommt ."])
    line = LINE.replace("more.de", "more.de b.de").replace("new", "two")
    assert call(f"{line} --back-tag ''").code == 0
    assert len(Path("two.back/more.de.en").read_bytes().splitlines()) == 23
    assert (
        Path("two.back/b.de.en").read_text()
        == "ANNA SIEHT IHN .\nER KOMMT .\n"
    )
    parts = Prepared.open(Path("two")).manifest["splits"]["train"]["parts"]
    assert [part["tag"] for part in parts] == ["", "", ""]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("real.en --tgt real.de", "real.de --tgt real.en"),
         "pocket translates de into en, but --back needs a run that "
         "translates en into de"),
        (("--back pocket", ""), "--mono goes with --back"),
        (("--mono more.de", ""), "--mono goes with --back"),
        (("prepare pair", "prepare pocket"), "--mono goes with pair"),
        (("--back pocket", "--back nowhere"), "not a run folder"),
        (("--mono more.de", "--mono nowhere"), "cannot be read"),
        (("--mono more.de", "--mono more.de more.de"), "rename one"),
        (("--src real.en", "--src nowhere"), "cannot be read"),
        (("--out new", "--out ."), "not empty"),
        (("--out", "--weights 2 --out"), "weights must be 2, one for each"),
        (("--out", "--weights 2 0 --out"), "weights must be at least 1"),
        (("--out", "--back-tag bt --out"), "between two marks"),
        (("--out", "--back-beam 0 --out"), "beam must be"),
        (("--out", "--back-beam 2 --back-sample --out"), "does not go with"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_before_anything_is_translated(
    call: Call, spoken: list[list[str]], change: tuple[str, str], told: str
) -> None:
    assert told in call(LINE.replace(*change)).complaint
    assert spoken == [] and not BACK.exists()


def test_languages_without_a_name_are_no_wrong_direction(
    call: Call, spoken: list[list[str]]
) -> None:
    for name in ("real.en", "real.de"):
        Path(name).rename(name.replace(".", "-"))
    line = LINE.replace("real.en", "real-en").replace("real.de", "real-de")
    assert call(line).code == 0
    assert Path("new.back/more.de.source").exists()


def test_translations_of_something_else_are_not_mixed(
    call: Call, more: list[str], spoken: list[list[str]]
) -> None:
    assert call(LINE).code == 0
    line = LINE.replace("--out", "--back-beam 2 --out")
    assert "was made with another beam: delete it" in call(line).complaint
    write("more.de", [*more, "Ja ."])
    told = call(LINE).complaint
    assert "more.de.en was made with another text: delete it and" in told
    made = BACK.with_name(f"{BACK.name}.json")
    values = json.loads(made.read_text())
    assert set(values) == {
        "run",
        "text",
        "cleaning",
        "beam",
        "alpha",
        "extra",
    }
    made.unlink()
    told = call(LINE).complaint
    assert "more.de.en was not made by this command" in told


def test_translations_are_drawn(call: Call, more: list[str]) -> None:
    line = LINE.replace("--out", "--back-sample --out")
    done = call(line)
    assert done.code == 0, done
    drawn = BACK.read_text("utf-8").splitlines()
    run = Run.open(Path("pocket"))
    assert drawn == [one[0].text for one in run.translate(more, Sampling())]
    assert drawn != [one[0].text for one in run.translate(more)]
    assert (
        "with another beam, alpha, sample: delete it"
        in call(LINE).complaint
    )
