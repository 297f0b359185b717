"""How to cite a page: its title, the book's version, commit and address."""

from __future__ import annotations

import html
import re
import subprocess
from pathlib import Path

from press.project import TITLE, Project, read_project

FACTS = 'class="chapter-facts"'  # what a page of the book begins with
HEADING = re.compile(
    r"<title>(.*?)(?: [—·|] Attention, Annotated)?</title>"
)


def cited(root: Path, pages: dict[str, bytes]) -> dict[str, bytes]:
    """The pages, each with a line at its end that says how to cite it."""
    project, commit = read_project(root), commit_of(root)
    done = dict(pages)
    for name, data in pages.items():
        if not name.endswith(".html"):
            continue
        text = data.decode("utf-8")
        if FACTS in text and (heading := HEADING.search(text)):
            line = reference(project, heading[1], name, commit)
            before, end, after = text.rpartition("</article>")
            done[name] = f"{before}{line}{end}{after}".encode()
    return done


def reference(
    project: Project, heading: str, name: str, commit: str
) -> str:
    """A paragraph, folded; heading is HTML already."""
    state = f"version {project.version}"
    state += f", commit {commit}" if commit else ""
    where = html.escape(f"{project.site or project.repository}/")
    if project.site:
        kept = f"v{project.version}/" if project.released else ""
        where = html.escape(f"{project.site}/{kept}{name}")
    return (
        '<details class="cite-page"><summary>Cite this page</summary>'
        f"<p>“{heading}”, in <i>{TITLE}</i>, {state}, {where}</p></details>"
    )


def commit_of(root: Path) -> str:
    """The commit that root is a checkout of, if it is one."""
    if not (root / ".git").exists():
        return ""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short=8", "HEAD"],
            cwd=root,
            capture_output=True,
            text=True,
        )
    except OSError:  # without git
        return ""
    return done.stdout.strip()
