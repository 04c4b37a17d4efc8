// The stream sends the number of the newest state at each change. If the page shows another number, fetch it again and
// replace its live part. The pages also work without JavaScript.
"use strict";
(() => {
  const live = document.getElementById("live");
  let age = document.getElementById("age");
  const state = document.getElementById("stream");
  let shown = { at: 0, time: "" };
  let heard = { number: "", words: "" };
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
      if (answer.status === 403) { tell("access denied: restart the command", false); return; }
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const found = page.getElementById("live");
      if (!found) { tell("this page failed", false); return; }
      if (typing()) { return; }
      replace(found);
      live.dataset.number = found.dataset.number;
      age.replaceWith(age = page.getElementById("age"));
      read();
      settle();
    } catch {
      tell("no connection", false);
    } finally {
      busy = false;
      if (again) { again = false; setTimeout(look, 250); }
    }
  }

  function read() {
    const { age: seconds, time } = age.dataset;
    shown = { at: performance.now() - 1000 * Number(seconds), time };
    stamp();
  }

  function stamp() {
    if (!shown.time) { return; }
    const old = Math.max(0, Math.round((performance.now() - shown.at) / 1000));
    age.textContent = `${shown.time} UTC, ${old < 120 ? `${old}s` : old < 7200 ? `${Math.floor(old / 60)}m` : `${Math.floor(old / 3600)}h`} old`;
  }

  function hear(data) {
    const [number, seconds, time, ...words] = data.split(" ");
    heard = { number, words: words.join(" ") };
    if (number !== live.dataset.number) { tell(typing() ? "out of date" : "updating", !typing()); look(); return; }
    Object.assign(age.dataset, { age: seconds, time: time === "-" ? "" : time });
    read();
    settle();
  }

  function settle() {
    if (heard.number === live.dataset.number) { tell(heard.words, heard.words === "live"); }
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
    source.addEventListener("state", (event) => hear(event.data));
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
  if (live && live.dataset.still === undefined) {
    read();
    setInterval(stamp, 1000);
    connect();
  }
})();
