"""What an exercise says of its page is so."""

from __future__ import annotations

import re

import pytest

from annotated.school.exercises import exercises
from tests.helpers import ROOT

PAGES = {
    path.name.partition("-")[0]: path.read_text("utf-8")
    for path in (ROOT / "book").glob("*.md")
}


@pytest.mark.parametrize("name", exercises())
def test_the_section_that_it_belongs_to_exists(name: str) -> None:
    page, _, section = exercises()[name].section.partition(", ")
    outside = re.sub(r"^```.*?^```$", "", PAGES[page], flags=re.M | re.S)
    headings = re.findall(r"^##+ (.+)$", outside, re.M)
    assert section in [h.replace("`", "") for h in headings]
