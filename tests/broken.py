"""A plugin for pytest that breaks one thing in the package first, in the
processes of tests too.

    BROKEN=annotated.masks.causal_mask pytest -p tests.broken tests/...

A test that passes nevertheless does not depend on it.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from types import FunctionType
from typing import Any, NoReturn

import annotated


def broken(*args: Any, **kwargs: Any) -> NoReturn:
    raise AssertionError("broken on purpose")


def break_it(path: str) -> None:
    for found in pkgutil.walk_packages(annotated.__path__, "annotated."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    whole, _, name = path.rpartition(".")
    owner = pkgutil.resolve_name(whole)
    thing = getattr(owner, name)
    if isinstance(thing, FunctionType) and not thing.__closure__:
        thing.__code__ = broken.__code__
    elif isinstance(thing, type):
        for method in ("__init__", "__new__"):
            setattr(thing, method, broken)
    else:  # a table, or what a decorator has made of a function
        empty = type(thing)() if hasattr(thing, "__len__") else broken
        for module in list(sys.modules.values()):
            for key, value in list(vars(module or annotated).items()):
                if value is thing:
                    setattr(module, key, empty)


break_it(os.environ["BROKEN"])
