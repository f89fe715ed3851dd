// Draws the figures that figures.py describes, in the page's own fonts and colours, for the width at hand.
plotlyLoaded.then(() => {
  const charts = JSON.parse(document.getElementById("chart-data").textContent);
  const plots = [...document.querySelectorAll(".plot")];
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  const draw = (plot) => {
    const spec = charts[plot.dataset.chart];
    const ink = colour("ink");
    const line = { gridcolor: colour("line"), linecolor: colour("strong-line"), color: ink, zeroline: false, fixedrange: true, automargin: true };
    const layout = {
      ...spec.layout,
      width: Math.max(300, Math.floor(plot.parentElement.clientWidth)),
      height: 380,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink },
      margin: { l: 48, r: 14, t: 26, b: 48 },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    };
    for (const name of ["xaxis", "yaxis", "xaxis2", "yaxis2"])
      if (name in spec.layout || !name.endsWith("2")) layout[name] = { ...line, ...spec.layout[name] };
    const traces = spec.traces.map(({ tone, ...trace }) => {
      const own = { ...trace, marker: { ...trace.marker, color: colour(tone) }, line: { ...trace.line, color: colour(tone) } };
      if (trace.type !== "box" && trace.type !== "scatter") delete own.line;
      return own;
    });
    return Plotly.react(plot, traces, layout, { displayModeBar: false, responsive: false });
  };
  const all = () => plots.forEach(draw);
  let before = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== before) all();
    before = window.innerWidth;
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  all();
});
