"""annotated exercises and annotated milestone, page E22."""

from __future__ import annotations

import io
import os
import re
import select
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from annotated.cli import main
from annotated.school import course, examiner, terminal
from annotated.school.course import Workspace, book_parts
from annotated.school.examiner import examined
from annotated.school.exercises import exercises
from annotated.school.milestones import MILESTONES
from annotated.school.terminal import _Session, _usual_file, _watch
from tests.helpers import environment
from tests.lines import words

NAME = "05-network"
EXERCISE = exercises()[NAME]
RIGHT = EXERCISE.reference + "\n"
WRONG = EXERCISE.mutants[0][1] + "\n"
FILE = Path("exercises/05-network.py")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Whatever is written is written there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANNOTATED_MINE", raising=False)
    return tmp_path


@pytest.fixture
def call(monkeypatch, capfd):
    """Exit code, standard output and error of a command line."""

    def run(line):
        monkeypatch.setattr(sys, "argv", ["annotated", *words(line)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        return code, *capfd.readouterr()

    return run


def write(text, path=FILE):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, "utf-8")


def test_a_file_is_made_once_and_never_written_over(call):
    code, out, _ = call("exercises 05.1")
    assert (code, FILE.exists()) == (1, True)
    assert "not attempted · 05-network: FeedForward still stands" in out
    write(FILE.read_text() + "# mine\n")
    assert call("exercises 5.1")[0] == 1
    assert FILE.read_text().endswith("# mine\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", f"not attempted · {NAME}: {FILE} is empty"),
        ("x = (", f"line 1 of {FILE} does not parse"),
        ("import nowhere", f"an import of {FILE} fails"),
        ("x = 1", "nothing in exercises/05-network.py is called Feed"),
        ("import os\nos._exit(0)", "ended the process (exit code 0)"),
        ("import os\nos.kill(os.getpid(), 9)", "(signal 9)"),
        ("input()", "line 1 of exercises/05-network.py raises EOFError"),
        ("x = bytearray(6 * 2**30)", "raises MemoryError"),
        (WRONG, "wrong · 05-network, check"),
    ],
)
def test_what_is_not_right_is_told_as_what_it_is(call, text, words):
    write(text)
    code, out, error = call("exercises 5.1")
    assert code == 1
    assert words in out
    assert not error
    assert not Path("mine/layers.py").exists()


def test_what_passes_is_kept_and_is_what_the_milestone_runs(call):
    write(f"{RIGHT}print('seen')\n")
    code, out, _ = call("exercises FeedForward")
    assert code == 0
    assert "passed · 05-network: all" in out
    assert "seen" in out
    kept = Path("mine/layers.py").read_text()
    assert "class FeedForward" in kept
    assert "print" not in kept
    assert "✓   5.1" in call("exercises")[1]
    assert (
        f"1 of {len(book_parts())} parts are yours"
        in call("milestone 1")[1]
    )


def test_what_is_kept_may_be_edited_on_windows(call):
    write(RIGHT + "# größer\n")
    assert call("exercises 5.1")[0] == 0
    before = Workspace.here().parts()
    path = Path("mine/layers.py")
    path.write_text(path.read_text("utf-8"), "utf-8-sig", newline="\r\n")
    assert Workspace.here().parts() == before
    path.write_bytes(path.read_bytes() + "# größer".encode("cp1252"))
    code, out, error = call("exercises")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"annotated: mine/layers.py, line \d+.*\n", error)


def test_an_error_in_your_part_is_the_milestones(call):
    write(RIGHT)
    assert call("exercises 5.1")[0] == 0
    path = Path("mine/layers.py")
    path.write_text(path.read_text().replace("relu", "gelu"))
    code, out, _ = call("milestone 1")
    assert code == 1
    assert "not reached · milestone 1: the part that fails is 05-net" in out


