"""The engine room's treebanks: reading, cleaning, dividing, scoring."""

import io
import json
import lzma
import os
import random
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from annotated.cli import dispatch
from annotated.corpora import treebanks
from annotated.corpora.treebanks import (
    TreeOptions,
    _read_trees,
    _split_articles,
    prepare_trees,
    read_tree,
    read_treebank,
    reads,
)
from annotated.engine.data import open_data
from annotated.engine.errors import DataError, UsageError
from annotated.engine.parsing import (
    OnlyTrees,
    f1_by,
    levels,
    parse_lines,
    recall_by_label,
    tree_scores,
)
from annotated.engine.recipes import RECIPES
from annotated.engine.search import search_in_order
from annotated.engine.start import begin_run
from annotated.model import Transformer, TransformerConfig
from annotated.parsing import (
    brackets,
    compare_trees,
    linearise,
    tree_over,
    without_tags,
)
from annotated.pocket import pocket_pairs
from annotated.search import Hypothesis, SearchConfig
from annotated.tokens import BOS, EOS, SPECIALS
from tests.helpers import SHAPE

TINY = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .))"


def file(folder: Path, text: str, name: str = "a.mrg") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def bank(folder: Path, articles: int = 20) -> Path:
    """A treebank of small articles, made by the pocket grammar."""
    trees = [str(p.target_tree) for p in pocket_pairs(2 * articles)]
    for i in range(articles):
        text = "".join(f"( {tree} )\n" for tree in trees[2 * i : 2 * i + 2])
        file(folder, text, f"bank/{i:02}.mrg")
    return folder / "bank"


# --- reading ---------------------------------------------------------------


def test_a_tree_may_take_several_lines_and_trees_may_share_one(
    tmp_path: Path,
) -> None:
    text = f"( (S (NP (DT The)\n   (NN dog)) (VP (VBZ barks)) (. .)))\n\n\n{TINY} {TINY}"
    found = list(_read_trees(file(tmp_path, text)))
    assert [line for line, _ in found] == [1, 5, 5]
    assert str(found[0][1]) == f"(TOP {TINY})"
    assert str(found[1][1]) == TINY


def test_a_packed_file_is_read_like_another(tmp_path: Path) -> None:
    path = tmp_path / "a.mrg.xz"
    path.write_bytes(lzma.compress(TINY.encode()))
    assert [str(tree) for _, tree in _read_trees(path)] == [TINY]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (f"{TINY}\n(S (NP (NN it))\n\n", 2, "1 bracket is never closed"),
        ("(S\n(NP (NN it\n", 2, "3 brackets are never closed in the tree "
         "that begins on line 1"),
        (f"{TINY}\n{TINY})\n", 2, r"'\)' is outside all brackets"),
        (f"{TINY}\nword\n", 2, "'word' is outside all brackets"),
        ("(S\n(NP (NN it))\n())\n", 3, r"empty brackets, \(\)"),
        ("(S (NP))\n", 1, r"\(NP\) is neither a tag with a word"),
        ("(S (NP it (NN is)))", 1, r"\(NP it \(…\)\) is neither"),
        ("(S ((NN it)))", 1, r"\(\(…\)\) is neither"),
    ],
)  # fmt: skip
def test_what_is_no_tree_is_told_with_file_and_line(
    tmp_path: Path, text: str, line: int, message: str
) -> None:
    path = file(tmp_path, text)
    with pytest.raises(DataError, match=message) as told:
        list(_read_trees(path))
    assert f"{path}, line {line}: " in str(told.value)


def test_one_tree_is_wanted_where_a_text_is_read() -> None:
    with pytest.raises(DataError, match="expected one tree, found 2"):
        read_tree(TINY + TINY)


def test_a_word_with_a_space_becomes_one_word() -> None:
    assert read_tree("(NP (NN Xpd TTD))").words() == "Xpd_TTD"


