"""Exported from the book; edit the chapter, then run `make export`."""

import asyncio
import dataclasses
import ipaddress
import json
import socket
import sys
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from annotated.commands.translate import ConstraintOptions, Wish
from annotated.corpora.marks import missing
from annotated.corpora.reading import CURES, fault, json_of
from annotated.corpora.sentencepieces import optional_import, unknown_words
from annotated.engine.constraints import as_phrases, as_prefixes
from annotated.engine.errors import (
    DataError,
    RunError,
    UsageError,
    check_whole,
    unknown,
)
from annotated.engine.runs import Run
from annotated.engine.translate import Translation

__all__ = ["Serve"]


# E37-serve.md: What a request says
_LONGEST = 100_000  # bytes of a request


class _Refused(Exception):
    """A request that is answered with a code of HTTP and a line."""

    def __init__(self, code: int, why: str, **headers: str) -> None:
        super().__init__(why)
        self.code, self.headers = code, headers


def _asked(body: bytes) -> tuple[list[str], Wish]:
    """The lines that a request wants to have translated, and what it asks
    of each translation. DataError if it has no line, or one that is no
    line of text.
    """
    asked = json_of(body, "the request") if body.strip() else None
    if not isinstance(asked, dict) or "text" not in asked:
        raise DataError(_LIKE)
    for name in asked.keys() - {"text", *_WISHES}:
        known = unknown("field", name, ["text", *_WISHES])
        raise DataError(f"{known}; options are the server's")
    texts = _strings(asked["text"], "text")
    if not texts:
        raise DataError(_LIKE)
    begun, words = (_strings(asked.get(n, ()), n) for n in _WISHES)
    if len(begun) > 1 or len(words) > _MOST_WORDS:
        raise DataError(
            f"a request has one prefix, and requires {_MOST_WORDS} words "
            "at most"
        )
    return texts, ("".join(begun), words)


def _strings(given: object, field: str) -> list[str]:
    """A field of a request, one string or several, as lines."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list | tuple):
        raise DataError(_LIKE)
    return [_line(x, f"{field} {i}") for i, x in enumerate(texts, start=1)]


_WISHES = "prefix", "require"
_MOST_WORDS = 10  # each makes the search slower
_LIKE = (
    'the request must be like {"text": ["a sentence", "another"]}, or '
    '{"text": "a sentence"}'
)


def _line(text: object, name: str) -> str:
    """A text of a request, without the end of its line."""
    if not isinstance(text, str):
        kind = type(text).__name__
        raise DataError(f"{name} is no string, but of type {kind}")
    text = text.rstrip("\r\n")
    if bad := fault(text):
        why, start = bad
        raise DataError(
            f"{name}, character {start + 1}: {why}; {CURES[why]}"
        )
    if "\n" in text:
        raise DataError(f"{name} has several lines: send each by itself")
    return text


# E37-serve.md: Batches
_Answer = list[Translation]


@dataclasses.dataclass(frozen=True, eq=False)
class _Waiting:
    """A line, what is asked of its translation, its source tokens, and
    where its translations will be.
    """

    line: str
    wish: Wish
    tokens: int
    answer: "asyncio.Future[_Answer]"


class _Batcher:
    """Gathers lines, whoever sends them, and translates them together."""

    def __init__(
        self,
        translate: Callable[[list[str], list[Wish]], list[_Answer]],
        batch_tokens: int,
        seconds: float,
    ) -> None:
        """translate is called in a thread, for at most batch_tokens source
        tokens, or one line; for fewer, once seconds have passed.
        """
        self.translate, self.seconds = translate, seconds
        self.batch_tokens = batch_tokens
        self.waiting: deque[_Waiting] = deque()
        self.tokens = 0  # of all that wait
        self.lines = self.batches = 0  # translated
        self._more = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "search")

    def add(
        self, line: str, wish: Wish, tokens: int
    ) -> "asyncio.Future[_Answer]":
        """Let a line wait. To give up, cancel the future."""
        answer = asyncio.get_running_loop().create_future()
        self.waiting.append(_Waiting(line, wish, tokens, answer))
        self.tokens += tokens
        self._more.set()
        return answer

    async def work(self) -> None:
        """Translate what waits, until this is cancelled."""
        while True:
            await self._more.wait()
            if self.tokens < self.batch_tokens:
                await asyncio.sleep(self.seconds)
            if batch := self._take():
                await self._answer(batch)
            if not self.waiting:
                self._more.clear()

    def _take(self) -> list[_Waiting]:
        """The next lines that somebody still waits for."""
        batch: list[_Waiting] = []
        room = self.batch_tokens
        while self.waiting and (
            not batch or self.waiting[0].tokens <= room
        ):
            one = self.waiting.popleft()
            self.tokens -= one.tokens
            if not one.answer.done():
                batch.append(one)
                room -= one.tokens
        return batch

    async def _answer(self, batch: list[_Waiting]) -> None:
        """Translate a batch; if that fails, each of its lines alone."""
        loop = asyncio.get_running_loop()
        both = [one.line for one in batch], [one.wish for one in batch]
        run = loop.run_in_executor(self._thread, self.translate, *both)
        try:
            answers = await run
        except Exception as error:
            for one in batch if len(batch) > 1 else []:
                await self._answer([one])
            if len(batch) == 1 and not batch[0].answer.done():
                batch[0].answer.set_exception(error)
            return
        self.lines += len(batch)
        self.batches += 1
        for one, answer in zip(batch, answers, strict=True):
            if not one.answer.done():
                one.answer.set_result(answer)


# E37-serve.md: The application
_Receive = Callable[[], Awaitable[dict[str, Any]]]
_Send = Callable[[dict[str, Any]], Awaitable[None]]

_HELP = """\
POST /translate  {"text": ["a sentence", "another"]}, or {"text": "one"}
                 with "prefix": "how each begins", "require": ["a word"]
