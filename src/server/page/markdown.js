// Markdown as models write it, to nodes. Text only ever becomes text nodes: nothing that a model
// says is read as HTML, no picture is loaded, and links go nowhere but http, https and mailto.

const kMaxNesting = 12;

function renderMarkdown(text) {
  const fragment = document.createDocumentFragment();
  renderBlocks(text.replace(/\r\n?/g, '\n').split('\n'), fragment, 0);
  return fragment;
}

const kFence = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const kHeading = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const kRule = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const kQuote = /^ {0,3}> ?/;
const kItem = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)/;
const kTableRule = /^ {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

function startsBlock(line) {
  return kFence.test(line) || kHeading.test(line) || kRule.test(line) || kQuote.test(line) ||
    kItem.test(line);
}

function renderBlocks(lines, into, depth) {
  let i = 0;
  while (i < lines.length) {
    const line = lines[i];
    if (!line.trim()) { ++i; continue; }
    const fence = line.match(kFence);
    if (fence) { i = renderFence(lines, i, fence, into); continue; }
    const heading = line.match(kHeading);
    if (heading) {
      // The page has h1 and h2.
      const level = Math.min(heading[1].length + 2, 6);
      into.append(make('h' + level, {}, renderInline(heading[2], 0)));
      ++i;
      continue;
    }
    if (kRule.test(line)) { into.append(make('hr')); ++i; continue; }
    if (kQuote.test(line) && depth < kMaxNesting) { i = renderQuote(lines, i, into, depth); continue; }
    if (kItem.test(line) && depth < kMaxNesting) { i = renderList(lines, i, into, depth); continue; }
    if (line.includes('|') && kTableRule.test(lines[i + 1] ?? '') && lines[i + 1].includes('-')) {
      i = renderTable(lines, i, into);
      continue;
    }
    const paragraph = [line];
    ++i;
    while (i < lines.length && lines[i].trim() && !startsBlock(lines[i])) paragraph.push(lines[i++]);
    into.append(make('p', {}, renderInline(paragraph.join('\n'), 0)));
  }
}

function renderFence(lines, start, fence, into) {
  const close = new RegExp('^ {0,3}' + fence[1][0] + '{' + fence[1].length + ',}\\s*$');
  let end = start + 1;
  while (end < lines.length && !close.test(lines[end])) ++end;
  const code = lines.slice(start + 1, end).join('\n');
  const copy = make('button', { type: 'button' }, 'Copy');
  copy.setAttribute('aria-label', 'Copy code');
  copy.addEventListener('click', () => copyText(code, copy));
  const pre = make('pre', { tabIndex: 0 }, make('code', {}, code));
  pre.setAttribute('aria-label', fence[2] ? fence[2] + ' code' : 'code');
  pre.setAttribute('role', 'group');
  into.append(make('div', { className: 'code' }, pre, copy));
  return end + 1;
}

function renderQuote(lines, start, into, depth) {
  let end = start;
  const inner = [];
  while (end < lines.length && kQuote.test(lines[end])) inner.push(lines[end++].replace(kQuote, ''));
  const quote = make('blockquote');
  renderBlocks(inner, quote, depth + 1);
  into.append(quote);
  return end;
}

function renderList(lines, start, into, depth) {
  const first = lines[start].match(kItem);
  const isOrdered = /\d/.test(first[2]);
  const list = make(isOrdered ? 'ol' : 'ul');
  if (isOrdered && parseInt(first[2], 10) !== 1) list.start = parseInt(first[2], 10);
  let i = start;
  while (i < lines.length) {
    const match = lines[i].match(kItem);
    if (!match || /\d/.test(match[2]) !== isOrdered || kRule.test(lines[i])) break;
    const indent = match[0].length;
    const inner = [lines[i].slice(indent)];
    ++i;
    while (i < lines.length) {
      const blank = !lines[i].trim();
      const isDeeper = lines[i].search(/\S/) > match[1].length + 1;
      if (blank ? !(lines[i + 1] ?? '').startsWith('  ') : !isDeeper && startsBlock(lines[i])) break;
      inner.push(lines[i].replace(new RegExp('^ {0,' + indent + '}'), ''));
      ++i;
    }
    const item = make('li');
    const isSimple = inner.length === 1 && !startsBlock(inner[0]);
    if (isSimple) item.append(renderInline(inner[0], 0));
    else renderBlocks(inner, item, depth + 1);
    list.append(item);
    while (i < lines.length && !lines[i].trim() && kItem.test(lines[i + 1] ?? '')) ++i;
  }
  into.append(list);
  return i;
}

function cellsOf(line) {
  return line.trim().replace(/^\||\|$/g, '').split('|').map((cell) => cell.trim());
}

function renderTable(lines, start, into) {
  const head = make('tr', {}, ...cellsOf(lines[start]).map((cell) =>
    make('th', { scope: 'col' }, renderInline(cell, 0))));
  const body = make('tbody');
  let i = start + 2;
  while (i < lines.length && lines[i].includes('|')) {
    body.append(make('tr', {}, ...cellsOf(lines[i]).map((cell) =>
      make('td', {}, renderInline(cell, 0)))));
    ++i;
  }
  into.append(make('table', {}, make('thead', {}, head), body));
  return i;
}

const kPairs = [['**', 'strong'], ['__', 'strong'], ['~~', 'del'], ['*', 'em'], ['_', 'em']];

function renderInline(text, depth) {
  const out = document.createDocumentFragment();
  let plain = '';
  let i = 0;
  const flush = () => { if (plain) out.append(plain); plain = ''; };
  const put = (node, length) => { flush(); out.append(node); i += length; };
  while (i < text.length) {
    const c = text[i];
    if (c === '\\' && /[!-/:-@[-`{-~]/.test(text[i + 1] ?? '')) { plain += text[i + 1]; i += 2; continue; }
    if (c === '\n') { put(make('br'), 1); continue; }
    if (c === '`') {
      const ticks = text.slice(i).match(/^`+/)[0];
      const end = text.indexOf(ticks, i + ticks.length);
      if (end > 0) {
        put(make('code', {}, text.slice(i + ticks.length, end)), end + ticks.length - i);
      } else { plain += ticks; i += ticks.length; }
      continue;
    }
    if (depth < kMaxNesting) {
      if (c === '[' || (c === '!' && text[i + 1] === '[')) {
        const link = text.slice(i, i + 4096).match(/^!?\[([^[\]]*)\]\(\s*<?([^\s()<>]+(?:\([^\s()]*\))?)>?(?:\s+"[^"]*")?\s*\)/);
        if (link) { put(makeLink(link[2], renderInline(link[1], depth + 1)), link[0].length); continue; }
      }
      if (c === 'h' && !/\w$/.test(plain)) {
        const link = text.slice(i, i + 2048).match(/^https?:\/\/[^\s<>"'`)\]]*[^\s<>"'`)\].,:;!?]/);
        if (link) { put(makeLink(link[0], link[0]), link[0].length); continue; }
      }
      const pair = pairAt(text, i);
      if (pair) {
        put(make(pair.tag, {}, renderInline(pair.inner, depth + 1)), pair.length);
        continue;
      }
    }
    plain += c;
    ++i;
  }
  flush();
  return out;
}

function pairAt(text, i) {
  for (const [mark, tag] of kPairs) {
    if (!text.startsWith(mark, i)) continue;
    const begin = i + mark.length;
    // snake_case and 2 * 3 are no emphasis.
    if (!text[begin] || /\s/.test(text[begin])) continue;
    if (mark[0] === '_' && /\w/.test(text[i - 1] ?? '')) continue;
    const end = text.indexOf(mark, begin + 1);
    if (end < 0 || /\s/.test(text[end - 1])) continue;
    if (mark[0] === '_' && /\w/.test(text[end + mark.length] ?? '')) continue;
    if (mark.length === 1 && text[end + 1] === mark) continue;
    return { tag, inner: text.slice(begin, end), length: end + mark.length - i };
  }
  return null;
}

function makeLink(target, content) {
  if (!/^(https?:|mailto:)/i.test(target)) return make('span', {}, content);
  return make('a', { href: target, target: '_blank', rel: 'noopener noreferrer' }, content);
}

async function copyText(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = 'Copied';
  } catch {
    button.textContent = 'Not allowed';
  }
  setTimeout(() => { button.textContent = label; }, 1500);
}
