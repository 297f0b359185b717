"""annotated score: translations that exist, as probable as a run finds
them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from annotated.corpora.synthetic import synthetic_pairs
from tests.commands.conftest import Call

KEYS = ["line", "score", "log_probability", "tokens", "log_probabilities"]
POCKET = "--run pocket --precision float32"


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sources of Pocket German in a file src, one of them blank."""
    monkeypatch.chdir(tmp_path)
    src, _ = synthetic_pairs("pocket", "test", count=12, seed=0)
    src.insert(3, "")
    Path("src").write_text("".join(f"{line}\n" for line in src), "utf-8")
    return src


@pytest.mark.parametrize("vote", ["", "--ensemble pocket"])
def test_a_search_and_a_score_say_the_same(
    call: Call, texts: list[str], vote: str
) -> None:
    stdin = Path("src").read_bytes()
    said = call(f"translate {POCKET} {vote} --json", stdin).out
    best = [json.loads(x)["translations"][0] for x in said.splitlines()]
    target = "".join(f"{one['text']}\n" for one in best)
    Path("tgt").write_text(target, "utf-8")

    done = call(f"score {POCKET} {vote} --src src --tgt tgt --json")
    assert done.code == 0
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["line"] for row in rows] == [*range(len(texts))]
    for one, row in zip(best, rows, strict=True):
        assert list(row) == KEYS
        for key in ("score", "log_probability"):
            assert row[key] == pytest.approx(one[key], abs=1e-4)
        end = ["</s>"] * bool(one["text"])
        assert row["tokens"] == one["text"].split() + end
        total = sum(row["log_probabilities"])
        assert row["log_probability"] == pytest.approx(total, abs=1e-6)


def test_lines_and_the_perplexity(call: Call, texts: list[str]) -> None:
    options = f"score {POCKET} --src src --tgt src"
    rows = [
        json.loads(x) for x in call(f"{options} --json").out.splitlines()
    ]
    done = call(options)
    assert done.out.splitlines() == [
        f"{row['score']:.4f}\t{row['log_probability']:.4f}" for row in rows
    ]
    tokens = sum(len(row["tokens"]) for row in rows)
    nll = -sum(row["log_probability"] for row in rows) / tokens
    assert done.err.splitlines()[-1] == (
        f"12 pairs, {tokens:,} tokens with their ends: perplexity "
        f"{math.exp(nll):.4g} per token; apart from 1 with a blank side"
    )
    flat = call(f"{options} --alpha 0").out.splitlines()
    for row, line in zip(rows, flat, strict=True):
        assert line.split() == [f"{row['log_probability']:.4f}"] * 2


def test_a_long_file_is_read_piece_by_piece(
    call: Call, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = f"score {POCKET} --src src --tgt src"
    whole = call(options).out
    Path("long").write_text("Anna\n" * 12 + "Anna " * 5000, "utf-8")
    monkeypatch.setattr("annotated.commands.score._CHUNK", 5)
    parts = call(f"{options} --batch-tokens 1")
    assert parts.code == 0
    for one, other in zip(whole.split(), parts.out.split(), strict=True):
        assert float(one) == pytest.approx(float(other), abs=2e-4)
    # what comes before a pair that is too long has been written
    ended = call(f"score {POCKET} --src src --tgt long")
    assert (ended.code, len(ended.out.splitlines())) == (2, 10)
    assert "pair 13: its target has 5,000 tokens" in ended.err


def test_a_file_with_both_sides_is_both(
    call: Call, texts: list[str]
) -> None:
    table = "".join(f"{i}\t{x}\t{x}\n" for i, x in enumerate(texts))
    Path("both.tsv").write_text(table, "utf-8")
    two = call(f"score {POCKET} --src src --tgt src").out
    one = call(f"score {POCKET} --src both.tsv --columns 2 3").out
    assert one == two


def test_what_cannot_be_scored_is_refused(
    call: Call, texts: list[str]
) -> None:
    Path("short").write_text("Anna\n", "utf-8")
    line = f"score {POCKET} --src src --tgt"
    assert (
        "src has 13 lines but short has 1"
        in call(f"{line} short").complaint
    )
    long = "".join(f"{x}\n" for x in ["Anna", "Anna " * 5000, *texts[2:]])
    Path("long").write_text(long, "utf-8")
    told = call(f"{line} long").complaint
    assert "pair 2: its target has 5,000 tokens" in told
    assert (
        "leave columns out" in call(f"{line} short --columns 1 2").complaint
    )
    assert "there is no tag" in call(f"{line} src --tag '<x>'").complaint


def test_which_word_comes_from_which(call: Call, texts: list[str]) -> None:
    """translate and score say the same of the same translations."""
    stdin = Path("src").read_bytes()
    plain = call(f"translate {POCKET}", stdin).out
    done = call(f"translate {POCKET} --align", stdin).out
    both = [line.split("\t") for line in done.splitlines()]
    assert "".join(f"{text}\n" for text, _ in both) == plain
    Path("tgt").write_text(plain, "utf-8")
    rows = call(f"score {POCKET} --src src --tgt tgt --align").out
    links = [line.split("\t")[2] for line in rows.splitlines()]
    assert links == [link for _, link in both]
    said = call(f"translate {POCKET} --align --json --nbest 2", stdin).out
    scored = call(f"score {POCKET} --src src --tgt tgt --align --json").out
    for line, other, link in zip(
        said.splitlines(), scored.splitlines(), links, strict=True
    ):
        first, *_ = json.loads(line)["translations"]
        pairs = " ".join(f"{i}-{j}" for i, j in first["alignment"])
        assert pairs == link
        assert json.loads(other)["alignment"] == first["alignment"]
    ranks = call(f"translate {POCKET} --align --nbest 2", stdin).out
    assert all(line.count("\t") == 3 for line in ranks.splitlines())


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_fewer_bits_find_nearly_the_same(
    call: Call, texts: list[str], precision: str
) -> None:
    """As search is, where a processor has their instructions."""
    line = "score --run pocket --src src --tgt src --precision"
    full, few = (
        [float(row.split("\t")[0]) for row in call(x).out.splitlines()]
        for x in (f"{line} float32", f"{line} {precision}")
    )
    assert few == pytest.approx(full, rel=0.1)
