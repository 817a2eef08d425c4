// SPDX-License-Identifier: MIT
//
// A real Chromium without a window, driven over a pipe in its DevTools protocol. No packages needed.
'use strict';
const {spawn} = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');

const WAIT_MS = 60000;

class Browser {
  // Everything that went wrong by itself on any page is in `errors`.
  constructor(program) {
    this.home = fs.mkdtempSync(path.join(os.tmpdir(), 'kvasir-web-'));
    this.errors = [];
    this.waiting = new Map();
    this.listeners = [];
    this.lastId = 0;
    this.rest = '';
    this.child = spawn(program, ['--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--hide-scrollbars',
      '--remote-debugging-pipe', '--user-data-dir=' + this.home, '--no-first-run', '--disable-background-networking'],
    {stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'], env: {...process.env, HOME: this.home}});
    this.child.on('error', error => this.#end(error));
    this.child.on('exit', () => this.#end(new Error('the browser has ended')));
    this.child.stdio[3].on('error', () => {});
    this.child.stdio[4].on('data', data => this.#receive(data));
  }
  #end(error) {
    for (const {reject} of this.waiting.values()) reject(error);
    this.waiting.clear();
    this.ended = error;
  }
  #receive(data) {
    const parts = (this.rest + data).split('\0');
    this.rest = parts.pop();
    for (const text of parts) {
      const m = JSON.parse(text), call = this.waiting.get(m.id);
      if (call) {
        this.waiting.delete(m.id);
        if (m.error) call.reject(new Error(call.method + ': ' + m.error.message));
        else call.resolve(m.result);
      } else {
        this.#notice(m);
      }
    }
  }
  #notice({method, params}) {
    if (method === 'Runtime.exceptionThrown')
      this.errors.push('exception: ' + (params.exceptionDetails.exception?.description || params.exceptionDetails.text));
    else if (method === 'Runtime.consoleAPICalled' && ['error', 'warning', 'assert'].includes(params.type))
      this.errors.push('console: ' + params.args.map(a => a.value ?? a.description).join(' '));
    else if (method === 'Log.entryAdded' && ['error', 'warning'].includes(params.entry.level))
      this.errors.push('log: ' + params.entry.text + ' ' + (params.entry.url || ''));
    for (const l of [...this.listeners]) l(method, params);
  }
  send(method, params = {}, sessionId) {
    if (this.ended) return Promise.reject(this.ended);
    const id = ++this.lastId;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, {resolve, reject, method});
      this.child.stdio[3].write(JSON.stringify({id, method, params, sessionId}) + '\0');
    });
  }
  // A page of its own storage, before anything is loaded. options: width, height, dark, still.
  async page(options = {}) {
    const {browserContextId} = await this.send('Target.createBrowserContext');
    const {targetId} = await this.send('Target.createTarget', {url: 'about:blank', browserContextId});
    const {sessionId} = await this.send('Target.attachToTarget', {targetId, flatten: true});
    const p = new Page(this, sessionId, browserContextId);
    for (const domain of ['Page', 'Runtime', 'Log']) await p.send(domain + '.enable');
    await p.size(options.width || 1280, options.height || 800);
    await p.send('Emulation.setEmulatedMedia', {features: [
      {name: 'prefers-color-scheme', value: options.dark ? 'dark' : 'light'},
      {name: 'prefers-reduced-motion', value: options.still ? 'reduce' : 'no-preference'}]});
    return p;
  }
  async close() {
    const gone = new Promise(done => this.child.once('exit', done));
    if (!this.ended) {
      this.send('Browser.close').catch(() => {});
      const timer = setTimeout(() => this.child.kill('SIGKILL'), 5000);
      await gone;
      clearTimeout(timer);
    }
    fs.rmSync(this.home, {recursive: true, force: true, maxRetries: 5});
  }
}

class Page {
  constructor(browser, session, context) { Object.assign(this, {browser, session, context}); }
  send(method, params) { return this.browser.send(method, params, this.session); }
  size(width, height) {
    return this.send('Emulation.setDeviceMetricsOverride', {width, height, deviceScaleFactor: 1, mobile: false});
  }
  async open(url) {
    const {errorText} = await this.send('Page.navigate', {url});
    if (errorText) throw new Error(url + ': ' + errorText);
    await this.until("document.readyState === 'complete'");
  }
  // The value of an expression in the page, which may be a promise.
  async value(expression) {
    const r = await this.send('Runtime.evaluate', {expression, returnByValue: true, awaitPromise: true});
    if (r.exceptionDetails) throw new Error(expression + ': ' + (r.exceptionDetails.exception?.description || r.exceptionDetails.text));
    return r.result.value;
  }
  // Waits until the expression is true.
  async until(expression, what = expression) {
    const end = Date.now() + WAIT_MS;
    for (;;) {
      try {
        if (await this.value('Boolean(' + expression + ')')) return;
      } catch (error) {
        if (!/context|navigat/i.test(error.message)) throw error; // a page is being loaded
      }
      if (Date.now() > end) throw new Error('waited for ' + what + '; the page says: ' + await this.value('document.body.innerText'));
      await new Promise(done => setTimeout(done, 20));
    }
  }
  async type(text) { await this.send('Input.insertText', {text}); }
  // "Enter", "Escape", "Tab"; modifiers: 8 is Shift.
  async key(key, modifiers = 0) {
    const code = {Enter: 13, Escape: 27, Tab: 9}[key], text = key === 'Enter' ? '\r' : undefined;
    await this.send('Input.dispatchKeyEvent', {type: 'keyDown', key, code: key, windowsVirtualKeyCode: code, text, modifiers});
    await this.send('Input.dispatchKeyEvent', {type: 'keyUp', key, code: key, windowsVirtualKeyCode: code, modifiers});
  }
  async screenshot(file) {
    const {data} = await this.send('Page.captureScreenshot', {format: 'png'});
    fs.writeFileSync(file, Buffer.from(data, 'base64'));
  }
  async close() { await this.browser.send('Target.disposeBrowserContext', {browserContextId: this.context}); }
}

module.exports = {Browser, WAIT_MS};
