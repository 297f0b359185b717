"""Answers put back into their cells, and a folder of notebooks (E26)."""

from __future__ import annotations

import copy
import json
import sys

import pytest

from annotated.cli import main
from annotated.school.answers import answer_in
from annotated.school.classroom import grade, repaired
from tests.school.notebooks import (
    CAUSAL,
    GOOD,
    HELPED,
    PADDING,
    SOURCES,
    TRIED,
    answer,
    cell_of,
    damaged,
    notebook_of,
    solved,
    sources_of,
)


def test_a_notebook_in_order_stays_as_it_is(given):
    work = solved(given, causal=HELPED)
    new, moved = repaired(work, given)
    assert not moved
    assert sources_of(new) == sources_of(work)


@pytest.mark.parametrize("how", ["elsewhere", "split", "copied"])
def test_an_answer_is_put_back_by_its_name(given, how):
    new, moved = repaired(damaged(given, HELPED, how), given)
    assert moved == ["03-causal"]
    code = sources_of(new)["03-causal"]
    assert "def helper" in code
    assert "ONE = 1" in code
    assert grade(lambda: answer(code), "03-causal", 2.0) > 1
    assert sources_of(new)["03-padding"] == SOURCES["03-padding"].one(
        "reference"
    )


def test_what_is_used_stands_before_what_uses_it(given):
    """The last import of torch is that of a later cell."""
    new, _ = repaired(damaged(given, CAUSAL.reference, "copied"), given)
    code = sources_of(new)["03-causal"]
    assert grade(lambda: answer(code), "03-causal", 2.0) == 2.0


def test_what_was_deleted_stays_as_it_was_given(given):
    new, moved = repaired(damaged(given, HELPED, "deleted"), given)
    assert moved == ["03-causal"]
    assert "raise NotImplementedError" in sources_of(new)["03-causal"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (TRIED, True),
        ("mask = causal(5)", True),
        ("", False),
        ("# I do not know\n", False),
        (f"{CAUSAL.starter}\n# what now?\n", True),
    ],
)
def test_what_was_tried_stays_though_it_defines_nothing(given, text, kept):
    """It is wrong then, and not as if nobody had been there."""
    work = solved(given, causal=text)
    new, moved = repaired(work, given)
    own = sources_of(new)["03-causal"]
    assert own == (text if kept else CAUSAL.starter)
    assert moved == ([] if kept else ["03-causal"])
    assert sources_of(new)["03-padding"] == sources_of(work)["03-padding"]


def test_of_copies_the_last_that_was_tried_stays(given):
    work = damaged(given, TRIED, "copied")
    new, moved = repaired(work, given)
    assert sources_of(new)["03-causal"] == TRIED
    assert moved == ["03-causal"]


def graded_by(given, text):
    """A notebook as nbgrader leaves it, 03-causal having printed text."""
    new = copy.deepcopy(given)
    for cell in new["cells"]:
        label = cell["metadata"].get("nbgrader", {})
        if label.get("grade_id") == "grade-03-causal" and text:
            stream = {"output_type": "stream", "name": "stdout"}
            cell["outputs"] = [{**stream, "text": [text]}]
    return new


