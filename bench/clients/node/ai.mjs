// Vercel's AI SDK, by its providers for servers that are like OpenAI's, for OpenAI's and for Anthropic's.
import assert from 'node:assert/strict';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { embedMany, generateText, Output, stepCountIs, streamText, tool } from 'ai';
import * as asked from './asked.mjs';

const { capital, question } = asked;
const polyfleet = createOpenAICompatible({
  name: 'polyfleet', baseURL: asked.v1, apiKey: 'any', supportsStructuredOutputs: true,
});
const greedy = { model: polyfleet(asked.model), temperature: 0, maxOutputTokens: 60, maxRetries: 0 };
const tools = Object.fromEntries(asked.names.map((name) => [name, tool({
  description: `The ${name} in a city.`, inputSchema: asked.city,
})]));

async function called(more = {}) {
  const answer = await generateText({ ...greedy, prompt: question, tools, ...more });
  for (const call of answer.toolCalls.slice(0, 1)) asked.checkCall(call.toolName, call.input);
  assert.ok(answer.toolCalls.length || answer.text);
  return answer.toolCalls;
}

async function streamed(more = {}) {
  let text = '';
  for await (const piece of streamText({ ...greedy, prompt: capital, ...more }).textStream) text += piece;
  return text;
}

await asked.tell({
  chat: async () => assert.match((await generateText({ ...greedy, prompt: capital })).text, /Paris/),
  streams: async () => assert.equal(await streamed(), (await generateText({ ...greedy, prompt: capital })).text),
  'tools: auto': () => called(),
  'tools: required': async () => assert.ok((await called({ toolChoice: 'required' })).length),
  'tools: named': async () => {
    assert.equal((await called({ toolChoice: { type: 'tool', toolName: 'time' } }))[0].toolName, 'time');
  },
  'tools: none': async () => assert.equal((await called({ toolChoice: 'none' })).length, 0),
  'tools: streamed': async () => {
    const [call] = await streamText({ ...greedy, prompt: question, tools, toolChoice: 'required' }).toolCalls;
    asked.checkCall(call.toolName, call.input);
  },
  'tools: results': async () => {
    const weather = tool({
      description: 'The weather in a city.', inputSchema: asked.city, execute: async () => asked.result,
    });
    const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? 'required' : 'none' });
    const providerOptions = { polyfleet: { parallel_tool_calls: false } };
    const asks = { ...greedy, providerOptions, prompt: question, tools: { weather }, prepareStep, stopWhen: stepCountIs(3) };
    const answer = await generateText(asks);
    assert.equal(answer.steps.length, 2);
    assert.ok(answer.text);
  },
  'structured output': async () => {
    const output = Output.object({ schema: asked.person });
    asked.checkPerson((await generateText({ ...greedy, prompt: asked.describe, output })).output);
  },
  embeddings: async () => {
    const model = polyfleet.textEmbeddingModel(asked.model);
    const [first, second] = (await embedMany({ model, values: ['a cat', 'a dog'] })).embeddings;
    assert.ok(first.length > 1 && first.length === second.length);
  },
  images: () => {
    const content = [
      { type: 'image', image: asked.picture(), mediaType: 'image/png' }, { type: 'text', text: 'What is it?' },
    ];
    return generateText({ ...greedy, model: polyfleet(asked.seeing), messages: [{ role: 'user', content }] });
  },
  errors: async () => {
    await asked.refused(() => generateText({ ...greedy, model: polyfleet('absent'), prompt: 'x' }), '404', 'served');
    await asked.refused(() => generateText({ ...greedy, temperature: 5, prompt: 'x' }), '400', 'temperature');
  },
  responses: async () => {
    const model = createOpenAI({ baseURL: asked.v1, apiKey: 'any' })(asked.model);
    const asks = { model, providerOptions: { openai: { store: false } } };
    assert.match((await generateText({ ...greedy, ...asks, prompt: capital })).text, /Paris/);
    assert.match(await streamed(asks), /Paris/);
    assert.ok((await called({ ...asks, toolChoice: 'required' })).length);
  },
  messages: async () => {
    const model = createAnthropic({ baseURL: asked.v1, apiKey: 'any' })(asked.model);
    assert.match((await generateText({ ...greedy, model, prompt: capital })).text, /Paris/);
    assert.match(await streamed({ model }), /Paris/);
    assert.ok((await called({ model, toolChoice: 'required' })).length);
  },
});
