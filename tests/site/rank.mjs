// node rank.mjs STATIC QUERIES: what search.html finds for each query, as JSON.
// STATIC is the folder _static of a site, QUERIES a list in JSON.
import { readFileSync } from "node:fs";
import { runInNewContext } from "node:vm";

const [folder, queries] = process.argv.slice(2);
const scripts = ["language_data.js", "sections.js", "sections-more.js", "asked.js", "index.js", "rank.js"];
const text = scripts.map((name) => readFileSync(`${folder}/${name}`, "utf8"));
const ask = `
const ranked = ranking(TAUGHT, ASKED);
ranked.add(SECTIONS);
ranked.add(MORE);
JSON.stringify(${queries}.map((query) =>
  ranked.find(query).found.slice(0, 30).map(({ id }) =>
    ranked.row(id)[0].replace(".html", "") + ranked.row(id)[2])));`;
const given = {};
given.window = given.self = given;
console.log(runInNewContext([...text, ask].join("\n;\n"), given));
