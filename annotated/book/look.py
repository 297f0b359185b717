"""Exported from the book; edit the chapter, then run `make export`."""

import json
import secrets
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

from annotated.book.figures import MovingFigure
from annotated.book.report import html_page, recipe_name, sample_pairs
from annotated.book.results import rounded
from annotated.engine.errors import UsageError
from annotated.engine.machine import evaluating
from annotated.engine.runs import Run, run_folder
from annotated.heads import knocked_out
from annotated.search import log_p_after, output_limit
from annotated.tokens import BOS, EOS, UNK

__all__ = ["look"]


# E27-look.md: One answer
_WIDEST = 60  # pieces of a sentence: maps beyond that cannot be read
_MOST = 5  # likely pieces at each step


def _answer(run: Run, question: dict[str, Any]) -> dict[str, Any]:
    """How a run translates question["text"], step by step.

    question["prefix"] has the ids that the translation begins with, and
    question["silent"] heads such as "cross.1.0". ValueError, for the
    reader of the figure, where the sentence is empty or too long or a
    head does not exist.
    """
    text = str(question["text"]).strip()
    [src] = run.source.encode([text])
    if not 0 < len(src) <= _WIDEST:
        raise ValueError(
            f"the sentence has {len(src)} pieces; 1 to {_WIDEST} can be "
            "drawn"
        )
    heads = []
    for name in question.get("silent", []):
        block, _, number = str(name).rpartition(".")
        heads.append((block, int(number)))
    with evaluating(run.model), knocked_out(run.model, heads):
        steps = list(_greedy_steps(run, src, question.get("prefix", [])))
        ids = [step["id"] for step in steps[:-1]]
        sides = torch.tensor([[*src, EOS]]), torch.tensor([[BOS, *ids]])
        maps = run.model.attention_maps(*sides)
    [said] = run.target.decode([ids])
    four = replace(run.recipe.search, beam=4, nbest=1)
    beam = "" if heads else run.translate([text], four)[0][0].text
    return {
        "source": run.source.tokens(src),
        "strange": [text] if set(src) == {UNK} else [],
        "steps": steps,
        "maps": {n: rounded(w[0], digits=4) for n, w in maps.items()},
        "said": said,
        "beam": beam,
    }


def _greedy_steps(
    run: Run, src: Sequence[int], prefix: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """The steps of a greedy search after a prefix: the id taken, its
    probability, its piece, and [id, probability, piece] of the likeliest.
    """
    model = run.model
    source = torch.tensor([[*src, EOS]])
    ids = [BOS]
    limit = output_limit(model, len(src), run.recipe.search)
    limit = min(limit, 2 * _WIDEST + 1)  # with EOS
    while ids[-1] != EOS:
        chances = log_p_after(model, source, ids).exp()
        best = chances.topk(_MOST).indices.tolist()
        at = len(ids) - 1
        taken = prefix[at] if at < len(prefix) else best[0]
        ids.append(EOS if at == limit - 1 else int(taken))
        names = dict(zip(best, _pieces(run, best)))
        yield {
            "id": ids[-1],
            "p": chances[ids[-1]].item(),
            "piece": _pieces(run, ids[-1:])[0],
            "likely": [[i, chances[i].item(), names[i]] for i in best],
        }


def _pieces(run: Run, ids: Sequence[int]) -> list[str]:
    """Each id as text; the end in brackets."""
    texts = ["".join(run.target.tokens([i])) for i in ids]
    return ["(end)" if i == EOS else t for i, t in zip(ids, texts)]


# E27-look.md: The page
_ASKING = """<noscript>This page needs JavaScript.</noscript>
<script>
if (matchMedia("(prefers-color-scheme: dark)").matches) {
  document.documentElement.dataset.theme = "dark";
}
globalThis.askTheModel = async (question) => {
  const reply = await fetch("ask", { method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(question) });
  const said = await reply.json();
  if (!reply.ok) throw new Error(said.error);
  return said;
};
</script>
"""


def _page(run: Run) -> str:
    """The page of a run, whose figure asks the server."""
    recipe, name = run.recipe, recipe_name(run) or "a run"
    title = f"{name}: {recipe.source} to {recipe.target}"
    lines, references = sample_pairs(run, 8)
    figure = MovingFigure(
        "translate",
        '<svg xmlns="http://www.w3.org/2000/svg" class="still"/>',
        {
            "served": True,
            "config": asdict(run.model.config),
            "samples": [[*pair, []] for pair in zip(lines, references)],
        },
        {},
    )
    head = f"<h1>{escape(title)}</h1><p>{escape(recipe.about)}</p>\n"
    body = f"{head}{_ASKING}{figure.html()}"
    return html_page(title, ".still { display: none; }\n", body)


# E27-look.md: The server
_LONGEST = 20_000  # bytes of a question
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src "
    "'unsafe-inline'; connect-src 'self'; img-src data:"
)


class _Handler(BaseHTTPRequestHandler):
    """GET /SECRET/ is the page, POST /SECRET/ask an answer."""

    run: Run
    page: str
    secret: str
    turn: threading.Lock

    def do_GET(self) -> None:
        """The page, for who knows where it is."""
        known = self.path == f"/{self.secret}/" and self.invited()
        self.reply(200 if known else 404, self.page if known else "")

    def do_POST(self) -> None:
        """An answer, or why there is none."""
        if self.path == f"/{self.secret}/ask" and self.invited():
            self.reply(*self.answered(), "application/json")
        else:
            self.reply(404, "")

    def answered(self) -> tuple[int, str]:
        """What the model says to a question, after a code of HTTP."""
        try:
            size = int(self.headers.get("Content-Length") or 0)
            if not 0 <= size <= _LONGEST:
                raise ValueError("the sentence is too long")
            question = json.loads(self.rfile.read(size))
            with self.turn:
                return 200, json.dumps(_answer(self.run, question))
        except (ValueError, TypeError, KeyError, IndexError) as error:
            return 400, json.dumps({"error": str(error)})

    def invited(self) -> bool:
        """Whether this was asked of this machine by one of its names."""
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        return host in ("127.0.0.1", "localhost")

    def reply(self, code: int, text: str, kind: str = "text/html") -> None:
        """A text, which no cache keeps and no other page can frame."""
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Nothing: the terminal is the user's."""


class _Server(ThreadingHTTPServer):
    """One that says nothing of a browser which leaves too early."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell what is wrong here, and not in the browser."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def look(
    folder: Path, port: int = 0
) -> Iterator[tuple[ThreadingHTTPServer, str]]:
    """A server that shows a run, on this machine alone, and its address;
    port 0 is one that is free. Closed at the end. RunError if the folder is
    no run, UsageError if the port cannot be had.
    """
    run, secret = Run.open(run_folder(folder)), secrets.token_urlsafe(16)
    fields = {
        "run": run,
        "page": _page(run),
        "secret": secret,
        "turn": threading.Lock(),
    }
    kind = type("Handler", (_Handler,), fields)
    try:
        server = _Server(("127.0.0.1", port), kind)
    except (OSError, OverflowError) as error:
        raise UsageError(f"port {port} cannot be had: {error}") from None
    try:
        yield server, f"http://127.0.0.1:{server.server_port}/{secret}/"
    finally:
        server.server_close()
