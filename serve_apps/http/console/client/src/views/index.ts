// The views: a file and a line each, in the order of the menu.
import type { ComponentType } from "preact";
import { Compare } from "./compare";
import { Group } from "./group";
import { LineageView } from "./lineage";
import { Metrics } from "./metrics";
import { Now } from "./now";
import { Query } from "./query";
import { Rescore } from "./rescore";
import { Rollout } from "./rollout";
import { Runs } from "./runs";
import { Samples } from "./samples";
import { Step } from "./step";
import { TimeMachine } from "./time";
import { Timeline } from "./timeline";

/** What the router gives a view: the run and the id in the URL. */
export interface Shown {
  run?: string;
  id?: string;
}

export interface View {
  name: string;
  title: string;
  inMenu: boolean;
  component: ComponentType<Shown>;
}

/** Pages that are not of one run. */
export const PAGES: { path: string; component: ComponentType }[] = [
  { path: "/", component: Runs },
  { path: "/compare", component: Compare },
];
export const VIEWS: View[] = [
  { name: "now", title: "Now", inMenu: true, component: Now },
  { name: "timeline", title: "Timeline", inMenu: true, component: Timeline },
  { name: "metrics", title: "Metrics", inMenu: true, component: Metrics },
  { name: "samples", title: "Samples", inMenu: true, component: Samples },
  { name: "steps", title: "Steps", inMenu: true, component: Step },
  { name: "versions", title: "Lineage", inMenu: true, component: LineageView },
  { name: "time", title: "Time machine", inMenu: true, component: TimeMachine },
  { name: "query", title: "Query", inMenu: true, component: Query },
  { name: "rescore", title: "Rescore", inMenu: false, component: Rescore },
  { name: "groups", title: "Group", inMenu: false, component: Group },
  { name: "rollouts", title: "Rollout", inMenu: false, component: Rollout },
];
