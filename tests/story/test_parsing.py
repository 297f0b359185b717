"""Chapter 24: trees as sentences, and how they are scored."""

import importlib.util
import json
import os
import random
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated.book.results import ledger
from annotated.corpora.treebanks import read_tree
from annotated.parsing import (
    TABLE4,
    Bracketing,
    brackets,
    compare_all,
    compare_trees,
    linearise,
    right_branching,
    tree_over,
    without_tags,
)
from annotated.pocket import pocket_pairs
from annotated.pocket.trees import Tree
from tests.helpers import benchmark

HERS = (
    "(S (NP (PRP She)) (VP (VBD saw) (NP (NNS boys)) "
    "(PP (IN with) (NP (NNS telescopes)))) (. .))"
)
BOYS = (
    "(S (NP (PRP She)) (VP (VBD saw) (NP (NP (NNS boys)) "
    "(PP (IN with) (NP (NNS telescopes))))) (. .))"
)
TOKENS = st.lists(
    st.sampled_from(
        ["(S", "(NP", "(VP", "(TOP", ")S", ")NP", ")VP", ")TOP", "DT", "XX"]
        + ["(", ")", ".", "-NONE-"]
    ),
    max_size=40,
)
WORDS = st.lists(
    st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=9
)


def words_of(tree: Tree) -> list[str]:
    return [leaf.word for leaf in tree.leaves()]


# --- there and back --------------------------------------------------------


def test_a_tree_is_written_down_as_one_walks_around_it() -> None:
    assert linearise(read_tree(HERS)) == [
        "(S",
        "(NP",
        "PRP",
        ")NP",
        "(VP",
        "VBD",
        "(NP",
        "NNS",
        ")NP",
        "(PP",
        "IN",
        "(NP",
        "NNS",
        ")NP",
        ")PP",
        ")VP",
        ".",
        ")S",
    ]


def test_tags_become_xx_but_for_punctuation() -> None:
    tree = read_tree("(S (NP (NN it)) (, ,) (VP (VBZ is)) (. .))")
    written = linearise(without_tags(tree))
    assert written == [
        "(S",
        "(NP",
        "XX",
        ")NP",
        ",",
        "(VP",
        "XX",
        ")VP",
        ".",
        ")S",
    ]


def test_pocket_trees_come_back_whole() -> None:
    for pair in pocket_pairs(200, "generalisation"):
        tree = read_tree(str(pair.target_tree))  # without its keys
        back = tree_over(words_of(tree), linearise(tree))
        assert back.children == (tree,)


def test_a_tree_is_longer_than_its_sentence_and_obeys_rules() -> None:
    """§6.3 p1: brackets come in pairs, and each word has one tag."""
    written = words = 0
    for pair in pocket_pairs(200):
        tree, open_, tags = pair.target_tree, [], 0
        tokens = linearise(tree)
        for token in tokens:
            if token[0] == "(":
                open_.append(token[1:])
            elif token[0] == ")":
                assert open_.pop() == token[1:]
            else:
                tags += 1
        assert not open_ and tags == len(words_of(tree))
        assert len(tokens) > 1.5 * tags
        written, words = written + len(tokens), words + tags
    assert written > 2.5 * words


@settings(deadline=None, max_examples=400)
@given(WORDS, TOKENS)
def test_whatever_is_written_becomes_a_tree_over_the_words(
    words: list[str], tokens: list[str]
) -> None:
    tree = tree_over(words, tokens)
    assert tree.label == "TOP"
    assert words_of(tree) == words
    assert words_of(read_tree(str(tree))) == words
    assert "" not in (leaf.word for leaf in tree.leaves())


@pytest.mark.parametrize(
    ("tokens", "tree"),
    [
        ("(S A B )S", "(TOP (S (A a) (B b)))"),
        ("(S (NP A (VP B )S", "(TOP (S (NP (A a) (VP (B b)))))"),
        (")S (S A B )S )S", "(TOP (S (A a) (B b)))"),
        ("(S A )NP B )S", "(TOP (S (A a) (B b)))"),
        ("(S (NP )NP A B C )S", "(TOP (S (A a) (B b)))"),
        ("(S A )S", "(TOP (S (A a)) (XX b))"),
        ("(S A", "(TOP (S (A a)) (XX b))"),
        ("", "(TOP (XX a) (XX b))"),
        ("A (NP B )NP", "(TOP (A a) (NP (B b)))"),
        ("( A ) B", "(TOP (X (A a) (B b)))"),
    ],
)
def test_each_repair_is_the_documented_one(tokens: str, tree: str) -> None:
    assert str(tree_over(["a", "b"], tokens.split())) == tree


