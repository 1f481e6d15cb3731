// The official client of Anthropic's API.
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import { z } from 'zod';
import * as asked from './asked.mjs';

const { capital, question, model, user } = asked;
const client = new Anthropic({ baseURL: asked.url, apiKey: 'any', maxRetries: 0 });
const greedy = { model, temperature: 0, max_tokens: 80 };
const tools = asked.names.map((name) => ({
  name, description: `The ${name} in a city.`, input_schema: z.toJSONSchema(asked.city),
}));
const required = { ...greedy, messages: user(question), tools, tool_choice: { type: 'any' } };

const create = (more = {}) => client.messages.create({ ...greedy, messages: user(capital), ...more });
const text = (message) => message.content.filter((block) => block.type === 'text').map((block) => block.text).join('');

async function called(more = {}) {
  const message = await create({ messages: user(question), tools, ...more });
  const calls = message.content.filter((block) => block.type === 'tool_use');
  for (const call of calls.slice(0, 1)) asked.checkCall(call.name, call.input);
  assert.ok(calls.length || text(message));
  return calls;
}

await asked.tell({
  chat: async () => {
    const answer = await create();
    assert.match(text(answer), /Paris/);
    const counted = await client.messages.countTokens({ model, messages: user(capital) });
    assert.equal(counted.input_tokens, answer.usage.input_tokens + (answer.usage.cache_read_input_tokens ?? 0));
  },
  streams: async () => {
    let said = '';
    const stream = client.messages.stream({ ...greedy, messages: user(capital) });
    stream.on('text', (piece) => { said += piece; });
    assert.equal(text(await stream.finalMessage()), said);
    assert.equal(said, text(await create()));
  },
  'tools: auto': () => called(),
  'tools: required': async () => assert.ok((await called({ tool_choice: { type: 'any' } })).length),
  'tools: named': async () => {
    assert.equal((await called({ tool_choice: { type: 'tool', name: 'time' } }))[0].name, 'time');
  },
  'tools: none': async () => assert.equal((await called({ tool_choice: { type: 'none' } })).length, 0),
  'tools: one call': async () => {
    assert.equal((await called({ tool_choice: { type: 'any', disable_parallel_tool_use: true } })).length, 1);
  },
  'tools: streamed': async () => {
    const [call] = (await client.messages.stream(required).finalMessage()).content;
    asked.checkCall(call.name, call.input);
  },
  'tools: results': async () => {
    const { content } = await client.messages.create(required);
    const results = content.map((call) => ({ type: 'tool_result', tool_use_id: call.id, content: asked.result }));
    const messages = [...user(question), { role: 'assistant', content }, { role: 'user', content: results }];
    assert.ok(text(await create({ messages, tools, tool_choice: { type: 'none' } })));
  },
  'structured output': async () => {
    const { age, name } = asked.person.shape;
    const schema = z.toJSONSchema(z.object({ name, age }));
    const answer = await create({
      messages: user(asked.describe), output_config: { format: { type: 'json_schema', schema } },
    });
    asked.checkPerson(JSON.parse(text(answer)));
  },
  images: () => {
    const source = { type: 'base64', media_type: 'image/png', data: asked.picture() };
    const content = [{ type: 'image', source }, { type: 'text', text: 'What is it?' }];
    return create({ model: asked.seeing, messages: [{ role: 'user', content }] });
  },
  errors: async () => {
    await asked.refused(() => create({ model: 'absent' }), '404', 'served models');
    await asked.refused(() => create({ temperature: 5 }), '400', 'temperature');
  },
});
