// The transcripts of the page and how they are shown: one dialogue with its verdicts, or one card's dialogues with all supporters
// side by side. All text of models and corpora enters the page through textContent, never as markup.
const transcripts = (() => {
  "use strict";
  const data = JSON.parse(document.getElementById("transcript-data").textContent);
  const FIELDS = ["id", "language", "supporter", "subject", "termination", "endedBy", "exchanges", "simulator", "opening", "unreadable", "risks", "scores", "trial"];
  const rows = data.rows.map((row, index) => ({ index, ...Object.fromEntries(FIELDS.map((field, place) => [field, row[place]])) }));
  const LONG = 420; // signs of a turn that a column has room for
  const LANGUAGES = Object.fromEntries(Object.entries(data.languages).map(([code, [name]]) => [code, name]));
  const labels = data.dimensions.map((about) => about.label.en ?? Object.values(about.label)[0]);
  const riskyCards = new Set(data.risky_cards); // their problems are read behind a content warning, not in the list

  const make = (tag, className, text) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  // Words of a dialogue or a card, in its language.
  const words = (tag, className, text, language) => {
    const node = make(tag, className, text);
    if (language) node.lang = language;
    node.dir = "auto";
    return node;
  };

  // --- bodies: plain, or chunks of gzip in base64 that are unpacked when first needed. Those of a large report lie in a folder
  // beside the page: a browser refuses a page that was opened as a file to read others, so each is a script that hands its chunk over.
  const unpacked = new Map();
  const awaited = new Map();
  globalThis.transcriptChunk = (name, text) => awaited.get(name)?.(text);
  const fetched = (name) =>
    new Promise((resolve, reject) => {
      const script = document.createElement("script");
      const done = (settle) => (value) => {
        awaited.delete(name);
        script.remove();
        settle(value);
      };
      awaited.set(name, done(resolve));
      script.onerror = done(() => reject(new Error(`${data.folder}/${name} is not beside the page`)));
      script.src = `${data.folder}/${name}`;
      document.head.append(script);
    });
  const load = async (number) => unpack(data.split ? await fetched(data.chunks[number]) : data.chunks[number]).json();
  const chunk = (number) => {
    if (!data.packed) return Promise.resolve(data.chunks[number]);
    if (!unpacked.has(number)) {
      unpacked.set(number, load(number));
      unpacked.get(number).catch(() => unpacked.delete(number)); // what is not there yet is looked for again
    }
    return unpacked.get(number);
  };
  const body = async (row) => (await chunk(Math.floor(row.index / data.size)))[row.index % data.size];

  // Scores of a row lie scorer by scorer: every dimension, then their average.
  const score = (row, scorer, place) => row.scores[scorer * (labels.length + 1) + place] ?? null;
  const averages = (row) => data.scorers.map((_, scorer) => score(row, scorer, labels.length));
  const figure = (value) => (value === null ? "–" : value.toFixed(1));

  // --- one dialogue
  const single = async (row) => {
    const [turns, marks] = await body(row);
    const talk = make("div", "talk");
    [talk.lang, talk.dir] = [row.language, data.languages[row.language][1]]; // each text in it finds its own direction
    talk.append(...card(row), ...turns.map(([speaker, text, risk, state], place) => bubble(row, speaker ? "supporter" : "seeker", text, place, risk, state)));
    const columns = make("div", "columns");
    columns.append(talk, verdicts(row, marks));
    return columns;
  };

  const ending = (row) => (row.termination ? `ended: ${row.termination}${row.endedBy ? ` (by the ${row.endedBy})` : ""}` : "");
  const facts = (row) => [LANGUAGES[row.language], row.simulator && `seeker: ${row.simulator}`, `${row.exchanges} exchanges`, ending(row), row.id].filter(Boolean).join(" · ");

  const card = (row) => {
    const found = data.cards[row.subject];
    if (!found) return row.subject ? [make("p", "meta", `${data.person} ${row.subject}`)] : [];
    const box = make("dl", "card");
    for (const [name, value] of [[data.person, row.subject], ...["age", "gender", "occupation", "problem"].map((field) => [field, found[field]])]) {
      if (!value) continue;
      const line = make("div");
      line.append(make("dt", "", name), words("dd", "", value, name === data.person ? "" : row.language));
      box.append(line);
    }
    return [box];
  };

  // What a seeker thought before a line: nobody in the dialogue sees it.
  const inwardly = (row, state) => {
    const box = make("dl", "state");
    for (const [name, value] of state) box.append(make("dt", "", name === "text" ? "thinks" : name), words("dd", "", value, row.language));
    return box;
  };

  const bubble = (row, speaker, text, place, risk, state) => {
    const box = make("div", `bubble ${speaker}${risk ? " risk" : ""}`);
    box.append(make("p", "speaker", `${speaker} · turn ${place}${risk ? ` · risk: ${risk.join(", ")}` : ""}`));
    box.append(...(state ? [inwardly(row, state)] : []), words("p", "text", text || "(empty)", row.language));
    return box;
  };

  const verdicts = (row, marks) => {
    const box = make("div", "verdicts");
    let last = null;
    for (const [scorer, dimension, value, expected, spread, raw, turn, repeat, pair] of marks) {
      if (scorer !== last) box.append(make("h4", "", data.scorers[scorer]));
      last = scorer;
      const about = data.dimensions[dimension];
      const item = make("div", "verdict");
      const line = make("div", "line");
      const name = make("span", "name", labels[dimension]);
      const small = [turn === null ? "" : `turn ${turn}`, pair ?? (repeat ? `repeat ${repeat}` : ""), expected === null ? "" : `expected ${expected.toFixed(2)}`];
      name.append(make("small", "", small.filter(Boolean).join(" · ")));
      line.append(name);
      if (spread) line.append(odds(spread, value, about.scores));
      line.append(value === null ? make("span", "unread", "no value") : make("span", "value", String(value)));
      item.append(line);
      const level = (about.levels[row.language] ?? Object.values(about.levels)[0])?.[about.scores.indexOf(value)];
      if (level) {
        const meaning = make("p", "level", level);
        meaning.lang = about.levels[row.language] ? row.language : "";
        item.append(meaning);
      }
      if (value === null) {
        const answer = words("pre", "", raw || "(empty answer)");
        answer.tabIndex = 0;
        answer.setAttribute("role", "region");
        answer.setAttribute("aria-label", `the judge's answer on ${labels[dimension]}`);
        item.append(answer);
      }
      box.append(item);
    }
    if (!marks.length) box.append(make("p", "meta", "no verdicts"));
    return box;
  };

  const odds = (spread, value, scores) => {
    const box = make("span", "odds");
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", "probabilities " + spread.map((p, i) => `${scores[i]}: ${Math.round(100 * p)} %`).join(", "));
    box.title = spread.map((p, i) => `${scores[i]}: ${(100 * p).toFixed(1)} %`).join("\n");
    spread.forEach((probability, index) => {
      const column = make("span", scores[index] === value ? "chosen" : "");
      const bar = make("i");
      bar.style.height = `${Math.round(26 * probability)}px`;
      column.append(bar, make("b", "", String(scores[index])));
      box.append(column);
    });
    return box;
  };

  // --- one card with every supporter
  const key = (row) => `${row.language} ${row.subject}`;
  const sharing = new Map(); // card → its dialogues, best average first
  for (const row of rows.filter((one) => one.subject)) sharing.set(key(row), [...(sharing.get(key(row)) ?? []), row]);
  const beside = (row) => {
    const best = (one) => averages(one)[0] ?? -1;
    return [...(sharing.get(key(row)) ?? [row])].sort((a, b) => best(b) - best(a) || a.index - b.index);
  };

  // A table: a column per dialogue, a line per turn, then a line per dimension. `open(row)` shows one of the dialogues alone.
  const across = async (row, open) => {
    const those = beside(row);
    const spoken = await Promise.all(those.map(async (one) => (await body(one))[0]));
    const table = make("table", "turns");
    table.style.minWidth = `${80 + 230 * those.length}px`;
    const head = table.createTHead().insertRow();
    const corner = make("th", "", "turn");
    corner.scope = "col";
    head.append(corner);
    const trials = new Set(those.map((one) => one.trial)).size > 1;
    for (const one of those) {
      const cell = make("th");
      cell.scope = "col";
      const button = make("button");
      button.type = "button";
      button.append(make("bdi", "", one.supporter), trials ? `, trial ${one.trial}` : "");
      button.addEventListener("click", () => open(one));
      const marks = [data.averaged && data.scorers.length ? `average ${averages(one).map(figure).join(" / ")}` : "", one.termination === "max_turns" ? "" : ending(one), one.unreadable ? `${one.unreadable} without a value` : ""];
      cell.append(button, make("small", "", marks.filter(Boolean).join(" · ")));
      head.append(cell);
    }
    const part = (name, className = "") => {
      const line = table.tBodies[table.tBodies.length - 1].insertRow();
      line.className = className;
      const title = make("th", "", name);
      title.scope = "row";
      line.append(title);
      return line;
    };
    table.append(make("tbody"));
    for (let place = 0; place < Math.max(...spoken.map((turns) => turns.length)); place++) {
      const said = spoken.map((turns) => turns[place]);
      const speakers = new Set(said.filter(Boolean).map(([speaker]) => speaker));
      const line = part(`${place} ${speakers.size > 1 ? "" : speakers.has(1) ? "supporter" : "seeker"}`, speakers.has(1) ? "reply" : "");
      const alike = those.length > 1 && said.every((turn) => turn && turn[1] === said[0][1]);
      (alike ? said.slice(0, 1) : said).forEach((turn, column) => {
        const cell = line.insertCell();
        if (alike) cell.colSpan = those.length;
        if (!turn) return;
        const risk = (alike ? said : [turn]).find((one) => one[2])?.[2]; // the same words may be a risk turn in one dialogue alone
        if (risk) {
          cell.className = "risk";
          cell.append(make("small", "", `risk: ${risk.join(", ")}`));
        }
        const text = words("p", "", turn[1] || "(empty)", those[column].language);
        if (turn[1].length > LONG && !alike) text.tabIndex = 0; // is scrolled: one long reply must not push all others apart
        cell.append(text);
      });
    }
    data.scorers.forEach((name, scorer) => {
      table.append(make("tbody", "scores"));
      [...labels, ...(data.averaged ? ["Average"] : [])].forEach((label, place) => {
        const line = part(data.scorers.length > 1 ? `${label}, ${name}` : label);
        for (const one of those) line.insertCell().textContent = figure(score(one, scorer, place));
      });
    });
    const scroller = make("div", "scroller");
    scroller.tabIndex = 0;
    scroller.setAttribute("role", "region");
    scroller.setAttribute("aria-label", `${data.person} ${row.subject}, turn by turn`);
    scroller.append(table);
    const box = make("div");
    box.append(...card(row), scroller);
    return box;
  };

  return { data, rows, labels, LANGUAGES, riskyCards, make, body, averages, figure, facts, single, across, beside };
})();
