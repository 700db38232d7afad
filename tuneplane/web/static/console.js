// The console's script: live refresh, actions through the HTTP API, and the log view. No build step, no dependency.
"use strict";

const LOST_AFTER = 13000; // ms without a sign of life (one comes every 5 s)
const REFRESH_DEADLINE = 15000;
const LOG_KEEP = 512 * 1024; // characters kept in the page; the rest is one click away
const csrf = document.querySelector('meta[name="csrf"]')?.content ?? "";
const byId = (id) => document.getElementById(id);

// ---------------------------------------------------------------- times

function relative(moment) {
  const seconds = Math.round((moment - Date.now()) / 1000);
  const format = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });
  for (const [unit, size] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
    if (Math.abs(seconds) >= size) return format.format(Math.trunc(seconds / size), unit);
  }
  return Math.abs(seconds) < 5 ? "just now" : format.format(seconds, "second");
}

function showTimes() {
  for (const element of document.querySelectorAll("time[datetime]:not([data-exact])")) {
    const moment = Date.parse(element.dateTime);
    if (Number.isNaN(moment)) continue;
    element.title = new Date(moment).toLocaleString();
    const text = relative(moment);
    if (element.textContent !== text) element.textContent = text;
  }
}

// ---------------------------------------------------------------- the API

async function callApi(method, path, body) {
  const headers = { Accept: "application/json" };
  if (csrf) headers["X-CSRF-Token"] = csrf;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal: AbortSignal.timeout(60000) });
  } catch {
    throw new Error("The console does not answer. Whether the change was made is unknown: look again.");
  }
  const text = await answer.text();
  let value = null;
  try { value = text ? JSON.parse(text) : null; } catch { /* not JSON: only the status counts */ }
  if (answer.ok) return value;
  const reasons = (value?.reasons ?? []).map((reason) => reason.detail).filter((detail) => detail !== value.detail);
  throw new Error([value?.detail ?? `The console answered with status ${answer.status}.`, ...reasons].join(" "));
}

let messageTimer = 0;
function say(text) {
  const box = byId("message");
  box.textContent = text;
  box.hidden = false;
  clearTimeout(messageTimer);
  messageTimer = setTimeout(() => { box.hidden = true; }, 12000);
}

function showProblem(form, error) {
  const box = form.querySelector("[data-problem]");
  box.textContent = error ? error.message : "";
  box.hidden = !error;
}

async function busy(button, work) {
  if (button.disabled) return;
  button.disabled = true;
  try { await work(); } finally { button.disabled = false; }
}

// ---------------------------------------------------------------- live refresh

const shown = new Map(); // id -> the server's HTML as last put in: ours differs by relative times
let refreshing = false;
let again = false;

function rememberShown() {
  for (const part of document.querySelectorAll("[data-live]")) shown.set(part.id, part.innerHTML);
}

function exchange(page) {
  for (const fresh of page.querySelectorAll("[data-live]")) {
    const old = byId(fresh.id);
    if (!old || shown.get(fresh.id) === fresh.innerHTML) continue;
    const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
    shown.set(fresh.id, fresh.innerHTML);
    old.innerHTML = fresh.innerHTML;
    if (focused) byId(focused)?.focus({ preventScroll: true });
  }
  for (const fresh of page.querySelectorAll("form[data-record][id]")) exchangeForm(byId(fresh.id), fresh);
  showTimes();
}

// What nobody has touched follows the server; what somebody is changing stays his.
function exchangeForm(old, fresh) {
  if (!old || old.elements.length !== fresh.elements.length) return;
  [...old.elements].forEach((control, at) => {
    const now = fresh.elements[at];
    if (!control.name || isChanged(control)) return;
    if (control.type === "checkbox") control.checked = control.defaultChecked = now.defaultChecked;
    else if (!control.options && control.defaultValue !== now.defaultValue) control.value = control.defaultValue = now.defaultValue;
  });
}

