"use strict";

/** Requests to the server, with the key if there is one. The key is kept in this page's memory only. */
const api = (() => {
  let key = "";

  /** An error that the server or the connection reports; `status` is 0 if there was no answer. */
  class RequestError extends Error {
    constructor(status, message) {
      super(message);
      this.status = status;
    }
  }

  /** Sends a request: GET, or POST with a body. Raises: RequestError, AbortError. */
  async function send(path, body, signal) {
    const headers = key ? { Authorization: `Bearer ${key}` } : {};
    const options = { headers, signal, cache: "no-store", credentials: "omit" };
    if (body !== undefined) {
      headers["Content-Type"] = "application/json";
      Object.assign(options, { method: "POST", body: JSON.stringify(body) });
    }
    let response;
    try {
      response = await fetch(path, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new RequestError(0, "the server does not answer; is minigpt serve still running?");
    }
    if (response.ok) return response;
    const answer = await response.json().catch(() => null);
    throw new RequestError(response.status, answer?.error?.message ?? `the server answered with ${response.status}`);
  }

  /** The JSON answer to a request. */
  async function ask(path, body, signal) {
    const response = await send(path, body, signal);
    return response.json();
  }

  /** The pieces of a streamed completion. Raises: RequestError, AbortError. */
  async function* complete(body, signal) {
    const response = await send("v1/completions", { ...body, stream: true }, signal);
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    let received = "";
    for (;;) {
      const { done, value } = await reader.read().catch((error) => {
        if (error.name === "AbortError") throw error;
        throw new RequestError(0, "the connection to the server was lost");
      });
      if (done) throw new RequestError(0, "the server ended before the text was complete");
      received += decoder.decode(value, { stream: true });
      const events = received.split("\n\n");
      received = events.pop();
      for (const event of events) {
        const data = event.slice("data: ".length);
        if (data === "[DONE]") return;
        const piece = JSON.parse(data);
        if (piece.error) throw new RequestError(500, piece.error.message);
        yield piece;
      }
    }
  }

  return { send, ask, complete, useKey: (given) => { key = given; } };
})();
