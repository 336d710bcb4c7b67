// Hands the microphone's samples from the browser's audio thread to the page.
class Tap extends AudioWorkletProcessor {
  process([input]) {
    if (input[0]) this.port.postMessage(input[0].slice());
    return true;
  }
}
registerProcessor("tap", Tap);
