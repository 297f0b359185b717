"""What is said about a wrong answer: what it does, and never what it does
not.
"""

import ast
import math

import pytest
import torch

from annotated.school.checks import (
    Wrong,
    _foreign,
    _values,
    drawn,
    examine,
    ours,
    same,
    untouched,
)
from annotated.school.exercises import exercises
from annotated.school.relations import relation
from annotated.school.slips import slips

X = torch.arange(12.0).view(3, 4).square() + 1
SQUARE = torch.arange(9.0).view(3, 3).square() + 1


def told(name, was, now):
    """The verdict on our solution with a change."""
    exercise = exercises()[name]
    code = exercise.reference
    assert code.count(was) == 1, f"{was!r} is not in it"
    answer = exercise.answer(
        code.replace(was, now), f"<wrong {name} {now}>"
    )
    return examine(exercise, answer)


def names(exercise, text):
    """The known mistakes that are named in a verdict."""
    return [x for x, _ in exercises()[exercise].mutants if x in text]


# --- relations


@pytest.mark.parametrize(
    ("yours", "target", "words"),
    [
        (3 * X, X, "is 3 = √9 times what was wanted"),
        (X / 3, X, "is 1/3 = 1/√9 times what was wanted"),
        (X / math.sqrt(5), X, "is 1/√5 times"),
        (-X, X, "minus 1 times"),
        (X + 2, X, "too large, by 2"),
        (X**2, X, "the square of what was wanted"),
        (1 - X, X, "1 minus what was wanted"),
        (SQUARE.T, SQUARE, "transposed"),
        (X.T, X, "axes are exchanged"),
        (X.flip(0), X, "turned round along axis 0"),
        (
            X.roll(1, 0),
            X,
            "shifted by one along axis 0: each comes too late",
        ),
        (X[:, [1, 0, 3, 2]], X, "In each row the numbers are right"),
        (
            X * torch.tensor([[1.0], [2], [5]]),
            X,
            "up to a factor of its own",
        ),
        (X + torch.tensor([[1.0], [2], [5]]), X, "off by the same amount"),
        (X[:-1], X, "1 missing at the end along axis 0"),
        (X.double(), X, "The numbers are right; they should be float32"),
        (X.view(4, 3), X, "in their order: only the shape"),
        (X > 5, X <= 5, "True and False are exchanged"),
        (X * 1.0005, X, "Nearly right: the two differ by"),
        (
            torch.cat([X[:2], X[2:] ** 2 + 3]),
            X,
            "wrong at the last place along",
        ),
        (
            torch.cat([X[:1], X[1:] * X[1:]]),
            X,
            "everywhere but at the first",
        ),
        (X[:1].expand(3, 4), X, "All entries along axis 0 are the same"),
        (
            torch.where(X > 100, math.nan, X),
            X,
            "It is NaN at the last place",
        ),
        ([1, 2, 3], [1, 2, 3, 4], "1 missing at its end"),
        ([0, 1, 2, 3], [1, 2, 3], "1 too many at its beginning"),
        ([3, 2, 1], [1, 2, 3], "right but turned round"),
        ([2, 3, 9], [1, 2, 3], "each comes too early"),
        ([5, 6, 8], [4, 5, 7], "too large, by 1"),
        (["b", "a", "c"], ["a", "b", "c"], "another order"),
        ((X, SQUARE), (SQUARE, X), "0 and 1 are exchanged"),
        (
            (X, -SQUARE),
            (X, SQUARE),
            "Only 1 is wrong. Each number is minus",
        ),
        ({"a": X, "b": 2 * X}, {"a": X, "b": X}, "Only 'b' is wrong."),
        (0.25, 25.0, "1/100 times"),
    ],
)
def test_what_one_answer_is_to_the_other(yours, target, words):
    assert words in relation([(yours, target)])


def test_a_relation_is_told_only_if_it_holds_in_every_case():
    noise = torch.randn(3, 4)
    assert relation([(X + noise, X)]) == ""
    assert relation([(2 * X, X), (X + noise, X)]) == ""
    assert "2 = √4 times" in relation([(2 * X, X), (2 * SQUARE, SQUARE)])
    assert relation([(2.5, 1.3)]) == ""  # one number has always a ratio
    assert "2.5 times" in relation([(2.5, 1.0), (5.0, 2.0)])