GET  /health     whether it works, and what it has done
"""
_WAITING = 200_000  # source tokens: minutes on two cores


class _Application:
    """An ASGI application that translates with a run."""

    def __init__(
        self, run: Run, batcher: _Batcher, names: Sequence[str] = ()
    ) -> None:
        """It answers to these names of a host; with none, to any."""
        self.run, self.batcher, self.names = run, batcher, names

    async def __call__(
        self, scope: dict[str, Any], receive: _Receive, send: _Send
    ) -> None:
        """Answer one request."""
        headers: dict[str, str] = {}
        try:
            code, said = 200, await self._said(scope, receive)
        except _Refused as refused:
            code, said = refused.code, {"error": str(refused)}
            headers = refused.headers
        except (DataError, UsageError) as error:
            code, said = 400, {"error": " ".join(str(error).split())}
        except RunError as error:
            code, said = 500, {"error": " ".join(str(error).split())}
        except Exception:  # a bug: the others must not suffer from it
            traceback.print_exc()
            code, said = 500, {"error": "the server's standard error says"}
        if said is None:  # the client has left
            return
        kind, text = "text/plain", said
        if not isinstance(said, str):
            kind = "application/json"
            text = json.dumps(said, ensure_ascii=False) + "\n"
        body = text.encode("utf-8", "replace")
        headers |= {
            "content-type": f"{kind}; charset=utf-8",
            "content-length": str(len(body)),
        }
        start = {
            "type": "http.response.start",
            "status": code,
            "headers": [
                (k.replace("_", "-").encode(), v.encode())
                for k, v in headers.items()
            ],
        }
        await send(start)
        await send({"type": "http.response.body", "body": body})

    async def _said(self, scope: dict[str, Any], receive: _Receive) -> Any:
        """What to answer; None to a client that has left."""
        method, path = scope["method"], scope["path"]
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        name = (
            host if host.endswith("]") else host.rpartition(":")[0] or host
        )
        if self.names and name.lower() not in self.names:
            raise _Refused(403, f"this is not {name[:80]!r}: use localhost")
        if path not in ("/", "/health", "/translate"):
            raise _Refused(404, f"there is no {path[:80]!r}: see GET /")
        allowed = ["POST"] if path == "/translate" else ["GET", "HEAD"]
        if method not in allowed:
            raise _Refused(
                405, f"{path} takes {allowed[0]}", allow=", ".join(allowed)
            )
        if path == "/":
            return _HELP
        if path == "/health":
            return {
                "status": "ok",
                "sentences": self.batcher.lines,
                "batches": self.batcher.batches,
                "waiting_tokens": self.batcher.tokens,
            }
        body = await _body(receive)
        return (
            None
            if body is None
            else await self._translated(*_asked(body), receive)
        )

    async def _translated(
        self, lines: list[str], wish: Wish, receive: _Receive
    ) -> Any:
        """The translations, unless the client leaves before."""
        if any(wish) and self.run.engine is not None:
            raise UsageError("--ctranslate2 knows no prefix and no require")
        as_prefixes(wish[:1], self.run.target)  # refused at once
        as_phrases(wish[1], self.run.target)
        if self.batcher.tokens > _WAITING:
            raise _Refused(
                503, "too much waits: ask later", retry_after="9"
            )
        ids = self.run.source.encode(lines)
        waiting = [
            self.batcher.add(line, wish, len(row) + 1)
            for line, row in zip(lines, ids)
        ]
        answers = asyncio.ensure_future(_together(waiting))
        left = asyncio.ensure_future(_left(receive))
        both: list[asyncio.Future[Any]] = [answers, left]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not answers.done():
                return None
            found = answers.result()
        finally:
            answers.cancel()
            left.cancel()
        return {
            "translations": [best.text for best, *_ in found],
            "hypotheses": [
                [dataclasses.asdict(one) for one in nbest]
                for nbest in found
            ],
            "unknown_words": unknown_words(self.run.source, lines),
            "missing": missing(
                self.run.source, lines, [best.text for best, *_ in found]
            ),
        }


async def _body(receive: _Receive) -> bytes | None:
    """The body of a request; None if the client leaves in the middle."""
    body, more, length = [], True, 0
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        more = message.get("more_body", False)
        length += len(message.get("body", b""))
        if length <= _LONGEST:  # else it is read, for the client's sake
            body.append(message.get("body", b""))
        elif length > 100 * _LONGEST:
            break
    if length > _LONGEST:
        raise _Refused(
            413, f"more than {_LONGEST:,} bytes: send several requests",
            connection="close",
        )  # fmt: skip
    return b"".join(body)


async def _together(waiting: Sequence[Awaitable[_Answer]]) -> list[_Answer]:
    """The answers to all of these; cancelled, it cancels each."""
    return await asyncio.gather(*waiting)


async def _left(receive: _Receive) -> None:
    """Wait until the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        continue


