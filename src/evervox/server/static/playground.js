// The playground: asks for speech as events, plays the samples while they come, and shows what the server holds.

const $ = (id) => document.getElementById(id);
const state = { rate: 16000, hasReference: true, key: sessionStorage.getItem("key") || "", clip: null, take: null };
const number = (value, digits = 0) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

// ---- the server

async function call(path, options = {}) {
  const headers = { ...options.headers, ...(state.key && { Authorization: `Bearer ${state.key}` }) };
  const response = await fetch(path, { ...options, headers });
  if (response.status === 401) $("key-form").hidden = false;
  if (!response.ok) {
    const problem = await response.json().catch(() => null);
    throw new Error(problem?.error?.message ?? `the server answered ${response.status}`);
  }
  return response;
}

const json = async (path, options) => (await call(path, options)).json();

async function loadModel() {
  const [model] = (await json("/v1/models")).data;
  state.rate = model.sample_rate;
  state.hasReference = model.has_reference;
  $("model").textContent = `${model.id} · ${number(model.sample_rate / 1000, model.sample_rate % 1000 ? 1 : 0)} kHz`;
  $("steps").value = model.inference_timesteps;
  $("steps").dispatchEvent(new Event("input"));
  $("style-field").hidden = !model.has_reference;
  if (!model.has_reference) $("transcript-need").textContent = "(this model needs it)";
}

async function loadVoices(chosen = $("voice").value) {
  const { data } = await json("/v1/voices");
  $("voice").replaceChildren(...data.map((voice) => new Option(voice.name, voice.id, false, voice.id === chosen)));
  showVoice();
}

const showVoice = () => { $("delete").hidden = $("voice").value === "default"; };

async function watch() {
  if (document.hidden) return;
  try {
    const [ready, stats] = await Promise.all([fetch("/ready").then((r) => r.json()), json("/v1/stats")]);
    $("ready").className = `pill ${ready.ready ? "good" : "bad"}`;
    $("ready").textContent = ready.ready ? "ready" : ready.reason;
    showLedger(stats.ledger);
  } catch (error) {
    $("ready").className = "pill bad";
    $("ready").textContent = error instanceof TypeError ? "the server does not answer" : error.message;
  }
}

function amount(value, unit) {
  if (unit !== "bytes") return number(value);
  const power = Math.min(3, Math.floor(Math.log2(Math.max(1, value)) / 10));
  return `${number(value / 1024 ** power, power && value / 1024 ** power < 100 ? 1 : 0)} ${["B", "KiB", "MiB", "GiB"][power]}`;
}

function showLedger(lines) {
  const list = $("ledger");
  lines.sort((a, b) => (b.limit !== null) - (a.limit !== null) || a.owner.localeCompare(b.owner) || a.name.localeCompare(b.name));
  while (list.children.length > lines.length) list.lastChild.remove();
  lines.forEach((line, index) => {
    const item = list.children[index] ?? list.appendChild(ledgerItem());
    const [name, size, bar] = item.children;
    name.textContent = line.name;
    item.title = `held by the ${line.owner}`;
    size.textContent = amount(line.size, line.unit) + (line.limit === null ? "" : ` of ${amount(line.limit, line.unit)}`);
    bar.hidden = !line.limit;
    const share = line.limit ? line.size / line.limit : 0;
    bar.firstChild.style.width = `${Math.min(100, share * 100)}%`;
    bar.classList.toggle("fixed", share === 1 && line.unit === "bytes"); // taken once, at start
  });
}

function ledgerItem() {
  const item = document.createElement("li");
  item.innerHTML = "<span></span><span class=amount></span><span class=bar><i></i></span>";
  return item;
}

// ---- speaking

function order() {
  const body = {
    input: $("text").value, voice: $("voice").value, response_format: "pcm", stream_format: "sse",
    speed: Number($("speed").value), cfg_value: Number($("cfg").value), inference_timesteps: Number($("steps").value),
  };
  if (state.hasReference && $("style").value.trim()) body.instructions = $("style").value.trim();
  if ($("seed").value.trim()) body.seed = Number($("seed").value);
  if (state.clip) Object.assign(body, clipFields());
  return body;
}