def test_trees_may_be_deeper_than_pythons_stack() -> None:
    """A parser that only opens brackets writes such a tree."""
    deep, brackets_ = 5000, 5000 * [("S", 0, 1)]
    text = "(S " * deep + "(NN it)" + ")" * deep
    tree = read_tree(text)
    tokens = ["(S"] * deep + ["NN"] + [")S"] * deep
    assert str(tree) == text
    assert linearise(tree) == tokens
    assert linearise(tree_over(["it"], tokens))[1:-1] == tokens
    assert levels(tree) == deep + 1
    assert linearise(without_tags(tree))[deep] == "XX"
    assert linearise(treebanks._clean_tree(tree) or tree)[1:-1] == tokens
    assert list(brackets(tree).elements()) == brackets_
    assert compare_trees(tree, tree).exact == 1


# --- cleaning --------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        # the empty outer bracket, and TOP, are one thing
        (f"( {TINY} )", f"(TOP {TINY})"),
        (f"(TOP {TINY})", f"(TOP {TINY})"),
        (f"(ROOT {TINY})", f"(TOP {TINY})"),
        (f"(S1 {TINY})", f"(TOP {TINY})"),
        (f"( (VROOT {TINY} {TINY}) )", f"(TOP {TINY} {TINY})"),
        ("(ROOT it)", "(TOP (ROOT it))"),
        (TINY, f"(TOP {TINY})"),
        # functions, numbers, gaps and either-or labels
        ("(S (NP-SBJ-1 (PRP it)) (NP=2 (NN x)) (ADVP|PRT (RP up)))",
         "(TOP (S (NP (PRP it)) (NP (NN x)) (ADVP (RP up))))"),
        # tags stay as they are, brackets and possessives too
        ("(NP (-LRB- -LRB-) (PRP$ its))",
         "(TOP (NP (-LRB- -LRB-) (PRP$ its)))"),
        # traces go, and what they leave empty
        ("(S (NP-SBJ (-NONE- *PRO*)) (VP (VB go) (SBAR (-NONE- 0) "
         "(S (-NONE- *T*-1)))))", "(TOP (S (VP (VB go))))"),
        # several roots stay side by side
        ("( (S (VB go)) (. .) )", "(TOP (S (VB go)) (. .))"),
        ("(S (FRAG-TTL (NN it)))", "(TOP (S (FRAG (NN it))))"),
    ],
)  # fmt: skip
def test_a_tree_is_cleaned(raw: str, clean: str) -> None:
    assert str(treebanks._clean_tree(read_tree(raw))) == clean


def test_a_tree_of_traces_alone_is_nothing(tmp_path: Path) -> None:
    empty = "( (S (NP (-NONE- *))) )"
    assert treebanks._clean_tree(read_tree(empty)) is None
    found = read_treebank(file(tmp_path, f"{empty}\n{TINY}\n"))
    assert [len(trees) for trees in found.values()] == [1]


# --- articles and splits ---------------------------------------------------


def test_a_folder_has_an_article_in_each_file(tmp_path: Path) -> None:
    file(tmp_path, TINY, "02/wsj_0201.mrg")
    file(tmp_path, TINY + TINY, "23/wsj_2300.mrg")
    file(tmp_path, "no tree", "README")
    found = read_treebank(tmp_path)
    sizes = {Path(name).name: len(trees) for name, trees in found.items()}
    assert sizes == {"wsj_0201.mrg": 1, "wsj_2300.mrg": 2}


def test_an_index_divides_one_file(tmp_path: Path) -> None:
    empty = "( (S (-NONE- *)) )"
    path = file(tmp_path, f"{TINY}\n{empty}\n{TINY}\n", "x.oneline.mrg")
    for bad in ("a.tree 1 2", "a.tree\t1", "a.tree\tone\t2"):
        file(tmp_path, f"a.tree\t1\t2\n{bad}\n", "x.idx")
        with pytest.raises(DataError, match=r"x\.idx, line 2: 'a\.tree"):
            read_treebank(path)
    file(tmp_path, "a.tree\t1\t2\nb.tree\t3\t1\n", "x.idx")
    found = read_treebank(path)
    assert {name: len(t) for name, t in found.items()} == {
        "a.tree": 1,
        "b.tree": 1,
    }


