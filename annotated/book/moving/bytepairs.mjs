// bytepairs: a text into the byte pairs of chapter 10, and their spelling.

// as in annotated.tokens: a space belongs to the word after it
const WORD = /'(?:s|t|re|ve|m|ll|d)| ?[\p{L}\p{Nl}\p{No}]+| ?\p{Nd}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;

/** The line in parts that no token crosses, with a space in front. */
export const words = (line) => (line ? ` ${line}`.match(WORD) : []);

/** The ids of a line; `ranks` has the id of each pair as "a,b", `order` the
 *  bytes of ids 4 to 259. Merges from `vocab` on are not made. */
export function encode(line, ranks, order, vocab) {
  const byte = new Map(order.map((b, i) => [b, i + 4]));
  return words(line).flatMap((word) => {
    let ids = [...new TextEncoder().encode(word)].map((b) => byte.get(b));
    for (;;) {
      let best = vocab;
      for (let i = 0; i + 1 < ids.length; i++) {
        best = Math.min(best, ranks.get(`${ids[i]},${ids[i + 1]}`) ?? vocab);
      }
      if (best === vocab) return ids;
      const merged = [];
      for (let i = 0; i < ids.length; i++) {
        const both = ranks.get(`${ids[i]},${ids[i + 1]}`) === best;
        merged.push(both ? best : ids[i]);
        if (both) i++;
      }
      ids = merged;
    }
  });
}

/** The bytes of every id. */
export function spellings(merges, order) {
  const found = [[], [], [], [], ...order.map((b) => [b])];
  for (const [a, b] of merges) found.push([...found[a], ...found[b]]);
  return found;
}

/** A token as one shows it. */
export const shown = (bytes) => new TextDecoder().decode(Uint8Array.from(bytes)).replaceAll(" ", "␣");
