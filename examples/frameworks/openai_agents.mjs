// An agent with OpenAI's Agents SDK for JavaScript: `--agent-command "node openai_agents.mjs"`. Packages: @openai/agents, zod.

import { readFileSync } from "node:fs";
import { Agent, AgentsError, run, setTracingDisabled, tool } from "@openai/agents";
import { z } from "zod";

setTracingDisabled(true); // otherwise the SDK sends traces to OpenAI
const task = JSON.parse(readFileSync(0, "utf8"));
const add = tool({
  name: "add",
  description: "Adds two numbers.",
  parameters: z.object({ first: z.number(), second: z.number() }),
  execute: async ({ first, second }) => String(first + second),
});
const agent = new Agent({ name: "sums", instructions: "Answer with the number alone.", model: "default", tools: [add] });
let answer = "";
try {
  const first = await run(agent, task.prompt.at(-1).content, { maxTurns: 3 });
  const second = await run(agent, [...first.history, { role: "user", content: "Are you sure?" }], { maxTurns: 3 });
  answer = second.finalOutput;
} catch (error) {
  if (!(error instanceof AgentsError)) throw error; // too many turns, or an answer cut by the length limit: graded as wrong
}
console.log(JSON.stringify({ reward: Number(answer?.trim() === task.label) }));