def test_an_index_of_another_file_is_told(tmp_path: Path) -> None:
    path = file(tmp_path, f"{TINY}\n{TINY}\n", "x.mrg")
    for bad, line in (("a.tree\t2\t2", 3), ("a.tree\t0\t1", 0)):
        file(tmp_path, f"{bad}\n", "x.idx")
        with pytest.raises(
            DataError, match=f"no tree begins on line {line}"
        ):
            read_treebank(path)


def test_a_folder_without_trees_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file ending in .mrg"):
        read_treebank(tmp_path)


def test_the_journal_is_divided_as_everybody_does() -> None:
    names = [f"{s:02}/wsj_{s:02}01.mrg" for s in range(25)]
    split = _split_articles(names)
    assert split["train"] == names[2:22]
    assert split["valid"] == names[22:23]
    assert split["test"] == names[23:24]  # and 00, 01 and 24 are left out


def test_others_are_divided_by_article_without_overlap() -> None:
    names = [f"{i}.mrg" for i in range(97)]
    split = _split_articles(names)
    together = [name for part in split.values() for name in part]
    assert sorted(together) == sorted(names)
    assert [len(split[n]) for n in ("train", "valid", "test")] == [85, 6, 6]


def test_too_few_articles_are_told() -> None:
    with pytest.raises(
        DataError, match="none of 3 articles is left for valid"
    ):
        _split_articles(["a", "b", "c"])


# --- unknown words ---------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "its_class"),
    [
        ("barking", "<~ng>"),
        ("Kinase", "<C~se>"),
        ("DNA", "<A~>"),
        ("p53", "<0~>"),
        ("wild-type", "<-~pe>"),
        ("E11.5", "<A0~>"),
        ("†", "<~>"),
    ],
)
def test_a_rare_word_is_read_by_its_looks(
    word: str, its_class: str
) -> None:
    assert reads(["the", word], {"the"}) == f"the {its_class}"


def test_known_are_words_that_come_twice_and_as_many_as_fit() -> None:
    trees = [read_tree("(S (A a) (A a) (B b) (C c))")] * 2
    trees.append(read_tree("(S (A once))"))
    assert treebanks._known_words(trees, 100) == {"a", "b", "c"}
    # one class and four special tokens leave room for one word of six
    assert treebanks._known_words(trees, 6) == {"a"}


# --- a folder to train on --------------------------------------------------


def test_a_treebank_becomes_a_corpus_that_a_recipe_reads(
    tmp_path: Path,
) -> None:
    counts = prepare_trees(bank(tmp_path), tmp_path / "out")
    assert counts == {"train": 36, "valid": 2, "test": 2}
    recipe = RECIPES["parse-small"].changed(data=str(tmp_path / "out"))
    data = open_data(recipe)
    source, target = data.text("train")
    assert len(source) == 36
    assert all(line.split()[0][0] == "(" for line in target)
    assert "(TOP" not in " ".join(target)
    assert len(data.corpus("valid")) == 2


def test_no_sentence_of_the_test_is_trained_on(tmp_path: Path) -> None:
    prepare_trees(bank(tmp_path), tmp_path / "out")
    lines = {
        name: set(
            (tmp_path / "out" / f"{name}.words").read_text().split("\n")
        )
        for name in ("train", "test")
    }
    assert lines["train"] & lines["test"] <= {""}


def test_tags_may_be_xx_and_long_sentences_left_out(tmp_path: Path) -> None:
    options = TreeOptions(tags=False, max_words=8)
    prepare_trees(bank(tmp_path), tmp_path / "out", options)
    words = (tmp_path / "out" / "train.words").read_text().splitlines()
    trees = (tmp_path / "out" / "train.tree").read_text().split()
    assert 0 < len(words) < 36
    assert max(len(line.split()) for line in words) <= 8
    tags = {token for token in trees if token[0] not in "()"}
    assert tags <= {"XX", ",", "."} and "XX" in tags


