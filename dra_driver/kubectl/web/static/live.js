// Looks again when the server says that something changed: fetches this very page and replaces the part that lives.
// Without JavaScript the pages work as they are.
"use strict";
(() => {
  const live = document.getElementById("live");
  const readAt = document.getElementById("read-at");
  const state = document.getElementById("stream");
  let source = null;
  let busy = false;
  let again = false;

  const tell = (text, good) => {
    state.textContent = text;
    state.className = good ? "dot good" : "dot bad";
  };

  async function look() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin" });
      if (answer.status === 403) { tell("this page was closed: start the command again", false); return; }
      const found = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
      if (found && !typing()) { replace(found); }
    } catch {
      tell("no connection", false);
    } finally {
      busy = false;
      if (again) { again = false; setTimeout(look, 250); }
    }
  }

  function typing() {
    const at = document.activeElement;
    return at && live.contains(at) && /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName);
  }

  function replace(found) {
    const at = document.activeElement;
    const place = at && live.contains(at) ? at.getAttribute("href") : null;
    const open = [...live.querySelectorAll("details")].map((each) => each.open);
    if (found.innerHTML === live.innerHTML) { return; }
    live.replaceChildren(...found.childNodes);
    live.querySelectorAll("details").forEach((each, index) => { if (open[index]) { each.open = true; } });
    if (place !== null) {
      const same = [...live.querySelectorAll("a[href]")].find((each) => each.getAttribute("href") === place);
      if (same) { same.focus({ preventScroll: true }); }
    }
  }

  function connect() {
    if (source || document.hidden) { return; }
    source = new EventSource(document.documentElement.dataset.live);
    source.addEventListener("open", () => tell("live", true));
    source.addEventListener("read", (event) => { readAt.textContent = `${event.data} UTC`; });
    source.addEventListener("changed", look);
    source.addEventListener("error", () => tell("no connection", false));
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden && source) { source.close(); source = null; }
    if (!document.hidden) { connect(); look(); }
  });
  document.addEventListener("keydown", (event) => {
    const inField = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    if (event.key === "/" && !inField && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const search = document.getElementById("q");
      if (search) { event.preventDefault(); search.focus(); search.select(); }
    }
  });
  if (live && live.dataset.still === undefined) { connect(); }
})();
