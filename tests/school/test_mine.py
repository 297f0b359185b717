"""Parts of one's own, and the milestones that run on them."""

import ast
import re
import subprocess
import sys

import pytest
import torch

from annotated.book.results import ledger
from annotated.corpora import fetch
from annotated.school import milestones
from annotated.school.course import (
    Workspace,
    book_parts,
    redirected,
)
from annotated.school.exercises import exercises
from annotated.school.milestones import (
    _LEAST,
    MILESTONES,
    _by_beam,
    _by_pieces,
    _copies,
    _greedy,
    _part_of,
    _Phrasebook,
    assembled,
    captions_translated,
    reach,
)

WEIGHTS = "02-weights"
PARTS = [name for name, e in exercises().items() if e.is_part]
FAST = [name for name in PARTS if exercises()[name].track == "fast"]


pytestmark = pytest.mark.usefixtures("folder")

# --- milestones


@pytest.mark.parametrize("track", ["fast", "all"])
def test_from_our_solutions_alone_nothing_but_constants_is_imported(track):
    """Else a milestone would run the book's code; and the fast track needs
    nothing of the others.
    """
    constants = {"PAD", "BOS", "EOS", "UNK", "SPECIALS"}
    chosen = FAST if track == "fast" else PARTS
    for exercise in map(exercises().get, chosen):
        code = redirected(exercise.reference, "mine", set(chosen))
        for names in re.findall(r"from annotated\S* import (.+)", code):
            assert set(re.findall(r"\w+", names)) <= constants, names


LONG = {3, 4, 5, 6}  # they train for longer than a test should


class Noting(dict):
    """A course that remembers what was taken from it."""

    def __init__(self, course):
        super().__init__(course)
        self.used = set()

    def __getitem__(self, name):
        self.used.add(name)
        return super().__getitem__(name)


@pytest.fixture
def fast_track(folder):
    """Our solutions of the fast track, as if they were a student's."""
    desk = Workspace(folder / "mine")
    for name in FAST:
        desk.keep(exercises()[name], exercises()[name].reference)
    return desk


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(n, marks=[pytest.mark.exhaustive] * (n in LONG))
        for n in MILESTONES
    ],
)
def test_whoever_solves_the_fast_track_has_a_translator(
    number, fast_track, monkeypatch
):
    """Nothing else is used, from the first tensor to the last word."""
    run, courses = MILESTONES[number], []

    def noted(course):
        courses.append(Noting(course))
        return run(courses[0])

    monkeypatch.setitem(MILESTONES, number, noted)
    said = reach(number, fast_track)
    assert said.startswith(f"reached · milestone {number}: "), said
    assert f"({len(FAST)} of {len(PARTS)} parts are yours)" in said
    used = courses[0].used
    assert used and used <= {exercises()[name].defines for name in FAST}


@pytest.mark.parametrize(
    ("number", "last", "told"),
    [
        (3, "Checkpoint", "of 200 new rows"),
        (4, "greedy", "0% of new sentences are right"),
        (6, "bracket_f1", "right-branching trees"),
    ],
)
def test_a_long_milestone_that_is_short_is_told_and_takes_the_fast_track(
    number, last, told, fast_track, monkeypatch
):
    """All of its way, on little text and in steps too few to arrive."""
    small = _Phrasebook.short(100, "train")
    monkeypatch.setattr(_Phrasebook, "short", lambda count, split: small)
    few = list(milestones.pocket_pairs(200, "train"))
    monkeypatch.setattr(milestones, "pocket_pairs", lambda n, s: few)
    with assembled(fast_track) as course:
        noted, run = Noting(course), MILESTONES[number]
        with pytest.raises(AssertionError, match=told):
            run(noted, steps=4)  # type: ignore[call-arg]
    assert last in noted.used
    assert noted.used <= {exercises()[name].defines for name in FAST}


def test_a_milestone_is_not_reached_by_who_has_written_nothing(folder):
    said = reach(1, Workspace(folder / "mine"))
    start = "not reached · milestone 1: no part is yours yet"
    assert said.startswith(start), said
    assert "of the book's it is true that " in said


def test_a_milestone_is_reached_with_a_part_of_ones_own(folder):
    desk, exercise = Workspace(folder / "mine"), exercises()["05-network"]
    desk.keep(exercise, exercise.reference)
    said = reach(1, desk)
    assert said.startswith("reached · milestone 1: its logits are"), said
    assert f"(1 of {len(PARTS)} parts are yours)" in said


def test_a_milestone_runs_your_code_and_finds_the_line(folder):
    desk, name = Workspace(folder / "mine"), "05-network"
    exercise = exercises()[name]
    code = exercise.reference.replace(
        "return self", "1 / 0\n        return self"
    )
    desk.keep(exercise, code)
    with (
        pytest.raises(ZeroDivisionError) as raised,
        assembled(desk) as course,
    ):
        MILESTONES[1](course)
    row = code[: code.index("1 / 0")].count("\n") + desk.parts()[name].line
    assert _part_of(raised.value, desk) == (
        f"{name} ({folder}/mine/layers.py, line {row})"
    )


