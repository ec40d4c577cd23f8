// Asks a server through npm's clients and prints, as one line of JSON, what each of them made of it.
// Usage: node clients.mjs BASE_URL
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const baseURL = process.argv[2];
const model = "smollm2";
const question = "What is the capital of France?";
const messages = [{ role: "user", content: question }];
const shape = { city: z.enum(["Paris", "London"]), inDays: z.union([z.literal(0), z.literal(1)]) };
const limits = { temperature: 0, max_tokens: 40 };

const openai = new OpenAI({ baseURL, apiKey: "any", maxRetries: 0 });
const provider = createOpenAICompatible({
  name: "kvserve", baseURL, apiKey: "any", includeUsage: true, supportsStructuredOutputs: true,
});
const chat = { model: provider.chatModel(model), temperature: 0, maxOutputTokens: 40, maxRetries: 0 };

async function failure(work) {
  try {
    await work();
  } catch (error) {
    return { status: error.status ?? error.statusCode, message: error.message };
  }
  return null;
}

async function nodeOpenai() {
  const answer = await openai.chat.completions.create({ model, messages, ...limits });
  const helper = openai.chat.completions.stream({
    model, messages, ...limits, stream_options: { include_usage: true },
  });
  const streamed = await helper.finalChatCompletion();
  const called = await openai.chat.completions.stream({
    model, messages, ...limits, tool_choice: "required",
    tools: [{ type: "function", function: { name: "weather", parameters: z.toJSONSchema(z.object(shape)) } }],
  }).finalChatCompletion();
  const response = await openai.responses.create({ model, input: question, temperature: 0, max_output_tokens: 40 });
  return {
    text: answer.choices[0].message.content,
    streamed: streamed.choices[0].message.content,
    usage: streamed.usage,
    call: called.choices[0].message.tool_calls[0],
    finishReason: called.choices[0].finish_reason,
    response: response.output_text,
    models: (await openai.models.list()).data.map((served) => served.id),
    failure: await failure(() => openai.chat.completions.create({ model, messages, temperature: -1 })),
  };
}

async function aiSdk() {
  const answer = await generateText({ ...chat, prompt: question });
  const stream = streamText({ ...chat, prompt: question });
  let streamed = "";
  for await (const part of stream.textStream) streamed += part;
  const weather = tool({ description: "Weather of a city", inputSchema: z.object(shape) });
  const called = await generateText({ ...chat, prompt: question, tools: { weather }, toolChoice: "required" });
  const calling = streamText({ ...chat, prompt: question, tools: { weather }, toolChoice: "required" });
  const { object } = await generateObject({ ...chat, prompt: question, schema: z.object(shape) });
  return {
    text: answer.text,
    streamed,
    usage: await stream.usage,
    finishReason: called.finishReason,
    call: called.toolCalls[0].input,
    streamedCall: (await calling.toolCalls)[0].input,
    object,
    failure: await failure(() => generateText({ ...chat, prompt: question, temperature: -1 })),
  };
}

console.log(JSON.stringify({ openai: await nodeOpenai(), ai: await aiSdk() }));
