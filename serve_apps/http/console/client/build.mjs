// Builds the client into a folder, ../dist by default: `node build.mjs [folder]`. The same input gives the same bytes.
import { build } from "esbuild";
import { copyFileSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "..", "dist");
mkdirSync(out, { recursive: true });
for (const name of readdirSync(out)) rmSync(join(out, name));
await build({
  absWorkingDir: here,
  entryPoints: { console: "src/main.tsx" },
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  outdir: out,
});
copyFileSync(join(here, "src/index.html"), join(out, "index.html"));
copyFileSync(join(here, "src/icon.svg"), join(out, "icon.svg"));
const shipped = ["preact", "@preact/signals", "@preact/signals-core", "preact-iso", "uplot", "@tanstack/virtual-core"];
const texts = shipped.map((name) => `${name}\n\n${readFileSync(join(here, "node_modules", name, "LICENSE"), "utf8")}`);
writeFileSync(join(out, "LICENSES.txt"), texts.join("\n\n"));
