"""What readers type, and whether the page that answers it comes first."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from press.search import sections
from press.site import is_current
from tests.press.conftest import Book

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
SCRIPTS = (
    "language_data.js", "asked.js", "index.js", "rank.js",
)  # fmt: skip
FILED = re.compile(r'^  "([^"]+)": "([^"]+)",$', re.M)  # in asked.js
REFERENCE = ("annotated.", "api-")


@pytest.fixture(scope="module")
def pages() -> Path:
    if not is_current(ROOT):
        pytest.skip("site/ is not current: run `make book` first")
    return ROOT / "site"


@pytest.fixture(scope="module")
def wanted() -> dict[str, list[str]]:
    """Good answers, by query."""
    text = (HERE / "queries.yml").read_text(encoding="utf-8")
    return {
        str(query): [pages] if isinstance(pages, str) else pages
        for query, pages in yaml.safe_load(text).items()
    }


def listed(*paths: Path) -> list[tuple[str, str, list[str]]]:
    """Who asks, what, and the good answers."""
    lines = [
        line.split("\t")
        for path in paths
        for line in path.read_text("utf-8").splitlines()
        if line[0] != "#"
    ]
    return [(who, what, right.split(" | ")) for who, what, right in lines]


@pytest.fixture(scope="module")
def readers() -> dict[str, list[str]]:
    """Good answers to those who do not know the book, by query."""
    lines = listed(*HERE.glob("readers*.tsv"))
    assert len(lines) == 140
    return {query: right for _, query, right in lines}


def in_halves(name: str, size: int) -> dict[str, dict[str, list[str]]]:
    """Good answers by half and query, of a table with as many in each."""
    found: dict[str, dict[str, list[str]]] = {"first": {}, "second": {}}
    for half, query, right in listed(HERE / name):
        found[half][query] = right
    assert [len(half) for half in found.values()] == [size, size]
    return found


@pytest.fixture(scope="module")
def halves() -> dict[str, dict[str, list[str]]]:
    """Sixty more: those that the search was mended on, and the others."""
    return in_halves("held_out.tsv", 30)


@pytest.fixture(scope="module")
def fifth() -> list[tuple[str, list[str]]]:
    """Eighty more: every other chose the weight of the questions."""
    lines = [
        (query, right) for _, query, right in listed(HERE / "fifth.tsv")
    ]
    assert len(lines) == 80
    return lines


@pytest.fixture(scope="module")
def unseen() -> dict[str, dict[str, dict[str, list[str]]]]:
    """Two tables of sixty and sixty; the ranking was chosen on neither."""
    return {
        name: in_halves(f"{name}.tsv", 60) for name in ("sixth", "seventh")
    }


@pytest.fixture(scope="module")
def headings(pages: Path) -> dict[str, str]:
    """page#heading by page#anchor; the top of a page is the page."""
    found = {}
    for name in ("sections.js", "sections-more.js"):
        text = (pages / "_static" / name).read_text(encoding="utf-8")
        rows, _ = json.JSONDecoder().raw_decode(text[text.index("[") :])
        for file, _, anchor, title, *_ in rows:
            page = file.removesuffix(".html")
            found[page + anchor] = f"{page}#{title}" if anchor else page
    return found


@pytest.fixture(scope="module")
def found(
    pages: Path,
    wanted: dict[str, list[str]],
    readers: dict[str, list[str]],
    halves: dict[str, dict[str, list[str]]],
    fifth: list[tuple[str, list[str]]],
    unseen: dict[str, dict[str, dict[str, list[str]]]],
) -> dict[str, list[str]]:
    """What search.html would show, by query."""
    tables = [halves, *unseen.values()]
    both = [half for table in tables for half in table.values()]
    more = [query for half in both for query in half]
    more += [query for query, _ in fifth]
    return ranked(pages / "_static", [*wanted, *readers, *more])


