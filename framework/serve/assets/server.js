// What the page asks the server.

const KEY = "multistage-key";

/** Headers of every request; the key stays in this tab. */
function headers() {
  const key = sessionStorage.getItem(KEY);
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/** The answer; asks for a key where the server wants one, and throws the server's own words when it refuses. */
export async function ask(path, options = {}) {
  const given = { ...options, headers: { ...options.headers, ...headers() } };
  const answer = await fetch(path, given);
  if (answer.status === 401) {
    const key = prompt("The key of this server");
    if (key) {
      sessionStorage.setItem(KEY, key.trim());
      return ask(path, options);
    }
  }
  if (!answer.ok) {
    const told = await answer.json().catch(() => null);
    throw new Error(told?.error?.message ?? `${answer.status} ${answer.statusText}`);
  }
  return answer;
}

export const read = async (path) => (await ask(path)).json();

/** The events of a chat, as they come. */
export async function* chat(body, signal) {
  const answer = await ask("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stages: true, stream_options: { include_usage: true } }),
    signal,
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (held + value).split("\n\n");
    held = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const found = JSON.parse(data);
      if (found.error) throw new Error(found.error.message);
      yield found;
    }
  }
}
