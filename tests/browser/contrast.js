// Contrast of an element's text with what is behind it, as WCAG 2 defines it.
selector => {
  const element = document.querySelector(selector);
  const parse = (text) => text.match(/[\d.]+/g).map(Number);
  let behind = element;
  while (parse(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
  const light = (color) => {
    const [r, g, b] = color.slice(0, 3).map((v) => {
      const s = v / 255;
      return s <= 0.03928 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const a = light(parse(getComputedStyle(element).color));
  const b = light(parse(getComputedStyle(behind).backgroundColor));
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}