function clipFields() {
  const said = $("transcript").value.trim();
  const fields = { voice: "default" };
  if (state.hasReference) fields.reference_audio = state.clip.base64;
  if (said || !state.hasReference) Object.assign(fields, { prompt_audio: state.clip.base64, prompt_text: said });
  return fields;
}

async function* events(body, signal) {
  const headers = { "Content-Type": "application/json" };
  const response = await call("/v1/audio/speech", { method: "POST", headers, body: JSON.stringify(body), signal });
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = parts.pop();
    for (const part of parts) yield JSON.parse(part.slice(part.indexOf("data: ") + 6));
  }
}

function samplesOf(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  return Float32Array.from(new Int16Array(bytes.buffer), (sample) => sample / 32768);
}

class Take {
  // One utterance: what has come, and when it is heard. The context runs at the stream's rate, so chunks join without a seam.
  constructor() {
    this.abort = new AbortController();
    this.context = new AudioContext({ sampleRate: state.rate });
    this.chunks = [];
    this.seconds = 0;
    this.origin = null;
    this.waits = 0;
    this.isOver = false;
  }

  add(samples) {
    const clock = this.context.currentTime;
    if (this.origin === null) this.origin = clock + 0.06;
    const late = clock - (this.origin + this.seconds);
    if (late > 0) { this.origin += late + 0.02; this.waits += 1; }
    this.play(samples, this.origin + this.seconds);
    this.chunks.push(samples);
    this.seconds += samples.length / state.rate;
  }

  play(samples, when) {
    const buffer = this.context.createBuffer(1, samples.length, state.rate);
    buffer.copyToChannel(samples, 0);
    const source = new AudioBufferSourceNode(this.context, { buffer });
    source.connect(this.context.destination);
    source.start(when);
  }

  again() {
    this.context.close();
    this.context = new AudioContext({ sampleRate: state.rate });
    this.origin = this.context.currentTime + 0.06;
    this.play(this.whole(), this.origin);
  }

  whole() {
    const whole = new Float32Array(this.chunks.reduce((sum, chunk) => sum + chunk.length, 0));
    this.chunks.reduce((at, chunk) => (whole.set(chunk, at), at + chunk.length), 0);
    return whole;
  }

  get heard() {
    if (this.origin === null || this.context.state === "closed") return this.origin === null ? 0 : this.seconds;
    return Math.max(0, Math.min(this.seconds, this.context.currentTime - this.origin));
  }

  get isPlaying() { return !this.isOver || (this.context.state !== "closed" && this.heard < this.seconds); }

  stop() {
    this.abort.abort();
    if (this.context.state !== "closed") this.context.close();
    this.isOver = true;
  }
}

async function speak() {
  state.take?.stop();
  const take = (state.take = new Take());
  show("speaking", "Waiting for the first audio…");
  for (const id of ["ttfa", "rtf", "length", "used-seed", "cached", "ended"]) $(id).textContent = "–";
  draw();
  try {
    await receive(take, performance.now());
  } catch (error) {
    if (take === state.take && error.name !== "AbortError") show("error", error.message || "the connection was cut");
  } finally {
    take.isOver = true;
    if (take === state.take) settle(take);
  }
}

async function receive(take, started) {
  for await (const event of events(order(), take.abort.signal)) {
    if (event.type === "error") throw new Error(event.error.message);
    if (event.type === "speech.audio.done") return finish(take, event);
    const samples = samplesOf(event.audio);
    if (!take.chunks.length) {
      $("ttfa").textContent = `${number(performance.now() - started)} ms`;
      show("speaking", "Speaking…");
    }
    take.add(samples);
    $("length").textContent = `${number(take.seconds, 2)} s`;
    $("rtf").textContent = number((performance.now() - started) / 1000 / take.seconds, 2);
  }
  throw new Error("the connection was cut before the end");
}

