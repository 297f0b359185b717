"""The chapters of the story: cells run, and solutions are right.

Of 21 and 22 all but the cells that start other processes.

Trainings are cut to a few steps: what a model learns in them is shown by
the executed pages. What solutions say of learning is in LEARNED, at full
length, which `pytest -m exhaustive` runs.
"""

import __future__

import ast
import gc
import math
import re
import sys
import types
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch

from annotated.attention import MultiHeadAttention
from annotated.batches import Corpus, Sentences
from annotated.book import example
from annotated.book.example import train_reversal
from annotated.book.results import ledger
from annotated.engine.parsing import OnlyTrees, levels
from annotated.engine.search import search_in_order
from annotated.model import Transformer, TransformerConfig
from annotated.parsing import linearise, tree_over
from annotated.pocket import pocket_pairs
from annotated.search import SearchConfig
from annotated.tokens import SPECIALS, Tokenizer
from annotated.training import batch_loss
from press.chapters import read_book, read_chapter
from press.unproved import Trains, solutions
from tests.conftest import give_back
from tests.helpers import SHAPE

BOOK = Path(__file__).resolve().parents[2] / "book"
PAGES = (
    "00-preface",
    "01-before-attention",
    "02-attention",
    "03-masks",
    "04-multi-head",
    "05-layers",
    "06-embeddings",
    "07-positions",
    "08-transformer",
    "09-why-self-attention",
    "10-tokens",
    "11-batches",
    "12-optimiser",
    "13-regularisation",
    "14-training",
    "15-checkpoints",
    "16-search",
    "17-memory",
    "18-evaluation",
    "19-pocket-german",
    "20-multi30k",
    "21-many-devices",
    "22-costs",
    "23-variations",
    "24-parsing",
    "25-heads",
    "26-since-2017",
    "27-real-weights",
)
SMALLER = {  # what the cells of a page cost here
    "max_steps=3000": "max_steps=10",  # 19
    "cooldown=1500": "cooldown=1",
    '(100_000, "train")': '(2000, "train")',
    'pocket_pairs(1000, "test")': 'pocket_pairs(60, "test")',
    "count=150": "count=10",
    'pocket_pairs(300, "generalisation")': 'pocket_pairs(20, "test")',
    'negated_questions("new"), 200': 'negated_questions("new"), 20',
    "islice(short_and_deep, 500)": "islice(short_and_deep, 20)",
    "max_steps=900": "max_steps=100",  # 15
    "for _ in range(5):\n        start": "for _ in range(1):\n        start",  # 01
    "range(3, 13)": "range(11, 13)",
    "nll < 0.6": "nll < 9",  # 14
    "[batch] * 60": "[batch] * 10",
    "(0, 9, 59)": "(0, 4, 9)",
    "(8, 16, 32, 64, 128, 256)": "(8, 16)",  # 17
    "600_000, 4_500_000": "100_000",  # 11
    "permutation(len(tgt_len))[:160]": "permutation(len(tgt_len))[:20]",
    "budget=0.1": "budget=0.01",  # 22
    "2**25": "2**20",
    'pocket_pairs(20_000, "train")': 'pocket_pairs(2000, "train")',  # 24
    "(0, 49, 99, 149)": "(0, 1)",  # 14
    "steps=1500": "steps=2",  # 05
    "steps=800": "steps=2",  # 04
    "steps=120": "steps=2",  # 12
    "steps=300": "steps=20",  # 13, 14, 18
    "found[300]": "found[20]",
    "max_steps=1000": "max_steps=20",  # 14
    "max_steps=400": "max_steps=2",
    "max_steps=150": "max_steps=2",
    "cooldown=500": "cooldown=1",
    "copy_corpus(20_000": "copy_corpus(200",
    "max_steps=600": "max_steps=2",  # 16
    "draw_words(20_000)": "draw_words(500)",
    "draw_words(300)": "draw_words(10)",
    "range(500)": "range(2)",
    "steps=500": "steps=2",
    "steps=2000": "steps=2",
    "pocket_pairs(12_000": "pocket_pairs(3000",
    'pocket_pairs(200, "test")': 'pocket_pairs(20, "test")',
}
# the cells from there on need a model that has been trained
UNTIL = {
    "24-parsing": "def parse(texts",
}
# cells that start other processes, or read what these have written (21,
# 22), one that shows the first right translation (19), and one that shows
# certain steps of the whole training (14)
LEFT_OUT = (
    *("torchrun(", "subprocess.run(", "losses-{size}.json"),
    *("rows = [*watched", "one for one in moments"),
)
TRAINED = {"ex-preface-order"}  # at full length, here and now
LEARNED = {
    "ex-attention-initial",
    "ex-layers-dropout-place",
    "ex-positions-loud",
    "ex-preface-length",
}
# at full length, page and all: what the value of the last line has to be
WHOLE = {
    "ex-training-offsets": lambda right: (
        right[0] < 0.55
        and right[0] > right[2] > right[3]
        and right[-1] < 0.1
    ),
    "ex-training-rate": lambda loss: (
        loss[2] == max(loss)
        and loss[3] < 0.8 * loss[2]
        and loss[3] < 1.2 * min(loss)
    ),
    "ex-search-end": lambda empty: empty[0] <= 2 and empty[1] >= 5,
    "ex-average-runs": lambda loss: loss[2] > 4 * max(loss[:2]),
    "ex-pocket-rule": lambda right: min(right.values()) > 0.9,
    "ex-pocket-depth": lambda right: (
        right[0][2] < 0.1 < right[1][2] < right[2][2]
        and right[2][2] > 0.4
        and max(row[3] for row in right) < 0.1
        and max(row[4] for row in right) < 0.05
    ),
}
SAYS_NOTHING = {"ex-pocket-search"}  # of how the count comes out
# pages that tests after those of all solutions look at
DESCRIBED = {"02-attention", "05-layers", "06-embeddings", "08-transformer"}
LISTING = re.compile(r"^```python\n(.*?)^```$", re.S | re.M)


