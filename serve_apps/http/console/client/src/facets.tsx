// Histograms of columns. A click on a bar filters by it.
import type { Bar, Facet } from "./answers";
import { cell } from "./format";

interface Changes {
  facets: Facet[];
  filters: string[];
  change: (filters: string[]) => void;
}

/** The filters that a bar stands for. */
function termsOf(facet: Facet, bar: Bar): string[] {
  if (bar.high === null) return [`${facet.column}:eq:${bar.low}`];
  return [`${facet.column}:ge:${bar.low}`, `${facet.column}:lt:${bar.high}`];
}

export function FacetList({ facets, filters, change }: Changes) {
  const without = (column: string) => filters.filter((filter) => filter.split(":")[0] !== column);
  return (
    <>
      <div class="chosen">
        {filters.map((filter) => (
          <button key={filter} onClick={() => change(filters.filter((other) => other !== filter))} aria-label={`remove the filter ${filter}`}>
            {cell(filter)} ×
          </button>
        ))}
        {filters.length === 0 && <span class="quiet">no filter: click a bar</span>}
      </div>
      {facets.map((facet) => (
        <fieldset key={facet.column}>
          <legend>{facet.column.replace("_", " ")}</legend>
          {facet.has_numbers ? (
            <Columns facet={facet} pick={(bar) => change([...without(facet.column), ...termsOf(facet, bar)])} />
          ) : (
            <Lines facet={facet} pick={(bar) => change([...without(facet.column), ...termsOf(facet, bar)])} />
          )}
        </fieldset>
      ))}
    </>
  );
}

interface Bars {
  facet: Facet;
  pick: (bar: Bar) => void;
}

function named(bar: Bar): string {
  return bar.high === null ? cell(bar.low) : `${cell(bar.low)} to ${cell(bar.high)}`;
}

function Columns({ facet, pick }: Bars) {
  const most = Math.max(...facet.bars.map((bar) => bar.count));
  const ends = [facet.bars[0], facet.bars[facet.bars.length - 1]];
  return (
    <>
      <div class="columns">
        {facet.bars.map((bar) => (
          <button key={String(bar.low)} onClick={() => pick(bar)} title={`${named(bar)}: ${cell(bar.count)}`} aria-label={`${facet.column} ${named(bar)}: ${bar.count} samples`}>
            <span style={{ height: `${Math.max(2, (100 * bar.count) / most)}%` }} />
          </button>
        ))}
      </div>
      <div class="ends quiet"><span>{cell(ends[0].low)}</span><span>{cell(ends[1].high ?? ends[1].low)}</span></div>
    </>
  );
}

function Lines({ facet, pick }: Bars) {
  const most = Math.max(...facet.bars.map((bar) => bar.count));
  return (
    <div class="lines">
      {facet.bars.map((bar) => (
        <button key={String(bar.low)} onClick={() => pick(bar)}>
          <span class="fill" style={{ width: `${(100 * bar.count) / most}%` }} />
          <span class="name">{cell(bar.low)}</span>{" "}
          <span class="count">{cell(bar.count)}</span>
        </button>
      ))}
    </div>
  );
}