class Forgetful:
    """A checkpoint that writes nothing."""

    def __init__(self, path):
        self.path = path

    def save(self, model, optimizer, step):
        pass

    def load(self, model, optimizer):
        return 0


def test_a_run_that_forgets_its_step_does_not_copy(folder):
    with (
        assembled(Workspace(folder / "mine")) as course,
        pytest.raises(AssertionError, match="stopped after 2 steps"),
    ):
        _copies(course | {"Checkpoint": Forgetful}, steps=4)


FOUND = [("a dog runs .", "ein Hund läuft .")] * 70


def test_captions_that_are_not_learned_are_told_beside_the_books(
    folder, monkeypatch
):
    monkeypatch.setattr(milestones, "_captions", lambda split: FOUND)
    book = ledger()["multi30k-cpu"]["metrics"]["test"]["bleu"]
    with assembled(Workspace(folder / "mine")) as course:
        with pytest.raises(AssertionError, match=f"was {book:.1f}; it"):
            captions_translated(course, steps=2, vocab=262, width=8)
        said = captions_translated(course, steps=150, vocab=300, width=32)
    assert "BLEU is 100.0 on 70 new captions" in said
    assert said.endswith("“a dog runs .” becomes “ein Hund läuft .”")


def test_a_milestone_asks_for_more_than_a_lexicon_gets():
    scores = ledger()["multi30k-baselines"]["metrics"]["scores"]
    assert max(one["bleu"] for one in scores.values()) < _LEAST


def test_a_milestone_without_its_data_has_not_run_and_says_what_to_do(
    folder, monkeypatch
):
    def nowhere(*given):
        raise OSError("no network")

    monkeypatch.setenv("ANNOTATED_DATA", str(folder / "data"))
    monkeypatch.setattr(fetch, "_download", nowhere)
    said = reach(5, Workspace(folder / "mine"))
    assert said.startswith("not run · milestone 5 needs Multi30k")
    for words in ("train.en.gz", str(folder / "data"), "https://github"):
        assert words in said


def test_pieces_are_cut_as_the_courses_byte_pairs_cut_a_line(folder):
    lines = ["a dog  runs .", " über den Zaun"]
    with assembled(Workspace(folder / "mine")) as course:
        pairs = course["BytePairs"].train(lines * 3, 280)
    ids = _by_pieces(pairs.encode)
    for line in lines * 2:
        assert ids(line) == pairs.encode(line)
        assert pairs.decode(ids(line)) == line


def test_what_is_written_ends_at_its_end_in_the_order_of_the_sources(
    folder,
):
    """A search that writes how long its source is, and ends."""

    def greedy(model, src, limit):
        length = (src != 0).sum(dim=1, keepdim=True) - 1
        rest = torch.full((len(src), limit - 2), 9)
        end = torch.full_like(length, 2)
        return torch.cat([length + 10, end, rest], dim=1)

    with assembled(Workspace(folder / "mine")) as course:
        rows = [[5] * n for n in (3, 1, *range(120), 2)]
        found = _greedy(course | {"greedy": greedy}, None, rows)
    assert found == [[len(row) + 10] for row in rows]


def test_a_phrasebook_has_short_pairs_and_each_once_in_an_epoch():
    book = _Phrasebook.short(300, "train")
    assert all(len(words) <= 10 for both in book.pairs for words in both)
    assert sorted(book.numbers.values()) == list(
        range(4, len(book.numbers) + 4)
    )
    rows = [pair for batch in book.batches(0, 8) for pair in zip(*batch)]
    told = [(book.ids(s), book.ids(t)) for s, t in book.pairs]
    assert sorted(rows) == sorted(told)
    assert rows != [pair for b in book.batches(1, 8) for pair in zip(*b)]
    assert book.ids(["never", *book.pairs[0][0][:1]]) == [3, 4]


def test_a_sentence_is_said_by_the_beam_of_the_course(folder):
    """Whose every word is the source's, turned round."""
    book = _Phrasebook.short(20, "train")
    words = book.pairs[0][0]

    def model(src, tgt):
        read = src[0, :-1].flip(0).tolist() + [2]
        logits = torch.full((1, tgt.size(1), 99), -9.0)
        place = min(tgt.size(1), len(read)) - 1
        logits[0, -1, read[place]] = 9.0
        return logits

    with assembled(Workspace(folder / "mine")) as course:
        said = _by_beam(course, model, book, words)
    assert said == " ".join(reversed(words))


def test_solutions_of_one_module_import_each_other_in_mine(
    folder, monkeypatch
):
    desk = Workspace(folder / "mine")
    for name in ("04-heads", WEIGHTS):
        desk.keep(exercises()[name], exercises()[name].reference)
    text = (folder / "mine/attention.py").read_text()
    assert "from mine.attention import attention_weights" in text
    monkeypatch.syspath_prepend(str(folder))
    from mine.attention import MultiHeadAttention  # type: ignore

    out = MultiHeadAttention(6, 2)(torch.randn(1, 3, 6))
    assert out.shape == (1, 3, 6)
    desk.forget(WEIGHTS)
    text = (folder / "mine/attention.py").read_text()
    assert "from annotated.attention import attention_weights" in text