def listings(page, kind):
    """The code of a page's exercises or solutions, by label."""
    text = (BOOK / f"{page}.md").read_text(encoding="utf-8")
    label = {"exercise": r"[^\n]*\n:label: (\S+)", "solution": r" (\S+)"}
    block = rf":::\{{{kind}\}}{label[kind]}\n(.*?)^:::$"
    return {
        name: LISTING.findall(body)
        for name, body in re.findall(block, text, re.S | re.M)
    }


SOLUTIONS = [
    pytest.param(
        page,
        label,
        marks=[pytest.mark.exhaustive] if label in LEARNED else [],
        id=label,
    )
    for page in PAGES
    for label, code in listings(page, "solution").items()
    if code
]


def smaller(source):
    """The same code with less to do."""
    for large, small in SMALLER.items():
        source = source.replace(large, small)
    return source


def execute(source, names):
    """As in a notebook, where a future import holds for later cells."""
    flag = __future__.annotations.compiler_flag
    exec(compile(source, "<cell>", "exec", flag), names)


def train_briefly(model, steps=400, *args, watch=None, **kwargs):
    """Two steps of training; watch and losses are as of all of them."""
    losses = train_reversal(model, min(steps, 2), *args, **kwargs)
    for step in range(steps + 1 if watch else 0):
        watch(step)
    return losses + losses[-1:] * (steps - len(losses))