def test_what_is_to_be_mended_shows_its_symptom_when_it_is_run(call):
    code, out, _ = call("exercises 11-fix-targets")
    assert code == 1
    assert out.partition("wrong · 11-fix-targets, check 1")[1]
    file = _usual_file(exercises()["11-fix-targets"])
    done = subprocess.run(
        [sys.executable, file],
        env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.startswith("loss 0.0\n"), done.stderr
    file.write_text(exercises()["11-fix-targets"].reference)
    code, out, _ = call("exercises 11-fix-targets")
    assert code == 0
    assert "Kept" not in out


def test_a_prediction_is_a_file_too(call):
    name = "18-predict-brevity"
    code, out, _ = call(f"exercises {name}")
    assert code == 1
    assert "not attempted" in out
    file = _usual_file(exercises()[name])
    file.write_text(file.read_text().replace('"short": ...', '"short": .8'))
    assert (
        "That is the ratio of the lengths" in call(f"exercises {name}")[1]
    )
    file.write_text(exercises()[name].reference)
    code, out, _ = call(f"exercises {name}")
    assert code == 0
    assert "Kept" not in out


def test_another_file_is_checked_in_its_place(call):
    write(RIGHT, Path("other.py"))
    assert call("exercises 5.1 --file other.py")[0] == 0
    assert not FILE.exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("exercises 5.9", "unknown exercise '5.9'"),
        ("exercises FeedForwards", "did you mean FeedForward"),
        ("exercises 05", "page 05 has several exercises: 5.1, 5.2, 5.3"),
        ("exercises 5.1 --file none.py", "none.py is not there"),
        ("exercises 5.1 --file a.ipynb", "a.ipynb is a notebook: "),
        ("exercises --from x", "--from is a page, as 03, not 'x'"),
        ("exercises --from 200", "no exercise is from page 200 on"),
        (
            "exercises 5.1 --file latin.py",
            "latin.py, line 1, byte 5: not UTF-8 text",
        ),
        ("milestone 99", "milestones are 1, 2"),
        ("milestone one", "milestones are 1, 2"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    call, line, words
):
    Path("latin.py").write_bytes("# größer".encode("latin-1"))
    Path("a.ipynb").write_text('{"cells": []}')
    code, out, error = call(line)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"annotated: .*\n", error)
    assert words in error


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + RIGHT.replace("\n", "\r\n").encode(),
        b"# coding: latin-1\n# \xfc\n" + RIGHT.encode(),
        RIGHT.replace("\n", "\r").encode(),
    ],
    ids=["a mark", "a coding line", "an old Mac"],
)
def test_a_file_is_read_as_python_reads_it(call, data):
    FILE.parent.mkdir()
    FILE.write_bytes(data)
    assert compile(data, "f.py", "exec")
    code, out, error = call("exercises 5.1")
    assert (code, error) == (0, ""), out
    assert "passed · 05-network" in out
    assert call("exercises")[0] == 0  # what was kept is read again


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"x = 1\n\0", "line 2, byte 1: a NUL byte; "),
        (RIGHT.encode("utf-16"), "is UTF-16, which Python does not read"),
        (b"# coding: none\n", "unknown encoding: none"),
        (b"# coding: ascii\n# \xfc", "is not ascii as it says"),
    ],
)
def test_what_python_does_not_read_is_one_line_and_ends_no_watching(
    call, capfd, data, words
):
    FILE.parent.mkdir()
    FILE.write_bytes(data)
    code, out, error = call("exercises 5.1")
    assert (code, out) == (2, "")
    assert re.fullmatch(rf"annotated: {FILE}.*\n", error)
    assert words in error

    def student():
        assert words in capfd.readouterr().out
        write(RIGHT)
        yield ""
        assert "passed · 05-network" in capfd.readouterr().out

    _watch(
        _Session(Workspace.here(), EXERCISE, FILE, [EXERCISE]), student()
    )


