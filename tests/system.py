"""Faults put in below Python: what a process asks the system to write,
flush, rename, make or delete under a folder, and the n-th of it refused.

A filter (seccomp) stops the process at these calls alone, and whoever has
forked it (ptrace) counts them, whether Python, C or Rust makes them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# the numbers of x86-64; of each call, where its file stands among its
# arguments: a descriptor, a path, or a path below a descriptor
FD, PATH, AT = "descriptor", "path", "path below a descriptor"
CALLS: dict[int, tuple[str, str, int]] = {
    1: ("write", FD, 0), 18: ("pwrite64", FD, 0), 20: ("writev", FD, 0),
    296: ("pwritev", FD, 0), 328: ("pwritev2", FD, 0),
    40: ("sendfile", FD, 0), 326: ("copy_file_range", FD, 2),
    275: ("splice", FD, 2), 285: ("fallocate", FD, 0),
    77: ("ftruncate", FD, 0), 76: ("truncate", PATH, 0),
    74: ("fsync", FD, 0), 75: ("fdatasync", FD, 0),
    2: ("open", PATH, 0), 85: ("creat", PATH, 0), 257: ("openat", AT, 0),
    82: ("rename", PATH, 1), 264: ("renameat", AT, 2),
    316: ("renameat2", AT, 2), 86: ("link", PATH, 1), 265: ("linkat", AT, 2),
    88: ("symlink", PATH, 1), 266: ("symlinkat", AT, 1),
    83: ("mkdir", PATH, 0), 258: ("mkdirat", AT, 0),
    87: ("unlink", PATH, 0), 263: ("unlinkat", AT, 0), 84: ("rmdir", PATH, 0),
}  # fmt: skip
GROW = {
    "write", "pwrite64", "writev", "pwritev", "pwritev2", "sendfile",
    "copy_file_range", "splice", "fallocate", "open", "creat", "openat",
    "link", "linkat", "symlink", "symlinkat", "mkdir", "mkdirat",
}  # fmt: skip
SHORTEN = {"write": "rdx", "pwrite64": "rdx", "sendfile": "r10"}
ERRORS = dict.fromkeys(GROW, errno.ENOSPC) | {
    "fsync": errno.EIO, "fdatasync": errno.EIO,
}  # fmt: skip

SEIZE, CONT, GETREGS, SETREGS, LISTEN = 0x4206, 7, 12, 13, 0x4208
CLONES, SECCOMP, STOP = (1, 2, 3), 7, 128  # events
OPTIONS = (
    0x2 | 0x4 | 0x8 | 0x80 | 0x100000
)  # forks, clones, seccomp, exitkill
ALL = 0x40000000  # __WALL: threads too


def missing() -> str:
    """Why it cannot be done here; "" where it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "needs Linux on x86-64"
    try:
        return (
            "" if traced(lambda: None, Path("/nowhere")).code == 0 else "?"
        )
    except OSError as error:
        return f"a process may not trace its own child here: {error}"


class Registers(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_ulonglong)
        for name in [
            "r15",
            "r14",
            "r13",
            "r12",
            "rbp",
            "rbx",
            "r11",
            "r10",
            "r9",
            "r8",
            "rax",
            "rcx",
            "rdx",
            "rsi",
            "rdi",
            "orig_rax",
            "rip",
            "cs",
            "eflags",
            "rsp",
            "ss",
            "fs_base",
            "gs_base",
            "ds",
            "es",
            "fs",
            "gs",
        ]
    ]

    def argument(self, i: int) -> int:
        return getattr(self, ("rdi", "rsi", "rdx", "r10", "r8", "r9")[i])


@dataclass(frozen=True)
class Fault:
    """From the n-th call on (from 1), or that call alone."""

    at: int
    how: str  # once, full, gone, killed

    def strikes(self, number: int, name: str) -> bool:
        if self.how in ("once", "killed"):
            return number == self.at
        if self.how == "full":  # what is freed can still be freed
            return number >= self.at and name in GROW
        return number >= self.at


@dataclass
class Trace:
    """What a process has done under a folder, and how it ended."""

    points: list[tuple[str, str]] = field(default_factory=list)
    struck: int = 0
    code: int = 0  # minus a signal's number


libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_long] * 2 + [ctypes.c_void_p] * 2


def _ptrace(what: int, pid: int, address: Any = 0, data: Any = 0) -> None:
    if libc.ptrace(what, pid, address, data) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace: {os.strerror(number)}")