def large(value):
    """Whether this is a model of more than ten million parameters."""
    some = value.parameters() if isinstance(value, torch.nn.Module) else ()
    return sum(p.numel() for p in some) > 10**7


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What a page defines, by the name of the page. Of all but the last
    memory is free again; those that are DESCRIBED keep what is small."""
    found, threads = {}, torch.get_num_threads()

    def run(page):
        if page not in found:
            for other in found.keys() - DESCRIBED:
                found.pop(other).clear()  # functions hold each other here
            for other in found.values():
                for name in [
                    n for n, value in other.items() if large(value)
                ]:
                    del other[name]
            gc.collect()
            give_back()
            module = types.ModuleType(page)
            patch.setitem(sys.modules, page, module)
            space = found[page] = module.__dict__
            for cell in read_chapter(BOOK / f"{page}.md").code:
                if UNTIL.get(page, "\0") in cell.source:
                    break
                if not any(word in cell.source for word in LEFT_OUT):
                    execute(smaller(cell.source), space)
                plt.close("all")
        return dict(found[page])

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("pages"))  # 14 writes a file
        patch.setattr(example, "train_reversal", train_briefly)
        plt.switch_backend("agg")
        yield run
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("page", "label"), SOLUTIONS)
def test_a_solution_does_what_it_says(page, label, names):
    space, whole = names(page), label in TRAINED | LEARNED
    if whole:
        space["train_reversal"] = train_reversal
    torch.manual_seed(0)
    given = listings(page, "exercise")[label]
    for code in (*given, *listings(page, "solution")[label]):
        execute(code if whole else smaller(code), space)


@pytest.mark.exhaustive
@pytest.mark.parametrize("label", WHOLE)
def test_a_solution_learns_what_it_says(label, tmp_path, monkeypatch):
    """With the whole page before it, at its real length."""
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    (page,) = (p for p in PAGES if label in listings(p, "solution"))
    module = types.ModuleType(page)
    monkeypatch.setitem(sys.modules, page, module)
    space = module.__dict__
    for cell in read_chapter(BOOK / f"{page}.md").code:
        execute(cell.source, space)
        plt.close("all")
    *before, code = listings(page, "solution")[label]
    *lines, last = ast.parse(code).body
    for part in (*before, ast.unparse(lines)):
        execute(part, space)
    value = eval(ast.unparse(last), space)
    assert WHOLE[label](value), value


def test_what_a_solution_says_of_a_training_is_held():
    root = BOOK.parent
    trains = Trains(root)
    bare = {
        label
        for chapter in read_book(root)
        for label in solutions(chapter, trains)
    }
    assert bare == SAYS_NOTHING | WHOLE.keys()


def test_the_head_of_chapter_02_is_one_head_of_multi_head_attention(names):
    single = names("02-attention")["SelfAttention"](12, d_k=4, d_v=3)
    layer = MultiHeadAttention(12, 1, d_k=4, d_v=3, bias=False)
    layer.load_state_dict(single.state_dict(), strict=False)
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(layer(x), layer.w_o(single(x)))


def test_a_log_probability_is_that_of_a_batch():
    """Chapter 19's solution reads what a model is trained on, ends too."""
    pairs = pocket_pairs(20, "train")
    sides = [p.source for p in pairs], [p.target for p in pairs]
    german, english = (Tokenizer.train(s, 200, "word") for s in sides)
    sizes = {"src_vocab": len(german), "tgt_vocab": len(english)}
    torch.manual_seed(0)
    config = TransformerConfig(**SHAPE | sizes | {"tie": "decoder"})
    space = {"torch": torch, "german": german, "english": english}
    space |= {"model": Transformer(config).eval(), "wrong": []}
    (code,) = listings("19-pocket-german", "solution")["ex-pocket-search"]
    execute(code, space)
    rows = (Sentences.of(german.encode(sides[0])),
            Sentences.of(english.encode(sides[1])))  # fmt: skip
    corpus = Corpus(*rows)
    for i, pair in enumerate(pairs):
        _, nll = batch_loss(space["model"], corpus.batch([i]), 0.0)
        found = space["log_probability"](pair.source, pair.target)
        torch.testing.assert_close(found, -nll.detach())


