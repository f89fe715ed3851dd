// Draws the charts that report.py describes, in the page's own fonts and colours, for the width at hand, and again on paper.
plotlyLoaded.then(() => {
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

  // Panels in rows of `columns`, `inside` px high and `gap` px apart: the axes' numbers and domains, and their titles.
  const grid = (layout, spec, columns, inside, gap, share) => {
    const lines = Math.ceil(spec.panels.length / columns);
    const total = lines * inside + (lines - 1) * gap;
    return spec.panels.map((panel, index) => {
      const [line, column] = [Math.floor(index / columns), index % columns];
      const number = index ? String(index + 1) : "";
      const top = 1 - (line * (inside + gap)) / total;
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
      return {
        number,
        column,
        x: [column / columns, (column + (columns === 1 ? 1 : share)) / columns],
        y: [Math.max(0, top - inside / total), top],
      };
    });
  };

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
    const places = grid(layout, spec, columns, inside, gap, width < 560 ? 0.82 : 0.9);
    const traces = spec.panels.flatMap((panel, index) => {
      const { number, column, x, y } = places[index];
      const wide = width / columns > 260;
      layout[`xaxis${number}`] = axis({
        domain: x,
        anchor: `y${number}`,
        range: [-4, 104],
        tickvals: wide ? [0, 25, 50, 75, 100] : [0, 50, 100],
        gridcolor: colour("line"),
      });
      layout[`yaxis${number}`] = axis({
        ...names(spec.rows, limit),
        domain: y,
        anchor: `x${number}`,
        range: [spec.rows.length - 0.3, -0.7],
        automargin: false,
        showticklabels: column === 0,
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

  const heat = (spec, width) => {
    const columns = Math.max(1, Math.min(spec.columns, spec.panels.length, Math.floor(width / 190)));
    const lines = Math.ceil(spec.panels.length / columns);
    const inside = spec.panels[0].y.length * 26;
    const gap = 62;
    const layout = frame(width, lines * inside + (lines - 1) * gap + 72, { annotations: [], margin: { l: 44, r: 6, t: 30, b: 42 } });
    const places = grid(layout, spec, columns, inside, gap, 0.84);
    const tones = [colour("paper"), ...[0, 1, 2, 3, 4].map((step) => colour(`step-${step}`))];
    const traces = spec.panels.map((panel, index) => {
      const { number, column, x, y } = places[index];
      const title = (text) => ({ text, font: { ...layoutFont(), color: colour("muted") }, standoff: 4 });
      layout[`xaxis${number}`] = axis({ domain: x, anchor: `y${number}`, type: "category", title: title("verdict"), showgrid: false, ticks: "" });
      layout[`yaxis${number}`] = axis({
        domain: y,
        anchor: `x${number}`,
        type: "category",
        autorange: "reversed",
        title: column ? undefined : title("gold"),
        showgrid: false,
        ticks: "",
      });
      return {
        type: "heatmap",
        xaxis: `x${number}`,
        yaxis: `y${number}`,
        x: panel.x,
        y: panel.y,
        z: panel.shares,
        zmin: 0,
        zmax: 1,
        text: panel.counts.map((row) => row.map((count) => count || "")),
        customdata: panel.counts,
        texttemplate: "%{text}",
        textfont: { size: 11 },
        colorscale: tones.map((tone, step) => [step / (tones.length - 1), tone]),
        showscale: false,
        xgap: 1,
        ygap: 1,
        hovertemplate: "gold %{y}, verdict %{x}: %{customdata} (%{z:.0%} of the row)<extra></extra>",
      };
    });
    return [traces, layout];
  };

  const line = (spec, width) => {
    const columns = Math.max(1, Math.min(spec.columns, spec.panels.length, Math.floor(width / 260)));
    const lines = Math.ceil(spec.panels.length / columns);
    const inside = 230;
    const gap = 70;
    const narrow = Math.min(width, columns * 380);
    const layout = frame(narrow, lines * inside + (lines - 1) * gap + 78, { annotations: [], shapes: [], margin: { l: 52, r: 14, t: 30, b: 48 } });
    layout.showlegend = false;
    const places = grid(layout, spec, columns, inside, gap, 0.84);
    const traces = spec.panels.map((panel, index) => {
      const { number, column, x, y } = places[index];
      const title = (text) => ({ text, font: { ...layoutFont(), color: colour("muted") }, standoff: 6 });
      const scale = { range: [-3, 103], tickvals: [0, 25, 50, 75, 100], gridcolor: colour("line") };
      layout[`xaxis${number}`] = axis({ ...scale, domain: x, anchor: `y${number}`, title: title("probability given, %") });
      layout[`yaxis${number}`] = axis({ ...scale, domain: y, anchor: `x${number}`, title: column ? undefined : title("right, %") });
      layout.shapes.push({ type: "line", xref: `x${number}`, yref: `y${number}`, x0: 0, y0: 0, x1: 100, y1: 100, line: { color: colour("strong-line"), dash: "dash", width: 1.2 } });
      const ink = colour("accent");
      return {
        type: "scatter",
        mode: "lines+markers",
        xaxis: `x${number}`,
        yaxis: `y${number}`,
        x: panel.points.map((point) => point[0]),
        y: panel.points.map((point) => point[1]),
        error_y: {
          type: "data",
          symmetric: false,
          array: panel.points.map(([, hit, , high]) => high - hit),
          arrayminus: panel.points.map(([, hit, low]) => hit - low),
          color: ink,
          thickness: 1.5,
          width: 3,
        },
        line: { color: ink, width: 1.2 },
        marker: { color: ink, size: 8 },
        text: panel.points.map((point) => `n = ${point[4]}`),
        hovertemplate: "%{x:.1f} % given, %{y:.1f} % right, %{text}<extra></extra>",
      };
    });
    return [traces, layout];
  };

  // Lines over rounds, stepped or not, with bands and grey bars behind them. Told apart by dashes as well as by colour.
  const curves = (spec, width) => {
    const columns = Math.max(1, Math.min(spec.columns, spec.panels.length, Math.floor(width / 230)));
    const lines = Math.ceil(spec.panels.length / columns);
    const series = spec.panels[0].series;
    const letters = series.reduce((sum, one) => sum + one.name.length * 7 + 52, 0);
    const top = 30 + (series.length > 1 ? 22 * Math.ceil(letters / (width * 0.8)) : 0);
    const inside = spec.panels.length === 1 ? 300 : 170;
    const gap = 78;
    const layout = frame(width, lines * inside + (lines - 1) * gap + top + 46, { annotations: [], legend, bargap: 0.15 });
    layout.margin = { l: 46, r: 14, t: top, b: 46 };
    layout.showlegend = series.length > 1;
    const places = grid(layout, spec, columns, inside, gap, 0.84);
    const shape = spec.step ? "hv" : "linear";
    const traces = spec.panels.flatMap((panel, index) => {
      const { number, column, x, y } = places[index];
      const on = { xaxis: `x${number}`, yaxis: `y${number}` };
      const title = (text) => ({ text, font: { ...layoutFont(), color: colour("muted") }, standoff: 4 });
      layout[`xaxis${number}`] = axis({ domain: x, anchor: `y${number}`, title: title("round"), showgrid: false, nticks: 8, tickformat: "d" });
      layout[`yaxis${number}`] = axis({
        domain: y,
        anchor: `x${number}`,
        range: [-3, 105],
        tickvals: [0, 25, 50, 75, 100],
        gridcolor: colour("line"),
        title: column ? undefined : title(spec.axis),
      });
      const most = Math.max(1, ...panel.bars.map((bar) => bar[1]));
      const bars = {
        ...on,
        type: "bar",
        showlegend: false,
        x: panel.bars.map((bar) => bar[0]),
        y: panel.bars.map((bar) => (100 * bar[1]) / most),
        text: panel.bars.map((bar) => `${bar[1]} dialogues`),
        textposition: "none",
        marker: { color: colour("reason-0"), line: { width: 0 } },
        hovertemplate: "round %{x}: %{text}<extra></extra>",
      };
      const own = panel.series.flatMap((one, place) => {
        const ink = colour(place % 2 ? "warm" : "accent");
        const dash = ["solid", "solid", "dash", "dash", "dot", "dot", "dashdot", "dashdot"][place % 8];
        const known = one.points.filter((point) => point[2] !== null);
        // A band of steps: each bound is drawn there and back, so that the fill turns the corners that the line turns.
        const bound = (points, side) => points.flatMap((point, at) => (spec.step && at ? [[point[0], points[at - 1][side]], [point[0], point[side]]] : [[point[0], point[side]]]));
        const around = [...bound(known, 2), ...bound(known, 3).reverse()];
        const band = {
          ...on,
          type: "scatter",
          mode: "lines",
          x: around.map((point) => point[0]),
          y: around.map((point) => point[1]),
          fill: "toself",
          fillcolor: `${ink}26`,
          line: { width: 0 },
          legendgroup: one.name,
          showlegend: false,
          hoverinfo: "skip",
        };
        const curve = {
          ...on,
          type: "scatter",
          mode: spec.step ? "lines" : "lines+markers",
          name: escape(one.name),
          legendgroup: one.name,
          showlegend: index === 0,
          x: one.points.map((point) => point[0]),
          y: one.points.map((point) => point[1]),
          line: { color: ink, dash, shape, width: 1.8 },
          marker: { color: ink, size: 6, symbol: place % 2 ? "square" : "circle" },
          text: one.points.map((point) => escape(point[4])),
          hovertemplate: `${escape(one.name)}, round %{x}: %{text}<extra></extra>`,
        };
        return spec.bands && known.length ? [band, curve] : [curve];
      });
      return panel.bars.length ? [bars, ...own] : own;
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
    const [traces, layout] = { dots, bars, heat, line, curves }[spec.kind](spec, width);
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
});
