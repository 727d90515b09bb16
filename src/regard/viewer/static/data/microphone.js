// A sound from the microphone, as a WAV file that the server reads.

const LONGEST = 3000; // milliseconds

/** Records until `stop()` is called or three seconds are over; `sound` is the file.
 *
 * @returns {Promise<{stop: () => void, sound: Promise<Blob>}>}
 */
export async function record() {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const recorder = new MediaRecorder(stream);
  const parts = [];
  recorder.addEventListener("dataavailable", (event) => parts.push(event.data));
  const ended = new Promise((resolve) => recorder.addEventListener("stop", resolve));
  const stop = () => recorder.state !== "inactive" && recorder.stop();
  const timer = setTimeout(stop, LONGEST);
  recorder.start();
  const sound = ended.then(async () => {
    clearTimeout(timer);
    for (const track of stream.getTracks()) track.stop();
    const context = new AudioContext();
    try {
      const audio = await context.decodeAudioData(await new Blob(parts).arrayBuffer());
      return wavFile(audio.getChannelData(0), audio.sampleRate);
    } finally {
      context.close();
    }
  });
  return { stop, sound };
}

/** Samples from −1 to 1 as a WAV file of 16 bits and one channel. @param {Float32Array} samples @param {number} rate */
export function wavFile(samples, rate) {
  const bytes = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const write = (at, text) => [...text].forEach((letter, i) => bytes.setUint8(at + i, letter.charCodeAt(0)));
  write(0, "RIFF");
  bytes.setUint32(4, 36 + 2 * samples.length, true);
  write(8, "WAVEfmt ");
  bytes.setUint32(16, 16, true);
  bytes.setUint16(20, 1, true); // PCM
  bytes.setUint16(22, 1, true); // channels
  bytes.setUint32(24, rate, true);
  bytes.setUint32(28, 2 * rate, true);
  bytes.setUint16(32, 2, true);
  bytes.setUint16(34, 16, true);
  write(36, "data");
  bytes.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, i) => {
    bytes.setInt16(44 + 2 * i, Math.round(32767 * Math.max(-1, Math.min(1, sample))), true);
  });
  return new Blob([bytes.buffer], { type: "audio/wav" });
}
