// ---- sound -----------------------------------------------------------------------------------------------------

let playing = null;
const addresses = new Map();

function stop() { if (playing) playing.pause(); playing = null; }

// Sound inside the page becomes a file of the browser only when it is first played.
function address(sound) {
  if (!sound.inside) return sound.file;
  if (!addresses.has(sound.inside)) {
    const bytes = Uint8Array.from(atob($(sound.inside).textContent), (sign) => sign.charCodeAt(0));
    addresses.set(sound.inside, URL.createObjectURL(new Blob([bytes], { type: "audio/flac" })));
  }
  return addresses.get(sound.inside);
}

function clock(seconds) { return `${Math.floor(seconds / 60)}:${(seconds % 60).toFixed(1).padStart(4, "0")}`; }

// All waveforms have one scale, so that a quiet one looks quiet.
const loudest = Math.max(1, ...data.cells.map((cell) => cell.sound ? Math.max(...cell.sound.wave.map(Math.abs)) : 0));

function wave(values) {
  const half = values.length / 2, upper = [], lower = [];
  for (let i = 0; i < half; i++) {
    lower.push(`${i},${50 - 48 * Math.min(values[2 * i] / loudest, -0.02)}`);
    upper.push(`${i},${50 - 48 * Math.max(values[2 * i + 1] / loudest, 0.02)}`);
  }
  const shape = `M${upper.join("L")}L${lower.reverse().join("L")}Z`;
  return svg("svg", { viewBox: `0 0 ${Math.max(1, half - 1)} 100`, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("path", { class: "whole", d: shape }), svg("path", { class: "played", d: shape }));
}

function player(cell) {
  const { sound } = cell;
  const button = make("button", { type: "button", class: "play", "aria-label": "Play" }, "▶");
  const time = make("span", { class: "time" }, `0:00.0 / ${clock(sound.seconds)}`);
  const seek = make("div", { class: "seek", role: "slider", tabindex: 0, "aria-label": "Position", "aria-valuemin": 0,
    "aria-valuemax": sound.seconds.toFixed(2), "aria-valuenow": 0 }, wave(sound.wave),
    make("img", { src: sound.mel, alt: "mel spectrogram" }), make("span", { class: "head-line" }));
  const box = make("div", { class: "player" }, make("div", { class: "controls" }, button, make("span", { class: "small quiet" }, sound.file_name), time), seek);
  let audio = null;
  const show = () => {
    box.style.setProperty("--at", `${Math.min(100, 100 * audio.currentTime / sound.seconds)}%`);
    time.textContent = `${clock(audio.currentTime)} / ${clock(sound.seconds)}`;
    seek.setAttribute("aria-valuenow", audio.currentTime.toFixed(2));
    if (!audio.paused) requestAnimationFrame(show);
  };
  const ready = () => {
    if (audio) return audio;
    audio = make("audio", { src: address(sound), preload: "auto" });
    const label = (text, sign) => { button.setAttribute("aria-label", text); button.textContent = sign; };
    audio.addEventListener("play", () => { label("Pause", "❚❚"); show(); });
    audio.addEventListener("pause", () => { label("Play", "▶"); show(); });
    audio.addEventListener("seeked", show);
    audio.addEventListener("error", () => { time.textContent = "the sound file is not there"; });
    box.append(audio);
    return audio;
  };
  const jump = (seconds) => {
    const target = ready(), place = Math.max(0, Math.min(sound.seconds - 0.01, seconds));
    if (target.readyState > 0) target.currentTime = place;
    else target.addEventListener("loadedmetadata", () => { target.currentTime = place; }, { once: true });
  };
  button.addEventListener("click", () => {
    const own = ready();
    if (!own.paused) { own.pause(); return; }
    stop();
    playing = own;
    own.play().catch(() => { time.textContent = "it cannot be played here"; });
  });
  seek.addEventListener("click", (event) => {
    const area = seek.getBoundingClientRect();
    jump(sound.seconds * (event.clientX - area.left) / area.width);
  });
  seek.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -0.5, ArrowRight: 0.5 }[event.key];
    if (step) { event.preventDefault(); jump((audio ? audio.currentTime : 0) + step); }
    else if (event.key === " " || event.key === "Enter") { event.preventDefault(); button.click(); }
  });
  return box;
}
