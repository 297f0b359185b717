"""benchmarks/compile_versions.py asks each version once, and goes on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from annotated.engine import compiler
from annotated.engine.parts import PartsConfig
from tests.helpers import benchmark


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with benchmark("compile_versions") as script:
        yield script


Asked = list[tuple[str, str, str]]


@pytest.fixture
def asked(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Torch 2.11 is wrong, 2.9 has no wheel; the rest is right."""
    seen: Asked = []

    def make(place: Path, version: str, _: Any) -> str:
        if version == "2.9.0":
            raise subprocess.CalledProcessError(1, "pip")
        place.mkdir(parents=True)
        return f"python of {version}"

    def ask(python: str, kind: str, precision: str, _: str) -> Any:
        seen.append((python.split()[-1], kind, precision))
        wrong = ["w"] if "2.11" in python else []
        return {"wrong": wrong, "about": {"torch": "2.x"}}

    monkeypatch.setattr(script, "environment", make)
    monkeypatch.setattr(script, "ask", ask)
    return seen


def test_versions_are_asked_one_at_a_time_and_go_on_where_one_cannot_be_had(
    script: ModuleType, asked: Asked, tmp_path: Path, capsys: Any
) -> None:
    out, folder = tmp_path / "v.json", tmp_path / "environments"
    call = [f"--out={out}", f"--folder={folder}", "--kinds", "windows"]
    call += ["--versions", "2.3.1", "2.9.0", "2.11.0"]
    assert script.main(call) == 1
    said = capsys.readouterr().out.splitlines()[-3:]
    assert said[0] == "2.3.1: right"
    assert said[1].startswith("2.9.0: CalledProcessError")
    assert said[2] == "2.11.0: wrong in 2 of 2"
    assert [each[0] for each in asked] == ["2.3.1"] * 2 + ["2.11.0"] * 2
    assert [*folder.iterdir()] == []  # wheels are large
    known = json.loads(out.read_text())["metrics"]["versions"]
    assert known["2.11.0"]["torch"] == "2.x"
    assert known["2.11.0"]["kinds"]["windows"]["float32"] == {
        "wrong": ["w"]
    }


def test_a_second_call_asks_only_what_is_not_known(
    script: ModuleType, asked: Asked, tmp_path: Path
) -> None:
    call = [f"--out={tmp_path / 'v.json'}", "--versions", "2.3.1"]
    call += [f"--folder={tmp_path}", "--precisions", "float32", "--kinds"]
    for kinds in (["windows"], ["windows"], ["windows", "pre-norm"]):
        assert script.main([*call, *kinds]) == 0
    assert [each[1] for each in asked] == ["windows", "pre-norm"]


def test_the_newest_has_its_number_and_what_does_not_compile_is_said(
    script: ModuleType, asked: Asked, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: Any,
) -> None:  # fmt: skip
    def ask(python: str, kind: str, precision: str, _: str) -> Any:
        if precision == "float32":
            return {"wrong": []}
        return {"error": "no such operation"}

    monkeypatch.setattr(script, "version_of", lambda python: "2.99.1")
    monkeypatch.setattr(script, "ask", ask)
    out = tmp_path / "v.json"
    call = [f"--out={out}", f"--folder={tmp_path / 'environments'}"]
    assert script.main([*call, "--versions", "newest"]) == 1
    [said] = capsys.readouterr().out.splitlines()[-1:]
    assert said == "2.99.1: right in 5, else no such operation"
    assert [*json.loads(out.read_text())["metrics"]["versions"]] == [
        "2.99.1"
    ]


def test_a_newest_that_could_not_be_had_is_forgotten_when_it_can(
    script: ModuleType, asked: Asked, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    make = script.environment
    out = tmp_path / "v.json"
    call = [f"--out={out}", f"--folder={tmp_path / 'environments'}"]
    call += ["--versions", "newest", "--kinds", "windows"]

    def fail(*_: Any) -> str:
        raise subprocess.CalledProcessError(1, "pip")

    monkeypatch.setattr(script, "environment", fail)
    monkeypatch.setattr(script, "version_of", lambda python: "2.99.1")
    assert script.main(call) == 1
    monkeypatch.setattr(script, "environment", make)
    assert script.main(call) == 0
    assert [*json.loads(out.read_text())["metrics"]["versions"]] == [
        "2.99.1"
    ]


def test_an_answer_that_does_not_come_is_noted(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: Any, **__: Any) -> Any:
        return subprocess.CompletedProcess([], -11, "", "a\nsegfault\n")

    monkeypatch.setattr(script.subprocess, "run", run)
    told = script.ask("python", "windows", "float32", "cpu")
    assert told == {"error": "exit code -11: segfault"}


@pytest.mark.parametrize("kind", ["the paper's", "chapter 26's", "windows"])
def test_an_interpreter_answers_for_the_kind_it_is_asked(
    script: ModuleType, monkeypatch: Any, capsys: Any, kind: str
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(
        compiler, "wrong_gradients", lambda *how: given.append(how) or ["w"]
    )
    call = ["--ask", "--kinds", kind, "--precisions", "bfloat16"]
    assert script.main(call) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["wrong"] == ["w"] and told["about"]["torch"]
    ((config, precision, device),) = given
    assert isinstance(config, PartsConfig)
    assert (precision, device) == ("bfloat16", "cpu")
    for field, value in script.KINDS[kind].items():
        assert getattr(config, field) == value
