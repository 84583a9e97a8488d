"use strict";
// The live page: events of /v1/speculation/events as numbers and pictures, and a chat that colours accepted drafts.

const RETRY_MS = 2000, SILENCE_MS = 5000; // a server that says nothing for so long is gone
const SHOWN_STEPS = 160, RATE_EVENTS = 12, SPOKEN_MS = 10000;
const still = matchMedia("(prefers-reduced-motion: reduce)");
const find = (id) => document.getElementById(id);
const sum = (values) => values.reduce((total, value) => total + value, 0);
const number = (value, digits = 0) => value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
const perSecond = (value) => number(value, value && value < 20 ? 1 : 0);
const milliseconds = (seconds) => number(1000 * seconds, seconds < 0.1 ? 1 : 0);

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// Keys: one to watch, one to chat with; a server without an admin key takes the same for both.

const storedKey = (use) => sessionStorage.getItem(`smartspec-key-${use}`) ?? sessionStorage.getItem("smartspec-key-watch");
const withKey = (use) => (storedKey(use) ? { Authorization: `Bearer ${storedKey(use)}` } : {});

function askForKey(use, message) {
  find("key-why").textContent = message;
  find("key-text").value = "";
  return new Promise((done) => {
    find("key-form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(`smartspec-key-${use}`, find("key-text").value);
      find("key").close();
    };
    find("key").onclose = done;
    if (!find("key").open) find("key").showModal();
  });
}

// What a browser says of a connection that failed is of no help, and other words in each.
async function reached(promise) {
  try { return await promise; } catch (error) {
    throw error.name === "AbortError" ? error : new Error("the server cannot be reached");
  }
}

// fetch with a key. The person is asked for another one while it is refused.
// Header values are Latin-1 for fetch and UTF-8 for the server.
async function fetchWithKey(use, path, options = {}) {
  for (;;) {
    const headers = { ...options.headers, ...withKey(use) };
    for (const name in headers) headers[name] = String.fromCharCode(...new TextEncoder().encode(headers[name]));
    const answer = await reached(fetch(path, { ...options, headers }));
    if (answer.status !== 401) return answer;
    await askForKey(use, (await answer.json()).error.message);
  }
}

async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reached(reader.read());
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
  }
}

async function problemOf(answer) {
  const text = await answer.text();
  try { return JSON.parse(text).error.message; } catch { return `status ${answer.status}`; }
}

// Watching

const recent = []; // events, for the rates
const comingSteps = [], steps = []; // the first are drawn one after the other
const classes = new Map();
let watching = null, decided = false, spokenAt = -Infinity;

function showState(state, text) {
  const status = find("status");
  if (status.textContent !== text) status.textContent = text;
  status.dataset.state = state;
  document.body.classList.toggle("stale", state === "gone");
}

async function watch() {
  while (!document.hidden) {
    watching = new AbortController();
    let timer = 0;
    const expect = () => { clearTimeout(timer); timer = setTimeout(() => watching?.abort(), SILENCE_MS); };
    try {
      const answer = await fetchWithKey("watch", "v1/speculation/events", { signal: watching.signal });
      if (!answer.ok) throw new Error(await problemOf(answer));
      for await (const event of eventsOf(answer)) { expect(); show(event); }
      throw new Error("the server has stopped");
    } catch (error) {
      if (document.hidden) break;
      showState("gone", `no connection (${error.name === "AbortError" ? "no answer" : error.message}), trying again`);
    } finally {
      clearTimeout(timer);
    }
    await new Promise((done) => setTimeout(done, RETRY_MS));
  }
  watching = null;
}

document.addEventListener("visibilitychange", () => { // nothing is computed for a page that is not visible
  if (document.hidden) watching?.abort(); else if (!watching) watch();
});

function show(event) {
  recent.push(event);
  if (recent.length > RATE_EVENTS) recent.shift();
  comingSteps.push(...event.steps);
  find("about").textContent = `${event.model} · policy ${event.policy}`;
  const busy = event.running + event.waiting > 0;
  showState(busy ? "busy" : "idle", busy ? "working" : "idle");
  showTiles(event);
  if (event.decision && (event.num_steps || !decided)) showDecision(event.decision);
  if (event.classes.length) showClasses(event.classes);
  if (still.matches) advance();
  speak(event);
}