def test_no_words_no_tree() -> None:
    with pytest.raises(ValueError, match="at least one word"):
        tree_over([], ["(S", ")S"])


def test_right_branching_ends_every_bracket_with_the_sentence() -> None:
    tree = right_branching(["a", "b", "c"])
    assert brackets(tree) == {
        ("S", 0, 3): 1,
        ("S", 1, 3): 1,
        ("NP", 2, 3): 1,
    }
    assert str(right_branching(["a"])) == "(TOP (NP (XX a)))"


# --- brackets, by hand -----------------------------------------------------


@pytest.mark.parametrize(
    ("gold", "guess", "matched", "of_gold", "of_guess"),
    [
        # her telescopes or the boys': one bracket too many
        (HERS, BOYS, 6, 6, 7),
        (BOYS, HERS, 6, 7, 6),
        # a chain has no order, but a length
        ("(S (VP (VB go)))", "(VP (S (VB go)))", 2, 2, 2),
        ("(S (VP (VB go)))", "(S (VB go))", 1, 2, 1),
        # the same bracket twice counts twice
        ("(NP (NP (NN it)))", "(NP (NN it))", 1, 2, 1),
        ("(NP (NP (NN it)))", "(NP (NP (NN it)))", 2, 2, 2),
        # PRT counts as ADVP
        ("(S (ADVP (RB up)))", "(S (PRT (RP up)))", 2, 2, 2),
        # functions, numbers and gaps are not part of a label
        ("(S (NP-SBJ-1 (NN it)))", "(S (NP (NN it)))", 2, 2, 2),
        ("(S (NP=2 (NN it)))", "(S (NP (NN it)))", 2, 2, 2),
        # punctuation is no word: where it hangs does not matter
        (
            "(S (NP (NN it)) (VP (VB is)) (. .))",
            "(S (NP (NN it)) (VP (VB is) (. .)))",
            3, 3, 3,
        ),
        # what holds punctuation alone is no constituent
        ("(S (NN it) (PRN (: -)))", "(S (NN it))", 1, 1, 1),
        # nor is what holds a trace alone
        ("(S (NP (-NONE- *)) (VB go))", "(S (VB go))", 1, 1, 1),
        # TOP counts for nothing, wherever it is
        ("(TOP (S (VB go)))", "(S (TOP (VB go)))", 1, 1, 1),
        ("(TOP (UH oh))", "(TOP (UH oh))", 0, 0, 0),
        # a wrong label is a miss and a false alarm
        ("(S (NP (NN it)))", "(S (VP (NN it)))", 1, 2, 2),
        # tags are not scored
        ("(S (NP (NN it)))", "(S (NP (VB it)))", 2, 2, 2),
        # nothing in common
        ("(S (NP (A a) (B b)) (C c))", "(X (A a) (Y (B b) (C c)))", 0, 2, 2),
    ],
)  # fmt: skip
def test_brackets_are_counted_as_evalb_counts(
    gold: str, guess: str, matched: int, of_gold: int, of_guess: int
) -> None:
    found = compare_trees(read_tree(gold), read_tree(guess))
    assert found == Bracketing(
        matched=matched,
        gold=of_gold,
        guessed=of_guess,
        exact=int(matched == of_gold == of_guess),
        sentences=1,
    )


@pytest.mark.parametrize(
    "guess",
    [
        "(S (NP (NN it)))",  # a word too few
        "(S (NP (NN it)) (VP (VBZ is) (RB so)))",  # one too many
        "(S (NP (NN it)) (VP (VBZ was)))",  # another
        "(S (NP (NN it)) (. is))",  # taken for punctuation
    ],
)
def test_other_words_are_an_error_and_are_not_counted(guess: str) -> None:
    gold = read_tree("(S (NP (NN it)) (VP (VBZ is)))")
    assert compare_trees(gold, read_tree(guess)) == Bracketing(errors=1)