def test_trees_are_counted_as_they_are_written(tmp_path: Path) -> None:
    silver = file(tmp_path, f"{TINY}\n(S (NP (NN a) (NN b)))\n" * 3, "s")
    options = TreeOptions(max_words=8, silver=silver)
    counts = prepare_trees(bank(tmp_path), tmp_path / "out", options)
    words = (tmp_path / "out" / "train.words").read_text().splitlines()
    assert counts["train"] + counts["silver"] == len(words) < 42
    assert counts["silver"] == 6 and counts["test"] == 2
    one = TreeOptions(max_words=1)
    with pytest.raises(DataError, match="bank: no tree is left for train"):
        prepare_trees(tmp_path / "bank", tmp_path / "other", one)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("withhold", -0.5),
        ("withhold", 1.0),
        ("vocab", -3),
        ("max_words", 0),
    ],
)
def test_a_value_that_no_treebank_can_have_is_named(
    field: str, value: float
) -> None:
    with pytest.raises(UsageError, match=f"{field} must be"):
        TreeOptions(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("split", ["valid", "test"])
def test_long_sentences_are_left_out_of_training_alone(
    tmp_path: Path, split: str
) -> None:
    kept = []
    for limit in (None, 8):
        out = tmp_path / f"out-{limit}"
        options = TreeOptions(max_words=limit)
        prepare_trees(bank(tmp_path / str(limit)), out, options)
        kept.append((out / f"{split}.words").read_text().splitlines())
    assert kept[0] and [len(side) for side in kept] == [len(kept[0])] * 2


def test_withheld_trees_and_silver_ones(tmp_path: Path) -> None:
    half = TreeOptions(withhold=0.5)
    counts = prepare_trees(bank(tmp_path), tmp_path / "half", half)
    assert (counts["train"], counts["withheld"]) == (18, 18)
    raw = (tmp_path / "half" / "withheld.txt").read_text().splitlines()
    silver = file(
        tmp_path,
        "".join(f"(TOP (X (NN {w.split()[0]})))\n" for w in raw),
        "s",
    )
    both = TreeOptions(withhold=0.5, silver=silver)
    counts = prepare_trees(bank(tmp_path), tmp_path / "semi", both)
    assert (counts["train"], counts["silver"]) == (18, 18)
    lines = (tmp_path / "semi" / "train.tree").read_text().splitlines()
    assert lines.count("(X NN )X") == 18 and len(lines) == 36
    gold = (tmp_path / "half" / "train.tree").read_text().splitlines()
    assert lines[:18] == gold


# --- scores ----------------------------------------------------------------


def test_scores_of_lines_count_what_was_repaired() -> None:
    gold = ["(S (NP PRP )NP (VP VBZ )VP . )S"] * 3
    found = [gold[0], "(S (NP PRP )NP VBZ . )S", "(S (NP PRP )NP (VP VBZ"]
    scores = tree_scores(["it is ."] * 3, found, gold)
    # 3 of 3 and 3; 2 of 3 and 2; the last: S ends before the full stop,
    # which is punctuation in the gold tree: 3 of 3 and 3
    assert (scores["sentences"], scores["errors"]) == (3, 0)
    assert scores["repaired"] == 1
    assert scores["precision"] == 100
    assert scores["recall"] == pytest.approx(100 * 8 / 9, abs=0.01)
    assert scores["exact_match"] == pytest.approx(200 / 3, abs=0.01)


def test_wrong_tags_do_not_take_a_sentence_out_of_the_sums() -> None:
    scores = tree_scores(["it ."], ["(S . PRP )S"], ["(S PRP . )S"])
    assert (scores["f1"], scores["errors"]) == (100, 0)


# --- the paper's recipes ---------------------------------------------------


def test_the_recipes_are_the_papers() -> None:
    wsj, semi = (RECIPES[n].flat() for n in ("parse-wsj", "parse-semi"))
    for values in (wsj, semi):
        assert values["num_encoder_layers"] == 4
        assert values["num_decoder_layers"] == 4
        assert (values["d_model"], values["d_ff"]) == (1024, 2048)
        assert (values["beam"], values["alpha"]) == (21, 0.3)
        assert values["extra"] == 300
    assert (wsj["vocab"], semi["vocab"]) == (16_000, 32_000)


# --- from the command line -------------------------------------------------


def test_from_a_treebank_to_trees(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, run = str(tmp_path / "out"), str(tmp_path / "run")
    dispatch(["treebank", str(bank(tmp_path)), "--out", folder])
    assert json.loads(capfd.readouterr().out)["train"] == 36
    small = "--d-model 16 --d-ff 16 --num-heads 2 --max-steps 2 --keep 1"
    dispatch(
        ["train", "parse-small", "--data", folder, "--out", run]
        + [*small.split(), "--save-every", "2", "--precision", "float32"]
    )
    capfd.readouterr()
    use = ["--run", run, "--beam", "2", "--extra", "20"]
    use += ["--precision", "float32", "--workers", "1"]
    dispatch(["evaluate", *use, "--split", "test", "--json"])
    scores = json.loads(capfd.readouterr().out)
    assert (scores["sentences"], scores["errors"]) == (2, 0)
    assert 0 <= scores["f1"] <= 100
    text = b"The dog ( barks )\n\nUnheard-of words\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    dispatch(["parse", *use])
    first, blank, last = capfd.readouterr().out.splitlines()
    assert read_tree(first).words() == "The dog -LRB- barks -RRB-"
    assert blank == ""
    assert read_tree(last).words() == "Unheard-of words"
    with pytest.raises(UsageError, match="needs translations"):
        dispatch(["evaluate", *use, "--split", "test", "--against", run])


def test_a_sentence_longer_than_any_seen_gets_its_tree(
    tmp_path: Path,
) -> None:
    prepare_trees(bank(tmp_path), tmp_path / "out")
    recipe = RECIPES["parse-small"].changed(
        data=str(tmp_path / "out"), d_model=16, d_ff=16, precision="float32"
    )
    run, *_ = begin_run(recipe, tmp_path / "run")
    words = ["dog"] * 600  # more than the encoder takes at once
    (tree,) = parse_lines(
        run, [" ".join(words)], SearchConfig(beam=1, limit=20)
    )
    assert tree is not None and tree.words().split() == words


def test_a_run_that_writes_no_trees_cannot_parse(tmp_path: Path) -> None:
    recipe = RECIPES["copy"].changed(d_model=8, train_pairs=50)
    begin_run(recipe.changed(precision="float32"), tmp_path / "run")
    with pytest.raises(ValueError, match="no weights|not trees"):
        dispatch(["parse", "--run", str(tmp_path / "run")])


NAMES = [*SPECIALS, "(S", ")S", "(NP", ")NP", "DT", "NN", "."]


def may_follow(written: list[int], words: int) -> set[int]:
    """What may follow, by the rule of chapter 24, a token at a time."""
    said, stack = 0, []
    for name in (NAMES[i] for i in written[1:]):
        if name[0] == "(":
            stack.append(name[1:])
        elif name[0] == ")":
            stack.pop()
        else:
            said += 1
    allowed = set()
    for i, name in enumerate(NAMES):
        if i == EOS:
            fits = said == words and not stack
        elif name in SPECIALS:
            fits = False
        elif name[0] == ")":
            empty = NAMES[written[-1]][0] == "("
            fits = stack[-1:] == [name[1:]] and not empty
        else:
            fits = said < words
        if fits:
            allowed.add(i)
    return allowed


def test_a_guide_allows_what_can_still_become_a_tree() -> None:
    draw = random.Random(0)
    lengths = [1, 3, 5]
    ask = OnlyTrees(NAMES)([[9] * n for n in lengths], torch.device("cpu"))
    seen: Counter[int] = Counter()
    for _ in range(300):
        number = draw.randrange(3)
        written = [BOS]
        while written[-1] != EOS and len(written) < 30:
            mask = ask(torch.tensor([[written]]), torch.tensor([number]))
            allowed = set(mask[0, 0].nonzero()[:, 0].tolist())
            assert allowed == may_follow(written, lengths[number])
            written.append(draw.choice(sorted(allowed)))
        seen.update(written)
    assert all(seen[i] for i in range(4, len(NAMES)))


@pytest.mark.parametrize("beam", [1, 3])
def test_a_guided_search_writes_trees_and_nothing_else(beam: int) -> None:
    torch.manual_seed(0)
    sizes = {"tgt_vocab": len(NAMES), "tie": "decoder"}
    config = TransformerConfig(**SHAPE | sizes)
    sentences = [[4, 5, 6], [7], [8, 9, 10, 11, 4]]
    search = SearchConfig(beam=beam, extra=60, alpha=0.0)
    model = Transformer(config).eval()
    free = search_in_order(model, sentences, search)
    held = search_in_order(model, sentences, search, guide=OnlyTrees(NAMES))

    def sound(words: list[int], ids: list[int]) -> bool:
        line = [NAMES[i] for i in ids]
        tree = tree_over([str(word) for word in words], line)
        return linearise(tree)[1:-1] == line

    def trees(found: list[list[Hypothesis]]) -> list[bool]:
        return [
            sound(words, best[0].ids)
            for words, best in zip(sentences, found, strict=True)
        ]

    assert trees(held) == [True] * 3
    assert not all(trees(free))


def test_errors_are_told_by_size_and_by_label() -> None:
    gold = [
        read_tree("(S (NP (NN a)) (VP (VB b) (NP (NN c))))"),
        read_tree("(S (NP (NN a)))"),
    ]
    guess = [
        read_tree("(S (NP (NN a)) (VP (VB b) (XP (NN c))))"),
        read_tree("(S (NP (NN a)))"),
    ]
    assert [levels(tree) for tree in gold] == [4, 3]
    rows = f1_by(gold, guess, levels, [1, 4, 9])
    assert rows == [("1–3", 100.0), ("4–8", 75.0)]
    rows = recall_by_label(gold, guess, least=1)
    assert rows[0] == ("NP", pytest.approx(200 / 3))
    assert dict(rows[1:]) == {"S": 100.0, "VP": 100.0}
    assert recall_by_label(gold, guess, least=2)[-1] == ("S", 100.0)


def test_the_model_reads_brackets_as_its_treebank_wrote_them() -> None:
    """-LRB- was in training, so it is no rare word."""
    read: list[str] = []

    def translate(lines: list[str], *_: object, **__: object) -> Any:
        read.extend(lines)
        return [[SimpleNamespace(text="NN NN NN")] for _ in lines]

    known = SimpleNamespace(
        get_vocab=lambda: {
            "the": 4,
            "cat": 5,
            "-LRB-": 6,
            "-RRB-": 7,
            "f-LRB-x-RRB-": 8,
        }
    )
    run: Any = SimpleNamespace(
        source=SimpleNamespace(inner=known),
        recipe=SimpleNamespace(target="en"),
        translate=translate,
    )
    parse_lines(run, ["the cat ( f(x) )"], SearchConfig())
    assert read == ["the cat -LRB- f-LRB-x-RRB- -RRB-"]


# --- real trees, where they are --------------------------------------------


@pytest.mark.skipif(
    "CRAFT" not in os.environ,
    reason="CRAFT is to name craft.oneline.mrg.xz, its index beside it",
)
def test_craft_is_read_whole() -> None:
    found = read_treebank(Path(os.environ["CRAFT"]))
    trees = [tree for article in found.values() for tree in article]
    assert (len(found), len(trees)) == (97, 30_830)
    assert sum(len(tree.leaves()) for tree in trees) == 793_638 - 5
    assert not any(leaf.label == "-NONE-" for leaf in trees[5].leaves())
