// What an accessibility checker asks of a page: a list of faults.
() => {
  const faults = [];
  const name = (e) => e.getAttribute('aria-label') || e.labels?.[0]?.textContent ||
    document.getElementById(e.getAttribute('aria-labelledby'))?.textContent ||
    e.textContent || e.title;
  const named = 'button, a[href], input, select, textarea, [role=listbox], [role=option], ' +
    '[role=region], dialog, aside, summary, canvas[role=img], section[tabindex]';
  for (const e of document.querySelectorAll(named)) {
    if (!name(e)?.trim()) faults.push('no name: ' + e.outerHTML.slice(0, 90));
  }
  const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
  for (const id of ids) if (ids.filter((i) => i === id).length > 1) faults.push('twice: ' + id);
  for (const a of ['aria-labelledby', 'aria-describedby', 'aria-activedescendant', 'for']) {
    for (const e of document.querySelectorAll(`[${a}]`)) {
      if (!document.getElementById(e.getAttribute(a))) faults.push(a + ': ' + e.getAttribute(a));
    }
  }
  if (document.querySelectorAll('h1').length !== 1) faults.push('h1');
  if (document.querySelectorAll('main').length !== 1) faults.push('main');
  if (!document.documentElement.lang || !document.title) faults.push('lang or title');
  let level = 1;
  for (const h of document.querySelectorAll('h1, h2, h3, h4, h5, h6')) {
    const next = Number(h.tagName[1]);
    if (next > level + 1) faults.push('skips to ' + h.outerHTML.slice(0, 60));
    level = next;
  }
  for (const e of document.querySelectorAll('canvas')) {
    if (!e.getAttribute('role') && e.getAttribute('aria-hidden') !== 'true') faults.push('canvas');
  }
  if (document.querySelectorAll('[aria-live=assertive]').length) faults.push('assertive');
  return faults;
}
