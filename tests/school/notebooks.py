"""Notebooks of students, as nbgrader knows them."""

from __future__ import annotations

import copy
from pathlib import Path

from annotated.school.exercises import exercises
from press.exercises import read_exercises

ROOT = Path(__file__).resolve().parents[2]
PADDING, CAUSAL = exercises()["03-padding"], exercises()["03-causal"]
SOURCES = {e.name: e for e in read_exercises(ROOT)}
GOOD = CAUSAL.reference


def answer(code, exercise=CAUSAL):
    return exercise.answer(code, f"<student {id(code)}>")


def solved(notebook, **codes):
    """A student's notebook: code by the last part of an exercise's name."""
    new = copy.deepcopy(notebook)
    for cell in new["cells"]:
        label = cell["metadata"].get("nbgrader", {})
        if label.get("solution") and cell["cell_type"] == "code":
            name = label["grade_id"]
            code = codes.get(
                name.split("-")[-1], SOURCES[name].one("reference")
            )
            cell["source"] = code.splitlines(keepends=True)
    return new


PARTLY = """
import torch
def causal_mask(length, device=None):
    return torch.ones(length, length, dtype=torch.bool).tril()
"""
HELPED = """
import torch
ONE = 1
def helper(length):
    return torch.arange(length) + ONE
def causal_mask(length, device=None):
    p = helper(length)
    return p[:, None] >= p
"""


def sources_of(notebook):
    return {
        cell["metadata"]["nbgrader"]["grade_id"]: "".join(cell["source"])
        for cell in notebook["cells"]
        if cell["metadata"].get("nbgrader", {}).get("solution")
    }


def damaged(given, code, how):
    """A student's notebook whose cell was split, pasted elsewhere, …"""
    work = solved(given)
    place = next(
        i
        for i, c in enumerate(work["cells"])
        if c["metadata"].get("nbgrader", {}).get("grade_id") == "03-causal"
    )
    cell = work["cells"].pop(place)
    plain = {"cell_type": "code", "metadata": {}, "outputs": []}
    lines = code.strip("\n").splitlines(keepends=True)
    if how == "deleted":
        return work
    if how == "elsewhere":
        work["cells"].append({**plain, "source": lines})
    if how == "split":
        parts = [lines[:5], lines[5:]]  # inside of a function
        work["cells"][place:place] = [
            {**plain, "source": part} for part in parts
        ]
    if how == "copied":
        work["cells"][place:place] = [
            {**cell, "source": CAUSAL.starter.splitlines(keepends=True)},
            {**cell, "source": lines},
            {**cell, "source": CAUSAL.starter.splitlines(keepends=True)},
        ]
    return work


TRIED = "def causal_mask(length\n    return length"


def cell_of(text, label=None, kind="code"):
    """A cell, with the label of a cell to write in."""
    metadata = {}
    if label:
        metadata["nbgrader"] = {
            "grade_id": label, "solution": True, "grade": False,
            "locked": False, "schema_version": 3,
        }  # fmt: skip
    return {"cell_type": kind, "metadata": metadata, "source": [text]}


def notebook_of(*cells):
    cells = [dict(c, id=f"c{n}") for n, c in enumerate(cells)]
    return {
        "cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5,
    }  # fmt: skip
