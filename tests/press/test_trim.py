"""Style sheets keep the rules that some page can use."""

from __future__ import annotations

from press.trim import trim

PAGE = b"""<p class="one two" id="here"></p><script>add("three")</script>"""
CSS = """\
/*! a licence */
/* a remark */
.one, .gone { color: red }
.one.gone { color: red }
#here > a:not(.gone) { color: red }
#away { color: red }
.three::after, .four { content: ".gone { }" }
@media (min-width: 9px) { .two { top: 0 } .gone { top: 0 } }
@media print { .gone { top: 0 } }
@font-face { font-family: x; src: url(x.woff2) }
[data-x="gone"] a { top: 0 }
"""


def test_rules_stay_for_what_is_on_a_page_or_in_a_script() -> None:
    pages = {
        "a.html": PAGE,
        "_static/x.css": CSS.encode(),
        "_static/x.js": b'e.classList.add("four")',
        "_static/book.css": CSS.encode(),
    }
    found = trim(pages)
    assert list(found) == ["_static/x.css"]
    lines = found["_static/x.css"].decode().splitlines()
    assert lines == [
        "/*! a licence */",
        ".one{ color: red }",
        "#here > a:not(.gone){ color: red }",
        '.three::after,.four{ content: ".gone { }" }',
        "@media (min-width: 9px) {.two{ top: 0 }}",
        "@font-face { font-family: x; src: url(x.woff2) }",
        '[data-x="gone"] a{ top: 0 }',
    ]
