// What a conversation is asked with, and how the page looks.

function authorization() {
  const key = $('key').value.trim();
  return key ? { Authorization: 'Bearer ' + key } : {};
}

/** The members that the settings add to a request. */
function requestSettings() {
  const out = {};
  const temperature = parseFloat($('temperature').value);
  if (Number.isFinite(temperature)) out.temperature = temperature;
  const longest = parseInt($('max-tokens').value, 10);
  if (longest > 0) out.max_tokens = longest;
  const thinking = $('thinking').value;
  if (thinking) out.chat_template_kwargs = { thinking_mode: thinking };
  const tools = readTools();
  if (tools) out.tools = tools;
  return out;
}

function readTools() {
  const text = $('tools').value.trim();
  if (!text) return null;
  const tools = JSON.parse(text);
  if (!Array.isArray(tools) || !tools.length) throw new Error('not a list of tools');
  return tools;
}

function setUpSettings() {
  $('open-settings').addEventListener('click', () => $('settings').showModal());
  $('settings').addEventListener('close', showModel);  // the dialog itself gives the focus back
  $('settings').querySelector('form').addEventListener('submit', (event) => {
    $('tools-error').textContent = '';
    try {
      readTools();
    } catch (error) {
      event.preventDefault();
      $('tools-error').textContent = 'Tools: ' + error.message;
      $('tools').focus();
    }
  });
}

const kSun = 'M12 4v2m0 12v2M4 12h2m12 0h2M6.3 6.3l1.4 1.4m8.6 8.6 1.4 1.4m0-11.4-1.4 1.4M7.7 16.3l-1.4 1.4M12 8.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7z';
const kMoon = 'M19 14.5A7.5 7.5 0 0 1 9.5 5a7.5 7.5 0 1 0 9.5 9.5z';

/** Dark or light: the system's wish until the button says otherwise. */
function setUpTheme() {
  const system = matchMedia('(prefers-color-scheme: dark)');
  const space = 'http://www.w3.org/2000/svg';
  const path = document.createElementNS(space, 'path');
  const icon = document.createElementNS(space, 'svg');
  icon.setAttribute('viewBox', '0 0 24 24');
  icon.setAttribute('aria-hidden', 'true');
  icon.append(path);
  $('theme').append(icon);
  const current = () => memory.get('theme') ?? (system.matches ? 'dark' : 'light');
  const apply = () => {
    const theme = current();
    document.documentElement.dataset.theme = theme;
    path.setAttribute('d', theme === 'dark' ? kSun : kMoon);
    $('theme').setAttribute('aria-label', theme === 'dark' ? 'Use light colours' : 'Use dark colours');
    $('theme').title = $('theme').getAttribute('aria-label');
    document.dispatchEvent(new Event('themechange'));
  };
  $('theme').addEventListener('click', () => {
    memory.set('theme', current() === 'dark' ? 'light' : 'dark');
    if (memory.get('theme') === null) document.documentElement.dataset.theme = 'dark';
    apply();
  });
  system.addEventListener('change', apply);
  apply();
}

async function showModel() {
  const status = $('model');
  try {
    const answer = await fetch(base + '/v1/models', { headers: authorization() });
    if (answer.status === 401) { status.textContent = 'needs an API key: see Settings'; return; }
    if (answer.status === 503) {
      const health = await (await fetch(base + '/health')).json();
      status.textContent = health.status === 'loading' ? 'loading, ' + health.percent + ' %' : health.status;
      setTimeout(showModel, 700);
      return;
    }
    const card = (await answer.json()).data[0];
    status.textContent = card.id + ' · ' + card.max_model_len.toLocaleString('en') + ' tokens';
  } catch {
    status.textContent = 'the server does not answer';
  }
}
