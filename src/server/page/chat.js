// The conversation: what is sent, what streams in, and how it is shown.

async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split('\n\n');
    rest = parts.pop();
    for (const part of parts) {
      if (!part.startsWith('data: ')) continue;
      const data = part.slice(6);
      if (data === '[DONE]') return;
      yield JSON.parse(data);
    }
  }
}

const chat = {
  messages: [],
  running: null,          // AbortController of the answer that streams
  pending: [],            // tool calls without a result: {id, field}
  canRecord: true,        // false once the model turned out to have no sparse attention

  isAtEnd() {
    const log = $('log');
    return log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  },

  /** Runs `change`, and stays at the end if that is what was looked at. */
  follow(change) {
    const wasAtEnd = this.isAtEnd();
    change();
    if (wasAtEnd) $('log').scrollTop = $('log').scrollHeight;
  },

  addTurn(role) {
    emptyNote.remove();
    const name = role === 'user' ? 'You' : 'Model';
    const text = make('div', { className: 'text' });
    const turn = make('article', { className: 'turn ' + role }, make('h2', {}, name), text);
    turn.setAttribute('aria-label', name);
    $('log').append(turn);
    $('log').scrollTop = $('log').scrollHeight;
    return { turn, text };
  },

  async ask(question) {
    this.settlePending();
    this.messages.push({ role: 'user', content: question });
    this.addTurn('user').text.textContent = question;
    await this.answer();
  },

  /** A client that asks on without giving results: the calls get empty ones. */
  settlePending() {
    for (const { id, field } of this.pending) {
      this.messages.push({ role: 'tool', tool_call_id: id, content: field.value });
      field.disabled = true;
      field.form.querySelector('button').hidden = true;
    }
    this.pending = [];
  },

  async request(signal) {
    const system = $('system').value.trim();
    const wantsBlocks = this.canRecord && $('record').checked;
    const response = await fetch(base + '/v1/chat/completions', {
      method: 'POST', signal,
      headers: { 'Content-Type': 'application/json', ...authorization() },
      body: JSON.stringify({
        messages: (system ? [{ role: 'system', content: system }] : []).concat(this.messages),
        stream: true, stream_options: { include_usage: true },
        ...(wantsBlocks ? { return_msa_blocks: true, return_token_ids: true } : {}),
        ...requestSettings(),
      }),
    });
    if (response.ok) return response;
    const { error } = await response.json();
    if (wantsBlocks && error.param === 'return_msa_blocks') {
      this.canRecord = false;
      return this.request(signal);
    }
    throw new Error(error.message);
  },

  async answer() {
    const messages = this.messages;  // "New chat" during an answer starts another
    const shown = new ShownAnswer(this.addTurn('model'));
    const control = new AbortController();
    this.running = control;
    setRunning(true);
    const reply = { content: '', reasoning: '', calls: [] };
    const start = performance.now();
    let firstToken = null;
    let recording = null;
    let outcome = '';
    try {
      const response = await this.request(control.signal);
      for await (const event of eventsOf(response.body)) {
        if (event.error) throw new Error(event.error.message);
        if (event.msa) recording = new Recording(event.prompt_token_ids ?? [], event.msa);
        if (event.usage) shown.setUsage(event.usage, start, firstToken);
        const choice = event.choices[0];
        if (!choice) continue;
        if (choice.msa_blocks) recording?.add(choice.token_ids ?? [], choice.msa_blocks);
        const delta = choice.delta;
        if (delta.reasoning) reply.reasoning += delta.reasoning;
        if (delta.content) reply.content += delta.content;
        for (const call of delta.tool_calls ?? []) this.addCallDelta(reply.calls, call);
        if (delta.reasoning || delta.content) firstToken ??= performance.now();
        if (delta.reasoning || delta.content || delta.tool_calls) shown.update(reply);
        if (choice.finish_reason === 'length') outcome = 'cut at the length limit';
      }
    } catch (error) {
      if (error.name === 'AbortError') outcome = 'stopped';
      else shown.fail(error.message);
    }
    shown.finish(reply, outcome, recording);
    this.keep(messages, reply, shown);
    if (this.running === control) {
      this.running = null;
      setRunning(false);
      $('news').textContent = outcome === 'stopped' ? 'Stopped.'
        : reply.calls.length ? `The model calls ${reply.calls.map((call) => call.name).join(', ')}.`
          : 'The answer is complete.';
    }
  },

  addCallDelta(calls, delta) {
    const call = calls[delta.index] ??= { id: delta.id, name: '', arguments: '' };
    call.name += delta.function?.name ?? '';
    call.arguments += delta.function?.arguments ?? '';
  },

  keep(messages, reply, shown) {
    if (reply.calls.length) {
      messages.push({
        role: 'assistant', content: reply.content || null,
        ...(reply.reasoning ? { reasoning: reply.reasoning } : {}),
        tool_calls: reply.calls.map((call) => ({
          id: call.id, type: 'function', function: { name: call.name, arguments: call.arguments },
        })),
      });
      if (messages === this.messages) this.pending = shown.askForResults(reply.calls, () => this.sendResults());
    } else if (reply.content) {
      messages.push({ role: 'assistant', content: reply.content });
    } else if (messages.at(-1)?.role === 'user') {
      messages.pop();  // a question without an answer is not part of the conversation
    }
  },

  async sendResults() {
    if (this.running) return;
    this.settlePending();
    await this.answer();
  },

  clear() {
    this.running?.abort();
    this.running = null;
    setRunning(false);
    this.messages = [];
    this.pending = [];
    if (inspector.recording) inspector.close();
    $('log').replaceChildren(emptyNote);
    $('input').focus();
  },
};