# E37-serve.md: The command
@dataclasses.dataclass(frozen=True, kw_only=True)
class Serve(ConstraintOptions):
    """Translate for other programs, which send JSON over HTTP to this
    machine: POST /translate {"text": ["a sentence", "another"]}.
    """

    host: str = "127.0.0.1"  # where to listen; by default, no other machine
    port: int = 8000  # 0: any that is free
    nbest: int = 1  # translations per sentence
    batch_tokens: int = 2000  # source tokens that are searched together
    wait: int = 5  # milliseconds for which a sentence waits for others

    def act(self) -> None:
        """Serve until Ctrl-C."""
        check_whole("batch_tokens", self.batch_tokens, least=1)
        check_whole("wait", self.wait, least=0)
        self.check_constraints()
        uvicorn = optional_import("uvicorn", "uvicorn (the extra [serve])")
        with _listening(self.host, self.port) as door:
            host, port = door.getsockname()[:2]
            run = self.open()
            search = self.search(run, nbest=self.nbest)
            wishes = self.wishes(run)
            run.translate([], search, **wishes([]))  # refused at once
            own = ipaddress.ip_address(host).is_loopback
            if not own:
                print(
                    f"{host} can be reached from other machines, and there "
                    "is no authentication: put a proxy before it that has",
                    file=sys.stderr,
                )
            names = (
                {"localhost", host, f"[{host}]", self.host.lower()}
                if own
                else ()
            )
            name = f"[{host}]" if ":" in host else host
            print(f"http://{name}:{port}\n(Ctrl-C ends it)", flush=True)

            def translate(
                lines: list[str], own: list[Wish]
            ) -> list[_Answer]:
                asked = wishes(lines, own)
                return run.translate(
                    lines, search, self.batch_tokens, **asked
                )

            batcher = _Batcher(
                translate, self.batch_tokens, self.wait / 1000
            )
            application = _Application(run, batcher, sorted(names))
            with suppress(KeyboardInterrupt):
                asyncio.run(self.serve(uvicorn, door, application))

    async def serve(
        self, uvicorn: Any, door: socket.socket, application: _Application
    ) -> None:
        """Answer requests until a signal comes."""
        server = uvicorn.Server(
            uvicorn.Config(
                application, http="h11", ws="none", lifespan="off",
                interface="asgi3", log_config=None, log_level="error",
                access_log=False, server_header=False,
            )
        )  # fmt: skip
        work = asyncio.create_task(application.batcher.work())
        try:
            await server.serve(sockets=[door])
        finally:
            work.cancel()


def _listening(host: str, port: int) -> socket.socket:
    """A socket at which clients may knock from now on. UsageError if it
    cannot be had.
    """
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(
            (address[0], port), family=family, backlog=1024
        )
    except (OSError, OverflowError, UnicodeError) as error:
        raise UsageError(f"{host}:{port} cannot be had: {error}") from None
