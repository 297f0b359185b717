"""Exported from the book; edit the chapter, then run `make export`."""

import base64
import html
import re
import sys
from dataclasses import dataclass
from io import StringIO
from typing import Any

from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.getipython import get_ipython
from IPython.display import display

__all__ = ["HIDDEN", "number_in", "bounds", "Guesses"]


# E1-plots.md: A result that waits for a guess
HIDDEN = "# the result stays hidden until you ask"  # a cell's last line
_NUMBER = r"([-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)?\.?\d*(?:e[-+]?\d+)?)"
_NEAR = re.compile(r"(exact)|(±) ?([\d.]+)( ?%)?|(×) ?([\d.]+)")


def number_in(text: str, pattern: str) -> tuple[str, float] | None:
    """The number that stands at the # of a pattern, as written and as a
    value. A * of the pattern is any other word, a space any white space.
    """
    parts = re.split(r"(\s+|#|\*)", pattern)
    rules = {"#": _NUMBER, "*": r"\S+"}
    wanted = "".join(
        rules.get(part, r"\s+" if part.isspace() else re.escape(part))
        for part in parts
    )
    # "trained" is no part of "untrained"
    for match in re.finditer(rf"(?<!\w)(?<!\d\.(?=\d)){wanted}", text):
        try:
            plain = match[1].replace(",", "").replace("−", "-")
            return match[1].removesuffix("."), float(plain)
        except ValueError:  # no digit at all
            continue
    return None


def bounds(value: float, near: str) -> tuple[float, float]:
    """Between which numbers a guess is right: near is `exact`, `± 5`,
    `± 10 %`, or `× 2`, which is within a factor; else ValueError.
    """
    rule = _NEAR.fullmatch(near)
    if rule is None:
        raise ValueError(
            f"near is 'exact', '± 5', '± 5 %' or '× 2', not {near!r}"
        )
    if rule[5]:
        low, high = sorted((value / float(rule[6]), value * float(rule[6])))
        return low, high
    room = 1e-6 * max(1.0, abs(value))
    if rule[2]:
        share = abs(value) / 100 if rule[4] else 1
        room = float(rule[3]) * share + 1e-6 * abs(value)
    return value - room, value + room


def _as_html(data: dict[str, Any], metadata: dict[str, Any]) -> str:
    """One of a cell's outputs: its richest form that HTML can hold."""
    if "text/html" in data:
        return str(data["text/html"])
    for kind in ("image/svg+xml", "image/png"):
        if kind in data:
            raw = data[kind]
            if kind == "image/svg+xml":
                raw = raw.encode()
            if isinstance(raw, bytes):
                raw = base64.b64encode(raw).decode()
            wide = (metadata.get(kind) or {}).get("width")
            size = f' width="{wide}"' if wide else ""
            return (
                f'<img{size} style="max-width:100%" alt="" '
                f'src="data:{kind};base64,{raw}">'
            )
    text = data.get("text/markdown") or data.get("text/plain", "")
    font = "font-family:var(--jp-code-font-family,monospace)"
    return f'<pre style="{font}">{html.escape(str(text))}</pre>'


@dataclass(frozen=True)
class _Folded:
    """Verdicts, and a result below them that opens on a click."""

    verdicts: list[str]
    outputs: list[dict[str, Any]]

    def text(self) -> str:
        texts = [
            one["data"].get("text/markdown")
            or one["data"].get("text/plain", "")
            for one in self.outputs
        ]
        return "\n".join(map(str, texts))

    def __repr__(self) -> str:
        return "\n".join([*self.verdicts, self.text()])

    def _repr_html_(self) -> str:
        above = "".join(f"<p>{html.escape(v)}</p>" for v in self.verdicts)
        shown = "\n".join(
            _as_html(one["data"], one.get("metadata") or {})
            for one in self.outputs
        )
        return (
            f"{above}<details><summary>Show what happens</summary>\n"
            f"{shown}\n</details>"
        )


class _Capture:
    """Keeps what a cell prints and displays, from start to stop."""

    def __init__(self, shell: Any):
        self.shell, self.printed = shell, StringIO()
        self.before = sys.stdout, sys.stderr, shell.display_pub
        self.hook = shell.display_trap.hook
        sys.stdout = sys.stderr = self.printed
        shell.display_pub = CapturingDisplayPublisher()
        self.shown = shell.display_pub.outputs
        shell.display_trap.hook = self.show

    def show(self, value: Any = None) -> None:
        """The last expression of the cell, unless a semicolon ends it."""
        if value is not None and not self.shell.displayhook.quiet():
            data, metadata = self.shell.display_formatter.format(value)
            self.shown.append({"data": data, "metadata": metadata})

    def stop(self) -> list[dict[str, Any]]:
        """What was kept, the printed text first."""
        sys.stdout, sys.stderr, self.shell.display_pub = self.before
        self.shell.display_trap.hook = self.hook
        text = self.printed.getvalue()
        printed = [{"data": {"text/plain": text}}] if text else []
        return [*printed, *self.shown]


@dataclass(frozen=True)
class _Guess:
    what: str
    number: float | None
    at: str
    near: str

    def verdict(self, text: str) -> str:
        """What a result says of the guess; "" where there is neither."""
        found = number_in(text, self.at)
        if found is None or self.number is None:
            return ""
        low, high = bounds(found[1], self.near)
        said = f"{self.what}: you said {self.number:g}"
        if low <= self.number <= high:
            return f"{said}. Right: {found[0]}."
        return f"{said}. Too {'low' if self.number < low else 'high'}."


class Guesses:
    """A notebook whose hidden results wait, folded, for the reader.

    Called with a guess it remembers it until the next of them. A result
    is hidden if its cell ends on the comment HIDDEN. Without IPython, no
    result is.
    """

    def __init__(self) -> None:
        self.waiting: list[_Guess] = []
        self.said: dict[str, str] = {}  # results, by what was asked of them
        self.capture: _Capture | None = None
        self.shell: Any = get_ipython()
        if self.shell is None:
            return
        for event in ("pre_run_cell", "post_run_cell"):
            for call in list(self.shell.events.callbacks[event]):
                if isinstance(getattr(call, "__self__", None), Guesses):
                    self.shell.events.unregister(event, call)
            self.shell.events.register(event, getattr(self, f"_{event}"))

    def __call__(self, what: str, number: Any, at: str, near: str) -> None:
        """What is guessed, the number, or ... for none, where it will
        stand in the result, and how near is right (see bounds).
        """
        bounds(0.0, near)  # which is well written
        made = None if number is ... else float(number)
        one = _Guess(what, made, at, near)
        if made is None:
            print(f"{what}: put your guess in place of the dots.")
        elif at in self.said:
            print(one.verdict(self.said[at]))
        else:
            print(f"{what}: {made:g}. The next result will tell.")
        self.waiting = [*(w for w in self.waiting if w.at != at), one]

    def _pre_run_cell(self, info: Any) -> None:
        if info.raw_cell.rstrip().endswith(HIDDEN):
            self.capture = _Capture(self.shell)

    def _post_run_cell(self, result: Any) -> None:
        if self.capture is None:
            return
        outputs, self.capture = self.capture.stop(), None
        if not result.success:  # which is no result to wait for
            for one in outputs:
                display(one["data"], metadata=one.get("metadata"), raw=True)
            return
        text = _Folded([], outputs).text()
        told = [one.verdict(text) for one in self.waiting]
        self.said |= {one.at: text for one in self.waiting}
        self.waiting = []
        if outputs:
            display(_Folded([one for one in told if one], outputs))
