// Small things that the other parts share.

const $ = (id) => document.getElementById(id);
const base = location.pathname.replace(/\/$/, '');

/** An element; `content` is nodes or text, which is never read as HTML. */
function make(tag, properties = {}, ...content) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...content);
  return element;
}

/** What stays over visits; a browser may forbid it. */
const memory = {
  get(name) { try { return localStorage.getItem('winnow.' + name); } catch { return null; } },
  set(name, value) { try { localStorage.setItem('winnow.' + name, value); } catch { /* not kept */ } },
};

function cssColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Sizes a canvas to the pixels it covers; its drawing context in CSS pixels. */
function contextOf(canvas, width, height) {
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext('2d');
  context.scale(scale, scale);
  return context;
}
