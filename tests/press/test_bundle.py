"""A page waits for one style sheet, and for no script."""

from __future__ import annotations

import re

from press.bundle import bundle

PAGE = """<head>
<link href="_static/styles/a.css?digest=1" rel="stylesheet" />
<link rel="stylesheet" type="text/css" href="_static/b.css" />
<link rel="preload" as="script" href="_static/late.js" />
<script src="_static/documentation_options.js?v=1"></script>
<script src="_static/one.js?v=1"></script>
<script data-tabs="x" src="_static/two.js"></script>
<script>OPTIONS.page = "one";</script>
<link rel="icon" href="_static/logo.svg"/>
</head><body><script defer src="_static/late.js"></script></body>"""
SITE = {
    "_static/styles/a.css": b'@charset "UTF-8";\n@import "../base.css";\n'
    b"a { background: url(../x.png) }",
    "_static/base.css": b'/* a remark */ b::after { content: "/* kept */" }',
    "_static/b.css": b"/*! a licence */\n"
    b'i { mask: url("data:image/svg+xml,x"), url("fonts/y.woff2") }',
    "_static/documentation_options.js": b"const OPTIONS = {};",
    "_static/one.js": b'"use strict"; const one = 1;\n',
    "_static/two.js": b"two = one",
    "_static/late.js": b"late()",
    "_static/logo.svg": b"",
}


def test_a_page_waits_for_one_style_sheet_and_no_script() -> None:
    pages = {"one.html": PAGE.encode(), "in/two.html": PAGE.replace(
        '"_static', '"../_static'
    ).encode()}  # fmt: skip
    site = bundle(SITE | pages)
    text = site["one.html"].decode()
    head, _, body = text.partition("</head>")
    styles = re.findall(r'<link rel="stylesheet" href="([^"?]+)', head)
    scripts = re.findall(r'<script defer (.*?) src="([^"?]+)', head)
    assert len(styles) == len(scripts) == 1
    assert scripts[0][0] == 'data-tabs="x"'
    assert head.index("const OPTIONS") < head.index("OPTIONS.page")
    assert "preload" not in head and "logo.svg" in head
    assert body == PAGE.partition("</head>")[2]
    assert styles[0] in site and scripts[0][1] in site
    # both pages load the same
    assert f'"../{styles[0]}?' in site["in/two.html"].decode()
    # nothing that is loaded no more is left, and what is loaded is
    assert {n for n in site if n.endswith((".js", ".css"))} == {
        "_static/late.js", "_static/base.css", styles[0], scripts[0][1],
    }  # fmt: skip


def test_what_is_joined_means_what_it_meant() -> None:
    site = bundle(SITE | {"one.html": PAGE.encode()})
    style, script = (
        next(d.decode() for n, d in site.items() if re.search(pattern, n))
        for pattern in (r"page-\w+\.css$", r"page-\w+\.js$")
    )
    assert style.split("\n") == [
        "",
        'b::after { content: "/* kept */" }',
        'a { background: url("x.png") }',
        "/*! a licence */",
        'i { mask: url("data:image/svg+xml,x"), url("fonts/y.woff2") }',
    ]
    assert script == ';"use strict"; const one = 1;\n;two = one'