function showTiles(event) {
  const seconds = sum(recent.map((e) => e.seconds));
  const drafts = recent.flatMap((e) => e.classes);
  const verified = sum(drafts.map((c) => c.verified));
  const times = recent.flatMap((e) => e.steps).map((s) => s.measured_seconds).sort((a, b) => a - b);
  const tile = (id, text, unit = "") => find(id).replaceChildren(text, element("small", {}, unit));
  tile("running", number(event.running));
  tile("waiting", number(event.waiting));
  tile("rate", perSecond(sum(recent.map((e) => e.generated_tokens)) / seconds));
  tile("acceptance", verified ? number((100 * sum(drafts.map((c) => c.accepted))) / verified) : "–", verified ? " %" : "");
  tile("step", times.length ? milliseconds(times[times.length >> 1]) : "–", times.length ? " ms" : "");
  tile("kv", number(100 * event.kv_use_ratio), " %");
}

function showDecision(decision) {
  decided = true;
  find("why").textContent = reasonOf(decision);
  const longest = Math.max(...decision.lengths, 0);
  find("rows").replaceChildren(...decision.lengths.map((length, row) => {
    const cells = [element("i", { className: "token" })];
    for (let j = 0; j < length; j++) {
      const kind = j < decision.accepted[row] ? "accepted" : j < decision.verified[row] ? "rejected" : "";
      cells.push(element("i", { className: kind }));
    }
    return element("div", {}, ...cells);
  }));
  find("rows").setAttribute("aria-label", `${decision.num_rows} requests, drafts of up to ${longest} tokens; ` +
    `${sum(decision.verified)} draft tokens verified, ${sum(decision.accepted)} accepted`);
  if (decision.what_if) showWhatIf(decision.what_if); // otherwise the last comparison stays
}

function reasonOf(d) {
  const verified = sum(d.verified), rows = `${d.num_rows} decoding request${d.num_rows === 1 ? "" : "s"}`;
  const prompts = d.prefill_tokens ? ` beside ${d.prefill_tokens} prompt tokens` : "";
  if (!d.num_rows) return `A step of ${d.prefill_tokens} prompt tokens: there was nothing to draft for.`;
  const gain = number(100 * (d.predicted_goodput / d.predicted_goodput_off - 1));
  let text = verified
    ? `${verified} draft token${verified === 1 ? "" : "s"} for ${rows}${prompts}: ${perSecond(d.predicted_goodput)} tokens per second were expected, ` +
      `${perSecond(d.predicted_goodput_off)} without drafts (${gain} % more). ${sum(d.accepted)} ${sum(d.accepted) === 1 ? "was" : "were"} accepted. `
    : `No drafts for ${rows}${prompts}: ${perSecond(d.predicted_goodput_off)} tokens per second were expected without them. `;
  text += `The step took ${milliseconds(d.measured_seconds)} ms, ${milliseconds(d.predicted_seconds)} were predicted. `;
  return text + (d.reason ? `The planner was overruled: ${d.reason}.` : verified ? "No other lengths promised more." :
    d.what_if?.steps_ago === 0 ? "Drafts did not promise enough." : d.queried ? "There was no draft to choose from." :
    "Drafters were not queried, as drafts have not saved what that costs.");
}

function bar(kind, label, share, text) {
  const fill = element("div", { className: "bar" });
  fill.style.width = `${100 * share}%`;
  const cell = element("td", {}, fill, element("span", {}, text));
  return element("tr", { className: kind }, element("th", { scope: "row", title: label }, label), cell);
}

function showWhatIf({ planned, uniform }) {
  const most = Math.max(planned, ...uniform), best = Math.max(...uniform);
  const text = (goodput) => `${perSecond(goodput)} tokens/s, ${number(goodput / uniform[0], 2)} x off`;
  const row = (kind, label, goodput) => bar(kind, label, goodput / most, text(goodput));
  const rows = uniform.map((goodput, length) => row(goodput === best ? "best" : "", length ? `${length}` : "off", goodput));
  find("what-if").replaceChildren(row("planned", "as decided", planned), ...rows);
}

