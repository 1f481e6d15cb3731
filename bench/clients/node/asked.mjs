// What every library asks for, and how it tells what came of it: as libraries/asked.py does for Python.
import assert from 'node:assert/strict';
import * as zlib from 'node:zlib';
import { z } from 'zod';

export const [url, model, seeing] = process.argv.slice(2);
export const v1 = `${url}/v1`;
export const capital = 'What is the capital of France? Answer in one word.';
export const question = 'How is the weather in Paris?';
export const describe = 'Describe a person.';
export const result = '3 degrees, rain';
export const city = z.object({ city: z.string().max(20) });
export const person = z.object({ name: z.string().max(12), age: z.int().min(0).max(120) });
export const names = ['weather', 'time'];
export const tools = names.map((name) => ({
  type: 'function',
  function: { name, description: `The ${name} in a city.`, parameters: z.toJSONSchema(city) },
}));
export const user = (content) => [{ role: 'user', content }];

export function picture() {
  const chunk = (kind, data) => {
    const body = Buffer.concat([Buffer.from(kind), data]);
    const frame = Buffer.alloc(4);
    frame.writeUInt32BE(data.length);
    const check = Buffer.alloc(4);
    check.writeUInt32BE(sum(body));
    return Buffer.concat([frame, body, check]);
  };
  const head = Buffer.from([0, 0, 0, 16, 0, 0, 0, 16, 8, 2, 0, 0, 0]);
  const rows = Buffer.alloc(16 * 49, 99);
  for (let row = 0; row < 16; row += 1) rows[row * 49] = 0;
  const parts = [chunk('IHDR', head), chunk('IDAT', zlib.deflateSync(rows)), chunk('IEND', Buffer.alloc(0))];
  return Buffer.concat([Buffer.from('\x89PNG\r\n\x1a\n', 'latin1'), ...parts]).toString('base64');
}

function sum(data) {
  if (zlib.crc32) return zlib.crc32(data);
  let rest = 0xffffffff; // Node before 22.2 has none of its own
  for (const byte of data) {
    rest ^= byte;
    for (let bit = 0; bit < 8; bit += 1) rest = (rest >>> 1) ^ (rest & 1 ? 0xedb88320 : 0);
  }
  return (rest ^ 0xffffffff) >>> 0;
}

export function shown() {
  const image = { type: 'image_url', image_url: { url: `data:image/png;base64,${picture()}` } };
  return [{ role: 'user', content: [image, { type: 'text', text: 'What is it?' }] }];
}

export function checkCall(name, given, wanted) {
  assert.ok(wanted ? name === wanted : names.includes(name), name);
  const found = typeof given === 'string' ? JSON.parse(given) : given;
  assert.deepEqual(Object.keys(found), ['city']);
  assert.equal(typeof found.city, 'string');
}

export function checkPerson(found) {
  person.parse(found);
}

export async function refused(call, ...told) {
  let error;
  try {
    await call();
  } catch (caught) {
    error = caught;
  }
  assert.ok(error, 'it was not refused');
  const text = `${error.status ?? error.statusCode} ${error.message} ${error.cause?.message ?? ''}`;
  for (const each of told) assert.ok(text.includes(each), text);
}

export async function tell(features) {
  for (const [feature, attempt] of Object.entries(features)) {
    let problem = '';
    try {
      await attempt();
    } catch (error) {
      const at = /(\w+)\.mjs:(\d+)/.exec(error.stack ?? '');
      problem = `${error.name} at ${at?.[1]}:${at?.[2]}: ${error.message}`.slice(0, 400);
    }
    console.log(JSON.stringify({ feature, problem }));
  }
  process.exit(0);
}
