// Draws charts: each <figure data-chart> has its ECharts option in a <script type="application/json">.
import { BarChart, HeatmapChart, LineChart, ScatterChart } from "echarts/charts";
import {
  AriaComponent, DataZoomComponent, GridComponent, LegendComponent, TooltipComponent,
  VisualMapComponent,
} from "echarts/components";
import { init, use } from "echarts/core";
import { CanvasRenderer } from "echarts/renderers";

use([
  AriaComponent, BarChart, CanvasRenderer, DataZoomComponent, GridComponent, HeatmapChart,
  LegendComponent, LineChart, ScatterChart, TooltipComponent, VisualMapComponent,
]);

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
const FORMATS = {
  bytes(value) {
    let unit = 0;
    let left = value;
    while (Math.abs(left) >= 999.5 && unit < UNITS.length - 1) {
      left /= 1000;
      unit += 1;
    }
    return `${+left.toPrecision(3)} ${UNITS[unit]}`;
  },
  percent: (value) => `${+(100 * value).toPrecision(3)} %`,
  number: (value) => (+value.toPrecision(4)).toLocaleString("en"),
  seconds: (value) => `${+value.toPrecision(3)} s`,
};

function draw(figure) {
  const place = figure.querySelector("[data-chart-place]");
  const option = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
  const format = FORMATS[figure.dataset.format ?? "number"];
  const text = getComputedStyle(figure).color;
  const line = getComputedStyle(figure).getPropertyValue("--chart-line").trim() || "#8884";
  // Labels side by side, such as 12:00 or 180 kB, need about 100 pixels each.
  const nAcross = Math.min(6, Math.max(2, Math.floor(place.clientWidth / 100)));
  const axis = (given, isValue, isAcross) => ({
    ...(isAcross ? { splitNumber: nAcross } : {}),
    ...given,
    axisLabel: { color: text, hideOverlap: true, ...(isValue ? { formatter: format } : {}), ...given.axisLabel },
    axisLine: { lineStyle: { color: line }, ...given.axisLine },
    splitLine: { lineStyle: { color: line }, ...given.splitLine },
  });
  const axes = (given, isAcross) =>
    [given ?? []].flat().map((each) => axis(each, each.type === "value" || each.type === "log", isAcross));
  const chart = init(place, null, { renderer: "canvas" });
  chart.setOption({
    animation: false,
    aria: { enabled: true },
    color: ["#2f6feb", "#17a2a2", "#d9822b", "#8250df", "#6e7781"],
    grid: { left: 8, right: 16, top: option.legend ? 32 : 12, bottom: 8, containLabel: true },
    textStyle: { color: text },
    ...option,
    legend: option.legend ? { textStyle: { color: text }, top: 0, left: 0, ...option.legend } : undefined,
    // Rich text is drawn on the canvas: the policy of the pages allows no HTML from scripts.
    tooltip: { renderMode: "richText", valueFormatter: format, trigger: "axis", ...option.tooltip },
    xAxis: axes(option.xAxis, true),
    yAxis: axes(option.yAxis, false),
  });
  new ResizeObserver(() => chart.resize()).observe(place);
  return chart;
}

const drawn = new Map();

function drawAll() {
  for (const [figure, chart] of drawn) {
    chart.dispose();
    drawn.delete(figure);
  }
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    drawn.set(figure, draw(figure));
  }
}

drawAll();
document.addEventListener("theme", drawAll);
document.addEventListener("htmx:after:swap", drawAll);
