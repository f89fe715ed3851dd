// What the scripts of every page share: unpacking, and plotly, which lies packed in the page.
"use strict";
const unpack = (text) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
};
// The content policy lets the unpacked text run by its hash.
const plotlyLoaded = (async () => {
  const packed = document.getElementById("plotly");
  if (!packed) return;
  const script = document.createElement("script");
  script.textContent = await unpack(packed.textContent.trim()).text();
  document.head.append(script);
})();