function finish(take, done) {
  const usage = done.usage;
  $("used-seed").textContent = done.seed;
  $("cached").textContent = `${number(usage.input_token_details.cached_tokens)} of ${number(usage.input_tokens)}`;
  $("ended").textContent = done.finish_reason === "length" ? "at a limit" : "naturally";
  show("done", take.waits ? `Playback had to wait ${take.waits} ${take.waits === 1 ? "time" : "times"}.` : "Played while it was made, without a gap.");
}

function stop() {
  if (!state.take?.isPlaying) return;
  state.take.stop();
  show("idle", "Stopped.");
  settle(state.take);
}

function settle(take) {
  $("replay").disabled = $("download").disabled = !take.chunks.length;
  draw();
}

function show(name, message) {
  document.body.dataset.state = name;
  $("message").textContent = message;
}

// ---- the waveform

function draw() {
  const canvas = $("wave"), take = state.take, scale = devicePixelRatio || 1;
  canvas.width = canvas.clientWidth * scale;
  canvas.height = canvas.clientHeight * scale;
  const context = canvas.getContext("2d"), style = getComputedStyle(document.body);
  const [played, ahead] = ["--accent", "--wave"].map((name) => style.getPropertyValue(name));
  const pitch = 5 * scale, middle = canvas.height / 2, room = middle - 8 * scale;
  const count = Math.floor((canvas.width - 16 * scale) / pitch);
  const window = take?.isOver && take.seconds ? take.seconds : Math.max(take ? take.seconds : 0, 4);
  const peaks = take ? peaksOf(take, window, count) : [];
  for (let bar = 0; bar < count; bar += 1) {
    const height = Math.max(1.5 * scale, Math.min(1, (peaks[bar] ?? 0) * 1.3) * room);
    context.fillStyle = take && bar / count < take.heard / window ? played : ahead;
    context.beginPath();
    context.roundRect(8 * scale + bar * pitch, middle - height, 3 * scale, 2 * height, 1.5 * scale);
    context.fill();
  }
  document.body.dataset.heard = take ? take.heard.toFixed(2) : "0";
  $("stop").disabled = !take?.isPlaying;
  if (take?.isPlaying) requestAnimationFrame(draw);
}

function peaksOf(take, window, count) {
  const peaks = new Float32Array(count), perBar = (window * state.rate) / count;
  let at = 0;
  for (const chunk of take.chunks) {
    for (let i = 0; i < chunk.length; i += 4) {
      const bar = Math.floor((at + i) / perBar);
      if (bar < count && Math.abs(chunk[i]) > peaks[bar]) peaks[bar] = Math.abs(chunk[i]);
    }
    at += chunk.length;
  }
  return peaks;
}

// ---- files

function wavOf(samples) {
  const view = new DataView(new ArrayBuffer(44 + samples.length * 2));
  const text = (at, value) => [...value].forEach((c, i) => view.setUint8(at + i, c.charCodeAt(0)));
  text(0, "RIFF"); view.setUint32(4, 36 + samples.length * 2, true); text(8, "WAVEfmt "); view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); view.setUint16(22, 1, true); view.setUint32(24, state.rate, true);
  view.setUint32(28, state.rate * 2, true); view.setUint16(32, 2, true); view.setUint16(34, 16, true);
  text(36, "data"); view.setUint32(40, samples.length * 2, true);
  samples.forEach((sample, i) => view.setInt16(44 + i * 2, Math.round(sample * 32767), true));
  return new Blob([view], { type: "audio/wav" });
}

function download() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(wavOf(state.take.whole()));
  link.download = `evervox-${$("used-seed").textContent}.wav`;
  link.click();
  URL.revokeObjectURL(link.href);
}

async function copyCurl() {
  const { stream_format: _, ...body } = { ...order(), response_format: "wav" };
  for (const name of ["reference_audio", "prompt_audio"]) if (body[name]) body[name] = "BASE64 OF THE CLIP";
  const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
  const key = state.key ? " -H 'Authorization: Bearer KEY'" : "";
  await navigator.clipboard.writeText(`curl ${location.origin}/v1/audio/speech -H 'Content-Type: application/json'${key} -d '${quoted}' -o speech.wav`);
  $("curl").textContent = "Copied";
  setTimeout(() => { $("curl").textContent = "Copy as curl"; }, 1500);
}

