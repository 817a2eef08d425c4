// SPDX-License-Identifier: MIT
//
// The chat page in a real Chromium. First against a server that misbehaves on purpose (mock.js), then, when its URL is
// given, against a real node.
//
// usage: node test_page.js PAGE.html OUT_DIR [NODE_URL OTHER_NODE_URL RANKS]
'use strict';
const assert = require('node:assert/strict');
const path = require('node:path');
const {Browser, WAIT_MS} = require('./browser.js');
const {Mock} = require('./mock.js');

const [pageFile, outDir, nodeUrl, otherUrl, nRanks] = process.argv.slice(2);
const CHROMIUM = process.env.CHROMIUM || 'chromium-headless-shell';
const IDLE = "document.body.dataset.state === 'idle'";
const answers = "[...document.querySelectorAll('.assistant')].map(e => e.raw())";
const answered = n => `${IDLE} && ${answers}.length === ${n}`;
const text = selector => `[...document.querySelectorAll('${selector}')].map(e => e.textContent).join('|')`;
const fill = (id, value) => `(() => { const e = document.getElementById('${id}'); e.value = '${value}'; e.dispatchEvent(new Event('change')); })()`;

let browser;
const tests = [];
const test = (name, fn) => tests.push({name, fn});
const OPTIONS = {};
// A page that a mock with these properties serves.
async function withMock(properties, fn, options = OPTIONS) {
  const mock = Object.assign(new Mock(pageFile), properties);
  const url = await mock.start();
  const page = await browser.page(options);
  try {
    await fn(page, mock, url);
  } finally {
    await page.close();
    await mock.stop();
  }
}
const quiet = () => browser.errors.length = 0;
// Chromium reports every response that is an error; those of this test are meant.
const quietNetwork = () => browser.errors = browser.errors.filter(e => !e.startsWith('log: Failed to load resource'));

test('a question in the address is asked, once', () => withMock({}, async (page, mock, url) => {
  await page.open(url + '?q=' + encodeURIComponent('What now? & <b>'));
  await page.until(answered(1));
  assert.equal(mock.asked[0].body.messages[0].content, 'What now? & <b>');
  assert.equal(mock.asked[0].body.stream, true);
  assert.deepEqual(await page.value(answers), ['Hello there']);
  assert.equal(await page.value('location.search'), '');
}));

test('the conversation is sent along; Enter sends, Shift+Enter does not', () => withMock({}, async (page, mock, url) => {
  await page.open(url);
  await page.until(IDLE);
  await page.value("document.getElementById('input').focus()");
  await page.type('one');
  await page.key('Enter', 8);
  await page.type('two');
  await page.key('Enter');
  await page.until(answered(1));
  await page.type('three');
  await page.key('Enter');
  await page.until(answered(2));
  assert.deepEqual(mock.asked[1].body.messages.map(m => m.role + ':' + m.content), ['user:one\ntwo', 'assistant:Hello there', 'user:three']);
  await page.value("document.getElementById('new').click()");
  await page.type('four');
  await page.key('Enter');
  await page.until(answered(1));
  assert.equal(mock.asked[2].body.messages.length, 1);
}));

test('settings are sent and outlive the page; nothing is sent that was not set', () => withMock({}, async (page, mock, url) => {
  await page.open(url + '?q=a');
  await page.until(answered(1));
  assert.deepEqual(Object.keys(mock.asked[0].body).sort(), ['messages', 'stream']);
  for (const [id, value] of [['temperature', '0.5'], ['top_p', '0.9'], ['max_tokens', '7'], ['seed', '42'], ['system', 'Be brief.']])
    await page.value(fill(id, value));
  await page.open(url + '?q=b');
  await page.until(answered(1));
  const {messages, ...rest} = mock.asked[1].body;
  assert.deepEqual(rest, {stream: true, temperature: 0.5, top_p: 0.9, max_tokens: 7, seed: 42});
  assert.deepEqual(messages[0], {role: 'system', content: 'Be brief.'});
}));

test('Escape and the button stop an answer; what came is kept', () => withMock({hold: true}, async (page, mock, url) => {
  await page.open(url + '?q=go');
  await page.until(`${answers}[0] === 'Hello there'`);
  assert.equal(await page.value("document.getElementById('stop').hidden"), false);
  await page.key('Escape');
  await page.until(IDLE);
  assert.match(await page.value(text('.note')), /Stopped/);
  await page.value("document.getElementById('input').focus()");
  await page.type('on');
  await page.key('Enter');
  await page.until(`${answers}[1] === 'Hello there'`);
  await page.value("document.getElementById('stop').click()");
  await page.until(IDLE);
  assert.equal(mock.asked[1].body.messages[1].content, 'Hello there');
  for (const end = Date.now() + WAIT_MS; mock.aborted < 2 && Date.now() < end;) await new Promise(done => setTimeout(done, 20));
  assert.equal(mock.aborted, 2);
}));

