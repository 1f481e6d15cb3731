// The heat map between two of its shapes: cells take the colours of their readings; the one that is pointed at, the words.
"use strict";
(() => {
  const percent = (value) => (value === null ? "–" : `${value} %`);
  const level = (use) => (use === null ? "unknown" : `use-${Math.min(10, Math.max(0, Math.floor((use + 5) / 10)))}`);
  let told = [];
  let waiting = false;

  function paint() {
    waiting = false;
    document.querySelectorAll(".map").forEach((map, n) => {
      if (!told[n]) return;
      const [mean, cells] = told[n];
      map.closest(".group").querySelector(".mean").textContent = percent(mean);
      map.querySelectorAll(".cell").forEach((cell, m) => {
        const wanted = `cell ${level(cells[m][0])}`;
        if (cell.className !== wanted && !cell.classList.contains("bad")) cell.className = wanted;
      });
    });
  }

  function describe(cell) {
    const map = cell.closest(".map");
    const [n, m] = [[...document.querySelectorAll(".map")].indexOf(map), [...map.querySelectorAll(".cell")].indexOf(cell)];
    if (!told[n]) return;
    const reading = told[n][1][m];
    const words = map.dataset.reads.replace("{use}", percent(reading[0])).replace("{memory}", percent(reading[1]));
    cell.title = `${cell.title.slice(0, cell.title.lastIndexOf(";"))}; ${words}`;
  }

  document.addEventListener("htmx:sseBeforeMessage", (event) => {
    if (event.detail.type !== "readings") return;
    event.preventDefault();
    told = JSON.parse(event.detail.data);
    if (!waiting) requestAnimationFrame(paint); // which is when somebody sees it
    waiting = true;
  });
  for (const pointed of ["pointerover", "focusin"]) {
    document.addEventListener(pointed, (event) => event.target.matches?.(".map .cell") && describe(event.target));
  }
})();
