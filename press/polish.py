"""The finished pages without what the theme brings and nobody needs.

The theme loads 1.5 MB of icons for a dozen, a search index, and rules for
every kind of site on every page, and names some controls otherwise than
they read. All changes are made here, to the HTML that Sphinx has written.
"""

from __future__ import annotations

import base64
import re

from press import meaning
from press.bundle import bundle
from press.dark import themed
from press.search import sections
from press.trim import trim

SCRIPTS = "_static/scripts/fontawesome.js"
ICONS = "_static/icons.css"
# for search.html alone: the theme does not search as one types
SEARCH = ("searchtools.js", "language_data.js", "searchindex.js")
# ours finds sections, which Sphinx's does not: see press/search.py
OURS = (
    "language_data.js", "sections.js", "asked.js", "index.js", "rank.js",
    "search.js",
)  # fmt: skip
# what readers would ask, which the index takes in
QUESTIONS = "_static/questions.tsv"
SPHINX = ("searchindex.js", "_static/searchtools.js")
# the contents of a page on paper, before the page
PRINTED = re.compile(
    r'<div id="jb-print-docs-body".*?(?=<div id="searchbox">)', re.S
)
# on a first visit the theme takes an empty word for a fault; a dark page
# is light until its script is there
DARK = 'matchMedia("(prefers-color-scheme: dark)").matches'
MODE = {
    'getItem("mode") || ""': 'getItem("mode") || "auto"',
    'getItem("theme") || ""': (
        f'getItem("theme") || ({DARK} ? "dark" : "light")'
    ),
}
VIEWPORT = (
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
)
# the letters that every page has, asked for before the style that names
# them; not in a folder, where a browser refuses to
LETTERS = """<script>
if (location.protocol !== "file:")
  document.head.append(Object.assign(document.createElement("link"), {{
    rel: "preload", as: "font", type: "font/woff2", crossOrigin: "",
    href: "{root}_static/fonts/source-serif-4-latin-wght-normal.woff2" }}));
</script>"""
ICON = re.compile(r'<(i|span) class="([^"]*\bfa-[^"]*)"([^>]*)></\1>')
# a long name in code, and the head of a column
NAME = re.compile(r'(?<=<span class="pre">)[^<]{16,}|(?<=<th>)\w+(?=</th>)')
EMPTY = re.compile(r"<th\b([^>]*)>(?:\s|<p>\s*</p>)*</th>")
# a formula of one line and what may not begin the next
JOINED = re.compile(
    r'(<span class="math[^"]*"><math(?:(?!</span>).)*?x-tex">[^<]{,60}'
    r"</annotation></semantics></math></span>[,.;:?!)\u201d\u2019]+)"
)
# a word on a button, likewise
EXPLAINED = re.compile(
    r'(<button type="button" class="note-of[^>]*>[^<]*</button>'
    r"[,.;:?!)\u201d\u2019]+)"
)
# pages below a page, in the sidebar: that page lists them
BELOW = re.compile(
    r'<details[^>]*><summary><span class="toctree-toggle".*?</details>',
    re.S,
)
# a part of the sidebar: its caption, and the pages in it
PART = re.compile(
    r'<p (?=[^>]*class="caption")[^>]*><span class="caption-text">'
    r"([^<]*)</span></p>\s*(<ul\b.*?</ul>)",
    re.S,
)
# the engine room and the reference, for which few readers come
ASIDE = r"(?:E\d+-|api-)"
# the parameters of a signature, which are no list of definitions
LINES = re.compile(r"<dl>\s*((?:<dd>.*?</dd>\s*)+)</dl>", re.S)
# a drawing, and its size as it says itself
DRAWING = re.compile(
    r'<img\b(?![^>]*\bheight=)([^>]*src="(_images/\w+\.svg)")'
)
SIZE = re.compile(rb'<svg\b[^>]*?\bwidth="([\d.]+)pt" height="([\d.]+)pt"')
DRAWN = ("_images/", "_static/cards/", "_static/posters/")
# one that a phone shows wider than itself: it scrolls, its caption does not
STRIP = re.compile(
    r'(<figure\b[^>]*>\s*)(<img\b[^>]*\bclass="[^"]*\b(?:mid|wide)\b[^>]*>)'
)
PICTURE = re.compile(r"<img\b(?![^>]*\bloading=)(?=[^>]*_images/)")


def polish(pages: dict[str, bytes]) -> dict[str, bytes]:
    """The files of the site, by path, as they are shown."""
    found: set[str] = set()
    done: dict[str, bytes] = {}
    for name, data in pages.items():
        if name.endswith((".map", ".doctree")) or name in {
            SCRIPTS,
            *SPHINX,
        }:
            continue
        if name.endswith(".html"):
            text = _page(name, data.decode("utf-8"))
            text = DRAWING.sub(lambda image: _sized(image, pages), text)
            for match in ICON.finditer(text):
                found |= set(match[2].split())
            data = text.encode()
        if name.endswith(".svg") and name.startswith(DRAWN):
            data = themed(data.decode("utf-8")).encode()
        done[name] = data
    script = pages.get(SCRIPTS, b"").decode("utf-8")
    done[ICONS] = _icons(script, found).encode()
    asked = done.pop(QUESTIONS, b"").decode("utf-8")
    searched = sections(done, asked)
    done |= {f"_static/{n}": d for n, d in searched.items()}
    return bundle(done | trim(done))