# --- what is printed


@pytest.mark.parametrize("gap", [1e-1, 1e-3, 1e-4, 2e-5])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 9, 9)])
def test_two_values_that_differ_are_printed_differently(shape, gap):
    target = torch.full(shape, 2.128, dtype=torch.float64)
    with pytest.raises(Wrong) as raised:
        same(target + gap * 2, target)
    shown = {line.split()[0]: line.split()[1:] for line in _lines(raised)}
    assert shown["wanted"] != shown["yours"]


def _lines(raised):
    lines = "\n".join(_values(raised.value)).splitlines()
    return [x for x in lines if x.split()[0] in ("wanted", "yours")]


@pytest.mark.parametrize(
    ("yours", "target"),
    [
        (list(range(999)), [*range(998), 0]),
        ("a" * 999, "a" * 998 + "b"),
        ({"a": X, "b": X}, {"a": X, "b": X + 1}),
        ([torch.zeros(40, 40)], [torch.eye(40)]),
    ],
)
def test_of_what_is_long_the_part_is_shown_that_differs(yours, target):
    with pytest.raises(Wrong) as raised:
        same(yours, target)
    shown = raised.value.shown
    assert drawn(shown["yours"]) != drawn(shown["wanted"])


def test_a_float32_table_is_no_mistake_and_a_change_of_one_bit_is_one():
    same((X / 7).double(), X.double() / 7)

    def touches(x):
        x += 1e-15

    with pytest.raises(Wrong, match="argument 0 is not what it was"):
        untouched(touches, torch.ones(2, dtype=torch.float64))


# --- known mistakes

KNOWN = {
    "a bias": (
        "06-embeddings",
        "        self.output = matrix",
        "        self.more = nn.Parameter(torch.zeros(tgt_vocab))\n"
        "        self.output = matrix",
        "Your output layer has a bias",
    ),
    "each text once": (
        "18-mbr",
        "    metric = CHRF()\n",
        "    metric = CHRF()\n"
        "    candidates = sorted(set(candidates), key=candidates.index)\n",
        "You look at each text once",
    ),
    "the weights' own dtype": (
        "15-average",
        "total = sum(one[name].double() for one in checkpoints)\n"
        "        found[name] = (total / count).to(weight.dtype)",
        "found[name] = sum(one[name] / count for one in checkpoints)",
        "You keep the dtype that comes of the sum",
    ),
    "not in place": (
        "12-adam",
        "weight -= rate * m_hat",
        "weight = weight - rate * m_hat",
        "`weight` itself has not moved",
    ),
    "view there and back": (
        "04-heads",
        "x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)",
        "x.view(len(x), self.num_heads, x.size(1), -1)",
        "You take `view` or `reshape`",
    ),
    "the rate before": (
        "14-loop",
        "rate(number))",
        "rate(number - 1))",
        "The rate is that of the previous update",
    ),
    "shared layers": (
        "08-transformer",
        "            self.encoder.append(EncoderLayer(",
        "            self.encoder.append(self.encoder[0] if self.encoder else"
        " EncoderLayer(",
        "All encoder layers are one layer",
    ),
}


@pytest.mark.parametrize("what", KNOWN)
def test_a_known_mistake_is_called_by_its_name(what):
    name, was, now, sentence = KNOWN[what]
    assert sentence in told(name, was, now).text