def test_the_mistakes_of_a_class_are_counted(
    given, tmp_path, monkeypatch, capsys
):
    sentences = [text for text, _ in CAUSAL.mutants]
    said = {
        "ada": "passed · 03-causal: all 3 checks here pass.",
        "bob": f"wrong · 03-causal, check 1 of 3\n{sentences[0]}\n",
        "cem": f"wrong · 03-causal, check 1 of 3\n{sentences[1]}\n",
        "dan": f"wrong · 03-causal, check 1 of 3\n{sentences[1]}\n",
        "eve": "",
    }
    for name, text in said.items():
        folder = tmp_path / "autograded" / name / "03"
        folder.mkdir(parents=True)
        notebook = json.dumps(graded_by(given, text))
        (folder / "03.ipynb").write_text(notebook)
    line = ["annotated", "classroom", "mistakes", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", line)
    main()
    out = capsys.readouterr().out
    assert "03-causal: 3 wrong, 1 passed, 1 not run\n" in out
    assert "03-padding: 5 not run\n" in out
    assert out.index(f"    2  {sentences[1]}\n") < out.index(
        f"    1  {sentences[0]}\n"
    )
    (tmp_path / "autograded/ada/03/03.ipynb").write_text("[]")
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    out, error = capsys.readouterr()
    assert "ada/03/03.ipynb is not a notebook: it is a list" in error
    assert "03-causal: 3 wrong, 1 not run\n" in out  # all who come after


def test_cells_that_do_not_parse_cost_no_other_answer():
    sources = [
        "x = (",
        "def f():\n    return g()",
        "def g():\n  return 1",
        "?",
    ]
    starter = "def f():\n    raise NotImplementedError"
    code = answer_in(sources, "f", starter).text
    assert "return g()" in code
    assert "return 1" in code


def test_a_folder_is_repaired_and_what_was_submitted_is_kept(
    course, given, tmp_path, monkeypatch, capsys
):
    for place, notebook in (
        ("release/03", given),
        ("submitted/ada/03", damaged(given, HELPED, "split")),
        ("submitted/bob/03", solved(given)),
    ):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "03.ipynb").write_text(json.dumps(notebook))
    line = ["annotated", "classroom", "repair", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", line)
    main()
    said = capsys.readouterr().out
    assert "submitted/ada/03/03.ipynb: 03-causal" in said
    assert "submitted/bob/03/03.ipynb: nothing to mend" in said
    kept = sorted(p.parent.parent.name for p in tmp_path.rglob("*.as-sub*"))
    assert kept == ["ada"]
    monkeypatch.setattr(
        sys, "argv", [*line[:-1], str(tmp_path / "release")]
    )
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2


RELEASED = notebook_of(
    cell_of(PADDING.starter, "03-padding"),
    cell_of(CAUSAL.starter, "03-causal"),
)
MOVED = notebook_of(cell_of(GOOD))  # whose graded cells are gone
BOB = "submitted/bob/03/03.ipynb: 03-padding, 03-causal"
UPLOADS = {  # what is submitted, and what is said of it
    "a mark": (b"\xef\xbb\xbf" + json.dumps(MOVED).encode(), "03-causal"),
    "a mark, in order": (
        b"\xef\xbb\xbf" + json.dumps(RELEASED).encode(),
        "written as UTF-8",
    ),
    "not UTF-8": (
        json.dumps(
            notebook_of(cell_of(f"# L\u00f6sung\n{GOOD}")),
            ensure_ascii=False,
        ).encode("cp1252", "replace"),
        "NOT READ",
    ),
    "cut off": (json.dumps(MOVED).encode()[:50], "NOT READ"),
    "empty": (b"", "NOT READ"),
    "a list": (b"[]", "not a notebook: it is a list"),
    "no cells": (b"{}", "it has no cells"),
    "cells that are none": (b'{"cells": [1]}', "cell 1 is not a cell"),
    "format 3": (b'{"worksheets": [], "nbformat": 3}', "format 3"),
    "deep": (b"[" * 10**5, "NOT READ"),
    "a form feed": (
        json.dumps(notebook_of(cell_of(f"x = 1\n\x0c\n{GOOD}"))).encode(),
        "03-causal",
    ),
    "U+2028": (
        json.dumps(
            notebook_of(cell_of(f"s = 'a\u2028c'\n{GOOD}"))
        ).encode(),
        "03-causal",
    ),
    "no text": (
        json.dumps(notebook_of(cell_of(GOOD) | {"source": None})).encode(),
        "cell 1 is not a cell",
    ),
}


@pytest.fixture
def handed_in(tmp_path, monkeypatch, capsys):
    """Puts notebooks in, repairs them; exit code, output, and error."""

    def repair(**uploads):
        (tmp_path / "release/03").mkdir(parents=True, exist_ok=True)
        release = tmp_path / "release/03/03.ipynb"
        release.write_text(json.dumps(RELEASED))
        for name, raw in uploads.items():
            folder = tmp_path / "submitted" / name / "03"
            folder.mkdir(parents=True, exist_ok=True)
            if not isinstance(raw, bytes):
                raw = json.dumps(raw).encode()
            (folder / "03.ipynb").write_bytes(raw)
        line = ["annotated", "classroom", "repair", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", line)
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return repair


@pytest.mark.parametrize("what", UPLOADS)
def test_each_notebook_has_its_row_and_the_work_goes_on(
    what, handed_in, tmp_path
):
    raw, words = UPLOADS[what]
    code, out, error = handed_in(ann=raw, bob=MOVED)
    assert words in out.split("submitted/bob")[0]
    assert BOB in out
    file = tmp_path / "submitted/ann/03/03.ipynb"
    kept = file.with_suffix(".as-submitted")
    lost = "NOT READ" in out
    assert code == (2 if lost else 0)
    if lost:
        assert file.read_bytes() == raw
        assert str(file) in error and "left as it was" in error
    else:
        assert kept.read_bytes() == raw
        json.loads(file.read_text("utf-8"))


def test_what_is_no_notebook_in_its_place_has_a_row(handed_in, tmp_path):
    (tmp_path / "submitted/ann/03").mkdir(parents=True)
    (tmp_path / "submitted/ann/03/answer.txt").write_text("here")
    (tmp_path / "submitted/cem").mkdir()
    (tmp_path / "submitted/cem/03.ipynb").write_text(json.dumps(MOVED))
    code, out, _ = handed_in(bob=MOVED)
    assert code == 2
    assert out.count("belongs to submitted/NAME/ASSIGNMENT/") == 2
    assert BOB in out


@pytest.mark.parametrize(
    "name",
    [
        "03 (1)",
        "03(2)",
        "03-Copy1",
        "03 copy",
        "03 - Copy (1)",
        "03 - Kopie",
        "03 - Kopie (2)",
        "03 (Kopie)",
        "03 - copia",
        "03 (copy 2)",
        "03 copie 2",
    ],
)
def test_a_second_copy_has_its_name_again(name, handed_in, tmp_path):
    folder = tmp_path / "submitted/ann/03"
    folder.mkdir(parents=True)
    copy = folder / f"{name}.ipynb"
    copy.write_text(json.dumps(RELEASED))
    code, out, _ = handed_in()
    assert code == 0
    assert "called 03.ipynb again" in out
    assert not copy.exists()
    assert "ann/03/03.ipynb: nothing to mend" in handed_in()[1]
    copy.write_text(json.dumps(MOVED))  # which of the two counts?
    code, _, error = handed_in()
    assert code == 2
    assert "03.ipynb is there, too: keep the one" in error
    assert json.loads(copy.read_text()) == MOVED


def test_a_name_that_is_nothing_but_a_copys_is_told_as_it_is(
    handed_in, tmp_path
):
    folder = tmp_path / "submitted/ann/03"
    folder.mkdir(parents=True)
    (folder / "(1).ipynb").write_text(json.dumps(RELEASED))
    code, _, error = handed_in()
    assert code == 2 and "release/03/(1).ipynb" in error


def test_an_answer_below_the_starter_is_not_lost(given):
    """The starter was left as it was, and another graded cell is gone."""
    work = solved(given, causal=CAUSAL.starter)
    work["cells"].append(cell_of(GOOD))
    work["cells"] = [
        cell
        for cell in work["cells"]
        if cell["metadata"].get("nbgrader", {}).get("grade_id")
        != "grade-03-padding"
    ]
    new, moved = repaired(work, given)
    assert moved == ["03-causal"]
    assert "position[:, None] >= position" in sources_of(new)["03-causal"]


@pytest.mark.parametrize(
    "text", [f"%%time\n{GOOD}", f"!pip install x\n{GOOD}", f"{GOOD}\nx = ("]
)
def test_a_cell_without_its_label_keeps_what_is_in_it(text, handed_in):
    """Whether it is understood or not."""
    pytest.importorskip("IPython")
    work = notebook_of(
        cell_of(PADDING.starter, "03-padding"), cell_of(text)
    )
    new, moved = repaired(work, RELEASED)
    assert moved == ["03-causal"]
    assert ">= position[None, :]" in sources_of(new)["03-causal"]
    _, out, _ = handed_in(ann=work)
    assert ("not understood: cell 2: line" in out) == ("x = (" in text)


def test_nothing_that_was_written_is_left_out_of_the_new_notebook():
    notes = [
        cell_of("my notes", kind="markdown"),
        cell_of("plot = 1"),
        cell_of("%%bash\nls"),
        cell_of("x = (", kind="raw"),
    ]
    work = notebook_of(*notes, cell_of(GOOD))
    new, _ = repaired(work, RELEASED)
    texts = ["".join(cell["source"]) for cell in new["cells"]]
    for note in notes:
        assert note["source"][0] in texts
    assert len({cell["id"] for cell in new["cells"]}) == len(texts)
    again, moved = repaired(new, RELEASED)
    assert not moved
    assert sources_of(again) == sources_of(new)


def test_what_was_submitted_first_and_later_is_both_kept(
    handed_in, tmp_path
):
    folder = tmp_path / "submitted/ann/03"
    handed_in(ann=MOVED)
    first = (folder / "03.as-submitted").read_bytes()
    later = notebook_of(cell_of(f"# again\n{GOOD}"))
    handed_in(ann=later)
    assert (folder / "03.as-submitted").read_bytes() == first
    kept = (folder / "03.as-submitted-2").read_bytes()
    assert json.loads(kept) == later
    assert "nothing to mend" in handed_in()[1]


def test_a_cell_whose_type_was_changed_still_has_the_answer():
    work = copy.deepcopy(RELEASED)
    work["cells"][1] = cell_of(GOOD, "03-causal", kind="raw")
    new, _ = repaired(work, RELEASED)
    assert sources_of(new)["03-causal"] == GOOD


def test_what_is_asked_for_in_words_is_marked_by_a_person(course):
    path = course / "source/24/24.ipynb"
    given = json.loads(path.read_text("utf-8"))
    (cell,) = (
        cell
        for cell in given["cells"]
        if cell["metadata"].get("nbgrader", {}).get("grade_id", "")[:5]
        == "words"
    )
    label = cell["metadata"]["nbgrader"]
    rubric = SOURCES["24-investigate-rules"].rubric
    assert cell["cell_type"] == "markdown"
    assert label["grade"] and label["solution"]
    assert label["points"] == len(rubric) == 3
    assert not any(line in json.dumps(given) for line in rubric)
    work = copy.deepcopy(given)
    for one in work["cells"]:
        if one["metadata"].get("nbgrader") == label:
            one["source"] = ["I have scored a tree."]
            one["metadata"]["nbgrader"] = dict(label)
    new, _ = repaired(work, given)
    assert "I have scored a tree." in [c["source"] for c in new["cells"]]
