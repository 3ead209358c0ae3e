// Live metrics: /metrics, read every two seconds while the page is looked at.

const kMetricsEvery = 2000;
const kSparkPoints = 36;

function readMetrics(text) {
  const values = new Map();
  for (const line of text.split('\n')) {
    const match = line.match(/^([\w:]+)(?:\{.*\})? (\S+)$/);
    if (match) values.set(match[1], Number(match[2]));
  }
  return values;
}

function setUpMetrics() {
  let previous = null;
  const rates = new Array(kSparkPoints).fill(0);

  const draw = () => {
    const context = contextOf($('spark'), 72, 22);
    const most = Math.max(...rates, 1);
    const at = (i) => [2 + i * 68 / (kSparkPoints - 1), 20 - 18 * rates[i] / most];
    context.strokeStyle = cssColor('--accent');
    context.lineWidth = 1.5;
    context.lineJoin = 'round';
    context.beginPath();
    for (let i = 0; i < kSparkPoints; ++i) context.lineTo(...at(i));
    context.stroke();
  };

  const show = (values, now) => {
    const tokens = values.get('vllm:generation_tokens_total');
    if (tokens === undefined) return;
    if (previous && now > previous.now) {
      const rate = Math.max(0, (tokens - previous.tokens) / (now - previous.now) * 1000);
      rates.push(rate);
      rates.shift();
      $('meter-rate').textContent = rate < 10 ? rate.toFixed(1) : rate.toFixed(0);
      draw();
    }
    previous = { tokens, now };
    const waiting = values.get('vllm:num_requests_waiting');
    $('meter-batch').textContent = values.get('vllm:num_requests_running') + (waiting ? ' + ' + waiting : '');
    $('meter-cache').textContent = (100 * values.get('vllm:kv_cache_usage_perc')).toFixed(1) + ' %';
    const accepted = values.get('winnow:spec_decode_mean_acceptance_length');
    $('meter-accepted').parentElement.hidden = !accepted;
    if (accepted) $('meter-accepted').textContent = accepted.toFixed(2);
  };

  const poll = async () => {
    if (!document.hidden) {
      try {
        const answer = await fetch(base + '/metrics');
        if (answer.ok) show(readMetrics(await answer.text()), performance.now());
      } catch { /* the server is away: the next poll sees */ }
    }
    setTimeout(poll, kMetricsEvery);
  };
  document.addEventListener('themechange', draw);
  poll();
}
