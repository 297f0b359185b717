"""A Windows that is honest about files, simulated on Linux. After install(),
or with `python -m pytest -p tests.machines.windows`,

- a file that this process has open or mapped cannot be deleted, renamed or
  replaced, nor a folder with such a file renamed; a folder cannot be opened;
- names with <>:"|?* or a dot at their end are refused;
- msvcrt locks a file for one handle; os has no fork, killpg, setsid, getuid, sched_getaffinity, sysconf; signal no
  SIGKILL and no setitimer; fcntl, resource, termios, tty, pty, grp and pwd are
  missing; multiprocessing has spawn only;
- sys.platform and os.name are win32 and nt, for annotated and tests alone (the
  standard library of this Linux needs its own).

It cannot show drive letters, consoles, or how long a scanner holds a file.
"""

import builtins
import fcntl
import multiprocessing
import multiprocessing.context
import os
import signal
import sys
import types

# libraries are loaded as they are, before anything is taken away
import _pytest.capture
import _pytest.logging
import _pytest.pathlib  # noqa: F401
import matplotlib.pyplot  # noqa: F401
import numpy  # noqa: F401
import pytest
import sacrebleu  # noqa: F401
import safetensors.torch  # noqa: F401
import seaborn  # noqa: F401
import tokenizers  # noqa: F401
import torch.distributed
import torch.utils.data  # noqa: F401
import tqdm  # noqa: F401
import tyro  # noqa: F401

REAL = {
    n: getattr(os, n)
    for n in (
        "rename",
        "replace",
        "unlink",
        "remove",
        "rmdir",
        "open",
        "link",
        "mkdir",
    )
}
OURS = ("annotated", "tests", "press", "benchmarks", "__main__")


def _in_use():
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass
    with builtins.open("/proc/self/maps") as f:
        for line in f:
            part = line.split(None, 5)
            if len(part) == 6 and part[5].startswith("/"):
                found.add(part[5].strip())
    return {p for p in found if p.startswith("/")}


def _whole(path, dir_fd=None):
    path = os.fspath(path)
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if dir_fd is not None:
        path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
    # not realpath of the last part: links are renamed themselves
    return os.path.join(
        os.path.realpath(os.path.dirname(path) or "."),
        os.path.basename(path),
    )


def _busy(path, what, dir_fd=None, folders=True):
    whole = _whole(path, dir_fd)
    for used in _in_use():
        real_file = os.path.isfile(used)
        if real_file and (
            used == whole or (folders and used.startswith(whole + "/"))
        ):
            error = PermissionError(
                13,
                "The process cannot access the file "
                "because it is being used by another process",
                whole,
            )
            error.winerror = 32  # type: ignore[attr-defined]
            raise error


def _named(path):
    for part in (
        str(os.fspath(path)).split("/")
        if isinstance(path, (str, os.PathLike))
        else ()
    ):
        if any(c in part for c in '<>:"|?*') or (
            part.strip(".") and part.endswith((".", " "))
        ):
            raise OSError(
                22,
                "The filename, directory name, or volume label "
                "syntax is incorrect",
                str(path),
            )


def rename(src, dst, **k):
    _named(dst)
    _busy(src, "rename", k.get("src_dir_fd"))
    if os.path.lexists(dst):
        raise FileExistsError(
            17,
            "Cannot create a file when that file already exists",
            str(dst),
        )
    return REAL["rename"](src, dst, **k)


def replace(src, dst, **k):
    _named(dst)
    _busy(src, "replace", k.get("src_dir_fd"))
    if os.path.isdir(dst):
        raise PermissionError(13, "Access is denied", str(dst))
    _busy(dst, "replace")
    return REAL["replace"](src, dst, **k)


def unlink(path, **k):
    _busy(path, "unlink", k.get("dir_fd"), folders=False)
    return REAL["unlink"](path, **k)


def rmdir(path, **k):
    return REAL["rmdir"](path, **k)


def mkdir(path, *a, **k):
    _named(path)
    return REAL["mkdir"](path, *a, **k)


