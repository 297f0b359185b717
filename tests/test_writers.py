"""Every place in the package that writes, names or deletes a file goes
through engine.files (page E3), or has a reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.helpers import ROOT

METHODS = {
    "chmod", "copyfile", "copytree", "hardlink_to", "makedirs", "mkdir",
    "mkdtemp", "mkstemp", "rename", "rmdir", "rmtree", "save_file",
    "savefig", "symlink_to", "touch", "truncate", "unlink", "utime",
    "write_bytes", "write_text", "NamedTemporaryFile", "SummaryWriter",
    "TemporaryDirectory", "TemporaryFile",
}  # fmt: skip
OF_MODULES = {
    "np.save", "np.savez", "onnx.export", "os.link", "os.open", "os.remove",
    "os.replace", "os.symlink", "pickle.dump", "json.dump", "shutil.copy",
    "shutil.copy2", "shutil.move", "spec.save", "torch.save",
}  # fmt: skip

FRESH = "in a folder that new_folder or replacing gives"
EMPTY = "makes a folder to write in, and nothing else"
MEMORY = "not on the disk, or in a temporary folder"
PLAIN = "the plain form, explained and tested in chapter 15"
WRITERS = {
    "batches Sentences.save": "a plain form: pages alone write with it",
    "book.figures as_svg": MEMORY,
    "book.paper keep": EMPTY,
    "book.sweep Sweep.run": EMPTY,
    "checkpoints save_checkpoint": PLAIN,
    "checkpoints save_weights": PLAIN,
    "cli _unwritten": MEMORY,
    "cli main": MEMORY,
    "engine.checkpoints _drop": "renames into a folder of aside",
    "engine.checkpoints write_checkpoint": FRESH,
    "school.classroom Classroom.mend": "unlinks what it has a copy of",
    "school.classroom _keep_beside": FRESH,
    "school.classroom _silent_errors": MEMORY,
    "school.course Workspace._write": "one file a step, none that is imported",
    "school.course Workspace.keep": EMPTY,
    "school.course Workspace.remember": EMPTY,
    "school.milestones _copies": MEMORY,
    "commands.adapt Adapt._do": EMPTY,
    "commands.back _append": "appends translations as they come",
    "commands.back _begin": EMPTY,
    "commands.back _whole_lines": "cuts off what a killed process has left",
    "commands.doctor _folders": MEMORY,
    "school.examiner Examiner.__init__": MEMORY,
    "school.examiner _examined_anew": MEMORY,
    "school.examiner _serve_once": MEMORY,
    "school.examiner _serve": MEMORY,
    "exchange.export _write": FRESH,
    "exchange.export write_ctranslate2": FRESH,
    "exchange.export with_ctranslate2": MEMORY,
    "exchange.export _write_onnx": FRESH,
    "corpora.fetch _download": "goes on where a download has broken off",
    "corpora.fetch fetch": "goes on where a download has broken off",
    "engine.machine cached": EMPTY,
    "exchange.marian _write_tokenizer": FRESH,
    "exchange.marian write_transformers": FRESH,
    "corpora.prepare _Rows.__init__": FRESH,
    "corpora.prepare _opened": FRESH,
    "corpora.prepare prepare": FRESH,
    "engine.log Log.__init__": "appends lines; a half one is not read",
    "engine.log _board": "TensorBoard's events, which it appends",
    "engine.packing Packing.moved": "moves tensors",
    "engine.runner _discard_later": "takes away what it has a copy of",
    "engine.runner _keep_best": FRESH,
    "engine.runner _set_end_aside": "renames what it keeps",
    "engine.runner _take_up": "sets a damaged checkpoint aside",
    "engine.runs Run.begin": "takes a run back that could not begin",
    "engine.tensors write_tensors": FRESH,
    "school.terminal _Session.begin": EMPTY,
    "school.terminal _Session.reset": "renames to a new name",
    "pocket write_samples": "makes data/pocket of this repository",
}


def writing(call: ast.Call) -> bool:
    f, arguments = (
        call.func,
        [*call.args, *(k.value for k in call.keywords)],
    )
    name = f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "")
    if not isinstance(f, ast.Attribute):  # write_text(path, …) is ours
        opened = name == "open"
        return (
            name in METHODS - {"write_text"} | {"move"}
            or opened
            and written(arguments)
        )
    owner = getattr(f.value, "id", getattr(f.value, "attr", ""))
    if name == "replace":  # Path.replace; that of str has two
        return len(call.args) == 1 and not call.keywords
    if name == "open" and owner != "os":
        return written(arguments)
    return name in METHODS or f"{owner}.{name}" in OF_MODULES


def written(arguments: list[ast.expr]) -> bool:
    """Whether open is to write, or one cannot see it."""
    modes = [a.value for a in arguments if isinstance(a, ast.Constant)]
    modes = [m for m in modes if isinstance(m, str) and len(m) < 4]
    unknown = any(isinstance(a, ast.IfExp) for a in arguments)
    return unknown or any(set(m) & set("wax+") for m in modes)


def places(node: ast.AST, inside: tuple[str, ...] = ()) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        deeper = inside
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            deeper = (*inside, child.name)
        if isinstance(child, ast.Call) and writing(child):
            yield ".".join(inside[:2])
        yield from places(child, deeper)


def test_every_writer_goes_through_one_module_or_has_a_reason() -> None:
    found: dict[str, int] = {}
    for path in sorted((ROOT / "annotated").rglob("*.py")):
        parts = path.relative_to(ROOT / "annotated").with_suffix("").parts
        module = ".".join(p for p in parts if p != "__init__")
        if module == "engine.files":
            continue
        for place in places(ast.parse(path.read_text("utf-8"))):
            name = f"{module} {place}"
            found[name] = found.get(name, 0) + 1
    print(f"{sum(found.values())} calls in {len(found)} functions")
    assert sorted(found) == sorted(WRITERS)


def test_what_writes_is_seen() -> None:
    lines = (
        "p.open('w')", "p.open(mode='ab')", "open(p, 'x')", "p.replace(q)",
        "p.write_text(t)", "np.save(p, x)", "os.open(p, f)",
        "p.open('ab' if x else 'wb')", "torch.onnx.export(m)",
        "safetensors.torch.save_file(t, p)", "shutil.rmtree(p)",
    )  # fmt: skip
    for line in lines:
        assert list(places(ast.parse(line))), line
    for line in ("p.open('rb')", "t.replace('a', 'b')", "write_text(p, t)"):
        assert not list(places(ast.parse(line))), line
