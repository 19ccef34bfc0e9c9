// How much each sample of a step counts in the loss, and what is known of micro-batches.
import type { BatchSample, SampleShare, StepLoss, StepPage } from "./answers";
import { cell, figure, visible } from "./format";
import { type Column, Facts } from "./parts";

/** A sample of the batch with its share. */
export type Counted = BatchSample & SampleShare;

const percent = (of: number | null) => (of === null ? "–" : `${(100 * of).toFixed(2)} %`);

function advantage({ advantage: of }: Counted): string {
  if (!of) return "–";
  const ends = of.first === of.last ? figure(of.first) : `${figure(of.first)} to ${figure(of.last)}`;
  return of.left_out.length ? `${ends} without ${of.left_out.join(", ")}` : ends;
}

export function shareColumns({ loss }: StepPage): Column<Counted>[] {
  const whole = loss.samples.reduce((sum, { trained }) => sum + (trained ?? 0), 0);
  const columns: Column<Counted>[] = [
    { name: "trained tokens", number: true, title: "response tokens that the loss mask includes", of: ({ trained }) => cell(trained) },
    { name: "share of trained tokens", number: true, of: ({ trained }) => percent(trained === null || !whole ? null : trained / whole) },
    { name: "share of the loss", number: true, title: "part of the weights of its optimizer step", of: ({ share }) => percent(share) },
    { name: "advantage", number: true, of: advantage },
  ];
  if (loss.optimizer_steps > 1 || loss.samples.some(({ optimizer_step }) => optimizer_step === null)) {
    columns.push({ name: "optimizer step", number: true, of: ({ optimizer_step }) => (optimizer_step === null ? "–" : optimizer_step + 1) });
  }
  return columns;
}

const MEANS = {
  rollouts: "The loss is a mean over rollouts, and in each over its trained tokens: a rollout has the same share however long it is.",
  tokens: "The loss is a mean over trained tokens: a sample's share is that of its trained tokens.",
  own: "A function of yours, or its column in the batch, decides how much each sample counts: the log does not have the shares.",
} as const;

export function ShareNotes({ loss }: { loss: StepLoss }) {
  if (!loss.samples.length) return <p class="quiet">The batch has no samples: a client sent what it trains on.</p>;
  const unknown = loss.samples.filter(({ trained }) => trained === null).length;
  const left = unknown ? 0 : loss.samples.filter(({ optimizer_step }) => optimizer_step === null).length;
  return (
    <p class="quiet">
      {MEANS[loss.normalisation]} {loss.normalisation !== "own" && "A share is the part of the weights of its optimizer step; the gradient also depends on advantages and log-probs. "}
      {loss.optimizer_steps > 1 && `The batch has ${loss.optimizer_steps} optimizer steps. `}
      {unknown > 0 && `The log has no completed rollout of ${unknown} samples, so shares and advantages are unknown. `}
      {left > 0 && `${left} samples fill no optimizer step and are not trained on. `}
      {loss.reweighed_by.length > 0 && `In training, these may weigh tokens otherwise, or leave some out: ${visible(loss.reweighed_by.join(", "))}. The log does not have their figures. `}
      By the settings in force at the end of the log.
    </p>
  );
}

export function Packing({ loss }: { loss: StepLoss }) {
  return (
    <>
      <h2>Packing</h2>
      <p class="quiet">
        The log does not have the micro-batches: they depend on the trainer's ranks and devices. A run with <code>--save-debug-train-data</code> writes them into its files. These
        are the settings that pack:
      </p>
      <Facts of={Object.entries(loss.packing).map(([name, value]) => [`--${name.replaceAll("_", "-")}`, cell(value)])} />
    </>
  );
}