function showClasses(news) {
  for (const { name, verified, accepted } of news) {
    const total = classes.get(name) ?? { verified: 0, accepted: 0 };
    classes.set(name, { verified: total.verified + verified, accepted: total.accepted + accepted });
  }
  const most = [...classes].sort((a, b) => b[1].verified - a[1].verified).slice(0, 10);
  find("classes").replaceChildren(...most.map(([name, { verified, accepted }]) => bar("class", name || "no class",
    accepted / verified, `${number((100 * accepted) / verified)} % of ${number(verified)}`)));
}

function speak(event) { // pictures in words, not so often that a screen reader never ends
  if (!event.steps.length || performance.now() - spokenAt < SPOKEN_MS) return;
  spokenAt = performance.now();
  const rows = sum(event.steps.map((s) => sum(s.rows)));
  const tokens = sum(event.steps.map((s) => sum(s.rows.map((count, length) => count * length))));
  const mean = rows ? number(tokens / rows, 1) : "0";
  find("lengths").setAttribute("aria-label", `Draft lengths of the last steps: ${mean} tokens on average, ` +
    `${number(rows ? sum(event.steps.map((s) => s.accepted)) / rows : 0, 1)} accepted`);
  const last = event.steps[event.steps.length - 1];
  const predicted = event.steps.findLast((s) => s.predicted_seconds !== null);
  find("times").setAttribute("aria-label", `The last step took ${milliseconds(last.measured_seconds)} milliseconds` +
    (predicted ? `, ${milliseconds(predicted.predicted_seconds)} were last predicted` : ""));
}

// Pictures

function advance() {
  const count = still.matches ? comingSteps.length : Math.ceil(comingSteps.length / 14);
  if (!count) return;
  steps.push(...comingSteps.splice(0, count));
  steps.splice(0, steps.length - SHOWN_STEPS);
  draw();
}

function draw() { drawLengths(); drawTimes(); }

function canvasOf(id) {
  const canvas = find(id), scale = devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const style = getComputedStyle(document.documentElement);
  return { pen, width, height, colour: (name) => style.getPropertyValue(`--${name}`).trim() };
}

function roundTicks(most) { // two to five
  const power = 10 ** Math.floor(Math.log10(most / 2));
  const step = power * ([5, 2].find((factor) => 2 * factor * power <= most) ?? 1);
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step);
}

const LEFT = 46, BOTTOM = 8, TOP = 8;

function axis({ pen, width, height, colour }, most, ticks, format) {
  const y = (value) => height - BOTTOM - ((height - BOTTOM - TOP) * value) / most;
  pen.textAlign = "right";
  for (const tick of ticks) {
    pen.fillStyle = colour("line");
    pen.fillRect(LEFT, Math.round(y(tick)), width - LEFT, 1);
    pen.fillStyle = colour("soft");
    pen.fillText(format(tick), LEFT - 7, y(tick));
  }
  const step = (width - LEFT) / SHOWN_STEPS;
  return { y, step, x: (index) => width - (steps.length - index) * step };
}

function drawLengths() {
  const canvas = canvasOf("lengths"), { pen, colour } = canvas;
  const most = Math.max(5, ...steps.map((s) => s.rows.length - 1));
  const ticks = Array.from({ length: Math.floor(most / 2) + 1 }, (_, i) => 2 * i);
  const { x, y, step } = axis(canvas, most, ticks, String);
  pen.fillStyle = colour("verified");
  steps.forEach(({ rows }, index) => { // as dark as the share of requests whose drafts reach so far
    const total = sum(rows);
    for (let length = rows.length - 1, reach = 0; length > 0; length--) {
      reach += rows[length];
      pen.globalAlpha = 0.08 + (0.72 * reach) / total;
      pen.fillRect(x(index), y(length) + 0.5, Math.max(step - 0.6, 0.8), y(length - 1) - y(length) - 1);
    }
  });
  pen.globalAlpha = 1;
  pen.fillStyle = colour("accepted");
  steps.forEach(({ rows, accepted }, index) => {
    if (sum(rows)) pen.fillRect(x(index), y(accepted / sum(rows)) - 1.5, Math.max(step, 1.5), 3);
  });
}

