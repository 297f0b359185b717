"""benchmarks/catalogues.py makes one corpus of many catalogues."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers import benchmark

polib = pytest.importorskip("polib")


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with benchmark("catalogues") as found:
        yield found


@pytest.fixture
def settings(script: ModuleType, tmp_path: Path) -> object:
    """Two catalogues: 300 messages each, of which 200 are in both, and 20
    that nobody has translated in one of them.
    """
    folder = tmp_path / "catalogues"
    folder.mkdir()
    for name, first in (("a", 0), ("b", 100)):
        catalogue = polib.MOFile()
        catalogue.metadata = {"Content-Type": "text/plain; charset=UTF-8"}
        catalogue += [
            polib.MOEntry(msgid=f"open %s {i}", msgstr=f"öffne %s {i}")
            for i in range(first, first + 300)
        ]
        if name == "a":
            catalogue += [
                polib.MOEntry(msgid=f"Name {i}", msgstr=f"Name {i}")
                for i in range(20)
            ]
        catalogue.save(str(folder / f"{name}.mo"))
    return script.Settings(folder=folder, hold_out=10)


def test_each_way_of_preparing_drops_what_it_says(
    script: ModuleType, settings: object, tmp_path: Path
) -> None:
    dropped = {
        way: script.prepared(settings, tmp_path, way)["splits"]["train"]
        for way in script.WAYS
    }
    assert {way: card["dropped"] for way, card in dropped.items()} == {
        "as it is": {},
        "dedup": {"the same pair again": 200},
        "clean": {"the same pair again": 200, "both sides the same": 20},
    }
    splits = script.divided(settings, tmp_path)
    assert sum(map(len, splits.values())) == 400
    assert len(splits["train"]) == dropped["clean"]["pairs"]
    found = script.looked_up(tmp_path / "clean")
    assert found["sentences"] == len(splits["test"]) > 0
    for line, source in zip(found["lines"]["nearest"], splits["test"]):
        assert "%s" in line and "%s" in source[0]


@pytest.mark.parametrize(
    ("line", "places"),
    [("%s is %-3d%%", ["%s", "%-3d"]), ("%1$s, %.*f", ["%1$s", "%.*f"]),
     ("%(name)s {0} {}", ["%(name)s", "{0}", "{}"]), ("100 % sure", []),
     ("50 %der", []), ("%zu of %lld", ["%zu", "%lld"])],
)  # fmt: skip
def test_a_placeholder_is_one_of_a_program(
    script: ModuleType, line: str, places: list[str]
) -> None:
    found = re.finditer("|".join(script.PLACES), line)
    assert [match[0] for match in found] == places
