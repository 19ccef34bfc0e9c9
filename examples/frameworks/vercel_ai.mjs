// Vercel's AI SDK with a tool, whole and streamed: `--agent-command "node vercel_ai.mjs"`. Packages: ai, @ai-sdk/openai, zod.

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
const given = { model, tools, maxRetries: 8, stopWhen: isStepCount(3) };
const first = await generateText({ ...given, messages: task.prompt });
const messages = [...task.prompt, ...first.response.messages, { role: "user", content: "Are you sure?" }];
const second = await streamText({ ...given, messages }).text;
console.log(JSON.stringify({ reward: Number(second.trim() === task.label) }));