const HOSTILE = '<img src=x onerror=alert(1)><script>window.hurt=1</' + 'script> **bold <i>** `code <b>`\n\n```js\nif (a < b) {}\n```\n- <u>item</u>\n';
test('text of the model is never markup', () => withMock({pieces: [...HOSTILE]}, async (page, mock, url) => {
  await page.open(url + '?q=' + encodeURIComponent('<img src=x onerror="window.hurt=1">'));
  await page.until(answered(1));
  assert.deepEqual(await page.value(answers), [HOSTILE]);
  assert.equal(await page.value("document.querySelectorAll('#log img, #log script, #log i, #log b, #log u').length + (window.hurt || 0)"), 0);
  assert.equal(await page.value(text('.assistant strong')), 'bold <i>');
  assert.equal(await page.value(text('.assistant pre code')), 'if (a < b) {}');
  assert.equal(await page.value(text('.assistant li')), '<u>item</u>');
}));

test('a stream in single bytes is the same text', () => withMock({cutUp: true, pieces: ['Grüße', ' 🙂 ', '\r\n', 'line']}, async (page, mock, url) => {
  await page.open(url + '?q=a');
  await page.until(answered(1));
  assert.deepEqual(await page.value(answers), ['Grüße 🙂 \r\nline']);
}));

test("errors are shown in the server's words, and the question comes back", () => withMock({fail: {status: 429, error: {message: '64 requests wait already; try again in 2 s'}}}, async (page, mock, url) => {
  await page.open(url + '?q=again');
  await page.until("document.querySelector('.error')");
  assert.equal(await page.value(text('.error')), '64 requests wait already; try again in 2 s');
  assert.equal(await page.value("document.getElementById('input').value"), 'again');
  mock.fail = null;
  mock.failLate = {message: 'rank 2 is lost'};
  await page.value("document.getElementById('send').click()");
  await page.until("document.querySelectorAll('.error').length === 2");
  assert.match(await page.value(text('.error')), /rank 2 is lost/);
  quietNetwork();
}));

test('a key is asked for, used, and forgotten with the tab', () => withMock({key: 'sesame'}, async (page, mock, url) => {
  await page.open(url + '?q=a');
  await page.until("document.getElementById('ask-key').open");
  assert.match(await page.value("document.getElementById('ask-key-why').textContent"), /API key/);
  await page.type('sesame');
  await page.key('Enter');
  await page.until(answered(1));
  assert.equal(mock.asked.at(-1).authorization, 'Bearer sesame');
  assert.equal(await page.value("JSON.stringify(localStorage).includes('sesame')"), false);
  assert.equal(await page.value('document.documentElement.outerHTML.includes("sesame")'), false);
  quietNetwork();
}));

test('a base model continues the text, and the page says so', () => withMock({base: true}, async (page, mock, url) => {
  await page.open(url + '?q=Once');
  await page.until(answered(1));
  assert.match(await page.value(text('.note')), /base model/);
  assert.equal(mock.asked.length, 1);
  assert.deepEqual([mock.asked[0].path, mock.asked[0].body.prompt], ['/v1/completions', 'Once']);
}));

test('the ring is drawn as it is', () => withMock({ranks: 5}, async (page, mock, url) => {
  await page.open(url);
  await page.until("document.querySelectorAll('#picture .rank').length === 5");
  assert.equal(await page.value("document.querySelectorAll('#picture .edge').length"), 5);
  assert.match(await page.value(text('#picture .rank title')), /rank 1, blocks 2–3, vulkan0/);
  assert.equal(await page.value("document.querySelectorAll('#picture .rank.self').length"), 1);
  assert.equal(await page.value("document.querySelectorAll('#ranks tbody tr').length"), 5);
  mock.tokens += 100;
  await page.until("/[1-9].* tokens\\/s/.test(document.querySelector('#picture .total').textContent)");
  await page.screenshot(path.join(outDir, 'mock-1280.png'));
  mock.broken = 'rank 2 does not answer <i>';
  await page.until("document.getElementById('picture').classList.contains('broken')");
  assert.equal(await page.value(text('#reason')), 'rank 2 does not answer <i>');
  await page.screenshot(path.join(outDir, 'mock-broken.png'));
  mock.broken = null;
  mock.ranks = 24;
  await page.until("document.querySelectorAll('#picture .rank').length === 24 && !document.getElementById('picture').classList.contains('broken')");
  await page.screenshot(path.join(outDir, 'mock-24.png'));
  mock.ranks = 1;
  await page.until("document.querySelectorAll('#picture .rank').length === 1");
}));

