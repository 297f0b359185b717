"""This repository's own settings agree with each other."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from datetime import date
from importlib import metadata
from pathlib import Path

import jupytext
import pytest
import yaml

from annotated import __version__
from annotated.cli import COMMANDS, load
from annotated.commands.options import parse
from annotated.engine.recipes import RECIPES
from press.chapters import PressError, read_book, split
from press.foot import FORM, commit_of, footed, reference
from press.project import Project, read_project
from press.release import release
from tests.conftest import FIRST

from .conftest import Book

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "press").glob("*.py"))


def test_the_address_of_the_repository_stands_once() -> None:
    slug = read_project(ROOT).slug
    holders = [
        path.relative_to(ROOT).as_posix()
        for folder in ("press", "book", "tests", ".")
        for path in sorted((ROOT / folder).glob("*"))
        if path.suffix in {".py", ".md", ".toml", ".css"}
        and slug in path.read_text(encoding="utf-8")
    ]
    # README and index are read where no tool fills it in
    assert set(holders) <= {"pyproject.toml", "README.md", "book/index.md"}


def test_the_version_is_that_of_the_package() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.findall(r'^version = "(.+)"$', project, re.M) == [__version__]


def test_the_lock_file_has_every_dependency_and_this_torch() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    if "==" not in lock:
        pytest.skip("the workflow `newest` has taken the versions out")
    locked = set(re.findall(r"^([a-z0-9-]+)==", lock, re.M))
    wanted = set(re.findall(r'"([a-zA-Z0-9-]+)>=', project))
    assert wanted - locked <= {"nbgrader"}
    assert re.search(r"^torch==2\.13\.0$", lock, re.M)


def test_the_site_is_where_the_workflow_publishes_it() -> None:
    """GitHub Pages serve a project without a domain of its own there."""
    project = read_project(ROOT)
    owner, name = project.slug.lower().split("/")
    assert project.site == f"https://{owner}.github.io/{name}"
    publishes = (ROOT / ".github/workflows/site.yml").read_text("utf-8")
    assert "actions/deploy-pages" in publishes and "cname" not in publishes
    assert not [*(ROOT / "book").rglob("CNAME")]


WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_the_citation_is_of_this_version_and_address() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert cited["version"] == __version__
    assert cited["repository-code"] == read_project(ROOT).repository
    [paper] = cited["references"]
    assert len(paper["authors"]) == 8


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_there_is(path: Path) -> None:
    """Targets of make, subcommands and recipes by their names."""
    flow = yaml.safe_load(path.read_text("utf-8"))
    # YAML reads the key "on" as true
    assert flow["name"] == path.stem and flow[True]
    assert flow["permissions"] == {"contents": "read"}  # no more by default
    steps = [s for job in flow["jobs"].values() for s in job["steps"]]
    lines = "\n".join(step.get("run", "") for step in steps)
    targets = set(
        re.findall(r"^(?:make|\S+ && make) ([a-z-]+)", lines, re.M)
    )
    known = (ROOT / "Makefile").read_text("utf-8")
    assert all(re.search(f"^{t}:", known, re.M) for t in targets)
    for name in re.findall(r"annotated (?:train )?([a-z]+)", lines):
        assert name in {*COMMANDS, *RECIPES}, name
    for step in steps:
        assert ("run" in step) != ("uses" in step)
        assert "@" in step.get("uses", "@")  # a version of each action


def test_the_workflows_test_the_oldest_python_that_is_supported() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    [oldest] = re.findall(r'^requires-python = ">=(.+)"$', project, re.M)
    flow = (ROOT / ".github/workflows/test.yml").read_text("utf-8")
    tried = yaml.safe_load(flow)["jobs"]["package"]["strategy"]["matrix"]
    assert tried["python"][0] == oldest
    named = re.findall(
        r'"Programming Language :: Python :: (3\.\d+)"', project
    )
    assert tried["python"] == named


@pytest.mark.parametrize("job", ["package", "lowest"])
def test_a_job_that_installs_for_itself_has_what_its_tests_import(
    job: str,
) -> None:
    """And none of them imports at its head what Windows does not have."""
    flow = (ROOT / ".github/workflows/test.yml").read_text("utf-8")
    steps = yaml.safe_load(flow)["jobs"][job]["steps"]
    [line] = [s["run"] for s in steps if ' ".[' in s.get("run", "")]
    [extras] = re.findall(r'"\.\[(.+?)\]"', line)
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    there = set(re.findall(r"[\w-]+", line))
    for group in ("dependencies", *re.findall(r"\w+", extras)):
        lists = re.search(
            rf"^{group} = \[(.*?)\n?\]$", project, re.M | re.S
        )
        there |= (
            set(re.findall(r'"([\w-]+)>=', lists[1])) if lists else set()
        )
    known = metadata.packages_distributions()
    ours = {"annotated", "press", "tests", *sys.stdlib_module_names}
    # of the packages that are there anyway
    ours |= {"IPython", "PIL", "docutils", "_pytest", "bs4", "markdown_it"}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.parent.name in ("press", "site"):
            continue
        tree = ast.parse(path.read_text("utf-8"))
        for node in tree.body:
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in {name.split(".")[0] for name in names} - ours:
                from_ = {d.lower() for d in known.get(name, [name])}
                assert there & from_, (path, name)
            if path.name.startswith("test_"):
                assert not POSIX & set(names), path


POSIX = {"resource", "fcntl", "termios", "tty", "pty", "pwd", "grp"}


def test_the_site_keeps_each_release_under_its_version(
    tmp_path: Path,
) -> None:
    """The workflow's own lines, with a forge that is a shell script."""
    flow = (ROOT / ".github/workflows/site.yml").read_text("utf-8")
    steps = yaml.safe_load(flow)["jobs"]["build"]["steps"]
    [script] = [
        s["run"] for s in steps if "release list" in s.get("run", "")
    ]
    forge = tmp_path / "gh"
    forge.write_text(
        "#!/bin/sh\ncase $2 in\nlist) printf 'v0.1.0\\nv0.2.0\\n' ;;\n"
        'download) mkdir -p "$3" && echo "$3" > "$3/index.html" && '
        'tar -cz -C "$3" . ;;\nesac\n'
    )
    forge.chmod(0o755)
    (tmp_path / "site").mkdir()
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=tmp_path,
        check=True,
        env=os.environ | {"PATH": path},
    )
    for tag in ("v0.1.0", "v0.2.0"):
        page = tmp_path / "site" / tag / "index.html"
        assert page.read_text() == f"{tag}\n"


