// The picture of what MSA did: for one generated token, which blocks of 128 tokens each group of
// each layer kept, over the whole context. Beside the picture the same is there as text: a slider
// names a block, and a table lists all.

const kUnused = 65535;
const kGutter = 34;      // left of the picture, for layer numbers
const kBarHeight = 34;   // the share of groups that kept a block
const kLaneGap = 1;
const kPictureHeight = 300;

/** The tokens of one answer with their selections. */
class Recording {
  constructor(promptIds, shape) {
    this.ids = [...promptIds];  // the whole context
    this.shape = shape;
    this.tokens = [];           // {token, position, kept}
    this.texts = new Map();     // of blocks, once asked for
  }

  add(ids, entries) {
    this.ids.push(...ids);
    this.tokens.push(...entries);
  }

  numBlocks(token) { return Math.ceil(token.position / this.shape.block_tokens); }

  /** [layer][group] → the kept blocks, ascending. */
  kept(token) {
    const { layers, num_groups: groups, top_k: width } = this.shape;
    const bytes = Uint8Array.from(atob(token.kept), (c) => c.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    return layers.map((_, layer) => Array.from({ length: groups }, (_, group) => {
      const blocks = [];
      for (let i = 0; i < width; ++i) {
        const block = view.getUint16(2 * ((layer * groups + group) * width + i), true);
        if (block !== kUnused) blocks.push(block);
      }
      return blocks;
    }));
  }

  async blockText(block, position) {
    const size = this.shape.block_tokens;
    const ids = this.ids.slice(block * size, Math.min((block + 1) * size, position));
    const key = block + ':' + ids.length;
    if (!this.texts.has(key)) {
      const answer = await fetch(base + '/v1/detokenize', {
        method: 'POST', headers: { 'Content-Type': 'application/json', ...authorization() },
        body: JSON.stringify({ tokens: ids }),
      });
      if (!answer.ok) throw new Error((await answer.json()).error.message);
      this.texts.set(key, (await answer.json()).prompt);
    }
    return this.texts.get(key);
  }
}

const inspector = {
  recording: null,
  opener: null,
  index: 0,       // of the token
  selection: [],  // kept() of it
  counts: [],     // per block: how many groups kept it
  numLanes: 0,

  setUp() {
    $('close-inspector').addEventListener('click', () => this.close());
    $('inspector').addEventListener('keydown', (event) => { if (event.key === 'Escape') this.close(); });
    $('tokens').addEventListener('click', (event) => {
      const option = event.target.closest('[role=option]');
      if (option) this.choose(Number(option.dataset.index));
    });
    $('tokens').addEventListener('keydown', (event) => this.onKey(event));
    $('block').addEventListener('input', () => this.showBlock());
    const map = $('map');
    map.addEventListener('pointermove', (event) => this.point(event));
    map.addEventListener('click', (event) => this.point(event));
    new ResizeObserver(() => this.draw()).observe(map.parentElement);
    document.addEventListener('themechange', () => this.draw());
  },

  open(recording, opener) {
    this.recording = recording;
    this.opener = opener;
    $('inspector').hidden = false;
    $('stage').classList.add('split');
    $('tokens').replaceChildren(...recording.tokens.map((token, i) => {
      const option = make('span', { id: 'token-' + i }, tokenName(token));
      if (!token.kept) { option.className = 'bare'; return option; }
      option.setAttribute('role', 'option');
      option.setAttribute('aria-selected', 'false');
      option.dataset.index = i;
      return option;
    }));
    const { num_groups: groups, layers, block_tokens: size } = recording.shape;
    $('legend').replaceChildren(
      `From left to right: the context in blocks of ${size} tokens. Above: the share of groups that kept a block. Below: ${layers.length} layers, each with`,
      ...Array.from({ length: groups }, (_, g) => {
        const key = make('span', {}, make('span', { className: 'key group-' + g % 4 }), 'group ' + g);
        return key;
      }));
    // The last word, rather than the marker that ends the answer.
    const isWord = (token) => token.kept && /[\p{L}\p{N}]/u.test(token.token) && !token.token.includes('[');
    const last = recording.tokens.findLastIndex(isWord);
    this.choose(last >= 0 ? last : recording.tokens.findLastIndex((token) => token.kept));
    $('inspector-title').focus();
  },

  close() {
    $('inspector').hidden = true;
    $('stage').classList.remove('split');
    const back = this.opener?.isConnected ? this.opener : $('input');
    this.recording = null;
    back.focus();
  },

  onKey(event) {
    const tokens = this.recording.tokens;
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity, PageDown: 10, PageUp: -10 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const usable = tokens.map((token, i) => token.kept ? i : -1).filter((i) => i >= 0);
    const at = usable.indexOf(this.index);
    this.choose(usable[Math.max(0, Math.min(usable.length - 1, at + step))]);
  },

  choose(index) {
    if (index < 0 || index === undefined) return;
    $('token-' + this.index)?.setAttribute('aria-selected', 'false');
    this.index = index;
    const option = $('token-' + index);
    option.setAttribute('aria-selected', 'true');
    option.scrollIntoView({ block: 'nearest' });
    $('tokens').setAttribute('aria-activedescendant', option.id);

    const token = this.recording.tokens[index];
    const numBlocks = this.recording.numBlocks(token);
    this.selection = this.recording.kept(token);
    this.counts = new Array(numBlocks).fill(0);
    for (const layer of this.selection) {
      for (const group of layer) for (const block of group) ++this.counts[block];
    }
    this.numLanes = this.selection.length * this.recording.shape.num_groups;
    const most = Math.max(...this.selection.flat().map((group) => group.length));
    $('token-summary').textContent =
      `“${tokenName(token).trim()}”, token ${index + 1} of ${this.recording.tokens.length}, position ${token.position}: each group read ${most} of ${numBlocks} blocks.`;
    const slider = $('block');
    const wasLast = slider.value === slider.max;
    slider.max = numBlocks - 1;
    if (wasLast || Number(slider.value) >= numBlocks) slider.value = numBlocks - 1;
    this.showBlock();
    this.fillTable();
  },

  fillTable() {
    const { layers } = this.recording.shape;
    $('table-body').replaceChildren(...this.selection.flatMap((groups, l) => groups.map((blocks, g) =>
      make('tr', {}, make('th', { scope: 'row' }, String(layers[l])), make('td', {}, String(g)),
        make('td', {}, ranges(blocks))))));
  },

  showBlock() {
    const block = Number($('block').value);
    const token = this.recording.tokens[this.index];
    const size = this.recording.shape.block_tokens;
    const end = Math.min((block + 1) * size, token.position);
    const text = `Block ${block}, tokens ${block * size} to ${end - 1}: kept by ${this.counts[block]} of ${this.numLanes} groups.`;
    $('block').setAttribute('aria-valuetext', text);
    $('block-summary').textContent = text;
    this.draw();
    const recording = this.recording;
    recording.blockText(block, token.position).then(
      (words) => { if (recording === this.recording && block === Number($('block').value)) $('block-text').textContent = words; },
      (error) => { $('block-text').textContent = error.message; });
  },

  point(event) {
    if (!this.recording) return;
    const width = $('map').clientWidth - kGutter;
    const block = Math.floor((event.offsetX - kGutter) / width * this.counts.length);
    if (block < 0 || block >= this.counts.length || block === Number($('block').value)) return;
    $('block').value = block;
    this.showBlock();
  },

  draw() {
    if (!this.recording) return;
    const map = $('map');
    const { layers, num_groups: groups } = this.recording.shape;
    const lane = Math.max(2, Math.min(9, Math.floor((kPictureHeight - kBarHeight) / (layers.length * groups)) - kLaneGap));
    const layerHeight = groups * lane + (lane > 3 ? 3 : 1);
    const top = kBarHeight + 6;
    const height = top + layers.length * layerHeight + 16;
    const width = map.parentElement.clientWidth;
    map.style.height = height + 'px';
    const context = contextOf(map, width, height);
    const numBlocks = this.counts.length;
    const cell = (width - kGutter) / numBlocks;
    const gap = cell > 4 ? 1 : 0;
    const left = (block) => kGutter + block * cell;
    const extent = Math.max(cell - gap, 1);
    const muted = cssColor('--muted');
    context.font = '10px system-ui, sans-serif';
    context.textBaseline = 'middle';

    const chosen = Number($('block').value);
    context.fillStyle = cssColor('--user');
    context.fillRect(left(chosen) - gap, 0, Math.max(cell + gap, 2), height - 14);

    context.fillStyle = cssColor('--accent');
    for (let block = 0; block < numBlocks; ++block) {
      const bar = Math.max(this.counts[block] ? 1.5 : 0, this.counts[block] / this.numLanes * kBarHeight);
      context.fillRect(left(block), kBarHeight - bar, extent, bar);
    }
    context.fillStyle = muted;
    context.fillRect(kGutter, kBarHeight, width - kGutter, 1);

    const empty = cssColor('--empty');
    const colors = [0, 1, 2, 3].map((g) => cssColor('--group-' + g));
    const labelEvery = Math.ceil(12 / layerHeight);
    this.selection.forEach((byGroup, l) => {
      const y = top + l * layerHeight;
      byGroup.forEach((blocks, g) => {
        const laneTop = y + g * lane;
        context.fillStyle = empty;
        context.fillRect(kGutter, laneTop, width - kGutter, lane - kLaneGap);
        context.fillStyle = colors[g % 4];
        for (const block of blocks) context.fillRect(left(block), laneTop, extent, lane - kLaneGap);
      });
      if (l % labelEvery) return;
      context.fillStyle = muted;
      context.fillText('L' + layers[l], 4, y + groups * lane / 2);
    });
    context.strokeStyle = cssColor('--ink');
    context.lineWidth = 1;
    context.strokeRect(Math.round(left(chosen)) - .5, .5, Math.max(extent + 1, 3), height - 16);
    context.fillStyle = muted;
    context.textAlign = 'left';
    context.fillText('0', kGutter, height - 7);
    context.textAlign = 'right';
    context.fillText(this.recording.tokens[this.index].position + ' tokens', width, height - 7);
    map.setAttribute('aria-label',
      `Kept blocks of ${layers.length} layers with ${groups} groups each, over ${numBlocks} blocks; the table below lists them.`);
  },
};

/** What a token says, with a sign for what nobody sees. */
function tokenName(token) {
  if (token.token.trim()) return token.token;
  return token.token.replaceAll(' ', '␣').replaceAll('\n', '⏎') || '∅';
}

/** 0, 1, 2, 5 → "0–2, 5" */
function ranges(blocks) {
  const out = [];
  for (let i = 0; i < blocks.length;) {
    let end = i;
    while (end + 1 < blocks.length && blocks[end + 1] === blocks[end] + 1) ++end;
    out.push(end > i ? blocks[i] + '–' + blocks[end] : String(blocks[i]));
    i = end + 1;
  }
  return out.join(', ');
}