HOWEVER = {  # begun with other numbers, or in another order, and wrong
    "heads": (
        "04-heads",
        {
            "x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)":
            "x.view(len(x), self.num_heads, x.size(1), -1)",
            "heads.transpose(1, 2).flatten(2)":
            "heads.reshape(len(x), x.size(1), -1)",
        },
        "You take `view` or `reshape` to (batch, heads, length, d) and back",
    ),
    "an encoder layer": (
        "05-encoder",
        {
            "        self.norm1 =":
            "        self.norm2 = nn.LayerNorm(d_model)\n        self.norm1 =",
            "        self.norm2 = nn.LayerNorm(d_model)\n        self.drop":
            "        self.drop",
            "x + self.dropout(self.feed_forward(x))":
            "self.dropout(self.feed_forward(x))",
        },
        "The residual around the feed-forward network is missing",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", HOWEVER)
def test_a_mistake_has_its_name_however_an_answer_begins(what):
    """What a check draws is the same for all, so that values tell."""
    name, changes, sentence = HOWEVER[what]
    code = exercises()[name].reference
    for was, now in changes.items():
        assert was in code
        code = code.replace(was, now)
    exercise = exercises()[name]
    assert (
        sentence in examine(exercise, exercise.answer(code, "<own>")).text
    )


OTHERS = {
    "the sentences turned round": (
        "11-fix-targets", "rows[:, 1:]", "rows[:, 1:].flip(1)",
    ),
    "numbers above 0": (
        "06-embeddings", "torch.randn(vocab, d_model)",
        "torch.randn(vocab, d_model).abs()",
    ),
    "squared draws": (
        "13-dropout", "torch.rand_like(x)", "torch.rand_like(x) ** 2",
    ),
    "a ceiling": (
        "12-fix-decay", "parameter *= 1 - rate * decay",
        "parameter.clamp_(max=1 - rate * decay)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_no_mistake_is_named_that_was_not_made(what):
    name, was, now = OTHERS[what]
    verdict = told(name, was, now)
    assert verdict.outcome == "wrong"
    assert names(name, verdict.text) == []


# --- what no mutant does


@pytest.mark.parametrize(
    ("name", "was", "now", "words"),
    [
        (
            "26-rotary",
            "    d = x.size(-1)\n",
            "    d = x.size(-1)\n    positions += 1\n",
            "Your code changes `positions`",
        ),
        (
            "26-rotary",
            "positions.double()[:, None]",
            "(positions.double() + 1)[:, None]",
            "would do with `positions + 1` in the place of `positions`",
        ),
        (
            "05-encoder",
            "return self.norm2(",
            "return (",
            "in the place of `self.norm2(x + self.dropout(",
        ),
        (
            "04-heads",
            "self.split(self.w_k(memory))",
            "self.split(self.w_q(memory))",
            "with `self.w_q` in the place of `self.w_k`",
        ),
        (
            "16-sample",
            "scatter(-1, words, ranked)",
            "scatter(-1, words.roll(1, -1), ranked)",
            "In each row the numbers are right",
        ),
        (
            "25-fix-control",
            "gained.mean()",
            "(3 * gained.mean())",
            "times what was wanted",
        ),
    ],
)
def test_what_an_answer_does_is_told(name, was, now, words):
    verdict = told(name, was, now)
    assert words in verdict.text, verdict.text
    assert names(name, verdict.text) == []


SLIPS = """
def f(x, y=2):
    'What it is for.'
    out = [a for a in x if a < y]
    if y:
        out += x[:y]
    return sorted(out)
"""


def test_slips_are_made_one_at_a_time_and_taken_back():
    tree = ast.parse(SLIPS)
    before = ast.unparse(tree)
    told = {slip(): ast.unparse(tree) for slip in slips(tree)}
    assert ast.unparse(tree) == before
    assert before not in told.values()
    assert not any("What it is for" in words for words in told)
    for words, code in (
        ("with `a <= y` in the place of `a < y`", "if a <= y]"),
        ("without asking `y`", "out += x[:y]\n    return"),
        ("without `out += x[:y]`", "pass"),
        ("with `out` in the place of `sorted(out)`", "return out"),
    ):
        assert code in told[words]


def test_code_that_is_as_it_was_given_is_told_so_and_nothing_more():
    exercise = exercises()["11-fix-targets"]
    given = exercise.answer(exercise.starter, "<as it was given>")
    text = examine(exercise, given).text
    assert "It still does what it did as it was given." in text
    assert names("11-fix-targets", text) == []
    assert "our solution" not in text


@pytest.mark.parametrize(
    ("filename", "foreign"),
    [
        (r"C:\book\annotated\school\checks.py", True),
        (r"C:\Python\Lib\site-packages\torch\nn\functional.py", True),
        (ast.__file__, True),
        ("/usr/local/lib/python3.12/dist-packages/torch/nn/x.py", True),
        ("/home/ann/lib/python-course/answer.py", False),
        (r"C:\Users\ann\answer.py", False),
    ],
)
def test_lines_are_the_students_or_not_on_every_system(filename, foreign):
    assert _foreign(filename) == foreign


def test_of_a_crash_what_was_there_is_told():
    verdict = told("17-fix-reorder", "k[parents], v", "k[[9]], v")
    assert verdict.outcome == "crashed"
    assert "k (1, 3, 4, 2)" in verdict.text


# --- the checks


class Odd:
    """Nothing can be done with it."""

    __hash__ = None

    def __eq__(self, other):
        raise RuntimeError("no ==")


ODD = {
    "None": lambda: None,
    "a text": lambda: "text",
    "an object": Odd,
    "an iterator": lambda: iter("ab"),
    "lists of all kinds": lambda: [[torch.ones(2)], {"a": (1, None)}],
    "NaN": lambda: torch.tensor([math.nan]),
    "a complex tensor": lambda: torch.ones(2, 2, dtype=torch.complex64),
    "a sparse tensor": lambda: torch.eye(3).to_sparse(),
    "a tensor without numbers": lambda: torch.empty(2, 3, device="meta"),
}


class Layer(torch.nn.Module):
    """Takes whatever it is given."""

    made = staticmethod(lambda: None)

    def __init__(self, *given, **named):
        super().__init__()

    def forward(self, *given, **named):
        return self.made()


def examined(name, make):
    """The verdict on an answer that returns what make makes."""
    exercise = exercises()[name]
    if exercise.kind == "predict":
        thing = {key: make() for key in ours(exercise).thing}
    elif isinstance(ours(exercise).thing, type):
        thing = type("Answer", (Layer,), {"made": staticmethod(make)})
    else:

        def thing(*given, **named):
            return make()

    return examine(exercise, thing)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.exhaustive] * (kind in ODD))
        for kind in (*ODD, "one of them each")
    ],
)
def test_whatever_comes_back_has_a_verdict(kind):
    for place, name in enumerate(exercises()):
        one = kind if kind in ODD else list(ODD)[place % len(ODD)]
        assert examined(name, ODD[one]).outcome != "passed", name


