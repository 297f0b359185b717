"""A small assembler: the text form of one WebAssembly function, as bytes.

It knows the instructions of `product.wat`, one imported memory and one
exported function. `python -m press.wasm` writes `product.mjs` from it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from press.modules import MOVING

FIGURES = Path(__file__).resolve().parents[1] / MOVING
HEAD = (
    "// product: the bytes of product.wat, as base64. "
    "`python -m press.wasm` writes them.\n"
)
Form: TypeAlias = "list[Form] | str"

TYPES = {"i32": 0x7F, "v128": 0x7B}
NOTHING = 0x40  # what a block leaves
PLAIN = {
    "select": b"\x1b", "i32.lt_s": b"\x48", "i32.gt_s": b"\x4a",
    "i32.add": b"\x6a", "i32.sub": b"\x6b", "i32.mul": b"\x6c",
    "i32.shl": b"\x74", "f32x4.add": b"\xfd\xe4\x01",
    "f32x4.mul": b"\xfd\xe6\x01",
}  # fmt: skip
LOCALS = {"local.get": 0x20, "local.set": 0x21, "local.tee": 0x22}
JUMPS = {"br": 0x0C, "br_if": 0x0D}
BLOCKS = {"block": 0x02, "loop": 0x03}
# code, and the logarithm of the bytes at which it is aligned
MEMORY = {
    "f32.load": (b"\x2a", 2), "f32.store": (b"\x38", 2),
    "v128.load": (b"\xfd\x00", 4), "v128.store": (b"\xfd\x0b", 4),
    "v128.load32_splat": (b"\xfd\x09", 2),
}  # fmt: skip


def assemble(text: str) -> bytes:
    """The module whose text form this is; ValueError for what it does not
    know.
    """
    module = _parse(text)
    memory = next(x for x in module if x[0] == "import")
    function = next(x for x in module if x[0] == "func")
    params = [x for x in function if x[0] == "param"]
    local = [x for x in function if x[0] == "local"]
    names = {str(x[1]): i for i, x in enumerate([*params, *local])}
    body = [
        x for x in function[1:] if x[0] not in ("export", "param", "local")
    ]
    exported = next(x[1] for x in function if x[0] == "export")
    kinds = _vector([bytes([TYPES[str(x[2])]]) for x in params])
    code = _declared([str(x[2]) for x in local])
    code += b"".join(_code(x, names, []) for x in body) + b"\x0b"
    pages = int(str(memory[3][1]))
    return b"\0asm\1\0\0\0" + b"".join(
        bytes([number]) + _sized(content)
        for number, content in (
            (1, _vector([b"\x60" + kinds + _vector([])])),
            (2, _vector([*map(_name, memory[1:3]), b"\x02\0", _leb(pages)],
                        count=1)),
            (3, _vector([b"\0"])),  # the function has type 0
            (7, _vector([_name(exported) + b"\0\0"])),
            (10, _vector([_sized(code)])),
        )
    )  # fmt: skip


def _parse(text: str) -> list[Form]:
    stack: list[list[Form]] = [[]]
    for token in re.findall(
        r'"[^"]*"|[()]|[^\s()]+', re.sub(r";;.*", "", text)
    ):
        if token == "(":
            stack.append([])
        elif token == ")":
            form = stack.pop()
            stack[-1].append(form)
        else:
            stack[-1].append(token)
    [module] = stack[0]
    return list(module)


def _code(form: Form, names: dict[str, int], labels: list[str]) -> bytes:
    """An instruction after its operands. labels: the blocks around it, the
    outermost first.
    """
    name, rest = str(form[0]), form[1:]
    if name in BLOCKS:
        inner = [*labels, str(rest[0])]
        body = b"".join(_code(x, names, inner) for x in rest[1:])
        return bytes([BLOCKS[name], NOTHING]) + body + b"\x0b"
    words = [str(x) for x in rest if isinstance(x, str)]
    operands = b"".join(
        _code(x, names, labels) for x in rest if isinstance(x, list)
    )
    return operands + b"".join(_own(name, words, names, labels))


def _own(
    name: str, words: list[str], names: dict[str, int], labels: list[str]
) -> Iterator[bytes]:
    """An instruction without its operands."""
    if name in LOCALS:
        yield bytes([LOCALS[name]]) + _leb(names[words[0]])
    elif name in JUMPS:
        yield bytes([JUMPS[name], labels[::-1].index(words[0])])
    elif name in MEMORY:
        code, align = MEMORY[name]
        offset = words[0].removeprefix("offset=") if words else "0"
        yield code + bytes([align]) + _leb(int(offset))
    elif name == "i32.const":
        yield b"\x41" + _leb(int(words[0]), signed=True)
    elif name == "v128.const":
        yield b"\xfd\x0c"
        yield from (int(x).to_bytes(4, "little") for x in words[1:])
    elif name in PLAIN:
        yield PLAIN[name]
    else:
        raise ValueError(f"no instruction {name!r}")


def _declared(kinds: list[str]) -> bytes:
    """The locals: how many of a type stand side by side."""
    groups: list[tuple[int, str]] = []
    for kind in kinds:
        count = 1
        if groups and groups[-1][1] == kind:
            count += groups.pop()[0]
        groups.append((count, kind))
    return _vector([_leb(n) + bytes([TYPES[kind]]) for n, kind in groups])


def _leb(number: int, signed: bool = False) -> bytes:
    """Seven bits a byte, the lowest first."""
    found = bytearray()
    last = 0x40 if signed else 0x80
    while number >= last:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _vector(items: list[bytes], count: int | None = None) -> bytes:
    return _leb(len(items) if count is None else count) + b"".join(items)


def _sized(content: bytes) -> bytes:
    return _leb(len(content)) + content


def _name(quoted: Form) -> bytes:
    return _sized(str(quoted).strip('"').encode())


def module(text: str) -> str:
    """What product.mjs holds of this text."""
    held = base64.b64encode(assemble(text)).decode()
    return f'{HEAD}export const PRODUCT = "{held}";\n'


if __name__ == "__main__":
    source = (FIGURES / "product.wat").read_text("utf-8")
    (FIGURES / "product.mjs").write_text(module(source), "utf-8")