// ---- another voice

async function useClip(blob, name) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  let binary = "";
  for (let at = 0; at < bytes.length; at += 32768) binary += String.fromCharCode(...bytes.subarray(at, at + 32768));
  dropClip();
  state.clip = { blob, base64: btoa(binary), url: URL.createObjectURL(blob) };
  $("preview").src = state.clip.url;
  $("preview").hidden = $("clear").hidden = false;
  $("clip-name").textContent = name;
}

function dropClip() {
  if (state.clip) URL.revokeObjectURL(state.clip.url);
  state.clip = null;
  $("preview").hidden = $("clear").hidden = true;
  $("preview").removeAttribute("src");
  $("clip-name").textContent = "3 to 30 seconds of one person speaking";
}

let recorder = null;

async function record() {
  if (recorder) return recorder.stop();
  const microphone = await navigator.mediaDevices.getUserMedia({ audio: true });
  const parts = [];
  recorder = new MediaRecorder(microphone);
  recorder.ondataavailable = (event) => parts.push(event.data);
  recorder.onstop = () => {
    microphone.getTracks().forEach((track) => track.stop());
    useClip(new Blob(parts, { type: recorder.mimeType }), "recorded just now");
    recorder = null;
    $("record").textContent = "Record";
    $("record").ariaPressed = "false";
  };
  recorder.start();
  $("record").textContent = "Stop recording";
  $("record").ariaPressed = "true";
  setTimeout(() => recorder?.stop(), 30000);
}

async function save() {
  if (!state.clip) throw new Error("choose or record a clip first");
  const form = new FormData();
  form.append("name", $("name").value.trim());
  if ($("transcript").value.trim()) form.append("transcript", $("transcript").value.trim());
  form.append("clip", state.clip.blob, "clip");
  const voice = await json("/v1/voices", { method: "POST", body: form });
  dropClip();
  $("name").value = $("transcript").value = $("file").value = "";
  await loadVoices(voice.id);
  show("idle", `Stored ${voice.name}: it is in the list of voices.`);
}

async function remove() {
  const name = $("voice").value;
  await json(`/v1/voices/${encodeURIComponent(name)}`, { method: "DELETE" });
  await loadVoices("default");
  show("idle", `Deleted ${name}.`);
}

// ---- wiring

const trying = (action) => async (event) => {
  try { await action(event); } catch (error) { show("error", error.message); }
};
const on = (id, kind, action) => $(id).addEventListener(kind, trying(action));

on("speak", "click", speak);
on("stop", "click", stop);
on("replay", "click", () => { state.take.again(); draw(); });
on("download", "click", download);
on("curl", "click", copyCurl);
on("voice", "change", showVoice);
on("file", "change", (event) => event.target.files[0] && useClip(event.target.files[0], event.target.files[0].name));
on("record", "click", record);
on("clear", "click", dropClip);
on("save", "click", save);
on("delete", "click", remove);
on("key-form", "submit", async (event) => {
  event.preventDefault();
  state.key = $("key").value;
  sessionStorage.setItem("key", state.key);
  $("key-form").hidden = true;
  await begin();
});
const count = () => { $("count").textContent = number($("text").value.length); };
$("text").addEventListener("input", count);
for (const id of ["speed", "cfg", "steps"]) {
  const digits = { speed: 2, cfg: 1, steps: 0 }[id];
  const update = () => { document.querySelector(`output[for=${id}]`).textContent = number(Number($(id).value), digits); };
  $(id).addEventListener("input", update);
  update();
}
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); $("speak").click(); }
  if (event.key === "Escape") stop();
});
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

async function begin() {
  await Promise.all([loadModel(), loadVoices(), watch()]);
}

count();
draw();
trying(begin)();
setInterval(watch, 2000);
