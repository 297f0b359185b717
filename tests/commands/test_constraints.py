"""What a translation must be like, said on the command line."""

import json
from pathlib import Path

import pytest

from tests.commands.conftest import Call

LINE = "'Heute kauft diese junge Ärztin nicht ein .'"


def said(call: Call, options: str = "") -> str:
    done = call(f"translate --run pocket {options} {LINE}")
    assert done.code == 0, done.err
    return done.out.strip()


def test_a_beginning_two_words_and_a_glossary(
    call: Call, tmp_path: Path
) -> None:
    free = said(call)
    assert said(call, "--prefix 'This young'").startswith("This young ")
    two = said(call, "--require 'woman|women' --require always")
    assert {"woman", "always"} <= {*two.split()}
    terms = tmp_path / "terms.tsv"
    terms.write_text("ärztin\twoman\nHund\tcat\n", encoding="utf-8")
    bound = said(call, f"--glossary '{terms.as_posix()}'")
    assert "woman" in bound.split() and "cat" not in bound.split()
    assert free != bound


def test_a_minimum_and_no_word_twice(call: Call) -> None:
    words = said(call, "--min-length 14 --no-repeat 1").split()
    assert len(words) >= 14 and len(set(words)) == len(words)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--require zebra", "'zebra' cannot be written"),
        ("--prefix 'The zebra'", "'The zebra' cannot be written"),
        ("--require ' '", "one is empty"),
        (f"--prefix '{'dog ' * 60}'", "leaves no room"),
        (f"--require '{'dog ' * 60}'", "leave no room"),
        ("--min-length -1", "min_length"),
        # this line's translation might have so many, a shorter one's not
        ("--min-length 51", "exceeds the limit of a short line's"),
        ("--no-repeat -1", "no_repeat"),
        ("--glossary nowhere.tsv", "nowhere.tsv"),
        # of a term that does not stand in this line
        ("--glossary strange.tsv", "strange.tsv: 'zebra' cannot be"),
        ("--ctranslate2 --prefix The", "does not know --prefix"),
    ],
)
def test_what_cannot_be_is_refused(
    call: Call,
    options: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("strange.tsv").write_text("Hund\tzebra\n", encoding="utf-8")
    done = call(f"translate --run pocket {options} {LINE}")
    assert told in done.complaint


def test_the_lines_before_one_that_cannot_be_are_written(
    call: Call, tmp_path: Path
) -> None:
    """As when they stand alone, and the line has its number."""
    lines = ["Anna schläft .", "Der Hund schläft .", "Anna war müde ."]
    lines += ["Der Hund schläft . " * 150, "Anna schläft ."]
    terms = tmp_path / "terms.tsv"
    terms.write_text("Hund\tcat\n", encoding="utf-8")
    asked = f"translate --run pocket --glossary '{terms.as_posix()}'"
    first = call(asked, "\n".join(lines[:3]).encode())
    done = call(asked, "\n".join(lines).encode())
    assert first.code == 0 and done.out == first.out
    assert done.code == 2 and "line 4: 'Der Hund schläft . D" in done.err


def test_evaluate_searches_under_constraints(
    call: Call, tmp_path: Path
) -> None:
    """As translate does."""
    src, ref = tmp_path / "src", tmp_path / "ref"
    src.write_text(LINE.strip("'") + "\n", encoding="utf-8")
    bound = "--require 'woman|women' --min-length 12 --no-repeat 2"
    ref.write_text(said(call, bound) + "\n", encoding="utf-8")
    files = f"--src '{src.as_posix()}' --ref '{ref.as_posix()}' --json"
    free, done = (
        json.loads(call(f"evaluate --run pocket {files} {more}").out)
        for more in ("", bound)
    )
    assert done["exact_match"] == 100 > free["exact_match"]
    refused = call(f"evaluate --run pocket {files} --min-length -1")
    assert "min_length" in refused.complaint
