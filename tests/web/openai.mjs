// SPDX-License-Identifier: MIT
//
// The official OpenAI client against a ring of ours, unchanged. usage: node openai.mjs URL [URL...]: the API of three nodes
// of one ring that runs an F32 model with a chat format, so that greedy texts are the same whatever runs beside them.
// Prints "N passed, N failed"; exit status 1 when something failed.
import assert from 'node:assert/strict';
import OpenAI from 'openai';

const urls = process.argv.slice(2);
const clients = urls.map((baseURL) => new OpenAI({ baseURL, apiKey: process.env.KVASIR_API_KEY ?? 'none', maxRetries: 0 }));
const [client] = clients;
const model = 'default';
const greedy = { model, temperature: 0, max_tokens: 24 };
const ask = (content) => [
  { role: 'system', content: 'You are a small test model.' },
  { role: 'user', content },
];
let passed = 0;
let failed = 0;

async function test(name, body) {
  try {
    await body();
    passed++;
    console.log(`ok      ${name}`);
  } catch (error) {
    failed++;
    console.log(`FAILED  ${name}: ${error.stack ?? error}`);
  }
}

async function streamed(c, body, options) {
  let text = '';
  let finish = null;
  let usage = null;
  for await (const chunk of await c.chat.completions.create({ ...body, stream: true }, options)) {
    usage = chunk.usage ?? usage;
    if (!chunk.choices.length) continue;
    text += chunk.choices[0].delta.content ?? '';
    finish = chunk.choices[0].finish_reason ?? finish;
  }
  return { text, finish, usage };
}

async function whole(c, body) {
  const r = await c.chat.completions.create(body);
  return { text: r.choices[0].message.content, finish: r.choices[0].finish_reason, usage: r.usage, raw: r };
}

await test('models are listed and found', async () => {
  const list = await client.models.list();
  assert.ok(list.data.length >= 1);
  assert.equal(list.data[0].object, 'model');
  const one = await client.models.retrieve(list.data[0].id);
  assert.equal(one.id, list.data[0].id);
});

await test('a chat answer is complete', async () => {
  const r = await whole(client, { ...greedy, messages: ask('Tell me a story about a small ship.') });
  assert.equal(r.raw.object, 'chat.completion');
  assert.equal(r.raw.choices[0].message.role, 'assistant');
  assert.equal(r.raw.choices[0].index, 0);
  assert.equal(r.finish, 'length');
  assert.ok(r.text.length > 0);
  assert.equal(r.usage.completion_tokens, 24);
  assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + 24);
});

await test('streamed and whole answers are the same', async () => {
  const body = { ...greedy, messages: ask('Tell me a story about a small ship.') };
  const a = await whole(client, body);
  const b = await streamed(client, { ...body, stream_options: { include_usage: true } });
  assert.equal(b.text, a.text);
  assert.equal(b.finish, a.finish);
  assert.deepEqual(b.usage.completion_tokens, a.usage.completion_tokens);
});

await test('a completion continues its prompt', async () => {
  const r = await client.completions.create({ ...greedy, prompt: 'The harbour' });
  assert.equal(r.object, 'text_completion');
  assert.ok(r.choices[0].text.length > 0);
});

await test('a stream can be aborted, and the ring serves on', async () => {
  const stop = new AbortController();
  const stream = await client.chat.completions.create(
    { ...greedy, max_tokens: 300, messages: ask('Count.'), stream: true },
    { signal: stop.signal },
  );
  let chunks = 0;
  await assert.rejects(
    async () => {
      for await (const _ of stream) {
        if (++chunks === 3) {
          stop.abort();
          throw new Error('aborted');
        }
      }
    },
    /abort/i,
  );
  const r = await whole(client, { ...greedy, max_tokens: 2, messages: ask('And now?') });
  assert.equal(r.usage.completion_tokens, 2);
});

await test('stop strings end the text before them', async () => {
  const body = { ...greedy, messages: ask('Tell me a story about a small ship.') };
  const { text } = await whole(client, body);
  const cut = text.slice(5, 8);
  for (const stop of [cut, ['never in the text', cut]]) {
    const r = await whole(client, { ...body, stop });
    assert.equal(r.finish, 'stop');
    assert.equal(r.text, text.slice(0, text.indexOf(cut)));
    const s = await streamed(client, { ...body, stop });
    assert.equal(s.text, r.text);
    assert.equal(s.finish, 'stop');
  }
});