def test_the_list_can_begin_later_and_milestones_are_listed(call):
    out = call("exercises --from 16")[1]
    assert "16-greedy" in out
    assert "14-step" not in out
    out = call("milestone")[1]
    assert "1  the model equals that of torch.nn" in out
    assert len(out.splitlines()) == len(MILESTONES)  # a line each


def test_hints_and_solution_and_a_new_beginning(call):
    assert "Hint 1 of" in call("exercises 5.1 --hint")[1]
    assert "has not passed yet" in call("exercises 5.1 --solution")[1]
    assert "class FeedForward" in call("exercises 5.1 --solution")[1]
    write(RIGHT)
    call("exercises 5.1")
    assert call("exercises 5.1 --reset")[0] == 0
    assert not Workspace.here().parts()
    assert "raise NotImplementedError" in FILE.read_text()
    assert Path("exercises/05-network.1.old").read_text() == RIGHT


def test_an_endless_loop_and_one_that_waits_are_ended():
    loop = f"{RIGHT}\nwhile True:\n    pass\n"
    verdict = examined(EXERCISE, loop, "f.py", limit=0.2)
    assert verdict.outcome == "too slow"
    waits = f"{RIGHT}\nimport time\ntime.sleep(99)\n"
    verdict = examined(EXERCISE, waits, "f.py", wall=0.3)
    assert "stopped after 0.3 s" in verdict.text


def test_what_a_file_starts_ends_with_it():
    """Else a process that it forks would hold the terminal."""
    code = "import os, time\nif os.fork() == 0:\n    time.sleep(600)\n"
    into, out = os.pipe()  # which the processes inherit
    assert examined(EXERCISE, code, "f.py").outcome == "not attempted"
    os.close(out)
    ended, _, _ = select.select([into], [], [], 30)
    os.close(into)
    assert ended


def test_a_session_checks_after_each_saving_and_moves_on_when_told(capfd):
    session = _Session(
        Workspace.here(),
        EXERCISE,
        FILE,
        [EXERCISE, exercises()["07-sinusoids"]],
    )
    session.begin()

    def student():
        assert "not attempted" in capfd.readouterr().out
        yield ""
        assert not capfd.readouterr().out
        write(WRONG)
        yield ""
        assert "wrong · 05-network" in capfd.readouterr().out
        yield "h"
        assert "Hint 1" in capfd.readouterr().out
        yield "x"  # no key of ours
        assert not capfd.readouterr().out
        FILE.unlink()  # as some editors do for a moment
        yield ""
        assert not capfd.readouterr().out
        write(RIGHT)
        yield ""
        assert "passed · 05-network" in capfd.readouterr().out
        assert session.name == NAME
        yield "n"
        assert session.path == _usual_file(exercises()["07-sinusoids"])
        assert "not attempted · 07" in capfd.readouterr().out
        yield "l"
        assert "1 of 2 passed" in capfd.readouterr().out
        yield "q"
        raise AssertionError("q ends it")

    _watch(session, student())


def test_what_is_saved_during_a_check_is_checked_next(capfd, monkeypatch):
    write(WRONG)
    session = _Session(Workspace.here(), EXERCISE, FILE, [EXERCISE])
    check = session.check

    def saved_meanwhile():
        monkeypatch.setattr(session, "check", check)
        check()
        write(RIGHT)

    monkeypatch.setattr(session, "check", saved_meanwhile)
    _watch(session, iter(["", "q"]))
    assert "passed · 05-network" in capfd.readouterr().out


def test_where_nothing_can_be_written_the_verdict_stands(call, monkeypatch):
    def full(*args, **kwargs):
        raise OSError("the disk is full")

    monkeypatch.setattr(course, "write_json", full)
    write(RIGHT)
    code, out, _ = call("exercises 5.1")
    assert code == 0
    assert "passed" in out
    assert "Nothing is remembered: the disk is full" in out


