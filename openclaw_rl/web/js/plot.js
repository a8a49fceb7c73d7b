// Line plots in the page's colours, redrawn when the theme or the width changes.

import uPlot from "../vendor/uPlot.esm.js";
import { h } from "./dom.js";

const live = new Set();
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/**
 * series: [{label, values, color: "--series-1", dash?, points?}]; marks: [{x, label}] are vertical lines.
 * The element has a text description for screen readers.
 */
export function plot({ x, series, marks = [], height = 240, yRange = null, description, xLabel = null, digits = 2 }) {
  const box = h("div", { class: "plot", role: "img", "aria-label": description });
  let chart = null;
  const draw = () => {
    chart?.destroy();
    chart = new uPlot(options(box.clientWidth || 300, height), [x, ...series.map((one) => one.values)], box);
  };
  const options = (width) => ({
    width, height,
    cursor: { y: false, points: { size: 7 } },
    legend: { show: false },
    scales: { x: { time: false, range: (_, low, high) => low === high ? [low - 1, high + 1] : [low, high] }, y: { range: yRange ?? padded } },
    axes: [axis({ size: 28, label: xLabel, labelSize: 20, labelGap: 0, space: 46, values: (_, all) => all.map((v) => Number.isInteger(v) ? String(v) : "") }),
      axis({ size: 52, values: (_, all) => all.map((v) => v.toFixed(digits)) })],
    series: [{}, ...series.map((one) => ({
      label: one.label, stroke: color(one.color), width: 2, dash: one.dash, spanGaps: true,
      points: { show: one.points ?? x.length < 60, size: 5, fill: color(one.color) },
    }))],
    hooks: { draw: [(u) => drawMarks(u, marks)] },
  });
  const observer = new ResizeObserver(() => {
    if (!box.isConnected) { observer.disconnect(); live.delete(draw); chart?.destroy(); return; }
    if (chart && Math.abs(chart.width - box.clientWidth) > 2) chart.setSize({ width: box.clientWidth, height });
    else if (!chart) draw();
  });
  observer.observe(box);
  live.add(draw);
  return box;
}

function axis(more) {
  return {
    stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false },
    font: "12px Inter, system-ui, sans-serif", labelFont: "12px Inter, system-ui, sans-serif", ...more,
  };
}

function padded(_, low, high) {
  if (low === null || high === null) return [0, 1];
  const space = (high - low) * 0.12 || Math.abs(high) * 0.2 || 1;
  return [low - space, high + space];
}

function drawMarks(u, marks) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = color("--series-3");
  ctx.font = `${11 * devicePixelRatio}px Inter, system-ui, sans-serif`;
  ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
  ctx.globalAlpha = 0.85;
  const groups = [];
  for (const mark of marks) {
    const at = u.valToPos(mark.x, "x", true), last = groups.at(-1);
    if (at < bbox.left - 1 || at > bbox.left + bbox.width + 1) continue;
    ctx.beginPath();
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
    // Swaps that are too close for separate labels share one, with the first and the last of them.
    if (last && at - last.at < 40 * devicePixelRatio) last.to = mark.label;
    else groups.push({ at, from: mark.label, to: null });
  }
  for (const { at, from, to } of groups) {
    const late = at > bbox.left + bbox.width - 44 * devicePixelRatio;
    ctx.textAlign = late ? "right" : "left";
    ctx.fillText(to ? `${from}…${to}` : from, at + (late ? -4 : 4) * devicePixelRatio, bbox.top + 11 * devicePixelRatio);
  }
  ctx.restore();
}

export function redrawAll() {
  for (const draw of live) draw();
}

export const legend = (entries) => h("div", { class: "legend", "aria-hidden": "true" },
  entries.map(([text, name, mark]) => h("span", { class: mark ? "mark" : null, "--c": `var(${name})` }, text)));
