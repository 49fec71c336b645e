// OpenAI's SDK for Node. usage: with_node_openai.mjs BASE_URL KEY KIND; prints JSON.
// KIND: chat (a loop of its tool runner, streamed), responses.
import OpenAI from "openai";

const [baseURL, apiKey, kind] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const content = "What is the weather in Oslo?";

async function chat() {
  const calls = [];
  const run = (input) => (calls.push(input), "sunny, 42000 lux");
  const tools = [{ type: "function", function: { name: "get_weather", parameters, function: run, parse: JSON.parse } }];
  const runner = client.chat.completions.runTools({ model: "spark-qwen36", stream: true, messages: [{ role: "user", content }], tools });
  return { text: await runner.finalContent(), calls };
}

async function responses() {
  const tools = [{ type: "function", name: "get_weather", parameters, strict: false }];
  const input = [{ role: "user", content }];
  const first = await client.responses.create({ model: "spark-qwen36", input, tools });
  const calls = first.output.filter((item) => item.type === "function_call");
  const results = calls.map((call) => ({ type: "function_call_output", call_id: call.call_id, output: "sunny, 42000 lux" }));
  const second = await client.responses.create({ model: "spark-qwen36", input: [...input, ...first.output, ...results], tools });
  return { text: second.output_text, calls };
}

console.log(JSON.stringify(await { chat, responses }[kind]()));
