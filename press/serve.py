"""Show site/ on this machine."""

from __future__ import annotations

import os
import sys
import webbrowser
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from annotated.book.paper import script
from annotated.engine.errors import DataError
from press.chapters import PressError


class Quiet(SimpleHTTPRequestHandler):
    """The site; the paper's words in its cards, if there is a copy."""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/_static/paper.js":
            return super().do_GET()
        try:
            words = script(Path(self.directory))
        except DataError:  # there is none
            return super().do_GET()
        body = words.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return None

    def log_message(self, format: str, *args: object) -> None:
        """A line for every picture would hide the address."""


def serve(root: Path, port: int) -> None:
    folder = root / "site"
    if not (folder / "index.html").is_file():
        raise PressError("there is no site/ yet: run `make book` first")
    handler = partial(Quiet, directory=str(folder))
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
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
