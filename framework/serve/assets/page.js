// The page: a conversation with one deployment of the server.

import { chat, read } from "./server.js";
import { Player, Recorder, base64, bytes, samples } from "./sound.js";

const $ = (id) => document.getElementById(id);
const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];
const player = new Player();

let models = {};
let turns = []; // messages of the conversation, as the server reads them
let attached = null; // {name, data, format}: sound that goes with the next message
let recorder = null;
let running = null; // AbortController of the reply that comes

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function fault(error) {
  $("fault").textContent = error ? error.message : "";
}

// --- models and their settings

async function start() {
  const found = await read("/v1/models");
  for (const { id } of found.data) {
    models[id] = await read(`/v1/models/${encodeURIComponent(id)}`);
    $("model").append(new Option(id, id));
  }
  await choose();
  document.documentElement.dataset.ready = "yes";
}

async function choose() {
  const model = models[$("model").value];
  const gives = new Set(model.gives), reads = new Set(model.reads);
  $("gives").textContent = `reads ${model.reads.join(", ")}; gives ${model.gives.join(", ")}`;
  $("speak").disabled = !(gives.has("audio") && gives.has("text"));
  $("speak").checked = gives.has("audio");
  for (const id of ["record", "file"]) $(id).disabled = !reads.has("audio");
  for (const id of ["speed", "voice"]) $(id).disabled = !gives.has("audio");
  $("instructions").disabled = !reads.has("instruct");
  const { voices, languages } = await read(`/v1/audio/voices?model=${encodeURIComponent(model.id)}`);
  $("voice").replaceChildren(...voices.map((name) => new Option(name, name)));
  $("language").replaceChildren(new Option("found out", ""), ...languages.map((name) => new Option(name, name)));
  $("language").disabled = !languages.length;
}

function settings() {
  const body = { model: $("model").value };
  for (const id of NUMBERS) if ($(id).value !== "") body[id] = Number($(id).value);
  if ($("speak").checked) {
    body.modalities = $("speak").disabled ? ["audio"] : ["text", "audio"];
    body.audio = { format: "pcm16", ...($("voice").value ? { voice: $("voice").value } : {}) };
    if ($("speed").value !== "") body.style = { speed: Number($("speed").value) };
    if ($("language").value) body.language = $("language").value;
    if ($("instructions").value && !$("instructions").disabled) body.instructions = $("instructions").value;
  }
  return body;
}

// --- sound that is sent

function attach(name, data, format) {
  attached = data ? { name, data, format } : null;
  $("attached").textContent = attached ? name : "";
}

async function record() {
  if (recorder) {
    const seconds = ((performance.now() - recorder.begin) / 1000).toFixed(1);
    const data = await recorder.stop();
    recorder = null;
    $("record").setAttribute("aria-pressed", "false");
    $("record").textContent = "Record";
    attach(`recording, ${seconds} s`, base64(data), "wav");
    return send();
  }
  player.stop();
  recorder = await Recorder.start();
  recorder.begin = performance.now();
  $("record").setAttribute("aria-pressed", "true");
  $("record").textContent = "Send recording";
}

async function pick() {
  const [file] = $("file").files;
  $("file").value = "";
  if (file) attach(file.name, base64(new Uint8Array(await file.arrayBuffer())), file.name.split(".").pop());
}

// --- a turn

function message() {
  const text = $("prompt").value.trim();
  if (!attached) return text ? { role: "user", content: text } : null;
  const sound = { type: "input_audio", input_audio: { data: attached.data, format: attached.format } };
  return { role: "user", content: text ? [{ type: "text", text }, sound] : [sound] };
}

function show(role, text, note) {
  const said = element("span", { className: "said", textContent: text });
  const turn = element("article", { className: `turn ${role}` }, said);
  if (note) turn.append(element("span", { className: "note", textContent: note }));
  $("talk").append(turn);
  turn.scrollIntoView({ block: "end" });
  return turn;
}

async function send() {
  const asked = message();
  if (!asked || running) return;
  fault(null);
  const body = settings();
  player.stop();
  if (body.audio) await player.wake();
  const question = show("user", $("prompt").value.trim(), attached?.name);
  const reply = show("assistant", "");
  const said = reply.querySelector(".said");
  $("prompt").value = "";
  attach();
  busy(new AbortController());
  let text = "", odd = new Uint8Array();
  try {
    for await (const event of chat({ ...body, messages: [...turns, asked] }, running.signal)) {
      const delta = event.choices?.[0]?.delta ?? {};
      text += delta.content ?? delta.audio?.transcript ?? "";
      said.textContent = text;
      if (delta.audio?.data) {
        const data = new Uint8Array([...odd, ...bytes(delta.audio.data)]);
        odd = data.slice(data.length & ~1);
        player.push(samples(data.subarray(0, data.length & ~1)));
        reply.dataset.seconds = player.played.toFixed(2);
      }
      if (event.transcripts) heard(asked, question, Object.values(event.transcripts)[0]);
      if (event.stages) reply.append(timeline(event.stages));
    }
    turns.push(asked, { role: "assistant", content: text || "(spoken)" });
    reply.dataset.done = "yes";
  } catch (error) {
    reply.classList.add("failed");
    reply.dataset.done = "failed";
    if (error.name !== "AbortError") fault(error);
    if (text) turns.push(asked, { role: "assistant", content: text });
  } finally {
    busy(null);
    reply.scrollIntoView({ block: "end" });
  }
}

/** What was heard stands in place of the sound: it is not sent again with each turn. */
function heard(asked, question, transcript) {
  question.querySelector(".note").textContent += `: ${transcript}`;
  asked.content = asked.content.map((part) => (part.type === "text" ? part : { type: "text", text: transcript }));
}

function busy(controller) {
  running = controller;
  $("stop").disabled = !controller;
  $("send").disabled = Boolean(controller);
}

function stop() {
  running?.abort();
  player.stop();
}

/** When each stage worked: pale until its first output. */
function timeline(stages) {
  const end = Math.max(...Object.values(stages).map((stage) => stage.end_s), 1e-6);
  const percent = (seconds) => `${((100 * seconds) / end).toFixed(2)}%`;
  const rows = Object.entries(stages).flatMap(([name, stage]) => {
    const first = stage.first_output_s ?? stage.end_s;
    const lane = element("div", { className: "lane", title: `${stage.busy_s.toFixed(3)} s of work in ${stage.steps} steps` });
    for (const [from, to, extra] of [[stage.start_s, first, " waiting"], [first, stage.end_s, ""]]) {
      const bar = element("div", { className: `bar${extra}` });
      bar.style.left = percent(from);
      bar.style.width = percent(Math.max(0, to - from));
      lane.append(bar);
    }
    return [element("span", { textContent: `${name} ${first.toFixed(2)}–${stage.end_s.toFixed(2)} s` }), lane];
  });
  return element("div", { className: "timeline", role: "img", ariaLabel: "When each stage worked" }, ...rows);
}

function clear() {
  stop();
  turns = [];
  $("talk").replaceChildren();
  fault(null);
}

const guarded = (action) => (event) => {
  event?.preventDefault();
  action().catch(fault);
};
$("ask").addEventListener("submit", guarded(send));
$("record").addEventListener("click", guarded(record));
$("file").addEventListener("change", guarded(pick));
$("model").addEventListener("change", guarded(async () => { clear(); await choose(); }));
$("stop").addEventListener("click", stop);
$("clear").addEventListener("click", clear);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) guarded(send)(event);
});
start().catch(fault);
