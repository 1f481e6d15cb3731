// Figures with data-chart (where the numbers are), data-series (which of them) and data-labels (as people call them,
// behind the word for time): lines over the last hour.
"use strict";
(() => {
  const COLOURS = ["#2563eb", "#d97706"];
  const EVERY_MS = 10000;
  const SPACE = 90; // pixels between times of day
  const CLOCK = new Intl.DateTimeFormat(document.documentElement.lang, { timeStyle: "medium", hourCycle: "h23" });
  const figures = [...document.querySelectorAll("figure[data-chart]")];
  const plots = new Map();

  const clock = (seconds) => CLOCK.format(seconds * 1000);

  function draw(figure, told) {
    const names = figure.dataset.series.split(",");
    const [time, ...labels] = figure.dataset.labels.split("|");
    if (!told.at || told.at.length === 0) return;
    const data = [told.at, ...names.map((name) => told[name])];
    const plot = plots.get(figure);
    if (plot) {
      plot.setData(data);
      return;
    }
    const ink = getComputedStyle(document.body).color;
    const axis = { stroke: ink, grid: { stroke: "#8884", width: 1 } };
    const lines = labels.map((label, n) => ({ label, stroke: COLOURS[n], width: 2, spanGaps: false }));
    const series = [{ label: time, value: (_, at) => (at === null ? "–" : clock(at)) }, ...lines];
    const times = { ...axis, space: SPACE, values: (_, moments) => moments.map(clock) };
    const options = { width: figure.clientWidth, height: 180, series, axes: [times, axis], scales: { y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.1 : 1] } } };
    plots.set(figure, new uPlot(options, data, figure));
  }

  async function refresh() {
    const addresses = new Set(figures.map((figure) => figure.dataset.chart));
    for (const address of addresses) {
      try {
        const answer = await fetch(address);
        if (!answer.ok) continue;
        const told = await answer.json();
        figures.filter((figure) => figure.dataset.chart === address).forEach((figure) => draw(figure, told));
      } catch {
        // the page itself says that the console is gone
      }
    }
  }

  addEventListener("resize", () => plots.forEach((plot, figure) => plot.setSize({ width: figure.clientWidth, height: 180 })));
  refresh();
  setInterval(() => document.hidden || refresh(), EVERY_MS);
})();