def _page(name: str, text: str) -> str:
    root = "../" * name.count("/")
    # the icons: a rule of CSS each instead of a script with all of them
    text = re.sub(
        r'<script defer src="[^"]*scripts/fontawesome\.js[^"]*"></script>',
        f'<link rel="stylesheet" href="{root}{ICONS}">',
        text,
    )
    text = ICON.sub(r'<i class="\2" aria-hidden="true"\3></i>', text)
    for script in SEARCH:
        text = re.sub(
            rf'[ \t]*<script src="[^"]*{script}[^"]*"></script>\n?',
            "",
            text,
        )
    if name == "search.html":
        ours = "".join(
            f'<script defer src="_static/{script}"></script>\n'
            for script in OURS
        )
        text = text.replace("</body>", f"{ours}</body>")
    # one viewport is enough, and readers may enlarge
    first, *more = re.split(r'[ \t]*<meta name="viewport"[^>]*>\n?', text)
    if more:
        text = f"{first}{VIEWPORT}\n{''.join(more)}"
    letters = LETTERS.format(root=root)
    text = text.replace("</title>", f"</title>\n{letters}", 1)
    text = PRINTED.sub("", text)
    for told, meant in MODE.items():
        text = text.replace(told, meant)
    # title and search are in no landmark
    bar = '<div id="pst-primary-sidebar"'
    text = text.replace(bar, f'{bar} role="navigation" aria-label="Site"')
    text = PART.sub(_part, BELOW.sub("", text))
    text = LINES.sub(_lines, text)
    # a name that is not what the button reads is no name
    button = r'(<button class="btn search-button-field[^>]*?)'
    text = re.sub(rf'{button} aria-label="Search"', r"\1", text)
    # the corner of a table is no heading
    text = EMPTY.sub(r"<td\1></td>", text)
    # names may be broken where they are put together
    text = NAME.sub(
        lambda match: re.sub(r"([_.])(?=\w)", r"\1<wbr>", match[0]), text
    )
    for pattern in (JOINED, EXPLAINED):
        text = pattern.sub(r'<span class="joined">\1</span>', text)
    if name in meaning.PAGES:
        text = meaning.colored(text)
    text = STRIP.sub(r'\1<div class="strip">\2</div>', text)
    return PICTURE.sub('<img loading="lazy"', text)


def _sized(image: re.Match[str], pages: dict[str, bytes]) -> str:
    """A drawing with its size in pixels, so that nothing moves when it
    comes.
    """
    points = SIZE.search(pages.get(image[2], b"")[:2000])
    if points is None:
        return image[0]
    width, height = (round(float(x) * 4 / 3) for x in points.groups())
    return f'<img width="{width}" height="{height}"{image[1]}'


def _part(match: re.Match[str]) -> str:
    """A part that most readers pass by, folded but on its own pages."""
    caption, pages = match.groups()
    if not re.search(f'href="{ASIDE}', pages):
        return match[0]
    here = " open" if re.search(r'class="[^"]*\bcurrent\b', pages) else ""
    return (
        f'<details class="part"{here}><summary class="caption">'
        f'<span role="heading" aria-level="2">{caption}</span></summary>\n'
        f"{pages}</details>"
    )


def _lines(match: re.Match[str]) -> str:
    lines = re.sub(r"<dd>(.*?)</dd>", r"<span>\1</span>", match[1])
    return f'<span class="sig-lines">{lines}</span>'


def _icons(script: str, classes: set[str]) -> str:
    """A rule for each icon of the pages, from the theme's own drawings."""
    rules = []
    for name in sorted(classes):
        drawings = re.findall(
            rf'[{{,]"?{re.escape(name[3:])}"?:'
            r'\[(\d+),(\d+),\[[^\]]*\],"[0-9a-f]+","([^"]+)"\]',
            script,
        )
        if not drawings:
            continue  # fa-solid, fa-lg: how, not what
        width, height, path = drawings[-1]
        svg = (
            '<svg xmlns="http://www.w3.org/2000/svg" '
            f'viewBox="0 0 {width} {height}"><path d="{path}"/></svg>'
        )
        data = base64.b64encode(svg.encode()).decode()
        rules.append(
            f'.{name}{{--icon:url("data:image/svg+xml;base64,{data}");'
            f"aspect-ratio:{width}/{height}}}"
        )
    if not rules:
        return ""
    return (
        "/* Font Awesome Free (https://fontawesome.com), CC BY 4.0 */\n"
        + "\n".join(rules)
        + "\n"
    )