def test_a_terminal_watches_the_file_and_reads_keys():
    pty = pytest.importorskip("pty")
    write(WRONG)
    parent, child = pty.openpty()
    line = [sys.executable, "-m", "annotated", "exercises", "5.1"]
    done = subprocess.Popen(
        line, stdin=child, stdout=child, stderr=child, env=environment()
    )
    os.close(child)
    said = ""

    def until(words):
        nonlocal said
        while words not in said:
            ready, _, _ = select.select([parent], [], [], 60)
            assert ready
            said += os.read(parent, 65536).decode()
        said = ""

    try:
        until("Watching")
        write(RIGHT)
        until("passed · 05-network")
        os.write(parent, b"q")
        assert done.wait(60) == 0
    finally:
        done.kill()
        done.wait()
        os.close(parent)


# --- the questions of the study guide


def asked(call, monkeypatch, line, said):
    monkeypatch.setattr(sys, "stdin", io.StringIO(said))
    return call(f"questions {line}")


def test_the_first_answer_counts_and_is_remembered(call, monkeypatch):
    """2a: its first choice is right, its others are not."""
    assert terminal._questions()["2a"].right == 0
    code, out, error = asked(call, monkeypatch, "2a", "x\nc\na\n")
    assert (code, error) == (0, "")
    wrong, right = out.index("Not so: a dictionary"), out.index("Right: a")
    assert wrong < right
    assert "0 of 1 right at the first answer." in out
    assert asked(call, monkeypatch, "2a", "a\n")[1].count("1 of 1 right")
    assert "02  3 questions, 1 answered, 0 right" in call("questions")[1]


def test_a_question_can_be_left_out_and_the_rest_with_it(call, monkeypatch):
    out = asked(call, monkeypatch, "02", "\nb\n")[1]
    assert "2a ·" in out
    assert "2c ·" in out
    assert "0 of 3 right at the first answer." in out
    assert "02  3 questions, 1 answered, 0 right" in call("questions")[1]


@pytest.mark.parametrize("which", ["99", "2z", "x", "0x"])
def test_a_question_that_is_not_there(call, which):
    code, out, error = call(f"questions {which}")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"annotated: unknown page .*\n", error)


def test_a_folder_that_cannot_be_written_costs_the_memory(
    call, monkeypatch
):
    Path("mine").write_text("in the way")
    out = asked(call, monkeypatch, "2a", "a\n")[1]
    assert "Nothing is remembered" in out
    assert "1 of 1 right" in out


def test_questions_are_read_without_marks():
    for question in terminal._questions().values():
        parts = [question.title, question.text]
        parts += [part for choice in question.choices for part in choice]
        for part in parts:
            text = terminal._plain(part)
            assert not re.search(r"[\\$`*{}]", text), text
            assert max(map(len, text.splitlines())) <= terminal._WIDTH


def test_what_a_check_needs_is_loaded_before_the_first_fork(
    monkeypatch, capfd
):
    seen, real = [], examiner.examined

    def noted(*given, **more):
        seen.append(examiner.warm.cache_info().currsize)
        return real(*given, **more)

    examiner.warm.cache_clear()
    monkeypatch.setattr(examiner, "examined", noted)
    exercise = exercises()["03-causal"]
    session = _Session(
        Workspace.here(), exercise, _usual_file(exercise), [exercise]
    )
    session.begin()
    _watch(session, iter([]))
    assert seen == [1]


def test_a_windows_console_gives_its_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An arrow is two codes, and no key; Ctrl-Z ends."""
    pressed = ["c", "\xe0", "n", "n", "\x1a", "never"]
    waits = [True, False, *[True] * 4]
    monkeypatch.setitem(
        sys.modules,
        "msvcrt",
        SimpleNamespace(
            kbhit=lambda: waits.pop(0), getwch=lambda: pressed.pop(0)
        ),
    )
    monkeypatch.setattr(terminal.time, "sleep", lambda _: None)
    assert list(terminal._console_keys()) == ["c", "", "n"]
    assert pressed == ["never"]