async function refresh() {
  if (refreshing) { again = true; return; }
  refreshing = true;
  try {
    do {
      again = false;
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual", signal: AbortSignal.timeout(REFRESH_DEADLINE) });
      if (answer.type === "opaqueredirect") { connection.signedOut(); return; }
      if (!answer.ok) { connection.stale("The console could not refresh this page."); return; }
      exchange(new DOMParser().parseFromString(await answer.text(), "text/html"));
      connection.refreshed();
    } while (again);
  } catch {
    connection.lost();
  } finally {
    refreshing = false;
  }
}

const connection = {
  line: byId("live"),
  heard: 0,
  seen: Date.now(), // when what is shown was true
  state: "static",
  source: null,
  show(state, text) {
    this.state = state;
    document.body.classList.toggle("stale", state === "stale" || state === "lost" || state === "out");
    this.line.dataset.state = state === "out" ? "lost" : state;
    if (this.line.textContent !== text) this.line.textContent = text;
  },
  refreshed() { this.seen = Date.now(); if (this.state !== "out") this.show("live", "Live"); },
  stale(why) { this.show("stale", `${why} What you see is from ${relative(this.seen)}.`); },
  lost() {
    if (this.state !== "out") this.show("lost", `Connection lost: what you see is from ${relative(this.seen)}. Trying again…`);
  },
  signedOut() {
    this.source?.close();
    this.show("out", "You are signed out. ");
    const link = document.createElement("a");
    link.href = `/signin?next=${encodeURIComponent(location.pathname)}`;
    link.textContent = "Sign in again";
    this.line.append(link);
  },
  alive(fresh) {
    this.heard = Date.now();
    if (!fresh) this.stale("The console cannot reach its database.");
    else if (this.state === "live") this.seen = this.heard;
    else refresh(); // we were away: what is shown may be old
  },
  open() {
    const job = document.body.dataset.job;
    this.source = new EventSource(job ? `/api/events?job=${encodeURIComponent(job)}` : "/api/events");
    this.source.addEventListener("alive", (event) => this.alive(JSON.parse(event.data).fresh));
    this.source.addEventListener("changed", () => { this.heard = Date.now(); refresh(); });
    this.source.addEventListener("error", (event) => {
      if (event.data !== undefined) { refresh(); return; } // the server ended it and said why; the page will show it
      this.lost();
      if (this.source.readyState === EventSource.CLOSED) setTimeout(() => this.reopen(), 3000);
    });
  },
  reopen() {
    this.source.close();
    refresh();
    if (this.state !== "out") this.open();
  },
  watch() {
    const silence = Date.now() - Math.max(this.heard, startedAt);
    if (this.state === "lost") this.lost(); // keeps its age true
    else if (this.state !== "out" && silence > LOST_AFTER) this.lost();
    if (silence > 3 * LOST_AFTER && this.state === "lost") { this.heard = Date.now(); this.reopen(); } // a half-open connection
  },
};
const startedAt = Date.now();

// ---------------------------------------------------------------- the log