test('the token moves, but not for those who want no motion', async () => {
  const seen = ms => "new Promise(done => { const o = new MutationObserver(() => { if (dot.getAttribute('visibility') === 'visible') { o.disconnect(); done(true); } }); " +
    "o.observe(dot, {attributes: true}); setTimeout(() => done(false), " + ms + "); lap(); })";
  for (const still of [false, true]) {
    await withMock({}, async (page, mock, url) => {
      await page.open(url);
      await page.until("document.querySelectorAll('#picture .rank').length === 3");
      assert.equal(await page.value(seen(still ? 700 : WAIT_MS)), !still);
    }, {still});
  }
});

test('the keyboard reaches everything in order', () => withMock({}, async (page, mock, url) => {
  await page.open(url);
  await page.until("document.querySelectorAll('#picture .rank').length === 3");
  await page.value("document.activeElement.blur(); document.getElementById('new').focus()");
  const order = ['new'];
  for (let i = 0; i < 4; i++) {
    await page.key('Tab');
    order.push(await page.value('document.activeElement.id'));
  }
  assert.deepEqual(order, ['new', 'open-settings', 'log', 'input', 'send']);
  const unnamed = "[...document.querySelectorAll('button, input, textarea')].filter(e => !(e.labels && e.labels.length) && !e.textContent.trim()).length";
  assert.equal(await page.value(unnamed), 0);
}));

test('it fits 320 pixels', () => withMock({pieces: ['A long line of code:\n\n```\n' + 'x'.repeat(300) + '\n```\nand a' + 'b'.repeat(200)]}, async (page, mock, url) => {
  await page.open(url + '?q=' + 'w'.repeat(200));
  await page.until(answered(1));
  assert.equal(await page.value('document.documentElement.scrollWidth'), 320);
  assert.ok(await page.value("document.getElementById('send').getBoundingClientRect().bottom") <= 640);
  await page.screenshot(path.join(outDir, 'mock-320.png'));
  await page.value("document.getElementById('fold').open = true");
  assert.equal(await page.value('document.documentElement.scrollWidth'), 320);
  await page.value("document.getElementById('open-settings').click()");
  assert.equal(await page.value('document.documentElement.scrollWidth'), 320);
  await page.screenshot(path.join(outDir, 'mock-320-settings.png'));
}, {width: 320, height: 640, dark: true}));

async function real() {
  const prompt = 'It was a cold morning';
  const models = await (await fetch(nodeUrl + 'v1/models')).json();
  const chat = models.data[0].meta.chat;
  const body = chat ? {messages: [{role: 'user', content: prompt}]} : {prompt};
  const response = await fetch(nodeUrl + (chat ? 'v1/chat/completions' : 'v1/completions'), {method: 'POST',
    headers: {'Content-Type': 'application/json'}, body: JSON.stringify({...body, temperature: 0, max_tokens: 40})});
  const choice = (await response.json()).choices[0], want = chat ? choice.message.content : choice.text;
  assert.ok(want.length > 0);
  for (const [url, width, height, dark] of [[nodeUrl, 1280, 800, false], [otherUrl, 320, 640, true]]) {
    const page = await browser.page({width, height, dark});
    await page.open(url);
    await page.until(IDLE);
    await page.value(fill('temperature', '0'));
    await page.value(fill('max_tokens', '40'));
    await page.open(url + '?q=' + encodeURIComponent(prompt));
    await page.until(answered(1));
    assert.deepEqual(await page.value(answers), [want]);
    await page.until(`document.querySelectorAll('#picture .rank').length === ${nRanks}`);
    await page.until("document.querySelector('#picture .state').textContent === 'ring whole'");
    await page.until("/\\d/.test(document.querySelector('#picture .total').textContent)", 'tokens/s of the ring');
    assert.equal(await page.value('document.documentElement.scrollWidth'), width);
    await page.screenshot(path.join(outDir, `node-${width}.png`));
    await page.close();
  }
}
if (nodeUrl) test('a real node answers, and its ring is shown', real);

(async () => {
  let failed = 0;
  browser = new Browser(CHROMIUM);
  for (const {name, fn} of tests) {
    quiet();
    try {
      await fn();
      assert.deepEqual(browser.errors, [], 'the browser reports errors');
    } catch (error) {
      failed++;
      console.error(`FAILED: ${name}\n${error.stack}`);
    }
  }
  await browser.close();
  console.log(`${tests.length - failed} of ${tests.length} tests of the page passed`);
  process.exitCode = failed ? 1 : 0;
})();