@pytest.mark.parametrize(
    ("gold", "guess", "counted"),
    [
        ("(TOP (NP (: --)))", "(TOP (NP (: --)))", Bracketing()),
        ("(TOP (NP (NN a)))", "(TOP (NP (: a)))", Bracketing()),
        ("(TOP (NP (: a)))", "(TOP (NP (NN a)))", Bracketing(errors=1)),
    ],
)
def test_a_guess_of_punctuation_alone_is_skipped_as_evalb_skips_it(
    gold: str, guess: str, counted: Bracketing
) -> None:
    """Its statuses of these are 2, skipped, 2 and 1, an error."""
    assert compare_trees(read_tree(gold), read_tree(guess)) == counted


def test_percentages_are_of_the_sums_not_means_over_sentences() -> None:
    # 6 of 6 and 7, then 0 of 1 and 1: P 6/8, R 6/7, F1 12/15
    gold = [read_tree(HERS), read_tree("(NP (NN it))")]
    guess = [read_tree(BOYS), read_tree("(VP (NN it))")]
    found = compare_all(gold, guess)
    assert found.precision == pytest.approx(75)
    assert found.recall == pytest.approx(100 * 6 / 7)
    assert found.f1 == pytest.approx(80)
    assert (found.exact, found.sentences) == (0, 2)


def test_one_bracket_may_be_all_that_is_right() -> None:
    one = Bracketing(matched=1, gold=1, guessed=1)
    assert (one.precision, one.recall, one.f1) == (100, 100, 100)


def test_nothing_scores_zero_and_one_side_longer_is_refused() -> None:
    none = Bracketing()
    assert (none.precision, none.recall, none.f1) == (0, 0, 0)
    with pytest.raises(ValueError, match="zip"):
        compare_all([read_tree(HERS)], [])


# --- Table 4 ---------------------------------------------------------------


def ours(training: str) -> float:
    (f1,) = (
        f1
        for name, kind, f1 in TABLE4
        if (name, kind) == ("Transformer", training)
    )
    return f1


def test_only_the_rnn_grammar_is_better() -> None:
    """Of parsers trained alike, as §6.3 p4 says."""
    better = [
        (name, kind)
        for name, kind, f1 in TABLE4
        if kind in ("WSJ only", "semi-supervised") and f1 > ours(kind)
    ]
    assert better == [("Dyer", "WSJ only")]


def test_a_recurrent_sequence_model_is_last_with_few_trees() -> None:
    """§6.3 p1: where data is scarce it has not matched the best."""
    few = [(f1, name) for name, kind, f1 in TABLE4 if kind == "WSJ only"]
    assert min(few) == (88.3, "Vinyals & Kaiser") and len(few) == 5


def test_forty_thousand_trees_beat_the_berkeley_parser() -> None:
    (petrov,) = (f1 for name, _, f1 in TABLE4 if "Berkeley" in name)
    (vinyals,) = (
        f1
        for name, kind, f1 in TABLE4
        if name.startswith("Vinyals") and kind == "WSJ only"
    )
    assert vinyals < petrov < ours("WSJ only")


# --- the program itself ----------------------------------------------------


def damaged(tree: Tree, draw: random.Random) -> Tree:
    """The tree with some tokens lost, changed or doubled."""
    tokens = linearise(tree)
    more = ["(ADVP", "(PRT", ")PRT", "(TOP", "(NP-SBJ", ")NP", "NN"]
    for _ in range(draw.randint(0, 6)):
        place = draw.randrange(len(tokens))
        kind = draw.random()
        if kind < 0.4 and len(tokens) > 1:
            del tokens[place]
        elif kind < 0.7:
            tokens[place] = draw.choice(tokens)
        else:
            tokens.insert(place, draw.choice(more))
    guess = tree_over(words_of(tree), tokens)
    if draw.random() < 0.9:
        guess = guess.over(iter(tree.leaves())) or guess
    return guess


@pytest.mark.skipif(
    "EVALB" not in os.environ,
    reason="EVALB is to name the program evalb, beside its COLLINS.prm",
)
def test_evalb_says_the_same(tmp_path: Path) -> None:
    program = Path(os.environ["EVALB"])
    draw = random.Random(1)
    gold = [pair.target_tree for pair in pocket_pairs(500, "test")]
    gold[::50] = [read_tree("(TOP (NP (: --)))")] * 10
    guess = [damaged(tree, draw) for tree in gold]
    for name, trees in (("gold", gold), ("guess", guess)):
        lines = "".join(f"{tree}\n" for tree in trees)
        (tmp_path / name).write_text(lines)
    rules = ["-p", str(program.with_name("COLLINS.prm")), "-e", "100000"]
    told = subprocess.run(
        [program, *rules, tmp_path / "gold", tmp_path / "guess"],
        capture_output=True,
        text=True,
    ).stdout
    rows = [line.split() for line in told.splitlines()]
    rows = [row for row in rows if len(row) == 12 and row[0].isdigit()]
    assert len(rows) == 500
    for row, pair in zip(rows, zip(gold, guess)):
        found = compare_trees(*pair)
        counts = found.matched, found.gold, found.guessed
        assert tuple(map(int, row[5:8])) == counts
        status = {"0": (1, 0), "1": (0, 1), "2": (0, 0)}[row[2]]
        assert status == (found.sentences, found.errors)


