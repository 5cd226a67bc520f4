// What the pages do beyond plain HTML: theme, pausing, keys, dialogs, the running counter.
// All of it is optional; every page works without this file.

const root = document.documentElement;
const find = (selector, within = document) => within.querySelector(selector);

// --- theme -------------------------------------------------------------------------------------

function themeNow() {
  if (root.dataset.theme) return root.dataset.theme;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function showTheme() {
  const button = find("#theme");
  if (button) button.setAttribute("aria-pressed", String(themeNow() === "dark"));
}

find("#theme")?.addEventListener("click", () => {
  root.dataset.theme = themeNow() === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("theme", root.dataset.theme);
  } catch {
    // It holds for this page only.
  }
  showTheme();
});
showTheme();

function stored(name) {
  try {
    return sessionStorage.getItem(name);
  } catch {
    return null;
  }
}

// --- live --------------------------------------------------------------------------------------

// Who pauses one page wants the next one to stand still, too.
let paused = stored("paused") === "yes";
let missed = false;
const live = find("#live");
const state = find("#live-state");

function showState(name, text) {
  if (!state) return;
  state.dataset.state = name;
  const label = find("span", state);
  if (label.textContent !== text) label.textContent = text;
}

// What is being typed is not replaced.
if (window.Idiomorph) {
  window.Idiomorph.defaults.ignoreActiveValue = true;
  // Nor is a choice undone, or closed what somebody opened.
  window.Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
    !(name === "checked" && node.matches("[data-pick]")) && !(name === "open" && node.matches("details"));
}

state?.setAttribute("aria-pressed", String(paused));

function refresh() {
  missed = false;
  if (live && window.htmx) window.htmx.trigger(live, "refresh");
}

// A page that is paused or not looked at does not ask for itself. Nor is a table exchanged under
// the fingers of someone who is choosing in it.
document.body.addEventListener("htmx:beforeRequest", (event) => {
  if (event.detail.elt !== live) return;
  const kind = event.detail.requestConfig?.triggeringEvent?.type ?? "";
  if (kind !== "refresh" && (paused || document.hidden)) {
    missed = true;
    event.preventDefault();
  }
});
// Nor does it change by an answer that was on its way when it was paused.
document.body.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.elt === live && paused) event.detail.shouldSwap = false;
});
document.body.addEventListener("htmx:responseError", (event) => {
  if (event.detail.elt !== live) return;
  // Signed out, or deleted meanwhile: the whole page says so.
  if ([401, 404].includes(event.detail.xhr.status)) location.reload();
  else showState("lost", "No answer");
});
document.body.addEventListener("htmx:afterRequest", (event) => {
  if (event.detail.elt === live && event.detail.successful && !paused) showState("live", "Live");
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && missed && !paused) refresh();
});
state?.addEventListener("click", () => {
  paused = !paused;
  try {
    sessionStorage.setItem("paused", paused ? "yes" : "no");
  } catch {
    // It holds for this page only.
  }
  state.setAttribute("aria-pressed", String(paused));
  showState(paused ? "paused" : "live", paused ? "Paused" : "Live");
  if (!paused) refresh();
});

// --- age, title and icon -----------------------------------------------------------------------

// The age of the figures counts on while no new ones come, and is red when they are old.
let taken = null;
let takenAt = 0;

function showStatus() {
  const status = find("#status");
  const age = find("#age");
  if (!status || !age) return;
  const { taken: at, age: passed, late, alarms, critical } = status.dataset;
  if (at !== taken) {
    taken = at;
    takenAt = performance.now() - Number(passed) * 1000;
    document.title = (Number(alarms) ? `(${alarms}) ` : "") + document.title.replace(/^\(\d+\) /, "");
    const icon = find("#icon");
    const href = critical === "yes" ? icon.dataset.bad : icon.dataset.good;
    if (icon.getAttribute("href") !== href) icon.setAttribute("href", href);
  }
  const seconds = Math.max(0, Math.round((performance.now() - takenAt) / 1000));
  age.classList.toggle("late", seconds > Number(late));
  age.textContent = `Updated ${ago(seconds)} ago`;
}

