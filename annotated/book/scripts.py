"""Exported from the book; edit the chapter, then run `make export`."""

import re
from collections.abc import Mapping

from annotated.book.colors import MOVING, colors

__all__ = ["scripts", "script"]


# E1-plots.md: Figures that move
_KIT = "kit"  # the module that every figure is given
_FIGURE = re.compile(r"^export default (?=\{)", re.M)
_NEEDS = re.compile(r"^// needs: (.*)$", re.M)
_EXPORTED = re.compile(
    r"^export (?:async )?(?:function|const|class) (\w+)", re.M
)
_UNREAD = re.compile(r"(?ms)^[ \t]*(?:(?:/\*\*.*?\*/|//[^\n]*)\n[ \t]*)*")


def scripts(modules: Mapping[str, str]) -> dict[str, str]:
    """One classic script for each figure among the modules: the kit, what
    its line `// needs: …` names, and the figure, which the kit starts.

    On a page that is opened from a folder, browsers load no modules.
    ValueError for a need that is not among the modules.
    """
    figures = {}
    for name, text in modules.items():
        if not _FIGURE.search(text):
            continue
        line = _NEEDS.search(text)
        needs = re.split(r",\s*", line[1].strip()) if line else []
        for other in (_KIT, *needs):
            if other not in modules:
                raise ValueError(
                    f"{name}.mjs needs {other}, which is not there"
                )
        parts = [_closed(x, modules[x]) for x in (_KIT, *needs, name)]
        given = f"{{ {', '.join(needs)} }}"
        parts.append(f'{_KIT}.host("{name}", {name}.figure, {given});')
        body = _colored("\n".join(parts))
        figures[name] = f'(() => {{\n"use strict";\n{body}\n}})();\n'
    return figures


def _closed(name: str, text: str) -> str:
    """A module as a constant that has what it exports, without comments
    and indentation, which are for those who read the source.
    """
    names = _EXPORTED.findall(text)
    if _FIGURE.search(text):
        names.append("figure")
    text = _FIGURE.sub("const figure = ", text)
    text = re.sub(r"^export ", "", text, flags=re.M)
    text = _UNREAD.sub("", text)
    return (
        f"// {name}.mjs\nconst {name} = (() => {{\n{text.strip()}\n"
        f"return {{ {', '.join(names)} }};\n}})();"
    )


def script(name: str) -> str:
    """The script of a figure of the package, by the name of its module.
    ValueError for an unknown name.
    """
    modules = {
        file.name.removesuffix(".mjs"): file.read_text("utf-8")
        for file in MOVING.iterdir()
    }
    if name not in (figures := scripts(modules)):
        known = ", ".join(sorted(figures))
        raise ValueError(f"there is no figure {name!r}; there are: {known}")
    return figures[name]


def _colored(text: str) -> str:
    """%(light) and %(dark) of the kit as the colours that it uses."""
    used = set(re.findall(r"--([a-z-]+)", text))
    for theme in ("light", "dark"):
        named = colors(dark=theme == "dark").items()
        rules = [f"--{name}:{to};" for name, to in named if name in used]
        text = text.replace(f"%({theme})", "".join(rules))
    return text
