// A view as one HTML file, which opens without a console and asks nobody for anything.
import type { ComponentChildren } from "preact";
import { LocationProvider, useLocation } from "preact-iso";
import { useEffect, useMemo, useState } from "preact/hooks";
import { download, get, pending } from "./api";
import { visible } from "./format";
import { KEPT, type Kept, askedHere, kept } from "./kept";

/** Most bytes of the answers in a file. */
const MOST = 32_000_000;

async function base64(bytes: ArrayBuffer): Promise<string> {
  const parts: string[] = [];
  const view = new Uint8Array(bytes);
  for (let at = 0; at < view.length; at += 32_768) parts.push(String.fromCharCode(...view.subarray(at, at + 32_768)));
  return btoa(parts.join(""));
}

async function answersOf(paths: string[]): Promise<Record<string, string>> {
  const answers: Record<string, string> = {};
  let bytes = 0;
  for (const path of paths) {
    const body = await (await get(path)).arrayBuffer();
    bytes += body.byteLength;
    if (bytes > MOST) {
      throw new Error(`this view has more than ${MOST / 1e6} MB of answers, and a file may have that many: filter it, or show less of it`);
    }
    answers[path] = await base64(body);
  }
  return answers;
}

async function hashOf(text: string): Promise<string> {
  if (!isSecureContext) throw new Error("a browser saves views of a console on its own machine, or behind TLS: reach it by https, or forward its port");
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return `'sha256-${await base64(digest)}'`;
}

const ESCAPES: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

/** The file's text. Its policy allows this one script and style, and no request. */
async function fileOf(data: Kept, title: string, script: string, style: string): Promise<string> {
  if (/<\/script|<[!]--/i.test(script) || /<\/style/i.test(style)) throw new Error("the console's own script cannot stand in a page");
  const policy = `default-src 'none'; script-src ${await hashOf(script)}; style-src ${await hashOf(style)}; img-src data:; base-uri 'none'; form-action 'none'`;
  return [
    `<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8" />\n<meta http-equiv="Content-Security-Policy" content="${policy}" />`,
    `<meta name="viewport" content="width=device-width, initial-scale=1" />`,
    `<title>${title.replace(/[&<>"]/g, (one) => ESCAPES[one])}</title>\n<style>${style}</style>\n</head>\n<body>\n<div id="page"></div>`,
    // answers are in base64, and a URL with `<` cannot end the element
    `<script type="application/json" id="${KEPT}">${JSON.stringify(data).replaceAll("<", "\\u003c")}</script>`,
    `<script type="module">${script}</script>\n</body>\n</html>\n`,
  ].join("\n");
}

async function saveView(): Promise<void> {
  const at = new Date().toISOString().slice(0, 19).replace("T", " ");
  const answers = await answersOf(askedHere());
  const [script, style] = await Promise.all(["console.js", "console.css"].map(async (name) => (await get(`/assets/${name}`)).text()));
  const page = await fileOf({ url: location.pathname + location.search, at, answers }, document.title, script, style);
  const name = document.title.replace(/[^\w.-]+/g, "-").replace(/^-|-$/g, "");
  download(new Blob([page], { type: "text/html" }), `${name}.html`);
}

/** Milliseconds without a request after which a view is whole. */
const QUIET_MS = 600;

/** Waits until the shown view has everything that it asks for. */
async function whole(): Promise<void> {
  for (let since = performance.now(); performance.now() - since < QUIET_MS; ) {
    await new Promise((resolve) => setTimeout(resolve, 50));
    if (pending || document.querySelector(".waits")) since = performance.now();
  }
}

/** The button that saves the shown view; in a saved file, when it was saved. */
export function Save() {
  const [state, setState] = useState("");
  const { url, route } = useLocation();
  const start = () => {
    setState("saving …");
    saveView().then(() => setState(""), (error: Error) => setState(visible(error.message)));
  };
  useEffect(() => {
    const asked = new URL(url, "http://localhost");
    if (kept || !asked.searchParams.has("save")) return;
    asked.searchParams.delete("save");
    route(asked.pathname + asked.search, true);
    setState("saving …");
    void whole().then(start);
  }, [url]);
  if (kept) return <span class="quiet">saved {kept.at} UTC</span>;
  return (
    <>
      <span role="status" class={state.endsWith("…") ? "quiet" : "error"}>{state}</span>
      <button onClick={start} accessKey="s" title="save this view as one HTML file that opens offline">save</button>
    </>
  );
}

/** The router's place in a saved file, whose own address is that of the file. */
function KeptLocation({ children }: { children: ComponentChildren }) {
  const [url, setUrl] = useState(kept!.url);
  useEffect(() => {
    const clicked = (event: MouseEvent) => {
      const href = (event.target as Element).closest?.("a")?.getAttribute("href");
      if (!href?.startsWith("/")) return;
      event.preventDefault();
      setUrl(href);
    };
    addEventListener("click", clicked);
    return () => removeEventListener("click", clicked);
  }, []);
  const place = useMemo(() => {
    const { pathname, searchParams } = new URL(url, "http://localhost");
    const ignore = () => undefined;
    return { url, path: pathname, query: Object.fromEntries(searchParams), route: setUrl, wasPush: true, back: ignore, forward: ignore };
  }, [url]);
  const { Provider } = LocationProvider.ctx;
  return <Provider value={place as never}>{children}</Provider>;
}

export const Located = kept ? KeptLocation : LocationProvider;