def test_a_release_installs_and_links_itself_and_main_main(
    tmp_path: Path,
) -> None:
    for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "book").mkdir()
    (tmp_path / "book/00-preface.md").write_text(
        f'__version__ = "{__version__}"\n'
    )
    assert read_project(tmp_path).ref == "main"
    assert read_project(tmp_path).install.endswith("/heads/main.zip")

    release(tmp_path, "0.1.0", date(2027, 1, 2))
    made = read_project(tmp_path)
    assert made.install == f"{made.repository}/archive/refs/tags/v0.1.0.zip"
    for link in (made.colab("x"), made.source("x"), made.raw("x")):
        assert "/v0.1.0/x" in link and "main" not in link
    changes = (tmp_path / "CHANGELOG.md").read_text("utf-8")
    assert changes.startswith("# Changes\n\n## 0.1.0, 2027-01-02\n")
    cited = yaml.safe_load((tmp_path / "CITATION.cff").read_text("utf-8"))
    assert cited["version"] == "0.1.0"
    assert cited["date-released"] == date(2027, 1, 2)

    release(tmp_path, "0.2.0.dev0", date(2027, 1, 3))
    assert read_project(tmp_path).ref == "main"
    changes = (tmp_path / "CHANGELOG.md").read_text("utf-8")
    assert changes.startswith(
        "# Changes\n\n## 0.2.0, not yet released\n\n## 0.1.0"
    )
    cited = yaml.safe_load((tmp_path / "CITATION.cff").read_text("utf-8"))
    assert "date-released" not in cited
    with pytest.raises(PressError, match="a version is"):
        release(tmp_path, "1.0-rc1", date(2027, 1, 3))


def test_a_page_says_how_to_cite_it() -> None:
    page = b'<title>2 \xc2\xb7 Attention</title><article><p class="chapter-facts"></p></article>'
    pages = {
        "02.html": page,
        "search.html": b"<article></article>",
        "a.js": b"",
    }
    done = footed(ROOT, pages)
    assert done["search.html"] == pages["search.html"]
    said = done["02.html"].decode()
    assert f"version {__version__}" in said and "2 · Attention”" in said
    assert f"{read_project(ROOT).site}/02.html" in said
    assert said.endswith("</details></footer></article>")
    assert (ROOT / ".github/ISSUE_TEMPLATE" / FORM).is_file()
    if commit := commit_of(ROOT):
        assert f"commit {commit}, " in said
    made = Project("https://x/y/z", "https://y.io/z", version="1.2.3")
    assert "https://y.io/z/v1.2.3/a.html" in reference(
        made, "A", "a.html", ""
    )


def test_what_a_message_tells_to_install_is_what_the_extra_has() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    code = "".join(
        p.read_text("utf-8") for p in (ROOT / "annotated").rglob("*.py")
    )
    for extra, told in (
        ("import", 'install: str = "(.+?)"'),
        ("book", '"python -m pip install (matplotlib .+?)"'),
    ):
        [needs] = re.findall(rf"^{extra} = \[(.*)\]$", project, re.M)
        for names in re.findall(told, code):
            assert names.split() == re.findall(r'"([\w-]+)>=', needs)
    assert "pip install '" not in code


