// Sends requests to the server, and repeats those that may succeed later.

const LONGEST_WAIT = 60; // seconds

/** An answer of the server that says why there is no result. */
export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Waits; rejects when the signal is aborted. */
function sleep(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}

let keptToken = null; // where the browser keeps nothing for a page

/** Returns the access token of this tab, or null. */
export function token() {
  try {
    return sessionStorage.getItem("token") ?? keptToken;
  } catch {
    return keptToken;
  }
}

/** Keeps the access token as long as the tab is open. */
export function keepToken(value) {
  keptToken = value;
  try {
    sessionStorage.setItem("token", value);
  } catch {
    // It is asked for again after a reload.
  }
}

function options(body, signal) {
  const headers = { Accept: "application/json" };
  if (token()) headers.Authorization = `Bearer ${token()}`;
  if (body === undefined) return { headers, signal };
  headers["Content-Type"] = "application/json";
  return { method: "POST", headers, body: JSON.stringify(body), signal };
}

async function toError(response) {
  let message = "";
  try {
    message = (await response.json()).error;
  } catch {
    // A proxy may have answered with a page.
  }
  message ||= `The server answered with status ${response.status}.`;
  return new ServerError(String(message), response.status);
}

function secondsToWait(response) {
  const seconds = Number(response.headers.get("Retry-After"));
  return Math.min(seconds > 0 ? seconds : 2, LONGEST_WAIT);
}

/**
 * Returns a function that sends a request and returns the answer's JSON.
 *
 * While the server is busy or cannot be reached, the function waits and tries
 * again until its signal is aborted. It throws a `ServerError` for all other
 * answers that are not a success.
 *
 * `onWait` is called with "busy" or "offline" and the seconds until the next
 * attempt, and with null after an answer.
 */
export function makeClient(onWait) {
  return async function request(path, body, signal) {
    for (let attempt = 0; ; attempt++) {
      let response;
      try {
        response = await fetch(path, options(body, signal));
      } catch (error) {
        signal?.throwIfAborted();
        const seconds = Math.min(2 ** attempt, 10);
        onWait("offline", seconds);
        await sleep(seconds, signal);
        continue;
      }
      if (response.status === 429 || response.status === 503) {
        const seconds = secondsToWait(response);
        onWait("busy", seconds);
        await sleep(seconds, signal);
        continue;
      }
      onWait(null);
      if (!response.ok) throw await toError(response);
      return response.json();
    }
  };
}
