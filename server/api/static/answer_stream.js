// AnswerStream: one answer as it is written, entered in the message that will hold it.

import { events } from "./api.js";
import { CUT } from "./conversation.js";
import { Stopwatch } from "./stopwatch.js";

/** Asks for the next answer of a conversation and tells `onText` as it grows. Raises what fails. */
export async function streamAnswer(conversation, answer, { sampling, onText }) {
  const goesOn = answer.content !== "";
  const json = {
    ...sampling,
    messages: conversation.prompt.filter(({ content }) => content !== ""),
    stream: true,
    stream_options: { include_usage: true },
    ...(goesOn ? { continue_final_message: true, add_generation_prompt: false } : {}),
  };
  const watch = new Stopwatch();
  const { signal } = conversation.abort;
  const headers = { "X-Request-Id": conversation.nextExchange() };
  let usage;
  delete answer.end;
  try {
    for await (const chunk of events("v1/chat/completions", { json, signal, headers })) {
      answer.id = chunk.id;
      usage = chunk.usage ?? usage;
      const [choice] = chunk.choices;
      if (choice?.finish_reason === "length") answer.end = CUT.length;
      if (choice?.delta?.content) {
        watch.lap();
        answer.content += choice.delta.content;
        onText();
      }
    }
    if (!usage) throw new TypeError("the stream ended early");
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    answer.end = CUT.stopped;
  } finally {
    answer.times = watch.times(usage?.completion_tokens);
    answer.usage = usage;
  }
}
