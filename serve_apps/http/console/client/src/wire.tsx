// The requests behind a rollout, as the log holds them.
import { useState } from "preact/hooks";
import { getJson, runPath } from "./api";
import type { WirePage, WireRequest, WireText } from "./answers";
import { cell, ofNano, visible } from "./format";
import { Loading, Table, Text } from "./parts";
import { useLoaded } from "./use";

function asked({ type, turn, attempt, dialect, client }: WireRequest): string {
  if (turn !== null) return visible(`turn ${turn} of an agent, ${dialect}${client ? `, ${client}` : ""}`);
  if (type === "rollout.requested") return `the conductor's request for the rollout, attempt ${attempt}`;
  return type === "prompt.offered" ? "the prompt of a producer" : "the prompt that the conductor took";
}

function Body({ run, sample, position }: { run: string; sample: string; position: number }) {
  const path = runPath(run, "request", String(position), sample);
  const body = useLoaded(path, (stop) => getJson<WireText>(path, stop));
  return (
    <Loading of={body}>
      {({ text, length }) => (
        <>
          <Text text={text} label={`request at position ${position}`} />
          {length > text.length && <p class="quiet">{length.toLocaleString("en")} characters, of which these are the first {text.length.toLocaleString("en")}.</p>}
        </>
      )}
    </Loading>
  );
}

function Requests({ run, sample }: { run: string; sample: string }) {
  const [chosen, choose] = useState<number | null>(null);
  const path = runPath(run, "requests", sample);
  const page = useLoaded(path, (stop) => getJson<WirePage>(path, stop));
  return (
    <Loading of={page}>
      {({ requests }) => (
        <>
          <Table
            rows={requests}
            label="requests"
            columns={[
              { name: "position", number: true, of: (row) => cell(row.position) },
              { name: "UTC", of: (row) => ofNano(row.at) },
              { name: "request", of: asked },
              { name: "event", of: (row) => row.type },
              { name: "by", of: (row) => visible(row.producer) },
              {
                name: "as it was sent",
                of: (row) => (
                  <button aria-expanded={row.position === chosen} onClick={() => choose(row.position === chosen ? null : row.position)}>
                    {row.position === chosen ? "hide" : "show"}
                  </button>
                ),
              },
            ]}
          />
          {chosen !== null && <Body key={chosen} run={run} sample={sample} position={chosen} />}
        </>
      )}
    </Loading>
  );
}

/** A closed part: the requests are asked for when it is opened. */
export function Wire({ run, sample }: { run: string; sample: string }) {
  const [open, setOpen] = useState(false);
  return (
    <details class="source wire" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Requests as they came over the wire</summary>
      {open && <Requests run={run} sample={sample} />}
    </details>
  );
}
