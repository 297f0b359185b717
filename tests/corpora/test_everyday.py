"""The recipe everyday: Tatoeba, into three languages (pages E7 and E9)."""

from __future__ import annotations

import zlib
from itertools import count
from pathlib import Path

import pytest

from annotated.cli import dispatch
from annotated.engine.data import open_data
from annotated.engine.recipes import RECIPES
from annotated.engine.runs import Run
from tests.corpora.texts import packed

FILES = {"de": "deu", "fr": "fra", "es": "spa"}
SMALL = (
    "--vocab 300 --num-encoder-layers 1 --num-decoder-layers 1 --d-model 16 "
    "--d-ff 16 --num-heads 2 --max-steps 2 --cooldown 0 --batch-tokens 200 "
    "--bpe-dropout 0.1 --precision float32"
)


def sentences() -> list[str]:
    """English, each in one split for certain: forty to train on, and two
    each for the others.
    """
    wanted = {0: 2, 1: 2, 2: 20, 3: 20}
    found: list[str] = []
    for number in count():
        line = f"I have {number} books."
        if wanted.get(part := zlib.crc32(line.encode()) % 50):
            wanted[part] -= 1
            found.append(line)
        if not any(wanted.values()):
            return found
    raise AssertionError


@pytest.fixture
def tatoeba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a file of made-up pairs for each language; each
    English sentence has two translations.
    """
    monkeypatch.setenv("ANNOTATED_DATA", str(tmp_path))
    folder = tmp_path / "tatoeba"
    folder.mkdir()
    for name in FILES.values():
        lines = [
            f"{line}\t{name} {way} {line[7:-1]}\n"
            for line in sentences()
            for way in ("one", "two")
        ]
        members = {f"{name}.txt": "".join(lines).encode()}
        archive = packed(folder, ".zip", members)
        archive.rename(folder / f"{name}-eng.zip")
    return tmp_path


@pytest.mark.parametrize("target", FILES)
def test_no_english_sentence_is_in_two_splits(
    tatoeba: Path, target: str
) -> None:
    data = open_data(RECIPES["everyday"].changed(target=target, vocab=300))
    splits = {s: data.text(s) for s in ("train", "valid", "test")}
    assert [len(src) for src, _ in splits.values()] == [80, 4, 4]
    english = [set(src) for src, _ in splits.values()]
    assert len(set.union(*english)) == sum(map(len, english)) == 44
    assert all(t.startswith(FILES[target]) for t in splits["test"][1])


def test_a_command_trains_it_and_says_whose_sentences_they_are(
    tatoeba: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tatoeba / "run"
    dispatch(f"train everyday --target fr --out {out} {SMALL}".split())
    said = capfd.readouterr().err
    assert "https://tatoeba.org (CC BY 2.0 FR)" in said
    run = Run.open(out)
    assert (run.recipe.source, run.recipe.target) == ("en", "fr")
    assert len(run.translate(["I have 7 books."])) == 1


def test_prepared_it_says_so_too(tatoeba: Path) -> None:
    dispatch(["data", "prepare", "tatoeba", "--vocab", "300"])
    data = open_data(RECIPES["everyday"].changed(vocab=300))
    [note] = data.notes
    assert note.startswith("tatoeba: sentences of https://tatoeba.org")
    assert open_data(RECIPES["copy"]).notes == []


def test_its_model_is_small_enough_to_send() -> None:
    from annotated.model import count_parameters

    assert count_parameters(RECIPES["everyday"].config()) < 3_000_000