function drawTimes() {
  const canvas = canvasOf("times"), { pen, colour } = canvas;
  const times = steps.map((s) => s.measured_seconds).sort((a, b) => a - b);
  // One step that took ten times as long must not flatten all others.
  const usual = times.length ? times[Math.floor(0.97 * (times.length - 1))] : 0.05;
  const most = 1.25 * Math.max(usual, ...steps.map((s) => Math.min(s.predicted_seconds, 2 * usual)), 0.001);
  const { x, y, step } = axis(canvas, most, roundTicks(most), (t) => number(1000 * t, most < 0.004 ? 1 : 0));
  const line = (name, key, dashes) => {
    pen.strokeStyle = colour(name);
    pen.lineWidth = 1.6;
    pen.setLineDash(dashes);
    pen.beginPath();
    steps.forEach((s, index) => s[key] === null || pen.lineTo(x(index) + step / 2, Math.max(y(s[key]), 1)));
    pen.stroke();
    pen.setLineDash([]);
  };
  line("verified", "measured_seconds", []);
  line("ink", "predicted_seconds", [4, 3]);
  pen.textAlign = "left";
  pen.fillStyle = colour("soft");
  pen.fillText("ms", LEFT + 5, TOP + 8);
}

// Chat

let messages = [];
let answering = null;

function addToLog(className, ...children) {
  const line = element("p", { className }, ...children);
  find("log").append(line);
  find("log").scrollTop = find("log").scrollHeight;
  return line;
}

function addPieces(line, pieces) {
  for (const { text, accepted } of pieces) {
    const last = line.lastChild;
    const fits = last && (last.nodeName === "MARK") === accepted;
    if (fits) last.append(text); else line.append(element(accepted ? "mark" : "span", {}, text));
  }
  const log = find("log");
  if (log.scrollHeight - log.scrollTop - log.clientHeight < 80) log.scrollTop = log.scrollHeight;
}

async function say(text) {
  const conversation = messages; // until there is a new one
  conversation.push({ role: "user", content: text });
  addToLog("user", text);
  const line = addToLog("assistant");
  const body = { messages, temperature: 0, stream: true, stream_options: { include_usage: true }, speculation: { report: true } };
  const headers = { "Content-Type": "application/json" };
  const began = performance.now();
  let accepted = 0, tokens = 0, reply = "";
  answering = new AbortController();
  find("log").setAttribute("aria-busy", "true");
  try {
    const options = { method: "POST", headers, body: JSON.stringify(body), signal: answering.signal };
    const answer = await fetchWithKey("chat", "v1/chat/completions", options);
    if (!answer.ok) throw new Error(await problemOf(answer));
    for await (const chunk of eventsOf(answer)) {
      if (chunk.error) throw new Error(chunk.error.message);
      const pieces = chunk.choices[0]?.speculation.pieces ?? [];
      addPieces(line, pieces);
      reply += pieces.map((piece) => piece.text).join("");
      tokens += pieces.length;
      accepted += pieces.filter((piece) => piece.accepted).length;
    }
  } catch (error) {
    if (error.name !== "AbortError") {
      addToLog("error", `That did not work: ${error.message}`);
      find("text").value ||= text;
    }
  }
  if (reply) conversation.push({ role: "assistant", content: reply }); else conversation.pop();
  answering = null;
  find("log").setAttribute("aria-busy", "false");
  if (tokens && conversation === messages) addToLog("about", `${tokens} tokens, ${accepted} of them accepted drafts (${number((100 * accepted) / tokens)} %), ` +
    `${perSecond((1000 * tokens) / (performance.now() - began))} tokens per second`);
}

async function submit() {
  const text = find("text").value.trim();
  if (!text || answering) return;
  find("text").value = "";
  find("send").hidden = true;
  find("stop").hidden = false;
  await say(text);
  find("send").hidden = false;
  find("stop").hidden = true;
}

find("say").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
find("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); submit(); }
});
find("stop").addEventListener("click", () => answering?.abort());
find("clear").addEventListener("click", () => { answering?.abort(); messages = []; find("log").replaceChildren(); find("text").focus(); });

addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
function frame() { if (!still.matches) advance(); requestAnimationFrame(frame); }
frame();
draw();
watch();
