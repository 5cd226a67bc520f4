// The values under the pointer in a chart. Charts are drawn by the server, and are there without this.

const SVG_MARK_SHARE = 0.012;

function near(times, at) {
  let best = 0;
  for (let n = 1; n < times.length; n++) {
    if (Math.abs(times[n] - at) < Math.abs(times[best] - at)) best = n;
  }
  return best;
}

function figure(value, unit) {
  if (value === null || value === undefined) return "–";
  return value.toLocaleString("en-US", { maximumFractionDigits: value < 100 ? 2 : 0 }) + unit;
}

function show(chart, share) {
  const data = JSON.parse(chart.dataset.chart);
  const at = data.from + share * (data.to - data.from);
  const place = near(data.times, at);
  const time = new Date(data.times[place] * 1000).toISOString().slice(11, 19);
  const values = data.lines.map(([name, points]) => `${name} ${figure(points[place], data.unit)}`);
  const close = data.marks.filter(
    ([moment]) => Math.abs(moment - at) <= SVG_MARK_SHARE * (data.to - data.from),
  );
  const marks = close.map(([, text]) => text);
  chart.querySelector(".chart-at").textContent = [`${time} UTC`, ...values, ...marks].join(" · ");
  const x = `${(100 * (data.times[place] - data.from)) / (data.to - data.from)}%`;
  const cursor = chart.querySelector(".cursor");
  cursor.setAttribute("x1", x);
  cursor.setAttribute("x2", x);
  cursor.setAttribute("visibility", "visible");
}

function hide(chart) {
  chart.querySelector(".chart-at").textContent = "";
  chart.querySelector(".cursor").setAttribute("visibility", "hidden");
}

let pointer = null;

function follow() {
  if (!pointer) return;
  const plot = document.elementFromPoint(pointer.x, pointer.y)?.closest(".chart .plot");
  for (const chart of document.querySelectorAll(".chart")) {
    if (!chart.contains(plot ?? null)) {
      if (chart.querySelector(".chart-at")?.textContent) hide(chart);
      continue;
    }
    const box = plot.getBoundingClientRect();
    show(chart, Math.min(Math.max((pointer.x - box.left) / box.width, 0), 1));
  }
}

document.addEventListener("pointermove", (event) => {
  pointer = { x: event.clientX, y: event.clientY };
  follow();
});
// The pointer rests while a new chart takes the place of the old one.
document.body.addEventListener("htmx:afterSwap", follow);
