// Draws the cards by category, a ring per level.
plotlyLoaded.then(() => {
  const data = JSON.parse(document.getElementById("chart-data").textContent);
  const font = { family: getComputedStyle(document.body).fontFamily, size: 12 };
  Plotly.newPlot(
    "sunburst",
    [{ type: "sunburst", ...data, hovertemplate: "%{label}<br>%{value} cards, %{percentRoot:.1%}<extra></extra>" }],
    { height: 640, margin: { l: 8, r: 8, t: 8, b: 8 }, font },
    { responsive: true, displaylogo: false },
  );
});