def ranked(static: Path, queries: list[str]) -> dict[str, list[str]]:
    """The places that these scripts find, the best first, by query."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    command = [node, HERE / "rank.mjs", static, json.dumps(queries)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True
    )
    return dict(zip(queries, json.loads(done.stdout), strict=True))


def place(results: list[str], answers: list[str]) -> int:
    """Of the first good answer, from 1; 0 if there is none."""
    for number, result in enumerate(results, 1):
        if result in answers or result.partition("#")[0] in answers:
            return number
    return 0


def test_the_first_answer_does_not_wait_for_all_pages(pages: Path) -> None:
    """What is loaded before it, as a server sends it."""
    names = (*SCRIPTS, "sections.js", "search.js")
    texts = [(pages / "_static" / name).read_bytes() for name in names]
    assert sum(len(gzip.compress(text, 6)) for text in texts) < 500_000


def test_every_answer_is_there(
    pages: Path, wanted: dict[str, list[str]]
) -> None:
    for answer in {a for answers in wanted.values() for a in answers}:
        name, _, anchor = answer.partition("#")
        text = (pages / f"{name}.html").read_text(encoding="utf-8")
        assert not anchor or f'id="{anchor}"' in text, answer


def test_the_page_that_answers_comes_first(
    wanted: dict[str, list[str]], found: dict[str, list[str]]
) -> None:
    places = {q: place(found[q], answers) for q, answers in wanted.items()}
    behind = {
        query: (number, found[query][:3])
        for query, number in places.items()
        if number != 1
    }
    first = sum(number == 1 for number in places.values())
    near = sum(1 <= number <= 3 for number in places.values())
    assert first >= 0.93 * len(wanted), behind
    assert near >= 0.97 * len(wanted), behind


def test_the_right_section_comes_first_for_whoever_does_not_know_the_book(
    readers: dict[str, list[str]],
    headings: dict[str, str],
    found: dict[str, list[str]],
) -> None:
    """The section itself, not its page."""
    assert {a for places in readers.values() for a in places} <= {
        *headings.values()
    }
    behind = {
        query: [headings[place] for place in found[query][:3]]
        for query, right in readers.items()
        if not found[query] or headings[found[query][0]] not in right
    }
    assert len(behind) <= 0.1 * len(readers), behind


@pytest.mark.parametrize(("half", "least"), [("first", 24), ("second", 22)])
def test_queries_that_no_name_was_chosen_for_find_their_section_less_often(
    halves: dict[str, dict[str, list[str]]],
    headings: dict[str, str],
    found: dict[str, list[str]],
    half: str,
    least: int,
) -> None:
    """How often, of thirty: the second half is what a reader meets."""
    asked = halves[half]
    assert {a for right in asked.values() for a in right} <= {
        *headings.values()
    }
    behind = {
        query: [headings[place] for place in found[query][:3]]
        for query, right in asked.items()
        if not found[query] or headings[found[query][0]] not in right
    }
    assert len(asked) - len(behind) >= least, behind


@pytest.mark.parametrize(
    ("half", "first", "three"), [(0, 32, 38), (1, 25, 34)]
)
def test_questions_bring_the_section_among_the_first_three(
    fifth: list[tuple[str, list[str]]],
    headings: dict[str, str],
    found: dict[str, list[str]],
    half: int,
    first: int,
    three: int,
) -> None:
    """Of forty; without the questions it was 24 and 32 of the second."""
    assert {a for _, right in fifth for a in right} <= {*headings.values()}
    places = [
        [headings[place] in right for place in found[query][:3]]
        for query, right in fifth[half::2]
    ]
    assert sum(ranks[0] for ranks in places) >= first
    assert sum(map(any, places)) >= three


@pytest.mark.parametrize(
    ("name", "half", "first", "three"),
    [
        ("sixth", "first", 47, 56),
        ("sixth", "second", 54, 56),
        ("seventh", "first", 46, 55),
        ("seventh", "second", 47, 54),
    ],
)
def test_queries_that_nothing_was_chosen_on_find_their_section(
    unseen: dict[str, dict[str, dict[str, list[str]]]],
    headings: dict[str, str],
    found: dict[str, list[str]],
    name: str,
    half: str,
    first: int,
    three: int,
) -> None:
    """Of sixty: when they were asked, 48 and 57, 55 and 57; 47 and 56, 48
    and 55.
    """
    asked = unseen[name][half]
    assert {a for right in asked.values() for a in right} <= {
        *headings.values()
    }
    places = [
        [headings[place] in right for place in found[query][:3]]
        for query, right in asked.items()
    ]
    assert sum(hits[:1] == [True] for hits in places) >= first
    assert sum(map(any, places)) >= three


def test_questions_are_of_sections_that_are_there_and_of_no_test(
    wanted: dict[str, list[str]],
    readers: dict[str, list[str]],
    headings: dict[str, str],
    found: dict[str, list[str]],
) -> None:
    text = (ROOT / "book/_static/questions.tsv").read_text("utf-8")
    asked = dict(line.split("\t") for line in text.splitlines())
    assert asked.keys() <= headings.keys()
    assert len(asked) == len(text.splitlines()) > 600
    questions = {
        one.lower() for all_ in asked.values() for one in all_.split("; ")
    }
    queries = {query.lower().rstrip("?") for query in found}
    assert [q for q in questions & queries if len(q.split()) > 2] == []


def test_names_of_sections_are_names_of_sections_that_are_there(
    wanted: dict[str, list[str]],
    readers: dict[str, list[str]],
    headings: dict[str, str],
) -> None:
    """And name things: who listed the queries would learn nothing."""
    text = (ROOT / "book/_static/asked.js").read_text(encoding="utf-8")
    filed = FILED.findall(text)
    assert len(filed) == len(text.splitlines()) - text.count("//") - 2
    assert {place for place, _ in filed} <= headings.keys()
    names = {
        name.lower() for _, names in filed for name in names.split(", ")
    }
    queries = {query.lower().rstrip("?") for query in {**wanted, **readers}}
    assert [n for n in names & queries if len(n.split()) > 2] == []


def test_the_reference_stands_behind_the_chapters(
    wanted: dict[str, list[str]], found: dict[str, list[str]]
) -> None:
    """Also for the names that it lists, which are taught in a chapter."""
    before = {
        query: results[0]
        for query, results in found.items()
        if results[0].startswith(REFERENCE)
        and not any(a.startswith(REFERENCE) for a in wanted.get(query, []))
    }
    assert before == {}


def test_a_query_is_a_question_and_not_a_list_of_words(
    built: Book, tmp_path: Path
) -> None:
    """In a book of two pages, a question of each kind."""
    book = {
        "03-masks": [
            ("", "Masks", "A mask hides keys from a query."),
            ("#exercises", "Exercises", "Draw a mask: what is hidden?"),
        ],
        "26-since": [
            ("", "Since then", "What has changed."),
            ("#heads", "Many ask, few are asked", "Queries share keys."),
            ("#gate", "A gate opens", "A unit is multiplied by a gate."),
            ("#piece", "Pieces", "A word falls into pieces, word by word."),
            ("#more", "More pieces", "Of a word, and of another word."),
            ("#last", "The last", "A word, and the pieces of it."),
            ("#own", "Left open", "A lock, a lock: it is left out."),
            (
                "#lock",
                "The key and its lock",
                "A key opens a lock. A gate has a lock, too.",
            ),
            ("#name", "By name", "As d_k is set, so is β."),
            ("#apart", "D, then k", "Now d, then k: d, k. It latches."),
        ],
        "A1-notation": [
            ("", "Glossary", "The words."),
            ("#words", "Words", "Latch: what holds a door."),
        ],
    }
    rows = [
        [f"{page}.html", parts[0][1], anchor, title, text, "", "", ""]
        for page, parts in book.items()
        for anchor, title, text in parts
    ]
    taught = [
        ["grouped-query attention", "26-since.html", "#heads"],
        ["no open lock", "26-since.html", "#own"],
    ]
    (tmp_path / "sections.js").write_text(
        f"const SECTIONS = {json.dumps(rows)};\n"
        f"const TAUGHT = {json.dumps(taught)};\n"
    )
    (tmp_path / "sections-more.js").write_text("const MORE = [];\n")
    for name in SCRIPTS:
        shutil.copy(built.root / "site/_static" / name, tmp_path / name)
    right = {
        "why does my gate open so rarely at night": "26-since#gate",
        "gaet": "26-since#gate",  # a slip of the hand
        "wordpieces": "26-since#piece",  # two words in one
        "GQA": "26-since#heads",  # initials
        "an exercise about masks": "03-masks#exercises",
        "masks": "03-masks",
        "open lock": "26-since#lock",  # and not what has none
        "d_k": "26-since#name",  # one name
        "beta": "26-since#name",
        "meaning of latch": "A1-notation#words",
        "gate vs lock": "26-since#lock",
        "the masc": "03-masks",  # mended, it is the title
    }
    found = ranked(tmp_path, [*right])
    assert {query: places[:1] for query, places in found.items()} == {
        query: [place] for query, place in right.items()
    }


def test_a_section_is_found_by_what_readers_ask_of_it(built: Book) -> None:
    """In words that it does not use."""
    queries = ["scroll sideways", "where can i scroll it sideways"]
    found = ranked(built.root / "site/_static", queries)
    assert {places[0] for places in found.values()} == {
        "03-two#what-is-wide"
    }
    assert not (built.root / "site/_static/questions.tsv").exists()


def test_what_was_pasted_has_no_slips_of_the_hand(built: Book) -> None:
    """To look for them in a page of text would stop the page for long."""
    slip, pasted = "sidewayz", " ".join(f"zq{n}wordly" for n in range(12))
    queries = [slip, f"{pasted} {slip}", f"{pasted} sideways"]
    alone, slipped, right = ranked(
        built.root / "site/_static", queries
    ).values()
    assert "03-two#what-is-wide" in alone and alone[0] in right
    assert slipped == []


def test_words_of_the_glossary_lead_to_what_builds_them() -> None:
    page = (
        "<table><tr><th>word</th><th>built</th></tr>"
        "<tr><td><p>causal mask (triangle)</p></td><td>"
        '<a href="03-masks.html#the-future">x</a>'
        '<a href="04-more.html#y">y</a></td></tr>'
        '<tr><td>loss</td><td><a href="https://x.org">z</a></td></tr>'
        "</table>"
    )
    made = sections({"A1-notation.html": page.encode()})
    script = made["sections.js"].decode()
    there = ["03-masks.html", "#the-future"]
    assert json.loads(
        script.partition("const TAUGHT = ")[2].rstrip(";\n")
    ) == [["causal mask", *there], ["triangle", *there]]