# --- what the chapter says of the runs on real trees ----------------------


def craft(name: str) -> dict[str, Any]:
    return ledger()[f"parse-craft{name}"]["metrics"]


def test_guide_and_beam_are_worth_two_and_a_half_times_the_training() -> (
    None
):
    short, long = craft(""), craft("-long")
    assert long["steps"] == 2.5 * short["steps"]
    gained = short["test"]["f1"] - short["greedy"]["f1"]
    assert gained > 8
    assert abs(short["test"]["f1"] - long["greedy"]["f1"]) < 2
    assert f"{long['greedy']['f1']:.1f}" == "48.8"  # as the page says
    assert round(long["seconds"] / 60, -1) == 20
    for run in (short, long, craft("-quarter")):
        assert run["test"]["repaired"] < 5 < run["greedy"]["repaired"]


def test_three_seeds_of_the_parser_lie_close_together() -> None:
    runs, peer = (
        [craft(name) for name in ("", "-seed1", "-seed2")],
        craft("-peer"),
    )
    scores = [run["test"]["f1"] for run in runs]
    assert {run["steps"] for run in runs} == {4000}
    assert 0.7 < max(scores) - min(scores) < 0.9
    assert peer["test"]["f1"] - max(scores) > 15
    for run in runs:
        assert run["test"]["exact_match"] > peer["test"]["exact_match"] + 5
        assert run["test"]["f1"] - run["greedy"]["f1"] > 8
        assert run["precision"] == "float32"


def test_more_trees_and_more_steps_make_a_better_parser() -> None:
    floor = craft("")["right_branching"]["f1"]
    few, many, longer = (
        craft(name)["test"]["f1"] for name in ("-quarter", "", "-long")
    )
    assert 3 * floor < few < many - 5 < longer - 10


def test_with_few_trees_a_sequence_model_is_behind_a_parser() -> None:
    """6.3 p1: on all sentences, however long it was trained."""
    parser = craft("-peer")["test"]["f1"]
    sequence = [craft(name)["test"]["f1"] for name in ("", "-long")]
    assert max(sequence) < parser - 5


def test_silver_trees_change_the_loss_and_not_the_score() -> None:
    few, both = craft("-quarter"), craft("-semi")
    assert few["steps"] == both["steps"]
    assert abs(both["test"]["f1"] - few["test"]["f1"]) < 1
    assert both["valid"]["nll"] < few["valid"]["nll"] - 0.03
    assert 3.5 < few["epochs"] / both["epochs"] < 4.5


def test_silver_trees_keep_a_parser_from_learning_by_heart() -> None:
    few, long, both, passes = (
        craft(name)
        for name in ("-quarter", "-quarter-long", "-semi", "-semi-passes")
    )
    assert long["steps"] == passes["steps"] == 4 * few["steps"]
    assert abs(passes["epochs"] / few["epochs"] - 1) < 0.05
    found = [run["test"]["f1"] for run in (few, long, both, passes)]
    assert max(found) - min(found) < 2 and round(found[0]) == 36
    assert long["best"] == 2000 < passes["best"] < passes["steps"] / 2
    low, high = passes["valid"]["nll"], long["valid"]["nll"]
    assert few["valid"]["nll"] < low < high - 0.2
    assert long["precision"] == passes["precision"] == "bfloat16"


