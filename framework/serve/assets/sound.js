// Sound that comes in pieces, and sound that is recorded. Samples are numbers from -1 to 1.

export const RATE = 24000; // of the server's PCM

/** Plays pieces one after the other without a gap, as soon as the first is there. */
export class Player {
  #context = null;
  #end = 0; // when the last piece ends, on the context's clock
  #sources = new Set();
  played = 0; // seconds handed over so far

  /** Browsers let a page play only after a click: call it in one. */
  wake() {
    this.#context ??= new AudioContext({ sampleRate: RATE });
    return this.#context.resume();
  }

  get playing() {
    return this.#sources.size > 0;
  }

  push(samples) {
    if (!samples.length) return;
    const buffer = this.#context.createBuffer(1, samples.length, RATE);
    buffer.copyToChannel(samples, 0);
    const source = this.#context.createBufferSource();
    source.buffer = buffer;
    source.connect(this.#context.destination);
    source.onended = () => this.#sources.delete(source);
    // A little ahead, so that a piece that comes late does not cut into one that plays.
    const start = Math.max(this.#end, this.#context.currentTime + 0.05);
    source.start(start);
    this.#end = start + buffer.duration;
    this.#sources.add(source);
    this.played += buffer.duration;
  }

  stop() {
    for (const source of this.#sources) source.stop();
    this.#sources.clear();
    this.#end = 0;
  }
}

/** Bytes of base64 text. */
export function bytes(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

/** 16-bit samples, little-endian, as numbers. */
export function samples(data) {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  return Float32Array.from({ length: data.byteLength >> 1 }, (_, n) => view.getInt16(2 * n, true) / 32768);
}

/** A wav file of one channel. */
export function wav(pieces, rate) {
  const count = pieces.reduce((sum, piece) => sum + piece.length, 0);
  const view = new DataView(new ArrayBuffer(44 + 2 * count));
  const text = (at, letters) => [...letters].forEach((letter, n) => view.setUint8(at + n, letter.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + 2 * count, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, 2 * count, true);
  let at = 44;
  for (const piece of pieces) {
    for (const sample of piece) {
      view.setInt16(at, Math.max(-1, Math.min(1, sample)) * 32767, true);
      at += 2;
    }
  }
  return new Uint8Array(view.buffer);
}

/** Base64 of bytes. */
export function base64(data) {
  let text = "";
  for (let n = 0; n < data.length; n += 0x8000) text += String.fromCharCode(...data.subarray(n, n + 0x8000));
  return btoa(text);
}

/** Records from the microphone until it is stopped. */
export class Recorder {
  #pieces = [];

  static async start() {
    const made = new Recorder();
    made.stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
    made.context = new AudioContext();
    await made.context.audioWorklet.addModule("/assets/recorder.js");
    const tap = new AudioWorkletNode(made.context, "tap");
    tap.port.onmessage = (event) => made.#pieces.push(event.data);
    made.context.createMediaStreamSource(made.stream).connect(tap);
    return made;
  }

  /** The recording as a wav file. */
  async stop() {
    for (const track of this.stream.getTracks()) track.stop();
    const rate = this.context.sampleRate;
    await this.context.close();
    return wav(this.#pieces, rate);
  }
}
