import { close, golden } from "./golden.mjs";
import test from "node:test";
import { encoding, rotate, turn } from "../../annotated/book/moving/waves.mjs";

test("rows are those of sinusoids, and a shift is a rotation of them", () => {
  const { width, table, offset } = golden("waves");
  table.forEach((row, position) => {
    close(encoding(position, width), row, 1e-12);
    const to = table[position + offset];
    if (to) close(rotate(row, offset), to, 1e-12);
    if (to) close(rotate(to, -offset), row, 1e-12);
  });
  close([turn(offset, 0, width), turn(offset, width / 2, width)], [offset, offset / 100], 1e-12);
});
