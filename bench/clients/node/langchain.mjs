// LangChain's models of OpenAI's API and of Anthropic's.
import assert from 'node:assert/strict';
import { ChatAnthropic } from '@langchain/anthropic';
import { HumanMessage, ToolMessage } from '@langchain/core/messages';
import { tool } from '@langchain/core/tools';
import { ChatOpenAI, OpenAIEmbeddings } from '@langchain/openai';
import * as asked from './asked.mjs';

const { capital, question } = asked;
const where = { apiKey: 'any', configuration: { baseURL: asked.v1 }, maxRetries: 0 };
const greedy = { ...where, model: asked.model, temperature: 0, maxTokens: 60 };
const chat = (more = {}) => new ChatOpenAI({ ...greedy, ...more });
const tools = asked.names.map((name) => tool(async () => asked.result, {
  name, description: `The ${name} in a city.`, schema: asked.city,
}));

async function called(model, more = {}) {
  const answer = await model.bindTools(tools, more).invoke(question);
  for (const call of answer.tool_calls.slice(0, 1)) asked.checkCall(call.name, call.args);
  assert.ok(answer.tool_calls.length || answer.text);
  return answer.tool_calls;
}

async function streamed(model) {
  let text = '';
  for await (const chunk of await model.stream(capital)) text += chunk.text;
  return text;
}

await asked.tell({
  chat: async () => assert.match((await chat().invoke(capital)).text, /Paris/),
  streams: async () => assert.equal(await streamed(chat()), (await chat().invoke(capital)).text),
  'tools: auto': () => called(chat()),
  'tools: required': async () => assert.ok((await called(chat(), { tool_choice: 'any' })).length),
  'tools: named': async () => assert.equal((await called(chat(), { tool_choice: 'time' }))[0].name, 'time'),
  'tools: none': async () => assert.equal((await called(chat(), { tool_choice: 'none' })).length, 0),
  'tools: one call': async () => {
    assert.equal((await called(chat(), { tool_choice: 'any', parallel_tool_calls: false })).length, 1);
  },
  'tools: streamed': async () => {
    let whole;
    for await (const chunk of await chat().bindTools(tools, { tool_choice: 'any' }).stream(question)) {
      whole = whole ? whole.concat(chunk) : chunk;
    }
    asked.checkCall(whole.tool_calls[0].name, whole.tool_calls[0].args);
  },
  'tools: results': async () => {
    const message = await chat().bindTools(tools, { tool_choice: 'any' }).invoke(question);
    const results = message.tool_calls.map((call) => new ToolMessage({ content: asked.result, tool_call_id: call.id }));
    const turns = [new HumanMessage(question), message, ...results];
    assert.ok((await chat().bindTools(tools, { tool_choice: 'none' }).invoke(turns)).text);
  },
  'structured output': async () => {
    for (const method of ['jsonSchema', 'functionCalling']) {
      asked.checkPerson(await chat().withStructuredOutput(asked.person, { method }).invoke(asked.describe));
    }
  },
  embeddings: async () => {
    const [first, second] = await new OpenAIEmbeddings({ ...where, model: asked.model }).embedDocuments(['cat', 'dog']);
    assert.ok(first.length > 1 && first.length === second.length);
  },
  images: () => chat({ model: asked.seeing }).invoke([new HumanMessage({ content: asked.shown()[0].content })]),
  errors: async () => {
    await asked.refused(() => chat({ model: 'absent' }).invoke('x'), '404', 'served models');
    await asked.refused(() => chat({ temperature: 5 }).invoke('x'), '400', 'temperature');
  },
  responses: async () => {
    const model = chat({ useResponsesApi: true, zdrEnabled: true });
    assert.match((await model.invoke(capital)).text, /Paris/);
    assert.match(await streamed(model), /Paris/);
    await called(model); // it leaves tool_choice out here
  },
  messages: async () => {
    const model = new ChatAnthropic({
      apiKey: 'any', anthropicApiUrl: asked.url, model: asked.model, maxTokens: 60, temperature: 0, maxRetries: 0,
    });
    assert.match((await model.invoke(capital)).text, /Paris/);
    assert.match(await streamed(model), /Paris/);
    assert.ok((await called(model, { tool_choice: 'any' })).length);
  },
});
