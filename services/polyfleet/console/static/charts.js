// Figures with data-chart (where the numbers are) and data-series (which of them): lines over the last hour.
"use strict";
(() => {
  const COLOURS = ["#2563eb", "#d97706"];
  const EVERY_MS = 10000;
  const figures = [...document.querySelectorAll("figure[data-chart]")];
  const plots = new Map();

  function draw(figure, told) {
    const names = figure.dataset.series.split(",");
    if (!told.at || told.at.length === 0) return;
    const data = [told.at, ...names.map((name) => told[name])];
    const plot = plots.get(figure);
    if (plot) {
      plot.setData(data);
      return;
    }
    const ink = getComputedStyle(document.body).color;
    const axis = { stroke: ink, grid: { stroke: "#8884", width: 1 } };
    const series = names.map((label, n) => ({ label, stroke: COLOURS[n], width: 2, spanGaps: false }));
    const options = { width: figure.clientWidth, height: 180, series: [{}, ...series], axes: [axis, axis], scales: { y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.1 : 1] } } };
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
