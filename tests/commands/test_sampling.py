"""Translations drawn from the command line."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from annotated.commands import translate as commands
from annotated.commands.translate import VoteOptions
from annotated.engine import mbr
from annotated.engine.runs import Run
from annotated.engine.search import Sampling
from annotated.engine.translate import Translation
from annotated.search import SearchConfig
from tests.commands.conftest import Call

LINES = "Anna schläft .\n\nDie Hunde schlafen .\n".encode()


def test_draws_are_those_of_the_seed_whatever_stands_beside(
    call: Call,
) -> None:
    line = (
        "translate --run pocket --precision float32 --json --nbest 4 "
        "--sample --temperature 3"
    )

    def texts(options: str, stdin: bytes) -> list[list[str]]:
        if "--top-k" not in options:
            options += " --top-k 50"
        done = call(f"{line} {options}", stdin)
        assert done.code == 0, done.err
        rows = [json.loads(row) for row in done.out.splitlines()]
        return [[x["text"] for x in r["translations"]] for r in rows]

    first = texts("", LINES)
    assert [len(some) for some in first] == [4, 1, 4]
    assert len({*first[0]}) > 1
    alone = texts("--seed 0 --workers 1", LINES.split(b"\n")[2])
    assert alone == first[2:]
    assert texts("--seed 1", LINES) != first
    assert texts("--top-p 0.01", LINES) == [
        [some[0]] * len(some) for some in texts("--top-k 1", LINES)
    ]


def test_draws_vote_for_one_of_the_beam(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = LINES.decode().splitlines()
    run = Run.open(Path("pocket"))
    search = run.recipe.search
    found = run.translate(lines, replace(search, nbest=search.beam))
    shape = {"extra": search.extra, "limit": search.limit}
    draws = run.translate(lines, Sampling(nbest=9, **shape))
    voted = mbr.by_risk(found, draws)
    expected = [[one.text for one in some] for some in voted]
    assert expected != [[one.text for one in some] for some in found]
    line = "translate --run pocket --precision float32 --mbr 9"
    rows = call(f"{line} --nbest 4 --json", LINES).out.splitlines()
    assert [
        [one["text"] for one in json.loads(row)["translations"]]
        for row in rows
    ] == expected
    monkeypatch.setattr(
        mbr, "by_risk", lambda found, _: [some[::-1] for some in found]
    )
    last = [some[-1].text for some in found]
    assert call(line, LINES).out.splitlines() == last
    for name, texts in (("src", lines), ("ref", last)):
        text = "".join(f"{row}\n" for row in texts)
        (tmp_path / name).write_text(text, encoding="utf-8")
    files = f"--src {tmp_path / 'src'} --ref {tmp_path / 'ref'}"
    done = call(f"{line.replace('translate', 'evaluate')} {files} --json")
    scores = json.loads(done.out)
    assert (scores["exact_match"], scores["mbr"]) == (100, 9)


def test_draws_begin_as_they_are_asked_to(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def look(found: list[Any], draws: list[Any]) -> list[Any]:
        seen.extend(one.text for each in draws for one in each)
        return found

    monkeypatch.setattr(mbr, "by_risk", look)
    line = "translate --run pocket --mbr 5 --prefix Dogs"
    done = call(f"{line} 'Die Hunde schlafen .'")
    assert done.out.startswith("Dogs")
    assert len(seen) == 5 and all(x.startswith("Dogs") for x in seen)


def test_what_has_all_placeholders_stays_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though all draws are without."""
    both = ["take {0} now please", "take now please"]

    def translate(lines: Any, search: Any, **_: Any) -> Any:
        drawn = isinstance(search, Sampling)
        texts = both[1:] * 9 if drawn else both
        return [[Translation(text, 0.0, 0.0) for text in texts]]

    run: Any = SimpleNamespace(
        source=None, translate=translate, model=torch.nn.Linear(1, 1)
    )
    vote = VoteOptions(run=Path("x"), mbr=9, workers=1)
    asked = run, ["nimm {0} jetzt"], SearchConfig(beam=2, nbest=2)
    for protected, order in ((False, both[::-1]), (True, both)):
        lost = [["{0}"]] if protected else []
        monkeypatch.setattr(
            commands, "missing",
            lambda _, __, texts, lost=lost: [] if "{0}" in texts[0] else lost,
        )  # fmt: skip
        [some] = vote.translate(*asked)
        assert [one.text for one in some] == order


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--temperature 2", "--temperature needs --sample"),
        ("--seed 0", "--seed needs --sample"),
        ("--sample --beam 2", "--sample does not go with --beam"),
        ("--sample --alpha 0", "--sample does not go with --alpha"),
        ("--sample --require dog", "does not go with --require"),
        ("--sample --glossary x", "does not go with --glossary"),
        ("--sample --ctranslate2", "does not go with --ctranslate2"),
        ("--sample --top-p 1.5", "top_p must be at most 1, not 1.5"),
        ("--sample --temperature 0", "temperature must be a positive"),
        ("--sample --nbest 0", "nbest must be an integer >= 1"),
        ("--sample --mbr 4", "--sample does not go with --mbr"),
        ("--mbr 9 --beam 1", "--mbr needs a beam of two or more"),
        ("--mbr 0", "mbr must be an integer >= 1"),
        ("--mbr 4 --ctranslate2", "--ctranslate2 does not know --mbr"),
    ],
)
def test_what_does_not_go_together_is_refused(
    call: Call, options: str, told: str
) -> None:
    done = call(f"translate --run pocket {options} 'Anna schläft .'")
    assert told in done.complaint
