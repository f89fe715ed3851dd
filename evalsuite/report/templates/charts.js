// Draws a page's figures in its own fonts and colours, for the width at hand, and again on paper.
plotlyLoaded.then(() => {
  const figures = JSON.parse(document.getElementById("chart-data").textContent);
  const plots = [...document.querySelectorAll(".plot")];
  const PAPER_WIDTH = 680; // px: the print area of an A4 page
  const NARROW = 560; // px: below it row labels are broken into shorter lines
  const root = document.documentElement;

  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const coloured = (value) => JSON.parse(JSON.stringify(value).replace(/"<([a-z0-9-]+)>"/g, (_, name) => JSON.stringify(colour(name))));

  const template = () => {
    const size = root.classList.contains("on-paper") ? 10.5 : 12;
    const axis = { zeroline: false, fixedrange: true, color: "<muted>", gridcolor: "<line>", linecolor: "<strong-line>", title: { font: { size } } };
    return coloured({
      layout: {
        font: { family: getComputedStyle(document.body).fontFamily, size, color: "<ink>" },
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        hoverlabel: { bgcolor: "<paper>", bordercolor: "<strong-line>", font: { color: "<ink>" } },
        legend: { orientation: "h", x: 0, xanchor: "left", y: 1, yref: "container", yanchor: "top", traceorder: "normal", itemclick: false, itemdoubleclick: false },
        xaxis: axis,
        yaxis: axis,
      },
    });
  };

  // A name in lines of at most so many signs, parted behind spaces, hyphens and the like; only a longer part is cut. A name is
  // escaped: an entity is one sign.
  const broken = (name, most) => {
    const size = (text) => (text.match(/&[a-z]+;|[^]/gu) ?? []).length;
    const lines = [""];
    for (const part of name.match(/(?:&[a-z]+;|[^&\s\-_./:·])*(?:[\s\-_./:·]+|$)/gu) ?? []) {
      if (lines.at(-1) && size(lines.at(-1) + part.trimEnd()) > most) lines.push("");
      for (const sign of part.match(/&[a-z]+;|[^]/gu) ?? []) {
        if (size(lines.at(-1)) >= most && sign.trim()) lines.push("");
        lines.push(lines.pop() + sign);
      }
    }
    return lines;
  };

  // As many panels side by side as the width has room for; only the first of a row says what its axis is.
  const fit = (layout, width) => {
    const { meta, margin, grid } = layout;
    layout.width = width;
    if (!meta) return;
    const lines = (layout.yaxis.ticktext ?? []).map((name) => broken(name, width < NARROW ? 16 : 30));
    const names = layout.yaxis.ticktext && lines.map((parts) => parts.join("<br>"));
    const tallest = 15 * Math.max(0, ...lines.map((parts) => parts.length)) + 8; // px: rows are as high as their names
    meta.inside = Math.max(meta.inside, lines.length * tallest);
    grid.ygap = meta.gap / (meta.inside + meta.gap);
    if (names && !layout.yaxis.automargin) margin.l = 7 * Math.max(...lines.flat().map((part) => part.length)) + 16;
    grid.columns = Math.max(1, Math.min(grid.columns, Math.floor((width - margin.l) / meta.least)));
    grid.rows = Math.ceil(layout.annotations.length / grid.columns);
    layout.width = Math.min(width, meta.most ? grid.columns * meta.most : width);
    layout.height = grid.rows * (meta.inside + meta.gap) - meta.gap + margin.t + margin.b;
    layout.annotations.forEach((_, index) => {
      const axis = layout[`yaxis${index ? index + 1 : ""}`];
      if (names) Object.assign(axis, { ticktext: names, showticklabels: index % grid.columns === 0 });
      if (index % grid.columns) delete axis.title;
    });
  };

  // Room above the plot for the lines that the legend takes: one where all entries fit, else columns as wide as the longest.
  const makeRoom = (data, layout) => {
    if (!layout.showlegend) return;
    const entries = data.filter((trace) => trace.name && trace.showlegend !== false).map((trace) => trace.name.length * 7 + 50);
    const room = layout.width * 0.8;
    const inOne = entries.reduce((sum, width) => sum + width, 0) <= room;
    const more = 22 * (inOne ? 1 : Math.ceil(entries.length / Math.max(1, Math.floor(room / Math.max(...entries)))));
    layout.margin.t += more;
    layout.height += more;
  };

  const drawn = new Set();
  const draw = (plot, width) => {
    const { data, layout } = coloured(figures[plot.dataset.chart]);
    drawn.add(plot);
    fit(layout, width);
    makeRoom(data, layout);
    return Plotly.react(plot, data, { ...layout, template: template() }, { displayModeBar: false, responsive: false });
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
    document.querySelectorAll("details").forEach((one) => (one.open = true));
    plots.forEach((plot) => draw(plot, PAPER_WIDTH));
  });
  window.addEventListener("afterprint", () => {
    root.classList.remove("on-paper");
    again();
  });
});
