// An agent with Vercel's AI SDK and a tool, first without and then with streaming: `--agent-command "node vercel_ai.mjs"`. Packages: ai, @ai-sdk/openai, zod.

import { readFileSync } from "node:fs";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";

const task = JSON.parse(readFileSync(0, "utf8"));
const model = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL }).chat("default");
const tools = {
  add: tool({
    description: "Adds two numbers.",
    inputSchema: z.object({ first: z.number(), second: z.number() }),
    execute: async ({ first, second }) => first + second,
  }),
};
const options = { model, tools, maxRetries: 8, stopWhen: isStepCount(3) };
const first = await generateText({ ...options, messages: task.prompt });
const messages = [...task.prompt, ...first.response.messages, { role: "user", content: "Are you sure?" }];
const second = await streamText({ ...options, messages }).text;
console.log(JSON.stringify({ reward: Number(second.trim() === task.label) }));
