"""Make the sources those of a version: `python -m press release 0.1.0`.

A version such as 0.2.0.dev0 stands between two releases: what is made from
it installs and links main; what is made from a release, that release.
"""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

from press.chapters import PressError

VERSION = re.compile(r"\d+\.\d+\.\d+(\.dev0)?")
COMING = "not yet released"


def release(root: Path, version: str, today: date) -> list[str]:
    """Write the version, and the day of a release, wherever it stands."""
    if not VERSION.fullmatch(version):
        raise PressError(f"{version}: a version is 0.2.0, or 0.2.0.dev0")
    coming, number = (
        version.endswith(".dev0"),
        version.removesuffix(".dev0"),
    )
    day = "" if coming else f"\ndate-released: {today.isoformat()}"
    heading = f"## {number}, {COMING}"
    if coming:
        changes = r"\A# Changes\n", f"# Changes\n\n{heading}\n"
    else:
        begun, project = COMING, root / "pyproject.toml"
        if f'\nversion = "{version}"\n' in project.read_text("utf-8"):
            begun += r"|\d{4}-\d\d-\d\d"  # and then a page had a fault
        changes = (
            rf"^## {re.escape(number)}, (?:{begun})$",
            f"## {number}, {today.isoformat()}",
        )
    texts: dict[Path, str] = {}
    for name, pattern, text in (
        ("pyproject.toml", '^version = ".+"$', f'version = "{version}"'),
        (
            "book/00-preface.md",
            '^__version__ = ".+"$',
            f'__version__ = "{version}"',
        ),
        (
            "CITATION.cff",
            r"^version: .+$(?:\ndate-released: .+$)?",
            f"version: {version}{day}",
        ),
        ("CHANGELOG.md", *changes),
    ):
        path = root / name
        before = path.read_text(encoding="utf-8")
        if name == "CHANGELOG.md" and coming and heading in before:
            continue
        after, count = re.subn(pattern, text, before, count=1, flags=re.M)
        if not count:
            raise PressError(
                f"{name} has no line for the version {version}"
            )
        texts[path] = after
    for path, text in texts.items():  # all of them, or none
        path.write_text(text, encoding="utf-8", newline="\n")
    return [f"wrote {path.relative_to(root).as_posix()}" for path in texts]