def test_a_shallow_parser_writes_shallow_trees():
    """Chapter 24's solution, whatever the model says."""
    names = [*SPECIALS, "(S", ")S", "(NP", ")NP", "DT", "NN"]
    space = {"torch": torch, "OnlyTrees": OnlyTrees}
    (code,) = listings("24-parsing", "solution")["ex-parsing-shallow"]
    execute(code, space)
    torch.manual_seed(0)
    sizes = {"tgt_vocab": len(names), "tie": "decoder"}
    model = Transformer(TransformerConfig(**SHAPE | sizes)).eval()
    sentences = [[4] * length for length in (1, 4, 9)]
    found = {
        most: search_in_order(
            model, sentences, SearchConfig(beam=2, extra=200),
            guide=space["shallow"](names, most),
        )
        for most in (3, 30)
    }  # fmt: skip
    heights = {most: [] for most in found}
    for most, answers in found.items():
        for sentence, best in zip(sentences, answers):
            said = [names[i] for i in best[0].ids]
            tree = tree_over(["word"] * len(sentence), said)
            assert linearise(tree)[1:-1] == said
            heights[most].append(levels(tree) - 2)  # TOP and the words
    assert max(heights[3]) <= 3 < max(heights[30])


def test_every_solution_has_its_exercise():
    for page in PAGES:
        exercises = listings(page, "exercise")
        assert exercises and list(exercises) == list(
            listings(page, "solution")
        )


# --- numbers in the descriptions of figures


def described(page, words):
    """The description of the figure that has these words."""
    text = (BOOK / f"{page}.md").read_text(encoding="utf-8")
    (alt,) = (
        alt for alt in re.findall(r'alt: "(.*)"', text) if words in alt
    )
    return alt


def test_the_size_of_the_stream_is_as_described(names):
    stack = names("05-layers")["random_stack"]
    none, pre, post = (
        stack(norm, True, 24)[2]["size"] for norm in ("none", "pre", "post")
    )
    alt = described("05-layers", "the size of the stream")
    assert "to tens of thousands;" in alt and 2e4 < none[-1] < 9e4
    assert "to about 5;" in alt and 4.5 < pre[-1] < 5.5
    assert max(post) == pytest.approx(1, abs=0.01)


def test_the_probabilities_of_four_words_are_as_described(names):
    space = names("06-embeddings")
    logits = space["E"] @ torch.tensor([-1.0, 2.0])
    said = described("06-embeddings", "four word vectors")
    for word, p in zip(space["words"], logits.softmax(dim=0), strict=True):
        assert f"{word} {p:.2f}" in said


def test_the_turns_of_the_clocks_are_as_described():
    degrees = [
        round(math.degrees(4 * 10_000 ** (-column / 64)))
        for column in (0, 8, 16)
    ]
    assert degrees == [229, 72, 23]
    assert "229, 72 and 23 degrees" in described("07-positions", "clock")


def test_captions_in_tokens_are_as_described():
    """Chapter 10, from the run that its figure draws."""
    run = ledger()["pieces"]["metrics"]
    first, *_, last = run["lengths"]
    assert (first["vocab"], last["vocab"]) == (260, 8000)
    assert first["German"] / first["English"] == pytest.approx(8 / 7, 0.01)
    assert last["German"] / last["English"] == pytest.approx(1, abs=0.01)
    assert "at 8,000 the two meet at about 14" in described(
        "10-tokens", "Tokens per caption"
    )
    assert 13.5 < last["English"] < last["German"] < 14.5
    assert all(a["German"] > a["English"] for a in run["lengths"])
    words = {row["word"]: row for row in run["words"]}
    assert words["Fußball"]["tokens"]["8000"] == ["Fußball"]
    assert words["Frauenfußballmannschaft"]["in_training"] == 0
    assert words["Fußballmannschaft"]["in_training"] == 9


def test_the_vocabularies_are_as_described(names):
    space = names("08-transformer")
    assert "a thin strip around 41,000" in described(
        "08-transformer", "bar"
    )
    assert 40_900 < space["low"] < 41_000 < space["high"] < 41_200
    start, end = space["ranges"]["big"]
    assert start < 36_000 < end
    assert not any(a < 37_000 < b for a, b in space["ranges"].values())
