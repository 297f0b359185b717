"""The foot of a page: where to mend it, the page to take away, and how to
cite it, with the book's version and commit.
"""

from __future__ import annotations

import html
import re
import subprocess
from pathlib import Path
from urllib.parse import urlencode

from press.project import BRANCH, TITLE, Project, read_project

FORM = "wrong.yml"  # in .github/ISSUE_TEMPLATE
FACTS = 'class="chapter-facts"'  # what a page of the book begins with
TOOLS = re.compile(r'<ul class="page-tools">(.*?)</ul>\s*', re.S)
HEADING = re.compile(
    r"<title>(.*?)(?: [—·|] Attention, Annotated)?</title>"
)


def footed(root: Path, pages: dict[str, bytes]) -> dict[str, bytes]:
    """The pages, each of the book's with its foot."""
    project, commit = read_project(root), commit_of(root)
    done = dict(pages)
    for name, data in pages.items():
        if not name.endswith(".html"):
            continue
        text = data.decode("utf-8")
        if FACTS not in text or not (heading := HEADING.search(text)):
            continue
        tools = TOOLS.search(text)
        text = TOOLS.sub("", text, count=1)
        listed = (tools[1] if tools else "") + about(project, name)
        line = reference(project, heading[1], name, commit)
        foot = (
            '<footer class="page-foot">'
            f'<ul class="page-tools">{listed}</ul>{line}</footer>'
        )
        before, end, after = text.rpartition("</article>")
        done[name] = f"{before}{foot}{end}{after}".encode()
    return done


def about(project: Project, name: str) -> str:
    """Items of a list: where to mend a page or to say what is wrong with
    it, and its text.
    """
    stem = name.removesuffix(".html")
    said = html.escape(urlencode({"template": FORM, "title": f"{stem}: "}))
    links = {
        f"{stem}.md": "this page as Markdown",
        f"{project.repository}/edit/{BRANCH}/book/{stem}.md": "edit it",
        f"{project.repository}/issues/new?{said}": "report an error",
    }
    return "".join(
        f'<li><a href="{link}">{words}</a></li>'
        for link, words in links.items()
    )


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
    # of a repository without commits it prints the word HEAD, and fails
    return done.stdout.strip() if done.returncode == 0 else ""