FORMATTED = {
    # what the check itself has counted: always a number
    ("02-fix-scale", "spread"), ("06-embeddings", "spread"),
    ("11-plan", "share"), ("13-dropout", "share"), ("13-dropout", "rate"),
    ("13-dropout", "gap"), ("16-fix-length", "p"),
    ("18-investigate-nonsense", "bleu.score"),
    ("20-investigate-flag", "loss"),
}  # fmt: skip


def test_no_check_formats_what_a_student_gave():
    """It may be anything, and a format is for numbers: `drawn` is for all."""
    found = {
        (exercise.name, ast.unparse(node.value))
        for exercise in exercises().values()
        for code in exercise.checks
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.FormattedValue) and node.format_spec
    }
    assert found <= FORMATTED


@pytest.mark.parametrize("name", ["08-transformer", "07-fix-twice"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_positions_in_a_buffer_of_any_precision_are_told_apart(name, dtype):
    """float32 is right, half a mistake that is seen."""
    exercise = exercises()[name]
    code = exercise.reference.replace("x.dtype)", f"{dtype}).to(x)")
    code = code.replace(
        "import Tensor, nn\n", "import Tensor, nn\nimport torch\n", 1
    )
    verdict = examine(exercise, exercise.answer(code, f"<{dtype} {name}>"))
    assert (verdict.outcome == "passed") == (dtype == torch.float32)


def test_padding_in_the_target_may_be_masked_or_not():
    verdict = told(
        "08-transformer",
        "past = causal_mask(tgt.size(1), tgt.device)",
        "past = causal_mask(tgt.size(1), tgt.device) & padding_mask(tgt)",
    )
    assert verdict.outcome == "passed"
