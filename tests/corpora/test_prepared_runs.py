"""Training from prepared corpora, and the command line, from page E8."""

from __future__ import annotations

import pytest

from annotated.cli import dispatch
from annotated.corpora.cleaning import Cleaning
from annotated.corpora.prepare import Preparation, prepare
from annotated.engine.data import open_data
from annotated.engine.errors import DataError
from annotated.engine.recipes import RECIPES
from annotated.engine.runner import train_recipe
from annotated.engine.runs import Run
from annotated.engine.start import begin_run
from annotated.tokens import Tokenizer
from tests.corpora.corpus import of, put, sentences, texts

pytestmark = pytest.mark.usefixtures("small_chunks")


SMALL = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "d_model": 16,
    "d_ff": 32,
    "num_heads": 2,
    "batch_tokens": 200,
    "max_steps": 3,
    "save_every": 2,
    "keep": 1,
}


@pytest.fixture
def ready(files, tmp_path):
    return prepare(of(files), tmp_path / "out")


def recipe_of(ready, **changes):
    values = {**SMALL, "data": str(ready.folder), "fit": ()} | changes
    return RECIPES["pair"].changed(**values)


def test_a_run_takes_its_words_and_languages_from_the_folder(
    ready, tmp_path, capsys
):
    train_recipe(recipe_of(ready), tmp_path / "run", device="cpu")
    run = Run.open(tmp_path / "run")
    assert (run.recipe.source, run.recipe.target) == ("de", "en")
    assert run.recipe.vocab == 400
    tokenizer = Tokenizer.load(ready.folder / "source.json")
    assert run.source.inner.get_vocab() == tokenizer.inner.get_vocab()
    said = capsys.readouterr().err
    assert "prepared with vocab 400: the recipe's 8000 is ignored" in said
    assert "source" not in said
    more = recipe_of(ready, max_steps=4)
    assert train_recipe(more, tmp_path / "run", resume=True)["steps"] == 4


def test_a_run_may_go_the_other_way(ready):
    backwards = recipe_of(ready, source="en", target="de")
    run, corpus, _ = begin_run(backwards, ready.folder.with_name("run"))
    assert (run.recipe.source, run.recipe.target) == ("en", "de")
    there = ready.corpus("train").tgt
    assert corpus.src[3].tolist() == there[3].tolist()


def test_a_run_may_take_the_first_pairs(ready, tmp_path):
    recipe = recipe_of(ready, train_pairs=17)
    _, corpus, _ = begin_run(recipe, tmp_path / "run")
    assert len(corpus) == 17
    assert corpus.tgt[16].tolist() == ready.corpus("train").tgt[16].tolist()


def test_one_matrix_wants_one_vocabulary(files, tmp_path):
    two = prepare(of(files, shared=False), tmp_path / "two")
    with pytest.raises(DataError, match="tie must be decoder or none"):
        open_data(recipe_of(two))
    open_data(recipe_of(two, tie="decoder"))


def test_the_recipe_pair_says_that_it_wants_data(tmp_path):
    with pytest.raises(DataError, match="data prepare pair --src"):
        train_recipe(RECIPES["pair"], tmp_path / "run")


def test_the_command_line_prepares_and_shows(files, tmp_path, capsys):
    dispatch(
        [
            "data",
            "prepare",
            "pair",
            "--src",
            str(files[0]),
            "--tgt",
            str(files[1]),
        ]
        + ["--vocab", "400", "--hold-out", "10"]
        + ["--max-words", "7", "--out", str(tmp_path / "out")]
    )
    said = capsys.readouterr().out
    assert "dropped, more than 7 words" in said
    dispatch(["data", "show", str(tmp_path / "out")])
    assert "intact" in capsys.readouterr().out
    dispatch(["data", "list"])
    assert "wmt14-en-fr" in capsys.readouterr().out
    dispatch(["data", "show", "wmt14-en-de"])
    assert "about 4.5 million pairs" in capsys.readouterr().out


def test_a_data_set_is_prepared_where_training_looks_for_it(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("ANNOTATED_DATA", str(tmp_path))
    src, tgt = sentences(100)
    folder = tmp_path / "tatoeba"
    folder.mkdir()
    put(
        folder / "deu.txt",
        [f"{e}\t{d}" for e, d in zip(tgt, src, strict=True)],
    )
    dispatch(["data", "prepare", "tatoeba", "--vocab", "400"])
    assert (
        tmp_path / "prepared" / "tatoeba.en-de" / "corpus.json"
    ).exists()
    recipe = RECIPES["pair"].changed(
        data="tatoeba", source="en", target="de"
    )
    assert open_data(recipe).recipe.vocab == 400
    assert "prepared" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("data prepare pair --tgt b --out x", "give --src and --tgt"),
        ("data prepare pair --src a --tgt b", "give --out"),
        ("data prepare nothing --out x", "unknown data set 'nothing'"),
        ("data prepare . --out x", "a folder needs --source"),
        ("data show nothing", "unknown data set 'nothing'"),
        ("data prepare tatoeba --source xx", "no language 'xx'"),
    ],
)
def test_what_cannot_be_prepared_is_told_in_a_line(line, complaint):
    with pytest.raises(ValueError, match=complaint):
        dispatch(line.split())


def test_columns_without_languages_are_source_and_target(tmp_path):
    rows = [f"{s}\t{t}" for s, t in zip(*sentences(200), strict=True)]
    ready = prepare(
        Preparation.of_files(
            put(tmp_path / "x.tsv", rows), vocab=400, hold_out=20
        ),
        tmp_path / "out",
    )
    languages = [ready.settings[side] for side in ("source", "target")]
    assert languages == ["source", "target"]
    found = sum((texts(ready, s) for s in ("train", "valid", "test")), [])
    assert sorted(f"{s}\t{t}" for s, t in found) == sorted(rows)


def test_one_file_as_both_sides_is_read_as_lines(tmp_path):
    """Not as columns: it has no tabs, and need not have any."""
    lines, _ = sentences(200)
    file = put(tmp_path / "x.de", lines)
    made = Preparation.of_files(
        file, file, target="copy", vocab=400, hold_out=20
    )
    ready = prepare(made, tmp_path / "out")
    found = sum((texts(ready, s) for s in ("train", "valid", "test")), [])
    assert sorted(found) == sorted(zip(lines, lines, strict=True))


def test_text_that_is_escaped_and_tokenised_is_told(tmp_path, capsys):
    src = [f"Es ist {i} , &quot; ja &quot; ." for i in range(100)]
    tgt = [f"It is {i} , &quot; yes &quot; ." for i in range(100)]
    files = put(tmp_path / "x.de", src), put(tmp_path / "x.en", tgt)
    ready = prepare(of(files), tmp_path / "one")
    said = capsys.readouterr().err
    assert "the text is escaped" in said and "--unescape" in said
    assert "the text is tokenised" in said
    recipe = recipe_of(ready)
    assert any("tokenised" in note for note in open_data(recipe).notes)
    prepare(of(files, cleaning=Cleaning(unescape=True)), tmp_path / "two")
    said = capsys.readouterr().err
    assert "escaped" not in said and "tokenised" in said
