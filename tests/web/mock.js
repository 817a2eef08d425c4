// SPDX-License-Identifier: MIT
//
// A node that is none: serves the chat page and answers in ways that a real ring hardly ever does when it should, for
// tests of the page. What it says is set from outside; what it was asked is kept.
'use strict';
const http = require('node:http');
const fs = require('node:fs');

class Mock {
  constructor(pageFile) {
    this.page = fs.readFileSync(pageFile);
    this.key = null;       // wanted, when it is set
    this.base = false;     // a model without chats
    this.pieces = ['Hello', ' there'];
    this.hold = false;     // never ends an answer by itself
    this.fail = null;      // {status, error}
    this.failLate = null;  // an error in the middle of the stream
    this.cutUp = false;    // sends the stream byte by byte, with \r\n
    this.ranks = 3;
    this.broken = null;    // a reason
    this.asked = [];       // {path, body, authorization}
    this.aborted = 0;
    this.tokens = 0;
    this.server = http.createServer((q, r) => this.#answer(q, r));
  }
  start() { return new Promise(done => this.server.listen(0, '127.0.0.1', () => done('http://127.0.0.1:' + this.server.address().port + '/'))); }
  stop() {
    this.server.closeAllConnections();
    return new Promise(done => this.server.close(done));
  }
  #json(r, status, value) {
    r.writeHead(status, {'Content-Type': 'application/json'});
    r.end(JSON.stringify(value));
  }
  #answer(q, r) {
    const path = q.url.split('?')[0], authorization = q.headers.authorization || '';
    if (path === '/') {
      r.writeHead(200, {'Content-Type': 'text/html; charset=utf-8'});
      return r.end(this.page);
    }
    if (path === '/favicon.ico') return r.writeHead(204).end();
    if (path === '/v1/models')
      return this.#json(r, 200, {data: [{id: 'mock', meta: {chat: !this.base}}]});
    if (path === '/v1/ring') return this.#json(r, 200, this.ring());
    let body = '';
    q.on('data', d => { body += d; });
    q.on('end', () => {
      this.asked.push({path, authorization, body: JSON.parse(body)});
      if (this.key && authorization !== 'Bearer ' + this.key)
        return this.#json(r, 401, {error: {message: 'this node wants an API key in the Authorization header', code: 'invalid_api_key'}});
      if (this.fail) return this.#json(r, this.fail.status, {error: this.fail.error});
      if (this.base && path === '/v1/chat/completions')
        return this.#json(r, 400, {error: {message: 'this model has no chat format', code: 'chat_not_supported'}});
      this.#stream(r, path === '/v1/completions');
    });
  }
  #stream(r, plain) {
    const end = this.cutUp ? '\r\n' : '\n';
    const event = data => 'data: ' + (typeof data === 'string' ? data : JSON.stringify(data)) + end + end;
    const choice = (text, finish) => ({choices: [plain ? {text, finish_reason: finish} : {delta: text ? {content: text} : {}, finish_reason: finish}]});
    r.writeHead(200, {'Content-Type': 'text/event-stream'});
    r.on('close', () => { if (!r.writableEnded) this.aborted++; });
    let text = ': hello' + end + end + this.pieces.map(p => event(choice(p, null))).join('');
    this.tokens += this.pieces.length;
    if (this.failLate) text += event({error: this.failLate});
    else if (!this.hold) text += event(choice('', 'stop')) + event('[DONE]');
    if (!this.cutUp) {
      r.write(text);
    } else {
      r.socket.setNoDelay(true);
      for (const byte of Buffer.from(text)) r.write(Buffer.from([byte]));
    }
    if (!this.hold) r.end();
  }
  ring() {
    const ranks = [];
    for (let i = 0; i < this.ranks; i++) {
      ranks.push({rank: i, key: 'k' + i, first: 2 * i, end: 2 * i + 2, device: i === 1 ? 'vulkan0' : 'cpu', addr: null,
        tok: this.tokens, busy_ns: this.tokens * 1e6});
    }
    return {object: 'ring', ready: !this.broken, reason: this.broken, rank: 1 % this.ranks, epoch: 1, ring_id: 'r', model: {name: 'mock'},
      ranks, requests: {waiting: 0, active: 1, out_tok: this.tokens}};
  }
}
module.exports = {Mock};
