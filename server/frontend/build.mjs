// Makes what browsers load: a few files named by their content, each beside its gzip, and
// manifest.json, which says the name of each. Usage: node build.mjs FOLDER
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build, transform } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const from = join(here, "node_modules");
const source = (name) => readFileSync(join(here, "source", name), "utf8");
const text = (path) => readFileSync(join(from, path), "utf8").replace(/^\/\/# sourceMapping.*$/m, "");

const out = process.argv[2];
rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
const manifest = {};

function put(name, data) {
  const hash = createHash("sha256").update(data).digest("hex").slice(0, 16);
  const [stem, ending] = name.split(".");
  const hashed = `${stem}.${hash}.${ending}`;
  writeFileSync(join(out, hashed), data);
  writeFileSync(join(out, `${hashed}.gz`), gzipSync(data, { level: 9 }));
  manifest[name] = hashed;
}

async function bundled(name) {
  const made = await build({
    entryPoints: [join(here, "source", name)],
    bundle: true, minify: true, write: false, format: "iife", target: "es2022",
    legalComments: "none", nodePaths: [from],
  });
  return made.outputFiles[0].text;
}

// htmx and its extensions are scripts that share a global, so they are joined as they are.
put(
  "app.js",
  [
    text("htmx.org/dist/htmx.min.js"),
    text("htmx.org/dist/ext/hx-csp.min.js"),
    text("htmx.org/dist/ext/hx-sse.min.js"),
    await bundled("app.js"),
  ].join("\n;\n"),
);
put("theme.js", await bundled("theme.js"));
put("charts.js", await bundled("charts.js"));
put("upload.js", await bundled("upload.js"));
put("digest.js", await bundled("digest.js"));

const styles = ["base", "tables", "uploads", "account", "comparing", "models"].map((name) => source(`styles/${name}.css`));
const own = await transform(styles.join("\n"), { loader: "css", minify: true, target: "es2022" });
put("app.css", text("@tabler/core/dist/css/tabler.min.css").replace(/\/\*# sourceMapping.*?\*\//g, "") + own.code);

// One file of all icons that templates name: <use href="icons.svg#NAME">.
const icons = source("icons.txt").split("\n").filter((line) => line && !line.startsWith("#"));
const symbols = icons.map((name) => {
  const svg = text(`@tabler/icons/icons/outline/${name}.svg`);
  const inner = svg.slice(svg.indexOf(">", svg.indexOf("<svg")) + 1, svg.lastIndexOf("</svg>"));
  return `<symbol id="${name}" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round">${inner.replace(/\s+/g, " ").trim()}</symbol>`;
});
put("icons.svg", `<svg xmlns="http://www.w3.org/2000/svg">${symbols.join("")}</svg>`);
put("favicon.svg", source("favicon.svg"));

writeFileSync(join(out, "manifest.json"), `${JSON.stringify(manifest, null, 2)}\n`);