def test_what_is_forgotten_is_ours_again_and_leaves_no_module_behind(
    folder,
):
    desk = Workspace(folder / "mine")
    network, weights = exercises()["05-network"], exercises()[WEIGHTS]
    desk.keep(weights, weights.reference)
    desk.keep(
        network, network.reference.replace("return self", "return 0 * self")
    )
    (desk.folder / "notes.py").write_text("# my own\n")
    desk.remember("05-network", outcome="passed")
    assert "the part that fails is 05-network" in reach(1, desk)
    desk.forget("05-network")
    assert list(desk.parts()) == [WEIGHTS] and desk.state() == {}
    left = {path.name for path in desk.folder.glob("*.py")}
    assert left == {"__init__.py", "attention.py", "notes.py"}
    assert reach(1, desk).startswith("reached · milestone 1")
    desk.forget(WEIGHTS)
    assert not desk.parts()
    assert not (desk.folder / "attention.py").exists()


def test_a_part_that_goes_and_comes_back_takes_no_import_with_it(folder):
    """Two imports may share a line, of which one alone changes."""

    def imported():
        return {
            name: sorted(
                alias.name
                for node in ast.walk(ast.parse(part.code))
                if isinstance(node, ast.ImportFrom)
                for alias in node.names
            )
            for name, part in desk.parts().items()
        }

    desk = Workspace(folder / "mine")
    for one in book_parts().values():
        desk.keep(one, one.reference)
    before = imported()
    both = {"MultiHeadAttention", "attention_weights"}
    assert any(both <= set(names) for names in before.values())
    desk.forget(WEIGHTS)
    desk.keep(exercises()[WEIGHTS], exercises()[WEIGHTS].reference)
    assert imported() == before


def test_parts_that_need_each_other_are_checked_wherever_mine_is(
    folder, monkeypatch
):
    """The command line has no folder on its path that mine/ is in."""
    desk = Workspace(folder / "elsewhere/mine")
    for name in (WEIGHTS, "04-heads"):
        desk.keep(exercises()[name], exercises()[name].reference)
    monkeypatch.setattr("sys.path", [p for p in sys.path if p])
    said = reach(1, desk)
    assert said.startswith("reached · milestone 1"), said


MASK = "def causal_mask(n, device=None):\n"
HELPED = (
    f"import torch\ndef h(n, d):\n    return torch.arange(n, device=d)\n{MASK}"
    "    at = h(n, device)\n    return at[:, None] >= at\n"
)
HELPS = (
    "def h(ids, pad):\n    return ids != pad\n"
    "def padding_mask(ids, pad_id=0):\n"
    "    return h(ids, pad_id)[:, None, None, :]\n"
)


def test_helpers_of_two_parts_may_have_one_name(folder):
    desk = Workspace(folder / "mine")
    desk.keep(exercises()["03-causal"], HELPED)
    desk.keep(exercises()["03-padding"], HELPS)
    with assembled(desk) as course:
        assert course["causal_mask"](2).tolist() == [[1, 0], [1, 1]]
        assert course["padding_mask"](torch.ones(1, 1)).all()


def test_a_part_that_no_longer_parses_is_named_and_stops_no_other(folder):
    desk = Workspace(folder / "mine")
    broken = f"from mine.masks import window_mask\n{HELPS}<<<<<<< mine\n"
    desk.keep(exercises()["03-padding"], broken)
    desk.keep(exercises()["03-causal"], HELPED)
    assert list(desk.parts()) == ["03-causal", "03-padding"]
    assert desk.parts()["03-padding"].code == broken  # as it was
    said = reach(1, desk)
    assert "the part that fails is 03-padding" in said
    assert "does not parse" in said
    desk.forget("03-causal")
    assert list(desk.parts()) == ["03-padding"]


def test_a_mark_in_an_answer_cuts_it_nowhere(folder):
    desk, causal = Workspace(folder / "mine"), exercises()["03-causal"]
    marked = HELPED.replace(MASK, f"# --- 03-padding\n{MASK}")
    desk.keep(causal, marked)
    assert list(desk.parts()) == ["03-causal"]
    assert MASK in desk.parts()["03-causal"].code
    desk.keep(exercises()["03-padding"], HELPS)
    path = folder / "mine/masks.py"
    before = path.read_text("utf-8")
    desk.keep(causal, before)  # the file of mine/ itself was checked
    assert path.read_text("utf-8") == before


@pytest.mark.skipif(sys.platform == "win32", reason="no folder is locked")
def test_two_processes_that_remember_lose_nothing(folder):
    code = (
        "import sys; from annotated.school.course import Workspace\n"
        "for n in range(40):\n"
        "    Workspace.here().remember(sys.argv[1] + str(n), outcome='x')\n"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code, name])
        for name in "ab"
    ]
    assert [one.wait(60) for one in both] == [0, 0]
    assert len(Workspace.here().state()) == 80
