"""benchmarks/first_minute.py: a visit is told by whoever visits."""

from __future__ import annotations

import json
import shlex
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers import benchmark

# a browser that runs no script, but tells what one would
VISITOR = """
import json, sys, urllib.request
page = urllib.request.urlopen(sys.argv[1]).read().decode()
told = {"agent": "a test", "said": page.count("told.translated"),
        **{t: 1.5 for t in ("ready", "moving", "learned", "trained",
                            "translated")}}
body = json.dumps(told).encode()
urllib.request.urlopen(sys.argv[1] + "told", body)
"""


@pytest.fixture(scope="module")
def minute() -> Iterator[ModuleType]:
    with benchmark("first_minute") as module:
        yield module


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "index.html").write_text("<body>Words.</body>", "utf-8")
    (tmp_path / "more.html").write_text("More.", "utf-8")
    return tmp_path


def test_the_first_page_has_the_script_and_no_other(
    minute: ModuleType, site: Path
) -> None:
    with minute.served(site) as (address, _):
        first, more = (
            urllib.request.urlopen(address + name).read().decode()
            for name in ("", "more.html")
        )
    assert first.startswith("<body>Words.") and first.endswith("</body>")
    assert f'field.value = "{minute.SENTENCE}"' in first
    assert more == "More."


def test_a_browser_that_is_named_is_asked(
    minute: ModuleType,
    site: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(minute, "found", dict)
    visitor = tmp_path / "visitor.py"
    visitor.write_text(VISITOR, "utf-8")
    words = [sys.executable, str(visitor), "{}"]
    command = f"own={shlex.join(words)}".replace("'{}'", "{}")
    settings = minute.Settings(site=site, browsers=(command,), rounds=2)
    minute.main(settings)
    [visit] = json.loads(capsys.readouterr().out).values()
    assert visit["agent"] == "a test" and visit["said"] == 1
    assert visit["learned"] == visit["translated"] == 1.5


def test_who_never_tells_is_named(minute: ModuleType, site: Path) -> None:
    command = shlex.join([sys.executable, "-c", "pass"])
    settings = minute.Settings(site=site, patience=1)
    with pytest.raises(SystemExit, match="not come to the end"):
        minute.visit(command, settings)


def test_without_a_site_or_a_browser_nothing_is_opened(
    minute: ModuleType, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minute, "found", dict)
    with pytest.raises(SystemExit, match="no browser was found"):
        minute.main(minute.Settings(site=site))
    with pytest.raises(SystemExit, match="make book"):
        minute.main(minute.Settings(site=site / "none"))
