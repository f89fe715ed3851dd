// Draws the charts that report.py describes, in the page's own fonts and colours, for the width at hand, and again on paper.
(() => {
  "use strict";
  const charts = JSON.parse(document.getElementById("chart-data").textContent);
  const plots = [...document.querySelectorAll(".plot")];
  const PAPER_WIDTH = 680; // px: the print area of an A4 page
  const root = document.documentElement;

  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  // plotly reads tags in its labels, so what names models or scores is escaped, and shortened to leave room for the plot.
  const escape = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const label = (text, limit) => escape(text.length > limit ? text.slice(0, limit - 1) + "…" : text);
  const axis = (more) => ({ zeroline: false, fixedrange: true, color: colour("muted"), linecolor: colour("strong-line"), ...more });
  const names = (rows, limit) => ({
    tickvals: rows.map((_, place) => place),
    ticktext: rows.map((row) => label(row, limit)),
    tickfont: { color: colour("ink") },
    automargin: true,
    showgrid: false,
    ticks: "",
  });
  const layoutFont = () => ({
    family: getComputedStyle(document.body).fontFamily,
    size: root.classList.contains("on-paper") ? 10.5 : 12,
    color: colour("ink"),
  });
  const frame = (width, height, more) => ({
    width,
    height,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: layoutFont(),
    hoverlabel: { bgcolor: colour("paper"), bordercolor: colour("strong-line"), font: { color: colour("ink") } },
    margin: { l: 4, r: 14, t: 30, b: 30 },
    ...more,
  });

  const legend = { orientation: "h", x: 0, xanchor: "left", y: 1, yref: "container", yanchor: "top", traceorder: "normal", itemclick: false, itemdoubleclick: false };

  const dots = (spec, width) => {
    const limit = width < 560 ? 14 : 30;
    const room = Math.min(limit, Math.max(...spec.rows.map((row) => row.length))) * 7 + 16;
    const columns = Math.max(1, Math.min(spec.columns, spec.panels.length, Math.floor((width - room) / (spec.columns > 2 ? 110 : 200))));
    const lines = Math.ceil(spec.panels.length / columns);
    const named = spec.panels.some((panel) => panel.marks.some((mark) => mark.name));
    const inside = spec.rows.length * 23 + 16;
    const gap = 56;
    const layout = frame(width, lines * inside + (lines - 1) * gap + 60 + (named ? 26 : 0), { annotations: [] });
    layout.margin = { l: room, r: 14, t: 30 + (named ? 26 : 0), b: 30 };
    layout.legend = legend;
    const total = lines * inside + (lines - 1) * gap;
    const traces = spec.panels.flatMap((panel, index) => {
      const [line, column] = [Math.floor(index / columns), index % columns];
      const number = index ? String(index + 1) : "";
      const left = column / columns;
      const top = 1 - (line * (inside + gap)) / total;
      const wide = width / columns > 260;
      layout[`xaxis${number}`] = axis({
        domain: [left, left + (columns === 1 ? 1 : width < 560 ? 0.82 : 0.9) / columns],
        anchor: `y${number}`,
        range: [-4, 104],
        tickvals: wide ? [0, 25, 50, 75, 100] : [0, 50, 100],
        gridcolor: colour("line"),
      });
      layout[`yaxis${number}`] = axis({
        ...names(spec.rows, limit),
        domain: [Math.max(0, top - inside / total), top],
        anchor: `x${number}`,
        range: [spec.rows.length - 0.3, -0.7],
        automargin: false,
        showticklabels: column === 0,
      });
      layout.annotations.push({
        text: `<b>${escape(panel.title)}</b>`,
        showarrow: false,
        xref: `x${number} domain`,
        yref: `y${number} domain`,
        x: 0,
        y: 1,
        xanchor: "left",
        yanchor: "bottom",
        yshift: 2,
      });
      return panel.marks.map((mark) => {
        const ink = colour(mark.baseline ? "warm" : "accent");
        const bar = mark.baseline && mark.name; // a baseline beside a judge is an upright bar, told apart without colour
        return {
          type: "scatter",
          mode: "markers",
          name: mark.name,
          legendgroup: mark.name,
          showlegend: Boolean(mark.name) && index === 0,
          xaxis: `x${number}`,
          yaxis: `y${number}`,
          x: mark.points.map((point) => point[1]),
          y: mark.points.map((point) => point[0]),
          error_x: {
            type: "data",
            symmetric: false,
            array: mark.points.map(([, mean, , high]) => (high === null ? 0 : high - mean)),
            arrayminus: mark.points.map(([, mean, low]) => (low === null ? 0 : mean - low)),
            color: ink,
            thickness: 1.5,
            width: 3,
          },
          marker: {
            color: ink,
            size: bar ? 15 : 8,
            symbol: mark.points.map((point) => (bar ? "line-ns-open" : point[2] === null && !mark.name ? "circle-open" : "circle")),
            line: { color: ink, width: bar ? 2.5 : 1.2 },
          },
          text: mark.points.map((point) => `${escape(spec.rows[point[0]])}: ${escape(point[4])}`),
          hovertemplate: "%{text}<extra></extra>",
        };
      });
    });
    return [traces, layout];
  };

  const bars = (spec, width) => {
    const letters = spec.series.reduce((sum, one) => sum + one.name.length * 7 + 48, 0);
    const top = 14 + 22 * Math.ceil(letters / (width * 0.8)); // lines that the legend takes
    const longest = Math.max(...spec.rows.map((_, place) => spec.series.reduce((sum, one) => sum + one.values[place], 0)));
    const layout = frame(width, spec.rows.length * 30 + top + 46, {
      barmode: "stack",
      bargap: 0.25,
      legend,
      margin: { l: 4, r: 14, t: top, b: 46 },
      xaxis: axis({ title: { text: spec.axis, font: { ...layoutFont(), color: colour("muted") } }, showgrid: false, range: [0, longest], nticks: 6 }),
      yaxis: axis({ ...names(spec.rows, width < 560 ? 16 : 30), range: [spec.rows.length - 0.5, -0.5] }),
    });
    const traces = spec.series.map((one) => ({
      type: "bar",
      orientation: "h",
      name: escape(one.name),
      x: one.values,
      y: spec.rows.map((_, place) => place),
      text: one.texts,
      textposition: "inside",
      insidetextanchor: "middle",
      textangle: 0,
      constraintext: "none",
      insidetextfont: { color: colour(`on-${one.tone}`) || colour("ink"), size: 11 },
      marker: {
        color: colour(one.tone),
        line: { color: colour("ground"), width: 1 },
        pattern: { shape: one.hatch, fgcolor: colour("muted"), fillmode: "overlay", size: 6, solidity: 0.18 },
      },
      hovertemplate: `${escape(one.name)}: %{x:.4~g}<extra></extra>`,
    }));
    return [traces, layout];
  };

  const drawn = new Set();
  const draw = (plot, width) => {
    const spec = charts[plot.dataset.chart];
    drawn.add(plot);
    const [traces, layout] = (spec.kind === "dots" ? dots : bars)(spec, width);
    return Plotly.react(plot, traces, layout, { displayModeBar: false, staticPlot: false, responsive: false });
  };
  const fitted = (plot) => Math.max(300, Math.floor(plot.parentElement.clientWidth));
  const again = () => drawn.forEach((plot) => draw(plot, fitted(plot)));

  const watch = new IntersectionObserver(
    (entries) =>
      entries
        .filter((entry) => entry.isIntersecting)
        .forEach(({ target }) => {
          watch.unobserve(target);
          draw(target, fitted(target));
        }),
    { rootMargin: "600px" }
  );
  plots.forEach((plot) => watch.observe(plot));

  let before = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== before) again();
    before = window.innerWidth;
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  window.addEventListener("beforeprint", () => {
    root.classList.add("on-paper");
    plots.forEach((plot) => draw(plot, PAPER_WIDTH));
  });
  window.addEventListener("afterprint", () => {
    root.classList.remove("on-paper");
    again();
  });
})();
