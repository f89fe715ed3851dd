// Draws what card_figure.py describes.
plotlyLoaded.then(() => {
  const data = JSON.parse(document.getElementById("chart-data").textContent);
  const font = { family: getComputedStyle(document.body).fontFamily, size: 12 };
  const options = { responsive: true, displaylogo: false };
  Plotly.newPlot(
    "sunburst",
    [{ type: "sunburst", ...data.sunburst, hovertemplate: "%{label}<br>%{value} cards, %{percentRoot:.1%}<extra></extra>" }],
    { height: 640, margin: { l: 8, r: 8, t: 8, b: 8 }, font },
    options,
  );
  const rows = data.bars.length ? data.bars[0].y.length : 0;
  // One name may stand at two levels, so lines are numbered and the names are their tick labels.
  const places = [...Array(rows).keys()];
  Plotly.newPlot(
    "bars",
    data.bars.map((one) => ({ type: "bar", orientation: "h", ...one, y: places, hovertemplate: "%{x} cards<extra>%{fullData.name}</extra>" })),
    {
      barmode: "stack",
      height: 90 + 22 * rows,
      margin: { l: 8, r: 16, t: 40, b: 40 },
      font,
      legend: { orientation: "h", x: 0, y: 1, yref: "container", yanchor: "top" },
      xaxis: { title: { text: "cards" } },
      yaxis: { autorange: "reversed", automargin: true, tickvals: places, ticktext: data.bars.length ? data.bars[0].y : [] },
    },
    options,
  );
});