await test('logprobs', async () => {
  const r = await client.chat.completions.create({ ...greedy, messages: ask('Hello'), logprobs: true, top_logprobs: 3 });
  const content = r.choices[0].logprobs.content;
  assert.equal(content.length, 24);
  for (const c of content) {
    assert.ok(c.logprob <= 0);
    assert.equal(c.top_logprobs.length, 3);
    assert.equal(c.top_logprobs[0].token, c.token); // greedy: the likeliest was taken
    assert.ok(c.top_logprobs[0].logprob >= c.top_logprobs[1].logprob);
  }
});

await test('n = 2 gives two choices', async () => {
  const r = await client.chat.completions.create({
    model, messages: ask('Hello'), n: 2, temperature: 1.5, seed: 7, max_tokens: 16,
  });
  assert.deepEqual(r.choices.map((c) => c.index).sort(), [0, 1]);
  assert.notEqual(r.choices[0].message.content, r.choices[1].message.content);
  const again = await client.chat.completions.create({
    model, messages: ask('Hello'), n: 2, temperature: 1.5, seed: 7, max_tokens: 16,
  });
  assert.deepEqual(
    again.choices.map((c) => c.message.content),
    r.choices.map((c) => c.message.content),
  );
});

await test('logit_bias bans tokens; token ids are a prompt', async () => {
  const body = { ...greedy, prompt: [10, 11, 12], max_tokens: 1 };
  const first = (await client.completions.create(body)).choices[0].text;
  const all = Object.fromEntries([...Array(100).keys()].map((i) => [i + 10, -100]));
  const second = (await client.completions.create({ ...body, logit_bias: all })).choices[0].text;
  assert.equal(typeof first, 'string');
  assert.equal(typeof second, 'string');
  await assert.rejects(client.completions.create({ ...body, logit_bias: { 99999999: 1 } }), OpenAI.BadRequestError);
});

await test('errors are of the classes the client knows', async () => {
  const bad = async (body, type, text) =>
    assert.rejects(client.chat.completions.create(body), (e) => {
      assert.ok(e instanceof type, `${e.constructor.name}: ${e.message}`);
      assert.match(e.message, text);
      return true;
    });
  await bad({ model, messages: ask('x'), temperature: 'hot' }, OpenAI.BadRequestError, /temperature/);
  await bad({ model, messages: ask('x'), temperature: 9 }, OpenAI.BadRequestError, /temperature/);
  await bad({ model, messages: ask('x'), max_tokens: -1 }, OpenAI.BadRequestError, /max_tokens/);
  await bad({ model, messages: [] }, OpenAI.BadRequestError, /messages/);
  await bad({ model, messages: ask('long '.repeat(2000)) }, OpenAI.BadRequestError, /context/);
  await bad({ model, messages: ask('x'), response_format: { type: 'json_object' } }, OpenAI.BadRequestError, /response_format/);
  await assert.rejects(client.models.retrieve('nobody-has-this'), OpenAI.NotFoundError);
  await assert.rejects(client.get('/nowhere'), OpenAI.NotFoundError);
});

await test('32 conversations at once through all entry nodes say what they say alone', async () => {
  const bodies = [...Array(32).keys()].map((i) => ({
    ...greedy, max_tokens: 8 + (i % 5) * 4, messages: ask(`Question ${i}: what comes after ${i * 7}?`),
  }));
  const alone = [];
  for (const body of bodies) alone.push((await whole(client, body)).text);
  const together = await Promise.all(
    bodies.map(async (body, i) => {
      const c = clients[i % clients.length];
      return (i % 2 ? await streamed(c, body) : await whole(c, body)).text;
    }),
  );
  assert.deepEqual(together, alone);
});

await test('a conversation goes on turn by turn', async () => {
  const messages = ask('Tell me a story about a small ship.');
  for (let turn = 0; turn < 3; turn++) {
    const c = clients[turn % clients.length];
    const r = await whole(c, { ...greedy, max_tokens: 12, messages });
    messages.push({ role: 'assistant', content: r.text }, { role: 'user', content: `And then, part ${turn}?` });
  }
  const fresh = await whole(client, { ...greedy, messages });
  const again = await whole(clients.at(-1), { ...greedy, messages });
  assert.equal(again.text, fresh.text);
});

console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
