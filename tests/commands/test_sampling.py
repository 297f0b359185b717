"""Translations drawn from the command line."""

import json

import pytest

from tests.commands.conftest import Call

LINES = "Anna schläft .\n\nDie Hunde schlafen .\n".encode()


def test_draws_are_those_of_the_seed_whatever_stands_beside(
    call: Call,
) -> None:
    line = (
        "translate --run pocket --precision float32 --json --nbest 4 "
        "--sample --temperature 3 --top-k 50"
    )

    def texts(options: str, stdin: bytes) -> list[list[str]]:
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
    ],
)
def test_what_does_not_go_together_is_refused(
    call: Call, options: str, told: str
) -> None:
    done = call(f"translate --run pocket {options} 'Anna schläft .'")
    assert told in done.complaint