def test_a_parser_with_the_tree_built_in_learns_faster() -> None:
    ours, peer = craft(""), craft("-peer")
    assert peer["test"]["f1"] > ours["test"]["f1"] + 5
    assert peer["test_short"]["f1"] > ours["test_short"]["f1"]
    assert peer["seconds"] < 0.9 * ours["seconds"]
    assert 0.7 < peer["epochs"] < 1.3 and 5 < ours["epochs"] < 5.5
    assert 0.8 < peer["parameters"] / ours["parameters"] < 1.25
    assert peer["test"]["sentences"] == ours["test"]["sentences"]
    assert peer["test"]["repaired"] == 0
    assert peer["test"]["exact_match"] < ours["test"]["exact_match"]
    longer = craft("-long")
    assert longer["test_short"]["f1"] > peer["test_short"]["f1"]
    assert longer["test"]["f1"] < peer["test"]["f1"]


# --- the parser of another library, on the same trees ---------------------


def lines_of(count: int) -> tuple[list[str], list[str], list[Tree]]:
    """Words, trees as tokens, and the trees."""
    trees = [pair.target_tree for pair in pocket_pairs(count)]
    words = [tree.words() for tree in trees]
    return words, [" ".join(linearise(t)[1:-1]) for t in trees], trees


def test_the_peer_gets_our_trees_without_tags_and_gives_them_back() -> None:
    sentences, lines, trees = lines_of(50)
    with benchmark("parser_peer") as peer:
        for words, tokens, tree in zip(
            sentences, lines, trees, strict=True
        ):
            text = peer.in_brackets(words, tokens)
            given = read_tree(text)
            assert given.words() == words
            assert {leaf.label for leaf in given.leaves()} == {peer.TAG}
            # all its brackets, whatever stands over the words
            top = Tree("TOP", tree.children)
            again = given.over(iter(tree.leaves()))
            assert str(again) == str(top)
            told = peer.as_tokens(words, text)
            assert str(tree_over(words.split(), told.split())) == text


def test_the_peer_is_scored_as_ours_is() -> None:
    words, tokens, _ = lines_of(30)
    with benchmark("parser_peer") as peer:
        trees = [peer.in_brackets(*pair) for pair in zip(words, tokens)]
        told = peer.scores(words, trees, tokens)
        assert told["f1"] == told["exact_match"] == 100.0
        assert told["repaired"] == 0
        other = str(right_branching(words[0].split()))
        assert peer.scores(words[:1], [other], tokens[:1])["f1"] < 100
        with pytest.raises(ValueError, match="a tree over"):
            peer.scores(words[:1], trees[1:2], tokens[:1])


def test_the_peer_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with benchmark("parser_peer") as peer:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        assert peer.main(peer.Settings(data=Path("none"))) == 2
    assert "pip install stanza" in capsys.readouterr().err


def test_the_clock_lowers_the_rate_and_ends_the_training() -> None:
    with benchmark("parser_peer") as peer:
        settings = peer.Settings(data=Path("none"), minutes=1.0, rate=0.5)
        clock = peer.Clock(settings)
        group = {"lr": 9.0}
        optimizer = SimpleNamespace(param_groups=[group])
        trainer = SimpleNamespace(optimizer=optimizer, batches_trained=7)
        for spent, rate in ((0.0, 0.5), (15.0, 0.375), (59.4, 0.005)):
            clock.spent = spent
            clock.piece(lambda *given: None, 1, trainer)
            assert group["lr"] == pytest.approx(rate, rel=0.05)
            assert clock.spent == pytest.approx(spent, abs=0.1)
        assert clock.steps == 7
        clock.spent = 60.0
        with pytest.raises(peer.TimeUp):
            clock.piece(lambda *given: None, 1, trainer)


@pytest.mark.skipif(
    importlib.util.find_spec("stanza") is None, reason="needs stanza"
)
def test_the_peer_learns_and_writes_the_ledger(tmp_path: Path) -> None:
    words, _, trees = lines_of(60)
    tokens = [" ".join(linearise(tree)) for tree in trees]  # one below TOP
    for split in ("train", "valid", "test"):
        for side, lines in (("words", words), ("tree", tokens)):
            (tmp_path / f"{split}.{side}").write_text(
                "\n".join(lines) + "\n"
            )
    file = tmp_path / "peer.json"
    with benchmark("parser_peer") as peer:
        settings = peer.Settings(
            data=tmp_path, json=file, minutes=0.2, hidden=16, words=16,
            batch=5, rate=0.01, piece=60, valid=10,
        )  # fmt: skip
        assert peer.main(settings) == 0
    made = json.loads(file.read_text())
    assert made["metrics"]["test"]["sentences"] == 60
    assert made["metrics"]["test"]["f1"] > 30
    assert "stanza" in made["versions"]
