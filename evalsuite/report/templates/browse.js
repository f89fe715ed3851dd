// The transcript browser. All text of models and corpora enters the page through textContent, never as markup.
(() => {
  "use strict";
  const ROW = 64; // height of a list row in px, as in report.css
  const EXTRA = 6; // rows drawn above and below what is in sight
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("transcript-data").textContent);
  const rows = data.rows.map(
    ([id, language, supporter, subject, termination, endedBy, exchanges, simulator, opening, unreadable, risks, scores], index) =>
      ({ index, id, language, supporter, subject, termination, endedBy, exchanges, simulator, opening, unreadable, risks, scores })
  );
  const list = byId("list");
  const spacer = byId("spacer");
  const detail = byId("detail");
  const LANGUAGES = { en: "English", zh: "中文" };
  let shown = rows; // what the filters leave
  let selected = 0; // a place in `shown`

  const make = (tag, className, text) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };

  // --- bodies: plain, or chunks of gzip in base64 that are unpacked when first needed
  const unpacked = new Map();
  const chunk = (number) => {
    if (!data.packed) return Promise.resolve(data.chunks[number]);
    if (!unpacked.has(number)) {
      unpacked.set(number, unpack(data.chunks[number]).json());
    }
    return unpacked.get(number);
  };
  const body = async (row) => (await chunk(Math.floor(row.index / data.size)))[row.index % data.size];

  let haystack = null; // lower-case text of every dialogue, built at the first search
  const searchable = () => {
    haystack ??= Promise.all(
      rows.map(async (row) => {
        const [turns] = await body(row);
        const card = Object.values(data.cards[row.subject] ?? {});
        return [row.id, row.supporter, row.subject, ...card, ...turns.flatMap(([, words, , state]) => [words, ...(state ?? []).map((pair) => pair[1])])].join("\n").toLowerCase();
      })
    );
    return haystack;
  };

  // --- filters
  byId("person").textContent = data.person === "card" ? "Card" : "Profile";
  const filters = ["supporter", "language", "subject", "termination", "risk"];
  const valuesOf = (row, field) => (field === "risk" ? row.risks : [row[field]]);
  const riskyCards = new Set(data.risky_cards); // their problems are read behind a content warning, not in the list
  for (const field of filters) {
    const select = byId(`filter-${field}`);
    for (const value of [...new Set(rows.flatMap((row) => valuesOf(row, field)))].filter(Boolean).sort()) {
      const problem = field === "subject" && !riskyCards.has(value) ? data.cards[value]?.problem : "";
      const text = field === "language" ? LANGUAGES[value] : problem ? `${value}: ${problem.slice(0, 48)}` : value;
      const option = make("option", "", text);
      option.value = value;
      select.append(option);
    }
  }
  // Scores lie scorer by scorer: every dimension, then their average.
  const dimension = byId("filter-dimension");
  const bounds = [byId("filter-low"), byId("filter-high")];
  const labels = data.dimensions.map((about) => about.label.en ?? Object.values(about.label)[0]);
  data.scorers.forEach((scorer, number) =>
    [...labels, ...(data.averaged ? ["Average"] : [])].forEach((label, place) => {
      const option = make("option", "", data.scorers.length > 1 ? `${label} · ${scorer}` : label);
      option.value = String(number * (labels.length + 1) + place);
      dimension.append(option);
    })
  );
  bounds.forEach((box, place) => {
    const end = place ? data.scores[data.scores.length - 1] : data.scores[0];
    box.min = data.scores[0];
    box.max = data.scores[data.scores.length - 1];
    box.placeholder = String(end);
    box.addEventListener("input", () => apply());
  });
  const average = (row) => {
    const found = data.scorers.map((_, number) => row.scores[number * (labels.length + 1) + labels.length]);
    const figures = make("span", "score", found.map((score) => (score === null ? "–" : score.toFixed(1))).join(" / "));
    figures.title = data.scorers.map((scorer) => `average by ${scorer}`).join(" / ");
    return figures;
  };
  const inRange = () => {
    if (dimension.value === "") {
      bounds.forEach((box) => (box.disabled = true));
      return () => true;
    }
    bounds.forEach((box) => (box.disabled = false));
    const place = Number(dimension.value);
    const [low, high] = bounds.map((box) => (box.value === "" ? null : Number(box.value)));
    return ({ scores }) => scores[place] !== null && (low === null || scores[place] >= low) && (high === null || scores[place] <= high);
  };

  const text = byId("filter-text");
  let waiting = 0;
  text.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => apply(), 150);
  });

  let round = 0; // a slow search must not overwrite a later one
  const apply = async () => {
    const own = ++round;
    const chosen = filters.map((field) => [field, byId(`filter-${field}`).value]).filter(([, value]) => value);
    const fits = inRange();
    const words = text.value.trim().toLowerCase();
    const texts = words ? await searchable() : null;
    if (own !== round) return;
    const kept = shown[selected];
    shown = rows.filter((row) => chosen.every(([field, value]) => valuesOf(row, field).includes(value)) && fits(row) && (!texts || texts[row.index].includes(words)));
    byId("count").textContent = `${shown.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} dialogues`;
    spacer.style.height = `${shown.length * ROW}px`;
    select(Math.max(0, shown.indexOf(kept)));
  };

  // --- the address: a transcript and the filters that lead to it
  const controls = [...filters.map((field) => [field, byId(`filter-${field}`)]), ["dimension", dimension], ["low", bounds[0]], ["high", bounds[1]], ["text", text]];
  const remember = () => {
    const given = new URLSearchParams(controls.filter(([, box]) => box.value !== "").map(([name, box]) => [name, box.value]));
    if (shown[selected]) given.set("transcript", shown[selected].id);
    history.replaceState(null, "", `#${given}`);
  };
  const recall = async () => {
    const given = new URLSearchParams(location.hash.slice(1));
    if (!["transcript", ...controls.map(([name]) => name)].some((name) => given.has(name))) return false;
    for (const [name, box] of controls) {
      const value = given.get(name) ?? "";
      box.value = box.options && ![...box.options].some((option) => option.value === value) ? "" : value;
    }
    await apply();
    const place = shown.findIndex((row) => row.id === given.get("transcript"));
    if (place >= 0) select(place);
    byId("transcripts").scrollIntoView();
    return true;
  };
  for (const [, box] of controls) box.addEventListener("change", async () => { await apply(); remember(); });
  window.addEventListener("hashchange", recall);

  // --- list: only the rows in sight exist
  const draw = () => {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - EXTRA);
    const last = Math.min(shown.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + EXTRA);
    const nodes = [];
    for (let place = first; place < last; place++) {
      const row = shown[place];
      const node = make("div", "row");
      node.id = `row-${row.index}`;
      node.setAttribute("role", "option");
      node.setAttribute("aria-selected", String(place === selected));
      node.setAttribute("aria-posinset", String(place + 1));
      node.setAttribute("aria-setsize", String(shown.length));
      node.style.top = `${place * ROW}px`;
      const who = make("p", "who");
      const marks = [row.language, row.termination === "max_turns" ? "" : row.termination, row.unreadable ? `${row.unreadable} without a value` : ""];
      who.append(make("bdi", "", row.supporter), make("span", "tag", marks.filter(Boolean).join(" · ")));
      if (data.averaged && data.scorers.length) who.append(average(row));
      const opening = make("p", "opening", row.risks.length ? `content warning: ${row.risks.join(", ")}` : row.opening);
      opening.lang = row.risks.length ? "en" : row.language;
      opening.dir = "auto";
      node.append(who, opening);
      node.addEventListener("click", () => { select(place); remember(); });
      nodes.push(node);
    }
    spacer.replaceChildren(...nodes);
    if (shown[selected]) list.setAttribute("aria-activedescendant", `row-${shown[selected].index}`);
    else list.removeAttribute("aria-activedescendant");
  };
  list.addEventListener("scroll", () => requestAnimationFrame(draw), { passive: true });
  new ResizeObserver(draw).observe(list);

  const select = (place) => {
    selected = Math.max(0, Math.min(place, shown.length - 1));
    const top = selected * ROW;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
    draw();
    show(shown[selected]);
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target;
    const typing = target.matches("input, select, textarea");
    if (typing) {
      if (event.key === "Escape") target.blur();
      return;
    }
    const page = Math.max(1, Math.floor(list.clientHeight / ROW) - 1);
    const letters = { j: 1, k: -1 };
    const others = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const step = letters[event.key] ?? (target === list ? others[event.key] : undefined);
    if (step !== undefined) {
      event.preventDefault();
      select(step === -Infinity ? 0 : step === Infinity ? shown.length - 1 : selected + step);
      remember();
    } else if (event.key === "/") {
      event.preventDefault();
      text.focus();
    }
  });

  // --- detail
  const show = async (row) => {
    if (!row) {
      detail.replaceChildren(make("p", "meta", "No dialogue passes these filters."));
      return;
    }
    let turns, marks;
    try {
      [turns, marks] = await body(row);
    } catch {
      detail.replaceChildren(make("p", "meta", "This browser cannot unpack the transcripts; report.json holds them."));
      return;
    }
    if (shown[selected] !== row) return;
    const title = make("h3");
    title.append(make("bdi", "", row.supporter));
    const ended = row.termination ? `ended: ${row.termination}${row.endedBy ? ` (by the ${row.endedBy})` : ""}` : "";
    const facts = [LANGUAGES[row.language], row.simulator && `seeker: ${row.simulator}`, `${row.exchanges} exchanges`, ended, row.id];
    const open = () => {
      const talk = make("div", "talk");
      talk.append(...card(row), ...turns.map(([speaker, words, risk, state], place) => bubble(row, speaker ? "supporter" : "seeker", words, place, risk, state)));
      const columns = make("div", "columns");
      columns.append(talk, verdicts(row, marks));
      return columns;
    };
    const head = [title, make("p", "meta", facts.filter(Boolean).join(" · "))];
    detail.replaceChildren(...head, (row.risks.length || riskyCards.has(row.subject)) && !passed.has(row.id) ? warning(row, () => detail.replaceChildren(...head, open())) : open());
    detail.scrollTop = 0;
  };

  // A dialogue with risk turns, or with a card or profile that speaks of such things, is shown once the reader has asked for it; what was asked for stays open.
  const passed = new Set();
  const warning = (row, reveal) => {
    const box = make("div", "banner warning");
    const button = make("button", "", "Show this transcript");
    button.type = "button";
    button.addEventListener("click", () => {
      passed.add(row.id);
      reveal();
      detail.focus();
    });
    box.append(make("p", "", `Content warning: ${row.risks.length ? `this dialogue speaks of ${row.risks.join(", ")}` : `the ${data.person} speaks of danger to someone`}.`), button);
    return box;
  };

  const card = (row) => {
    const found = data.cards[row.subject];
    if (!found) return row.subject ? [make("p", "meta", `${data.person} ${row.subject}`)] : [];
    const box = make("dl", "card");
    for (const [name, value] of [[data.person, row.subject], ...["age", "gender", "occupation", "problem"].map((field) => [field, found[field]])]) {
      if (!value) continue;
      const line = make("div");
      const words = make("dd", "", value);
      words.dir = "auto";
      if (name !== data.person) words.lang = row.language;
      line.append(make("dt", "", name), words);
      box.append(line);
    }
    return [box];
  };

  // What a seeker thought before a line: nobody in the dialogue sees it.
  const inwardly = (row, state) => {
    const box = make("dl", "state");
    for (const [name, value] of state) {
      const words = make("dd", "", value);
      words.lang = row.language;
      words.dir = "auto";
      box.append(make("dt", "", name === "text" ? "thinks" : name), words);
    }
    return box;
  };

  const bubble = (row, speaker, words, place, risk, state) => {
    const box = make("div", `bubble ${speaker}${risk ? " risk" : ""}`);
    const content = make("p", "text", words || "(empty)");
    content.lang = row.language;
    content.dir = "auto";
    box.append(make("p", "speaker", `${speaker} · turn ${place}${risk ? ` · risk: ${risk.join(", ")}` : ""}`), ...(state ? [inwardly(row, state)] : []), content);
    return box;
  };

  const verdicts = (row, marks) => {
    const box = make("div", "verdicts");
    let last = null;
    for (const [scorer, dimension, value, expected, spread, raw, turn, repeat] of marks) {
      if (scorer !== last) box.append(make("h4", "", data.scorers[scorer]));
      last = scorer;
      const about = data.dimensions[dimension];
      const item = make("div", "verdict");
      const line = make("div", "line");
      const name = make("span", "name", about.label.en ?? Object.values(about.label)[0]);
      const small = [turn === null ? "" : `turn ${turn}`, repeat ? `repeat ${repeat}` : "", expected === null ? "" : `expected ${expected.toFixed(2)}`];
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
        const answer = make("pre", "", raw || "(empty answer)");
        answer.dir = "auto";
        answer.tabIndex = 0;
        answer.setAttribute("aria-label", "the judge's answer");
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

  // Paper: the whole report has the chosen transcript in it; the button prints that transcript alone.
  byId("print").addEventListener("click", () => {
    document.documentElement.classList.add("only-transcript");
    window.print();
  });
  window.addEventListener("afterprint", () => document.documentElement.classList.remove("only-transcript"));

  recall().then((found) => found || apply());
})();