def test_text_is_checked_out_alike_on_every_system() -> None:
    """Else all that is derived has drifted on Windows."""
    lines = (ROOT / ".gitattributes").read_text("utf-8").splitlines()
    assert "* text=auto eol=lf" in lines
    held = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split("\n")
    for name in filter(None, held):
        path = ROOT / name
        if path.is_file() and b"\0" in path.read_bytes()[:8000]:
            assert f"*{path.suffix} binary" in lines, name


def test_templates_and_hooks_are_read() -> None:
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text("utf-8"))
        assert form["name"] and form["description"] and form["body"]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    listed = [h["entry"].split() for h in hooks["repos"][0]["hooks"]]
    assert listed == [["make", "style"], ["make", "check"]]


def test_the_files_that_come_first_are_there() -> None:
    lost = [name for name in FIRST if not (ROOT / "tests" / name).exists()]
    assert not lost


def test_make_lists_its_targets() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    listed = set(re.findall(r"^  make ([a-z]+)", done.stdout, re.M))
    assert listed >= {
        "book", "serve", "test", "notebooks", "export", "check", "lab",
        "clean", "help",
    }  # fmt: skip


def test_the_help_of_the_press_names_its_verbs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "press", "--help"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in ("export", "notebooks", "execute", "site", "check"):
        assert re.search(rf"^    {name} ", done.stdout, re.M)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_function_fits_a_screen(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= 60, f"{node.name} has {length} lines"


PAGES = sorted([*(ROOT / "book").glob("*.md"), *ROOT.glob("*.md")])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_row_has_as_many_cells_as_its_table(path: Path) -> None:
    """What is too much of a row is not shown: a bare | is often why."""
    text = path.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    for table in re.findall(r"(?:^\|.*\n)+", prose, re.M):
        rows = table.splitlines()
        bars = [len(re.findall(r"(?<!\\)\|", row)) for row in rows]
        odd = [r for r, n in zip(rows, bars, strict=True) if n != bars[0]]
        assert not odd, odd


CELLS = """\
---
kernelspec: {name: python3, display_name: Python 3}
---

# Title

* * *
+++

Prose ```{code-cell} of its own```

```{code-cell} ipython3
:tags: [a, b]
:name: x

1
```
- a list

  ```{code-cell}
  no cell
  ```

````{code-cell}
---
tags: [c]
mystnb: {image: {alt: "Ü: x"}}
---


```
2
````
~~~{code-cell}
~~~

    ```{code-cell}
"""


@pytest.mark.parametrize(
    "path", [None, *sorted((ROOT / "book").glob("*-*.md"))]
)
def test_pages_are_read_as_jupytext_reads_them(
    path: Path | None,
) -> None:
    text = path.read_text(encoding="utf-8") if path else CELLS
    wanted = jupytext.reads(text, fmt="md:myst").cells
    assert [
        (kind, source, yaml.safe_load(options) or {})
        for kind, source, options in split(text)
    ] == [(cell.cell_type, cell.source, cell.metadata) for cell in wanted]


@pytest.mark.parametrize("options", [":tags: [a", "---\n- a\n---", ":a"])
def test_options_that_are_none_are_named(book: Book, options: str) -> None:
    book.chapter("02-one", f"```{{code-cell}}\n{options}\n\n1 + 1\n```")
    with pytest.raises(PressError) as error:
        read_book(book.root)
    (problem,) = error.value.problems
    place = 'book/02-one.md, section "A title", code cell 1 (1 + 1): '
    assert problem.startswith(place + "its options: ")


def test_the_container_gives_commands_that_exist_and_is_not_root() -> None:
    """No daemon is asked: what stands in the files has to be there."""
    recipe = (ROOT / "Dockerfile").read_text("utf-8")
    assert re.search(r"^USER [1-9]\d*$", recipe, re.M)
    assert "--constraint requirements.lock" in recipe
    assert "whl/cpu" in recipe
    copied = re.findall(r"^COPY (.+) \S+$", recipe, re.M)
    sent = (ROOT / ".dockerignore").read_text("utf-8").split()
    for name in " ".join(copied).split():
        assert (ROOT / name).exists() and f"!{name}" in sent
    [extras] = re.findall(r"'\.\[(.+)\]'", recipe)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert {*extras.split(",")} <= known["project"][
        "optional-dependencies"
    ].keys()
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
    lines = [each["command"] for each in compose["services"].values()]
    lines.append(json.loads(re.findall(r"^CMD (.+)$", recipe, re.M)[0]))
    for name, *options in lines:
        assert name in COMMANDS
        words = ["pocket" if "$" in word else word for word in options]
        if name == "train":
            assert words[0] in RECIPES
        else:
            parse(load(name), name, words)
    ports = compose["services"]["serve"]["ports"]
    assert all(port.startswith("127.0.0.1:") for port in ports)
