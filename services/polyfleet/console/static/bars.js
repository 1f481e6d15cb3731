// The figures of one benchmark, or of two side by side, as bars: each figure by its own largest value; saved as PNG.
"use strict";
(() => {
  const COLOURS = ["#2563eb", "#d97706"];
  const [WIDTH, ROW, BAR, LEFT, TOP, RIGHT] = [960, 44, 15, 260, 48, 160];

  function rows() {
    return [...document.querySelectorAll("#figures tr[data-name]")].map(({ dataset }) => ({
      name: dataset.unit ? `${dataset.name}, ${dataset.unit}` : dataset.name,
      values: JSON.parse(dataset.values),
    }));
  }

  function draw() {
    const figure = document.querySelector("figure[data-bars]");
    if (!figure) return;
    const canvas = figure.querySelector("canvas");
    const told = rows();
    [canvas.width, canvas.height] = [WIDTH, TOP + told.length * ROW];
    const pen = canvas.getContext("2d");
    pen.fillStyle = "#ffffff";
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.fillStyle = "#16191d";
    pen.font = "bold 15px sans-serif";
    pen.fillText(figure.dataset.title, 12, 28, WIDTH - 24);
    pen.font = "13px sans-serif";
    told.forEach(({ name, values }, n) => {
      const y = TOP + n * ROW;
      const most = Math.max(...values.filter((value) => value !== null), 0);
      pen.fillStyle = "#16191d";
      pen.fillText(name, 12, y + 20, LEFT - 24);
      values.forEach((value, m) => {
        const length = value !== null && most > 0 ? (value / most) * (WIDTH - LEFT - RIGHT) : 0;
        pen.fillStyle = COLOURS[m];
        pen.fillRect(LEFT, y + 4 + m * (BAR + 2), Math.max(length, 1), BAR);
        pen.fillStyle = "#16191d";
        pen.fillText(value === null ? "–" : value.toFixed(2), LEFT + length + 8, y + 16 + m * (BAR + 2));
      });
    });
  }

  document.addEventListener("click", (event) => {
    const name = event.target.dataset.saves;
    if (!name) return;
    document.querySelector("figure[data-bars] canvas").toBlob((picture) => {
      const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(picture), download: name });
      link.click();
      URL.revokeObjectURL(link.href);
    });
  });
  document.addEventListener("htmx:afterSettle", draw);
  draw();
})();
