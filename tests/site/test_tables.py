"""The two long ledgers are searched and sorted in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = """<!doctype html><html lang="en"><head><title>t</title>
<style>[hidden]{{display:none}}</style></head>
<body><article class="bd-article">{table}</article>
<script src="{script}"></script></body></html>"""
HEAD = "<thead><tr><th>what</th><th>where</th></tr></thead>"
PLAIN = "".join(
    f"<tr><td>{what}</td><td>{where}</td></tr>"
    for what, where in (
        ("warm-up", 12), ("dropout", 5), ("a norm", 5), ("Dropout, again", 2),
        ("beams", 16), ("a mask", 3),
    )
)  # fmt: skip
PARTS = "".join(
    f'<tbody class="section"><tr><th colspan="2">{name}</th></tr></tbody>'
    + "".join(
        f'<tbody><tr><td rowspan="2">{part}</td><td>{place}</td></tr>'
        f"<tr><td>{place} too</td></tr></tbody>"
        for part, place in parts
    )
    for name, parts in {
        "Model": [("3.2 p1", "02"), ("3.10 p1", "04")],
        "Training": [("3.1 p1", "07"), ("5.3 eq", "12")],
    }.items()
)


def write(folder: Path, name: str, table: str) -> str:
    page = folder / name
    script = (ROOT / "book/_static/book.js").as_uri()
    page.write_text(PAGE.format(table=table, script=script))
    return page.as_uri()


def column(page: Any) -> list[str]:
    cells = page.locator("tbody tr > :first-child:visible").all()
    return [cell.inner_text() for cell in cells]


def test_rows_are_found_and_sorted(browser: Any, tmp_path: Path) -> None:
    table = f"<table>{HEAD}<tbody>{PLAIN}</tbody></table>"
    page = browser.new_page()
    page.goto(write(tmp_path, "A3-deviations.html", table))
    said = page.locator(".table-search output")
    assert said.inner_text() == "6 rows"
    page.get_by_label("Show the rows with").focus()
    page.keyboard.type("DROP")
    assert said.inner_text() == "2 of 6 rows"
    assert column(page) == ["dropout", "Dropout, again"]
    page.keyboard.type("out 2")
    assert column(page) == ["Dropout, again"]
    page.get_by_label("Show the rows with").fill("")
    where = page.get_by_role("button", name="where")
    where.focus()
    page.keyboard.press("Enter")
    first = ["Dropout, again", "a mask", "dropout", "a norm"]
    assert column(page) == [*first, "warm-up", "beams"]
    head = page.get_by_role("columnheader", name="where")
    assert head.get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Enter")
    assert column(page)[0] == "beams"
    page.keyboard.press("Enter")
    assert column(page)[0] == "warm-up"
    assert head.get_attribute("aria-sort") is None
    page.close()


def test_effects_are_sorted_as_numbers(
    browser: Any, tmp_path: Path
) -> None:
    effects = ["+1.3 BLEU", "none: tested", "-0.1 nats", "−0.70 nats",
               "+0.005 nats, noise", "×1.5", "-0.01 nats"]  # fmt: skip
    rows = "".join(f"<tr><td>{one}</td><td>x</td></tr>" for one in effects)
    page = browser.new_page()
    table = f"<table>{HEAD}<tbody>{rows}</tbody></table>"
    page.goto(write(tmp_path, "A3-deviations.html", table))
    page.get_by_role("button", name="what").click()
    assert column(page)[:5] == [effects[n] for n in (3, 2, 6, 4, 0)]
    assert set(column(page)[5:]) == {"none: tested", "×1.5"}
    page.close()


def test_parts_of_several_rows_stay_together(
    browser: Any, tmp_path: Path
) -> None:
    page = browser.new_page()
    table = f"<table>{HEAD}{PARTS}</table>"
    page.goto(write(tmp_path, "A4-paper-map.html", table))
    said = page.locator(".table-search output")
    assert said.inner_text() == "8 rows"
    field = page.get_by_label("Show the rows with")
    field.fill("07")
    assert said.inner_text() == "2 of 8 rows"
    assert column(page) == ["Training", "3.1 p1", "07 too"]
    field.fill("")
    page.get_by_role("button", name="what").click()
    parts = [text for text in column(page) if " p" in text or "eq" in text]
    assert parts == ["3.1 p1", "3.2 p1", "3.10 p1", "5.3 eq"]
    assert page.get_by_text("Training").count() == 0
    button = page.get_by_role("button", name="what")
    button.click()
    button.click()
    assert column(page)[0] == "Model"
    page.close()


def test_other_pages_are_left_alone(browser: Any, tmp_path: Path) -> None:
    table = f"<table>{HEAD}<tbody>{PLAIN}</tbody></table>"
    page = browser.new_page()
    page.goto(write(tmp_path, "12-optimiser.html", table))
    assert page.locator(".table-search, .table-sort").count() == 0
    page.close()
