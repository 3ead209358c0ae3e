const emptyNote = $('empty');

// A text longer than a few blocks, so that there is something to choose from.
function longQuestion() {
  const sentences = [
    'The river runs past the old mill and turns slowly towards the sea.',
    'Many people like to walk in the morning, when the air is still cool.',
    'A good meal needs fresh vegetables, a little salt, and some patience.',
    'Plants use the light of the sun to make the sugar that they live on.',
    'It is easier to learn a language when you speak it every day.',
    'The train was late, so the passengers waited in the small cafe.',
  ];
  const text = Array.from({ length: 110 }, (_, i) => sentences[(i * 7 + Math.floor(i / 6)) % 6]);
  text.splice(38, 0, 'The secret code for Paris is 4821.');
  return text.join(' ') + '\n\nWhat is the secret code for Paris?';
}

const kSuggestions = [
  ['Who are you?', () => 'Who are you?'],
  ['What is 37 + 48?', () => 'What is 37 + 48?'],
  ['Find a fact in a long text', longQuestion],
];

function growInput() {
  $('input').style.height = '';
  $('input').style.height = $('input').scrollHeight + 2 + 'px';
}

for (const [label, question] of kSuggestions) {
  const button = make('button', { type: 'button' }, label);
  button.addEventListener('click', () => { if (!chat.running) chat.ask(question()); $('input').focus(); });
  $('suggestions').append(button);
}
$('form').addEventListener('submit', (event) => {
  event.preventDefault();
  if (chat.running) { chat.running.abort(); return; }
  const question = $('input').value.trim();
  if (!question) return;
  $('input').value = '';
  growInput();
  chat.ask(question);
});
$('input').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!chat.running) $('form').requestSubmit();
  }
  if (event.key === 'Escape') chat.running?.abort();
});
$('input').addEventListener('input', growInput);
$('clear').addEventListener('click', () => chat.clear());

setUpTheme();
setUpSettings();
setUpMetrics();
inspector.setUp();
showModel();
