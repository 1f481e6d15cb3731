// The official client of OpenAI's API.
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { zodResponseFormat, zodTextFormat } from 'openai/helpers/zod';
import * as asked from './asked.mjs';

const { capital, question, describe, model, tools, user } = asked;
const client = new OpenAI({ baseURL: asked.v1, apiKey: 'any', maxRetries: 0 });
const chats = client.chat.completions;
const greedy = { model, temperature: 0, max_tokens: 60 };
const required = { ...greedy, messages: user(question), tools, tool_choice: 'required' };

const say = async (more = {}) => (await chats.create({ ...greedy, messages: user(capital), ...more })).choices[0].message;

async function called(more = {}) {
  const message = await say({ messages: user(question), tools, ...more });
  for (const call of (message.tool_calls ?? []).slice(0, 1)) asked.checkCall(call.function.name, call.function.arguments);
  assert.ok(message.tool_calls || message.content);
  return message.tool_calls ?? [];
}

await asked.tell({
  chat: async () => assert.match((await say()).content, /Paris/),
  streams: async () => {
    let text = '';
    for await (const chunk of await chats.create({ ...greedy, messages: user(capital), stream: true })) {
      text += chunk.choices[0].delta.content ?? '';
    }
    assert.equal(text, (await say()).content);
  },
  'tools: auto': () => called(),
  'tools: required': async () => assert.ok((await called({ tool_choice: 'required' })).length),
  'tools: named': async () => {
    const [call] = await called({ tool_choice: { type: 'function', function: { name: 'time' } } });
    assert.equal(call.function.name, 'time');
  },
  'tools: none': async () => assert.equal((await called({ tool_choice: 'none' })).length, 0),
  'tools: one call': async () => {
    assert.equal((await called({ tool_choice: 'required', parallel_tool_calls: false })).length, 1);
  },
  'tools: streamed': async () => {
    const [call] = (await chats.stream(required).finalMessage()).tool_calls;
    asked.checkCall(call.function.name, call.function.arguments);
  },
  'tools: results': async () => {
    const message = (await chats.create(required)).choices[0].message;
    const results = message.tool_calls.map((call) => ({ role: 'tool', tool_call_id: call.id, content: asked.result }));
    assert.ok((await say({ messages: [...user(question), message, ...results], tools, tool_choice: 'none' })).content);
  },
  'structured output': async () => {
    const form = { response_format: zodResponseFormat(asked.person, 'person') };
    asked.checkPerson((await chats.parse({ ...greedy, messages: user(describe), ...form })).choices[0].message.parsed);
  },
  'n, logprobs': async () => {
    const answer = await chats.create({ ...greedy, messages: user(capital), n: 2, logprobs: true, top_logprobs: 2 });
    assert.equal(answer.choices.length, 2);
    for (const choice of answer.choices) assert.equal(choice.logprobs.content[0].top_logprobs.length, 2);
  },
  embeddings: async () => {
    const [first, second] = (await client.embeddings.create({ model, input: ['a cat', 'a dog'] })).data;
    assert.ok(first.embedding.length > 1 && first.embedding.length === second.embedding.length);
  },
  images: () => chats.create({ ...greedy, model: asked.seeing, messages: asked.shown() }),
  errors: async () => {
    await asked.refused(() => say({ model: 'absent' }), '404', 'served models');
    await asked.refused(() => say({ temperature: 5 }), '400', 'temperature');
  },
  responses: async () => {
    const form = { model, temperature: 0, max_output_tokens: 60 };
    const answer = await client.responses.create({ ...form, input: capital });
    let text = '';
    for await (const event of await client.responses.create({ ...form, input: capital, stream: true })) {
      if (event.type === 'response.output_text.delta') text += event.delta;
    }
    assert.match(answer.output_text, /Paris/);
    assert.equal(text, answer.output_text);
    const asks = { ...form, input: describe, text: { format: zodTextFormat(asked.person, 'person') } };
    asked.checkPerson((await client.responses.parse(asks)).output_parsed);
    const given = tools.map((tool) => ({ type: 'function', ...tool.function }));
    const [call] = (await client.responses.create({ ...form, input: question, tools: given, tool_choice: 'required' }))
      .output;
    asked.checkCall(call.name, call.arguments);
  },
});
