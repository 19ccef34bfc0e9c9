// The console: a bar with the views of a run, and the view of the URL.
import { render } from "preact";
import { Route, Router, useLocation } from "preact-iso";
import { useEffect, useRef } from "preact/hooks";
import { needsToken, setToken } from "./api";
import { visible } from "./format";
import { kept } from "./kept";
import { to } from "./links";
import { Located, Save } from "./one_file";
import { theme, switchTheme } from "./theme";
import { change, useFollowed } from "./use";
import { PAGES, VIEWS } from "./views";
import "uplot/dist/uPlot.min.css";
import "./style.css";

function Bar() {
  const { path } = useLocation();
  const [, , name, shown] = path.split("/");
  const run = name ? decodeURIComponent(name) : undefined;
  useFollowed(run);
  useArrival();
  const state = change.value;
  return (
    <header>
      <a href="/" class="home">slime-events</a>
      {run && <strong>{visible(run)}</strong>}
      {run && (
        <nav aria-label="views">
          {VIEWS.filter((view) => view.inMenu).map((view) => (
            <a key={view.name} href={to(run, view.name)} aria-current={view.name === shown ? "page" : undefined}>
              {view.title}
            </a>
          ))}
          <a href={`/compare?${new URLSearchParams({ a: run })}`}>Compare</a>
        </nav>
      )}
      <span class="state quiet" role="status">
        {state && state.position > 0 && (state.on ? `on, position ${state.position.toLocaleString("en")} of ${state.end.toLocaleString("en")}` : "")}
      </span>
      <Save />
      <button onClick={switchTheme} aria-label={`switch to the ${theme.value === "dark" ? "light" : "dark"} theme`}>
        {theme.value === "dark" ? "light" : "dark"}
      </button>
    </header>
  );
}

/** Names the page by its view, and moves the focus to a view of another path: the link that led there is gone, and Tab
 *  would begin anywhere. */
function useArrival(): void {
  const { path } = useLocation();
  const before = useRef(path);
  useEffect(() => {
    if (before.current !== path) document.getElementById("view")?.focus({ preventScroll: true });
    before.current = path;
    const [, , run, name, id] = path.split("/").map(decodeURIComponent);
    const view = VIEWS.find((one) => one.name === name)?.title;
    document.title = [view && id ? `${view} ${id}` : view, run, "slime-events"].filter(Boolean).map((part) => visible(part!)).join(" · ");
  }, [path]);
}

function TokenForm() {
  const send = (event: SubmitEvent) => {
    event.preventDefault();
    setToken(String(new FormData(event.target as HTMLFormElement).get("token") ?? "").trim());
  };
  return (
    <form class="token" onSubmit={send}>
      <label>
        This console needs a token. A run prints its console's address with one; for other consoles, <code>slime-events console … --issue NAME</code> makes one.
        <input name="token" type="password" autocomplete="off" autofocus />
      </label>
      <button>open</button>
    </form>
  );
}

function NotThere() {
  return <p class="error">There is no view at this URL. <a href="/">List the runs.</a></p>;
}

function App() {
  return (
    <Located>
      <a href="#view" class="skip">skip to the view</a>
      <Bar />
      <main id="view" tabIndex={-1}>
        {needsToken.value ? (
          <TokenForm />
        ) : (
          <Router>
            {PAGES.map(({ path, component }) => <Route key={path} path={path} component={component} />)}
            {VIEWS.flatMap((view) => [
              <Route key={view.name} path={`/runs/:run/${view.name}`} component={view.component} />,
              <Route key={`${view.name}/`} path={`/runs/:run/${view.name}/:id`} component={view.component} />,
            ])}
            <Route default component={NotThere} />
          </Router>
        )}
      </main>
    </Located>
  );
}

try {
  if (!kept) decodeURIComponent(location.pathname);
} catch {
  // the router would throw too: a path whose percent signs stand for nothing is shown as it was typed
  history.replaceState(null, "", location.pathname.replaceAll("%", "%25") + location.search);
}
render(<App />, document.getElementById("page")!);