def os_open(path, flags, *a, **k):
    caller = sys._getframe(1).f_globals.get("__name__", "")
    if caller.split(".")[0] in OURS and os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    if flags & os.O_CREAT:
        _named(path)
    return REAL["open"](path, flags, *a, **k)


_open = builtins.open


def open_(file, mode="r", *a, **k):
    if isinstance(file, (str, os.PathLike)) and set(mode) & set("wax"):
        _named(file)
    return _open(file, mode, *a, **k)


class Seen(types.ModuleType):
    """os or sys as ours see it, and as monkeypatch changes it."""

    def __init__(self, real, hidden, changed):
        super().__init__(real.__name__)
        parts = {"_real": real, "_hidden": hidden, "_changed": changed}
        for name, part in parts.items():
            super().__setattr__(name, part)

    @property
    def __dict__(self):  # type: ignore[override]
        """Where monkeypatch finds what it will put back."""
        seen = {**vars(self._real), **self._changed}
        return {n: x for n, x in seen.items() if n not in self._hidden}

    def __getattr__(self, name):
        if name in self._hidden:
            raise AttributeError(
                f"module {self._real.__name__!r} has no attribute {name!r}"
            )
        if name in self._changed:
            return self._changed[name]
        return getattr(self._real, name)

    def __setattr__(self, name, value):
        if name in self._changed:
            self._changed[name] = value
        else:
            setattr(self._real, name, value)

    def __delattr__(self, name):
        delattr(self._real, name)


OS = Seen(
    os,
    {
        "fork",
        "forkpty",
        "killpg",
        "setsid",
        "getuid",
        "geteuid",
        "getgid",
        "getpgid",
        "getpgrp",
        "setpgid",
        "uname",
        "mkfifo",
        "sched_getaffinity",
        "sched_setaffinity",
        "sysconf",
        "openpty",
        "nice",
        "wait",
        "WNOHANG",
    },
    {"name": "nt"},
)
SYS = Seen(sys, set(), {"platform": "win32"})
SIGNAL = Seen(
    signal,
    {
        "SIGKILL",
        "SIGUSR1",
        "SIGUSR2",
        "SIGHUP",
        "SIGALRM",
        "alarm",
        "setitimer",
        "SIGSTOP",
        "SIGCONT",
        "SIGCHLD",
        "pthread_kill",
    },
    {},
)


def locking(handle, how, size):
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(13, "Permission denied") from None


MSVCRT = types.ModuleType("msvcrt")
MSVCRT.locking, MSVCRT.LK_NBLCK = locking, 2  # type: ignore[attr-defined]

_import = builtins.__import__
SEEN = {"os": OS, "sys": SYS, "signal": SIGNAL, "msvcrt": MSVCRT}
GONE = {"fcntl", "resource", "termios", "tty", "pty", "grp", "pwd"}


def import_(name, globals=None, locals=None, fromlist=(), level=0):
    own = (globals or {}).get("__name__", "").split(".")[0] in OURS
    if own and level == 0 and name in GONE:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    if own and level == 0 and name in SEEN:
        return SEEN[name]
    return _import(name, globals, locals, fromlist, level)


_context = multiprocessing.context.DefaultContext.get_context


def get_context(self, method=None):
    if method in ("fork", "forkserver"):
        raise ValueError(f"cannot find context for {method!r}")
    return _context(self, method or "spawn")


def install():
    os.rename, os.replace, os.rmdir = rename, replace, rmdir
    os.unlink = os.remove = unlink
    os.open, os.mkdir = os_open, mkdir
    builtins.open = open_
    builtins.__import__ = import_
    multiprocessing.context.DefaultContext.get_context = get_context
    multiprocessing.get_context = lambda method=None: get_context(
        multiprocessing.context._default_context, method
    )


_importorskip = pytest.importorskip


def importorskip(name, *a, **k):
    if name in GONE:
        pytest.skip(f"no module {name}", allow_module_level=True)
    return _importorskip(name, *a, **k)


def pytest_load_initial_conftests():
    """Before a conftest.py imports the package as it is on Linux."""
    pytest.importorskip = importorskip
    install()
