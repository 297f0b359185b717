"""Show site/ on this machine."""

from __future__ import annotations

import gzip
import io
import os
import sys
import webbrowser
from email.utils import formatdate
from functools import lru_cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

from annotated.book.paper import card_script
from annotated.engine.errors import DataError
from press.chapters import PressError

# what a host sends compressed: a fifth of it
TEXT = {".html", ".css", ".js", ".svg", ".json", ".md", ".txt"}


@lru_cache(maxsize=64)
def _compressed(path: Path, changed: int) -> bytes:
    return gzip.compress(path.read_bytes(), 6, mtime=0)


class Server(ThreadingHTTPServer):
    """A browser may leave before it has everything."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Quiet(SimpleHTTPRequestHandler):
    """The site, as a host sends it; the paper's words in its cards, if
    there is a copy.
    """

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/_static/paper.js":
            return super().do_GET()
        try:
            words = card_script(Path(self.directory))
        except DataError:  # there is none
            return super().do_GET()
        body = words.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return None

    def send_head(self) -> io.BytesIO | BinaryIO | None:
        """Text is compressed for whoever can read that."""
        path = Path(self.translate_path(self.path))
        told = self.headers.get("Accept-Encoding", "")
        known = "If-Modified-Since" in self.headers
        if (
            known
            or "gzip" not in told
            or path.suffix not in TEXT
            or not path.is_file()
        ):
            return super().send_head()
        changed = path.stat().st_mtime_ns
        body = _compressed(path, changed)
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(path))
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Vary", "Accept-Encoding")
        when = formatdate(changed / 1e9, usegmt=True)
        self.send_header("Last-Modified", when)
        self.end_headers()
        return io.BytesIO(body)

    def log_message(self, format: str, *args: object) -> None:
        """A line for every picture would hide the address."""


def serve(root: Path, port: int) -> None:
    folder = root / "site"
    if not (folder / "index.html").is_file():
        raise PressError("there is no site/ yet: run `make book` first")
    handler = partial(Quiet, directory=str(folder))
    try:
        server = Server(("127.0.0.1", port), handler)
    except OSError as error:
        raise PressError(
            f"port {port}: {error.strerror}; try `make serve PORT=8001`"
        ) from None
    address = f"http://127.0.0.1:{server.server_port}/"
    print(f"The book is at {address} (stop with Ctrl-C)", flush=True)
    if _has_screen():
        webbrowser.open(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


def _has_screen() -> bool:
    """Else webbrowser would start a text browser in this terminal."""
    if sys.platform in {"darwin", "win32"}:
        return True
    return bool({"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ))