function ago(seconds) {
  if (seconds < 120) return `${seconds} s`;
  return seconds < 7200 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h`;
}

showStatus();
if (find("#status")) setInterval(showStatus, 1000);
document.body.addEventListener("htmx:afterSwap", showStatus);

// --- the stream of ticks -----------------------------------------------------------------------

// After a refusal the next try comes twice as late as the last one.
const RETRY_MIN_MS = 500;
const RETRY_MAX_MS = 64000;
// A page that is still there so long after it was to be left has stayed: that was a download.
const LEAVING_MS = 10000;

let stream = null;
let connecting = 0;
let retryMs = RETRY_MIN_MS;

function connect() {
  const opened = new EventSource(document.body.dataset.events);
  stream = opened;
  opened.addEventListener("open", () => {
    retryMs = RETRY_MIN_MS;
    showState(paused ? "paused" : "live", paused ? "Paused" : "Live");
  });
  opened.addEventListener("tick", () => {
    if (window.htmx) window.htmx.trigger(live, "tick");
  });
  opened.addEventListener("error", async () => {
    if (opened !== stream) return;
    showState("lost", "Reconnecting");
    // The browser connects again to a stream that ended. It gives up one that was refused.
    if (opened.readyState !== EventSource.CLOSED) return;
    connecting = setTimeout(connect, retryMs);
    retryMs = Math.min(2 * retryMs, RETRY_MAX_MS);
    // A stream does not tell why it is refused. Who is signed out has to sign in again.
    try {
      const answer = await fetch(location.href, { headers: { "HX-Request": "true" } });
      if (answer.status === 401 && opened === stream) location.reload();
    } catch {
      // Nobody answers; the next try may find somebody.
    }
  });
}

function disconnect() {
  clearTimeout(connecting);
  stream?.close();
  stream = null;
}

if (document.body.dataset.events) {
  connect();
  // The server ends the streams of who signs out, before the next page is there: no fault of the
  // page that is being left.
  addEventListener("beforeunload", () => {
    disconnect();
    connecting = setTimeout(connect, LEAVING_MS);
  });
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", (event) => {
    if (event.persisted && !stream) connect();
  });
}

// --- dialogs -----------------------------------------------------------------------------------

const dialog = find("#dialog");

// Links to forms open them in a dialog; the same page exists on its own.
document.addEventListener("click", async (event) => {
  const link = event.target.closest?.("a[data-dialog]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
  if (!dialog?.showModal) return;
  event.preventDefault();
  try {
    const answer = await fetch(link.href, { headers: { "HX-Request": "true" }, redirect: "error" });
    if (!answer.ok) throw new Error(String(answer.status));
    // Our own page, of our own server, escaped there.
    find("#dialog-body").innerHTML = await answer.text();
    dialog.setAttribute("aria-label", link.textContent.trim());
    dialog.showModal();
    checkTyped(find("input[data-typed]", dialog));
    find("[data-first]", dialog)?.focus();
  } catch {
    location.assign(link.href);
  }
});
dialog?.addEventListener("click", (event) => {
  if (event.target === dialog || event.target.closest("[data-close]")) {
    event.preventDefault();
    dialog.close();
  }
});

// The button of a typed confirmation wakes up when the name is right. The server checks it again.
function checkTyped(input) {
  const button = input && find("button[data-confirms]", input.form);
  if (button) button.disabled = input.value.trim() !== input.dataset.typed;
}

document.addEventListener("input", (event) => {
  if (event.target.dataset?.typed !== undefined) checkTyped(event.target);
});
checkTyped(find("input[data-typed]"));

// Nothing is sent twice by a double click.
document.addEventListener("submit", (event) => {
  if (event.target.method !== "post") return;
  if (event.target.dataset.sent) event.preventDefault();
  event.target.dataset.sent = "yes";
  setTimeout(() => delete event.target.dataset.sent, 5000);
});

// Menus that send their form as soon as something is chosen.
document.addEventListener("change", (event) => {
  if (event.target.dataset?.send !== undefined) event.target.form.requestSubmit();
});

// --- choices in tables ---

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-pick-all]");
  if (!button) return;
  const boxes = [...button.form.querySelectorAll("[data-pick]")];
  const all = boxes.every((box) => box.checked);
  for (const box of boxes) box.checked = !all;
});

// --- bodies of messages ---

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("[data-copy]");
  if (!button) return;
  const text = find("pre", button.closest(".message")).textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without https a browser gives no clipboard: select it, for Ctrl+C.
    getSelection().selectAllChildren(find("pre", button.closest(".message")));
    return;
  }
  button.dataset.done = "yes";
  setTimeout(() => delete button.dataset.done, 1500);
});

// --- keys --------------------------------------------------------------------------------------

const keys = find("#keys");
const places = {
  o: "overview", t: "topics", i: "clients", n: "nodes", d: "deadletters", y: "policies",
  c: "counter", l: "lookup",
};
let afterG = 0;

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (event.target.closest("input, textarea, select, dialog[open]")) return;
  if (event.key === "/") {
    const search = find("#search") ?? find("#q");
    if (search) {
      event.preventDefault();
      search.focus();
      search.select();
    }
  } else if (event.key === "?" && keys?.showModal) {
    keys.showModal();
  } else if (event.key === "p" && state) {
    state.click();
  } else if (event.key === "g") {
    afterG = event.timeStamp;
  } else if (afterG && event.timeStamp - afterG < 1500 && places[event.key]) {
    find(`[data-place="${places[event.key]}"]`)?.click();
  }
});
keys?.addEventListener("click", (event) => {
  if (event.target === keys || event.target.closest("[data-close]")) keys.close();
});
find("#show-keys")?.addEventListener("click", () => keys?.showModal());

// --- times -------------------------------------------------------------------------------------

// Times are UTC; where the pointer rests they are shown in the local zone too.
document.addEventListener("pointerover", (event) => {
  const time = event.target.closest?.("time[datetime]");
  if (time && !time.title) time.title = new Date(time.dateTime).toLocaleString();
});

// --- the counter -------------------------------------------------------------------------------

// Between two polls it runs on at the rate of the last one, and never backwards.
const still = matchMedia("(prefers-reduced-motion: reduce)");
let shown = null;
let seen = null;

function count() {
  const counter = find("#counter-number");
  if (!counter || still.matches || document.hidden || paused) return;
  const { value, rate } = counter.dataset;
  if (value !== seen?.value || rate !== seen?.rate) {
    seen = { value, rate, at: performance.now() };
    if (shown !== null && Math.abs(Number(value) - shown) > 1e6) shown = null;
  }
  const passed = Math.min((performance.now() - seen.at) / 1000, 15);
  const guess = Math.floor(Number(value) + Number(rate) * passed);
  // What ran too far waits until the truth has caught up, unless counting began anew.
  shown = shown === null || guess > shown || Number(value) < shown - 10 * Number(rate) - 10 ? guess : shown;
  counter.textContent = shown.toLocaleString("en-US");
}

if (find("#counter-number")) setInterval(count, 100);
