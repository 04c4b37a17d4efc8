// The stream sends the number of the newest state at each change. If the page shows another number, fetch it again and
// replace its live part. The rest is comfort: local times, copy buttons, arrow keys in the map, values below the
// pointer in charts, the theme. The pages also work without JavaScript.
"use strict";
(() => {
  const live = document.getElementById("live");
  let age = document.getElementById("age");
  const state = document.getElementById("stream");
  let shown = { at: 0, time: "" };
  let heard = { number: "", words: "" };
  let source = null;
  let busy = false;
  let given = live ? live.innerHTML : "";
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
      if (answer.status === 401) { location.reload(); return; }
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
    age.textContent = `${clock(new Date(shown.time))}, ${old < 120 ? `${old}s` : old < 7200 ? `${Math.floor(old / 60)}m` : `${Math.floor(old / 3600)}h`} old`;
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
    if (found.innerHTML === given) { return; }
    given = found.innerHTML;
    live.replaceChildren(...found.childNodes);
    live.querySelectorAll("details").forEach((each, index) => { if (open[index]) { each.open = true; } });
    dress();
    if (place !== null) {
      const same = [...live.querySelectorAll("a[href]")].find((each) => each.getAttribute("href") === place);
      if (same) { same.focus({ preventScroll: true }); }
    }
  }

  const clock = (at) => Date.now() - at < 86400000 ? at.toLocaleTimeString([], { hour12: false }) : at.toLocaleString([], { hour12: false });

  // Local times, visible copy buttons, and one tab stop for each map.
  function dress() {
    live.querySelectorAll("time:not([data-keep])").forEach((each) => { each.textContent = clock(new Date(each.dateTime)); });
    live.querySelectorAll("[data-at]").forEach((each) => {
      const at = new Date(each.dataset.at);
      each.textContent = at.getHours() || at.getMinutes() ? at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false }) : at.toLocaleDateString([], { day: "numeric", month: "short" });
    });
    live.querySelectorAll(".copy").forEach((each) => { each.hidden = !navigator.clipboard; });
    live.querySelectorAll(".map").forEach((map) => [...map.children].forEach((each, index) => { each.tabIndex = index ? -1 : 0; }));
  }

  live.addEventListener("click", async (event) => {
    if (!event.target.classList.contains("copy")) { return; }
    await navigator.clipboard.writeText(event.target.previousElementSibling.textContent);
    event.target.textContent = "Copied";
  });

  live.addEventListener("keydown", (event) => {
    const map = event.target.closest(".map");
    if (!map) { return; }
    const nodes = [...map.children];
    const wide = nodes.filter((each) => each.offsetTop === nodes[0].offsetTop).length;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: wide, ArrowUp: -wide }[event.key];
    const next = step && nodes[nodes.indexOf(event.target) + step];
    if (next) { event.preventDefault(); event.target.tabIndex = -1; next.tabIndex = 0; next.focus(); }
  });

  live.addEventListener("pointermove", (event) => {
    const plot = event.target.closest(".lines");
    if (!plot) { return; }
    const box = plot.getBoundingClientRect();
    const x = 100 * (event.clientX - box.left) / box.width;
    const points = plot.dataset.points.split(";").map((each) => each.split("|"));
    const near = points.reduce((best, each) => Math.abs(each[0] - x) < Math.abs(best[0] - x) ? each : best);
    const since = new Date(plot.dataset.since).getTime();
    const at = new Date(since + (new Date(plot.dataset.until) - since) * near[0] / 100);
    const cursor = plot.querySelector(".cursor");
    ["x1", "x2"].forEach((name) => cursor.setAttribute(name, near[0]));
    plot.closest(".chart").querySelector(".at").textContent = `${near[2]} at ${clock(at)}`;
  });

  const theme = document.getElementById("theme");
  const isDark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const name = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    document.cookie = `dra_theme=${document.documentElement.dataset.theme}; path=${document.documentElement.dataset.live.replace(/live$/, "")}; SameSite=Strict`;
    name();
  });
  theme.hidden = false;
  name();
  dress();

  function connect() {
    if (source || document.hidden) { return; }
    source = new EventSource(document.documentElement.dataset.live);
    source.addEventListener("state", (event) => hear(event.data));
    source.addEventListener("error", () => {
      tell("no connection", false);
      if (source.readyState === EventSource.CLOSED) { look(); }  // the session has ended
    });
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
