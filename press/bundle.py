"""One style sheet and one script for those that a page waits for.

A browser draws nothing before every style sheet of a page's head is there,
and every script in it has run. Each is a request, and on a telephone each
costs more for its journey than for its size. Here they become one file of
each kind, and the script waits until the page is read.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Callable
from functools import cache

FOLDER = "_static"
STYLE = re.compile(
    r'[ \t]*<link\b(?=[^>]*rel="stylesheet")[^>]*href="([^"]+)"[^>]*>\n?'
)
SCRIPT = re.compile(
    r'[ \t]*<script\b(?P<more>[^>]*?) ?src="(?P<path>[^"]+)"[^>]*>'
    r"</script>\n?"
)
# what scripts in the page itself speak of, so that it cannot wait
OPTIONS = "documentation_options.js"
# scripts that would only hold up the style sheet; they come in their turn
EARLY = re.compile(r'[ \t]*<link rel="preload" as="script"[^>]*>\n?')
IMPORT = re.compile(r'@import "([^"]+)";')
URL = re.compile(r"url\(\s*[\"']?(?!data:|#|/|\w+:)([^\"')]+)[\"']?\s*\)")
REMARK = re.compile(r"/\*(?!!).*?\*/|(\"[^\"\n]*\"|'[^'\n]*')", re.S)
SPACE = re.compile(r"\s*\n\s*")


def bundle(pages: dict[str, bytes]) -> dict[str, bytes]:
    """The files of a site, by path, whose pages load one of each kind. What
    no page loads any more is left out.
    """
    joined: dict[str, bytes] = {}
    gone: set[str] = set()

    @cache
    def join(paths: tuple[str, ...], kind: str) -> str:
        read = style if kind == "css" else _script
        texts = [read(path, pages) for path in paths]
        data = "\n".join(texts).encode()
        mark = hashlib.sha256("\n".join(paths).encode()).hexdigest()[:8]
        name = f"{FOLDER}/page-{mark}.{kind}"
        joined[name] = data
        gone.update(paths)
        return f"{name}?v={hashlib.sha256(data).hexdigest()[:8]}"

    done = {}
    for name, data in pages.items():
        if name.endswith(".html"):
            head, mark, body = data.decode("utf-8").partition("</head>")
            if mark:
                head = _head(name, head, pages, join)
            data = f"{head}{mark}{body}".encode()
        done[name] = data
    gone |= {name for name in done if name.endswith(OPTIONS)}
    kept = _named(done)
    return {n: d for n, d in done.items() if n not in gone - kept} | joined


def _head(
    name: str,
    head: str,
    pages: dict[str, bytes],
    join: Callable[[tuple[str, ...], str], str],
) -> str:
    here = posixpath.dirname(name)
    root = "../" * name.count("/")

    def path(link: str) -> str:
        return posixpath.normpath(posixpath.join(here, link.split("?")[0]))

    head = EARLY.sub("", head)
    links = [m for m in STYLE.finditer(head) if path(m[1]) in pages]
    if links:
        file = join(tuple(path(m[1]) for m in links), "css")
        tag = f'<link rel="stylesheet" href="{root}{file}">\n'
        head = _replaced(head, links, tag)
    scripts = [
        m
        for m in SCRIPT.finditer(head)
        if path(m["path"]) in pages and "async" not in m["more"]
    ]
    options = [
        m for m in scripts if m["path"].split("?")[0].endswith(OPTIONS)
    ]
    rest = [m for m in scripts if m not in options]
    if rest:
        file = join(tuple(path(m["path"]) for m in rest), "js")
        data = " ".join(
            found
            for m in rest
            for found in re.findall(r'data-[\w-]+="[^"]*"', m[0])
        )
        tag = f'<script defer {data} src="{root}{file}"></script>\n'
        first = "".join(
            f"<script>{pages[path(m['path'])].decode()}</script>\n"
            for m in options
        )
        head = _replaced(head, [*options, *rest], first + tag)
    return head


def _replaced(text: str, matches: list[re.Match[str]], by: str) -> str:
    """The first of them replaced, and the others gone."""
    matches = sorted(matches, key=lambda m: m.start())
    parts, done = [], 0
    for match in matches:
        parts += [text[done : match.start()], by]
        by, done = "", match.end()
    return "".join([*parts, text[done:]])


def style(path: str, pages: dict[str, bytes]) -> str:
    """A style sheet as it is read from FOLDER: its imports in it, its
    addresses from there, and without remarks.
    """
    here = posixpath.dirname(path)
    text = pages[path].decode("utf-8").removeprefix('@charset "UTF-8";')

    def imported(match: re.Match[str]) -> str:
        other = posixpath.normpath(posixpath.join(here, match[1]))
        return style(other, pages) if other in pages else match[0]

    def address(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, match[1]))
        return f'url("{posixpath.relpath(target, FOLDER)}")'

    text = REMARK.sub(lambda m: m[1] or "", text)
    return SPACE.sub("\n", IMPORT.sub(imported, URL.sub(address, text)))


def _script(path: str, pages: dict[str, bytes]) -> str:
    """A script that another one may follow: `;` first, so that it does not
    make that one strict.
    """
    return f";{pages[path].decode('utf-8').strip()}"


def _named(pages: dict[str, bytes]) -> set[str]:
    """Files that a page or a script still names."""
    found: set[str] = set()
    for name, data in pages.items():
        if name.endswith(".html"):
            here = posixpath.dirname(name)
            for link in re.findall(
                r'(?:src|href)="([^"#?:]+)', data.decode("utf-8")
            ):
                found.add(posixpath.normpath(posixpath.join(here, link)))
    return found