def _stop_at_calls() -> None:
    """Let every call of the table stop this process, and its children."""

    def step(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
        return (
            code.to_bytes(2, "little") + bytes((yes, no))
            + k.to_bytes(4, "little")
        )  # fmt: skip

    load, equal, answer = 0x20, 0x15, 0x06
    count = len(CALLS)
    program = [step(load, 4), step(equal, 0xC000003E, 0, count + 1)]
    program += [step(load, 0)]
    program += [
        step(equal, number, count - i, 0) for i, number in enumerate(CALLS)
    ]
    program += [step(answer, 0x7FFF0000), step(answer, 0x7FF00000)]
    code = ctypes.create_string_buffer(b"".join(program))

    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    whole = Program(len(program), ctypes.addressof(code))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(whole)):
        raise OSError(ctypes.get_errno(), "no filter of system calls")


def traced(
    act: Callable[[], Any],
    folder: Path,
    fault: Fault | None = None,
    seen: Callable[[str, str], None] | None = None,
) -> Trace:
    """Do something in a child of this process, which has one thread."""
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(go)
            os.read(ready, 1)
            os.close(ready)
            _stop_at_calls()
            act()
            code = 0
        except SystemExit as stop:
            code = (
                stop.code
                if isinstance(stop.code, int)
                else int(bool(stop.code))
            )
        except BaseException:
            traceback.print_exc()
        finally:
            with_flush()
            os._exit(code)
    os.close(ready)
    try:
        _ptrace(SEIZE, child, 0, OPTIONS)
        os.write(go, b"x")
    except OSError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        os.close(go)
    trace = Trace()
    for pid, event in _events(child, trace):
        if event == SECCOMP:
            _call(pid, folder, trace, fault, seen)
    return trace


def with_flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _events(child: int, trace: Trace) -> Iterator[tuple[int, int]]:
    """Every stop of the child, its threads and its children."""
    while True:
        pid, status = os.waitpid(-1, ALL)
        if not os.WIFSTOPPED(status):
            if pid == child:
                trace.code = os.waitstatus_to_exitcode(status)
                break
            continue
        number, event = os.WSTOPSIG(status), status >> 16
        yield pid, event
        try:
            if event == STOP and number != signal.SIGTRAP:
                _ptrace(LISTEN, pid)
            else:
                _ptrace(CONT, pid, 0, 0 if event else number)
        except ProcessLookupError:
            pass  # killed meanwhile
        except OSError as error:
            if error.errno != errno.ESRCH:
                raise


def _call(
    pid: int,
    folder: Path,
    trace: Trace,
    fault: Fault | None,
    seen: Callable[[str, str], None] | None,
) -> None:
    """Count a call that concerns the folder, and refuse it, perhaps."""
    registers = Registers()
    pointer = ctypes.byref(registers)
    try:
        _ptrace(GETREGS, pid, 0, pointer)
        name, kind, place = CALLS[registers.orig_rax]
        if name in ("open", "openat"):
            flags = registers.argument(place + (2 if kind == AT else 1))
            if not flags & (os.O_CREAT | os.O_TRUNC):
                return
        path = _path(pid, registers, kind, place)
    except OSError:
        return
    if not path.startswith(f"{folder}/") and path != str(folder):
        return
    trace.points.append((name, path[len(str(folder)) + 1 :]))
    if seen is not None:
        seen(name, path)
    if fault is None or not fault.strikes(len(trace.points), name):
        return
    trace.struck += 1
    if fault.how == "killed":
        os.kill(pid, signal.SIGKILL)
        return
    if fault.how == "full" and trace.struck == 1 and name in SHORTEN:
        register = SHORTEN[name]
        half = getattr(registers, register) // 2
        if half:  # what fits is written; the next call fails
            setattr(registers, register, half)
            _ptrace(SETREGS, pid, 0, pointer)
            return
    registers.orig_rax = 2**64 - 1
    registers.rax = 2**64 - ERRORS.get(name, errno.EACCES)
    _ptrace(SETREGS, pid, 0, pointer)


def _path(pid: int, registers: Registers, kind: str, place: int) -> str:
    process, first = Path(f"/proc/{pid}"), registers.argument(place)
    if kind == FD:
        return str((process / f"fd/{first & 0xFFFFFFFF}").readlink())
    base = process / "cwd"
    if kind == AT:
        number = ctypes.c_int(first & 0xFFFFFFFF).value
        if number >= 0:
            base = process / f"fd/{number}"
        first = registers.argument(place + 1)
    return os.path.normpath(base.readlink() / _text(pid, first))


def _text(pid: int, address: int) -> str:
    """The string at an address of another process."""
    found = b""
    handle = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        while b"\0" not in found:
            found += os.pread(handle, 4096 - address % 4096, address)
            address += 4096 - address % 4096
    finally:
        os.close(handle)
    return os.fsdecode(found.partition(b"\0")[0])
