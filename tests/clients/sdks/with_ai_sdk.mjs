// The AI SDK, one loop with a tool. usage: with_ai_sdk.mjs BASE_URL KEY KIND; prints {text, calls, steps} as JSON.
// KIND: responses (its default model for OpenAI), chat, compatible, messages; with "-stream" behind it streamed.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [baseURL, apiKey, kind] = process.argv.slice(2);
const [way, streams] = [kind.replace("-stream", ""), kind.endsWith("-stream")];
const model = {
  responses: () => createOpenAI({ baseURL, apiKey })("spark-qwen36"),
  chat: () => createOpenAI({ baseURL, apiKey }).chat("spark-qwen36"),
  compatible: () => createOpenAICompatible({ name: "spark", baseURL, apiKey })("spark-qwen36"),
  messages: () => createAnthropic({ baseURL, apiKey })("spark-qwen36"),
}[way]();
const calls = [];
const get_weather = tool({
  description: "The weather in a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async (input) => {
    calls.push(input);
    return "sunny, 42000 lux";
  },
});
const asked = { model, tools: { get_weather }, stopWhen: stepCountIs(4), prompt: "What is the weather in Oslo?", onError: ({ error }) => { throw error; } };
const answer = streams ? streamText(asked) : await generateText(asked);
console.log(JSON.stringify({ text: await answer.text, calls, steps: (await answer.steps).length }));