/** One answer on the page, redrawn at most once a frame. */
class ShownAnswer {
  constructor({ turn, text }) {
    this.turn = turn;
    this.text = text;
    this.thinking = null;
    this.frame = 0;
    this.usage = '';
    this.calls = make('div');
    this.foot = make('div', { className: 'foot' });
    turn.append(this.calls, this.foot);
    turn.classList.add('waiting');
    turn.setAttribute('aria-busy', 'true');
  }

  update(reply) {
    this.reply = reply;
    this.frame ||= requestAnimationFrame(() => { this.frame = 0; this.draw(); });
  }

  draw() {
    const { content, reasoning, calls } = this.reply;
    chat.follow(() => {
      if (reasoning) {
        this.thinking ??= this.addThinking();
        this.thinking.textContent = reasoning.trim();
      }
      if (content) {
        this.turn.classList.remove('waiting');
        this.text.replaceChildren(renderMarkdown(content));
      }
      calls.forEach((call, i) => {
        this.turn.classList.remove('waiting');
        const card = this.calls.children[i] ?? this.calls.appendChild(this.makeCall(call));
        card.querySelector('pre').textContent = this.shownArguments(call);
      });
    });
  }

  addThinking() {
    const thoughts = make('div');
    this.text.before(make('details', { className: 'thinking' }, make('summary', {}, 'Thinking'), thoughts));
    return thoughts;
  }

  /** Laid out once they are whole. */
  shownArguments(call) {
    try { return JSON.stringify(JSON.parse(call.arguments), null, 2); } catch { return call.arguments; }
  }

  makeCall(call) {
    const card = make('section', { className: 'call' },
      make('h3', {}, 'Calls ', make('code', {}, call.name)), make('pre', {}));
    card.setAttribute('aria-label', 'Tool call ' + call.name);
    return card;
  }

  /** A field for each call's result; `send` is called by any of their buttons. */
  askForResults(calls, send) {
    return calls.map((call, i) => {
      const field = make('textarea', { rows: 2, placeholder: 'what the tool answers' });
      field.style.width = '100%';
      const form = make('form', {}, make('label', {}, 'Result of ' + call.name, field),
        make('button', { className: 'primary' }, 'Send results'));
      form.addEventListener('submit', (event) => { event.preventDefault(); send(); });
      this.calls.children[i].append(form);
      if (i === 0) field.focus();
      return { id: call.id, field };
    });
  }

  setUsage(usage, start, firstToken) {
    const seconds = (performance.now() - start) / 1000;
    const count = usage.completion_tokens;
    this.usage = `${count} tokens · ${(count / seconds).toFixed(1)} tokens/s` +
      (firstToken ? ` · first after ${((firstToken - start) / 1000).toFixed(2)} s` : '');
  }

  fail(message) {
    const line = make('p', { className: 'error' }, message);
    line.setAttribute('role', 'alert');
    this.foot.append(line);
  }

  finish(reply, outcome, recording) {
    cancelAnimationFrame(this.frame);
    this.reply = reply;
    this.draw();
    this.turn.classList.remove('waiting');
    this.turn.removeAttribute('aria-busy');
    chat.follow(() => {
      const note = [this.usage, outcome].filter(Boolean).join(' · ');
      if (note) this.foot.append(make('p', {}, note));
      if (reply.content) {
        const copy = make('button', { type: 'button' }, 'Copy');
        copy.setAttribute('aria-label', 'Copy answer');
        copy.addEventListener('click', () => copyText(reply.content, copy));
        this.foot.append(copy);
      }
      if (recording?.tokens.some((token) => token.kept)) {
        const show = make('button', { type: 'button' }, 'Kept blocks');
        show.addEventListener('click', () => inspector.open(recording, show));
        this.foot.append(show);
      }
    });
  }
}

function setRunning(isRunning) {
  $('send').textContent = isRunning ? 'Stop' : 'Send';
  if (isRunning) $('news').textContent = '';
  const active = document.activeElement;
  if (!isRunning && (active === document.body || active === $('send'))) $('input').focus();
}