// Log bytes are a stranger's: they are only ever text, and what could move the cursor or turn the text is made visible.
function harmless(text) {
  return text
    .replace(/\x1b\[[0-9;]*m/g, "")
    .replace(/\r\n?/g, "\n")
    .replace(/[\x00-\x08\x0b-\x1f]/g, (letter) => String.fromCharCode(0x2400 + letter.charCodeAt(0)))
    .replace(/[\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

class LogView {
  constructor(box) {
    this.box = box;
    this.state = byId("log-state");
    this.open("", "");
  }
  // Which member's log, by query; "" is the one that the API chooses: rank 0 of the newest attempt.
  open(which, name) {
    this.source?.close();
    this.box.replaceChildren();
    delete this.box.dataset.cut;
    this.cut = false;
    this.decoder = new TextDecoder();
    this.pending = [];
    this.kept = 0;
    byId("log-name").textContent = name;
    byId("log-text").href = `${this.box.dataset.log}?offset=0&max_bytes=4194304${which && `&${which}`}`;
    this.source = new EventSource(`${this.box.dataset.log}?follow=true&tail_lines=1000${which && `&${which}`}`);
    this.on("log", (event) => this.take(event));
    this.on("waiting", (event) => this.say(`waiting: ${event.detail}`));
    this.on("interrupted", (event) => this.say(`interrupted: ${event.detail}`));
    this.on("end", (event) => { this.source.close(); this.say(this.kept || this.pending.length ? "complete" : `nothing was written; the job ${event.state}`); });
    this.source.addEventListener("error", (event) => {
      if (event.data === undefined) { this.say("connection lost, trying again…"); return; }
      this.source.close();
      this.say(JSON.parse(event.data).detail);
    });
  }
  on(name, handler) { this.source.addEventListener(name, (event) => handler(JSON.parse(event.data))); }
  say(text) { this.state.textContent = text; }
  take(event) {
    this.say("live");
    if (event.gap) { this.decoder.decode(); this.push(`\n[${event.gap} bytes are missing here]\n`, true); }
    const bytes = Uint8Array.from(atob(event.data), (letter) => letter.charCodeAt(0));
    this.push(harmless(this.decoder.decode(bytes, { stream: true })), false);
  }
  push(text, gap) {
    if (!this.pending.length) setTimeout(() => this.draw(), 50) /* a hidden tab draws no frames and must not pile up */;
    this.pending.push([text, gap]);
  }
  draw() {
    const follow = byId("follow").checked;
    for (const [text, gap] of this.pending) {
      const part = document.createElement("span");
      if (gap) part.className = "gap";
      part.textContent = text;
      this.box.append(part);
      this.kept += text.length;
    }
    this.pending = [];
    while (this.kept > LOG_KEEP && this.box.children.length > 1) {
      this.kept -= this.box.firstElementChild.textContent.length;
      this.box.firstElementChild.remove();
      this.cut = true;
    }
    if (this.cut) this.box.dataset.cut = "earlier output is not shown";
    if (follow) this.box.scrollTop = this.box.scrollHeight;
  }
}

// ---------------------------------------------------------------- actions

function fill(dialog, values) {
  for (const element of dialog.querySelectorAll("[data-fill]")) {
    const value = values[element.dataset.fill] ?? "";
    if (element instanceof HTMLTimeElement) element.dateTime = value;
    element.textContent = value;
  }
}

async function mint(fleet) {
  const minted = await callApi("POST", `/api/fleets/${fleet}/join-tokens`);
  const dialog = byId("minted");
  const join = `tuneplane-node join --server ${location.origin} --fleet ${fleet} --token ${minted.token}`;
  fill(dialog, { fleet, expires: minted.expires_at, command: minted.command, join });
  showTimes();
  dialog.showModal();
}

async function act(button) {
  if (button.dataset.confirm && !confirm(button.dataset.confirm)) return;
  const [method, path] = button.dataset.call.split(" ");
  await callApi(method, path, button.dataset.body ? JSON.parse(button.dataset.body) : undefined);
  if (button.dataset.then) location.assign(button.dataset.then);
  else await refresh();
}

async function signIn(form) {
  const values = Object.fromEntries(new FormData(form));
  await callApi("POST", "/api/auth/login", values);
  location.assign(form.dataset.next);
}

// What a form sends: all that is filled in, or of a change only what a person changed, so that nobody else's change is undone.
const asSent = {
  pairs(text) {
    const pairs = {};
    for (const line of text.split("\n").filter((one) => one.trim())) {
      const at = line.indexOf("=");
      const key = line.slice(0, at).trim();
      if (at < 1 || !key) throw new Error(`Each override is one line KEY=VALUE, not "${line.trim()}".`);
      if (Object.hasOwn(pairs, key)) throw new Error(`The override ${key} is there twice.`);
      Object.defineProperty(pairs, key, { value: line.slice(at + 1).trim(), enumerable: true });
    }
    return pairs;
  },
  lines: (text) => text.split("\n").map((one) => one.trim()).filter(Boolean),
};

function isChanged(control) {
  if (control.type === "checkbox") return control.checked !== control.defaultChecked;
  return control.value !== control.defaultValue;
}

function readForm(form, onlyChanges) {
  const body = {};
  for (const [name, controls] of byName(form)) {
    const [first] = controls;
    if (onlyChanges && !controls.some(isChanged)) continue;
    if (first.type === "checkbox") body[name] = controls.filter((one) => one.checked).map((one) => one.value);
    else if (first.dataset.as === "visibility") Object.assign(body, first.value ? { visibility: "project", project: first.value } : { visibility: "public" });
    else if (first.dataset.as) body[name] = asSent[first.dataset.as](first.value);
    else if (first.value) body[name] = first.value;
  }
  return body;
}

function byName(form) {
  const named = new Map();
  for (const one of form.elements) if (one.name) named.set(one.name, [...(named.get(one.name) ?? []), one]);
  return named;
}

function keepAsSaved(form) {
  for (const control of form.elements) {
    if (control.type === "checkbox") control.defaultChecked = control.checked;
    else if (control.name) control.defaultValue = control.value;
  }
}

async function record(form) {
  const [method, path] = form.dataset.record.split(" ");
  const done = form.querySelector("[data-outcome]");
  if (done) done.textContent = "";
  const body = readForm(form, method === "PATCH");
  if (method === "PATCH" && !Object.keys(body).length) { done.textContent = "Nothing was changed."; return; }
  const answer = await callApi(method, path, body);
  if (form.dataset.then) { location.assign(form.dataset.then.replace("{id}", answer.id)); return; }
  if (method === "PATCH") keepAsSaved(form); else form.reset();
  if (done) done.textContent = ["Saved.", ...(answer?.warnings ?? []).map((one) => `Warning: ${one}`)].join(" ");
  await refresh();
}

function nameCard(name) {
  const form = byId("add-hardware");
  const cards = form.elements.card_names;
  if (!asSent.lines(cards.value).includes(name)) cards.value = [...asSent.lines(cards.value), name].join("\n");
  form.elements.series.focus();
}

// A form that is one request: its fields fill the address's {parts} and, what is left of them, the body.
async function send(form) {
  const [method, address] = form.dataset.send.split(" ");
  const values = {};
  for (const [name, value] of new FormData(form)) values[name] = value;
  for (const box of form.querySelectorAll("input[type=checkbox]")) {
    if (box.checked) values[box.name] = true;
    else delete values[box.name];
  }
  const path = address.replace(/\{(\w+)\}/g, (part, name) => {
    const value = encodeURIComponent(values[name]);
    delete values[name];
    return value;
  });
  await callApi(method, path, Object.keys(values).length ? values : undefined);
  form.reset();
  const done = form.querySelector("[data-done]");
  done.textContent = done.dataset.done;
  done.hidden = false;
  await refresh();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const work = async () => {
    try {
      if (button.dataset.call) await act(button);
      else if (button.dataset.mint) await mint(button.dataset.mint);
      else if ("signout" in button.dataset) { await callApi("POST", "/api/auth/logout"); location.assign("/signin"); }
      else if ("close" in button.dataset) button.closest("dialog").close();
      else if (button.dataset.copy) await copy(button);
      else if (button.dataset.nameCard) nameCard(button.dataset.nameCard);
      else if (button.dataset.readLog) { logView.open(button.dataset.readLog, button.dataset.name); byId("log-title").scrollIntoView(); }
    } catch (error) { say(error.message); }
  };
  if (Object.keys(button.dataset).length) busy(button, work);
});

async function copy(button) {
  await navigator.clipboard.writeText(button.closest("dialog").querySelector(`[data-fill="${button.dataset.copy}"]`).textContent);
  button.textContent = "Copied";
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  const handler = "signin" in form.dataset ? signIn : "record" in form.dataset ? record : "send" in form.dataset ? send : null;
  if (!handler) return;
  event.preventDefault();
  busy(form.querySelector("button[type=submit]"), async () => {
    showProblem(form, null);
    for (const done of form.querySelectorAll("[data-done]")) done.hidden = true;
    try { await handler(form); } catch (error) { showProblem(form, error); }
  });
});

byId("minted")?.addEventListener("close", (event) => fill(event.target, {})); // the secret does not stay in the page

rememberShown();
showTimes();
setInterval(showTimes, 5000);
if (connection.line) {
  connection.open();
  setInterval(() => connection.watch(), 1000);
}
const logView = byId("log") && new LogView(byId("log"));
