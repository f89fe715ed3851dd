// The transcript browser: filters, list, keys, and the address that leads back to what is shown.
(() => {
  "use strict";
  const { data, rows, labels, LANGUAGES, riskyCards, make, body, averages, figure, facts, single, across, beside } = transcripts;
  const EXTRA = 6; // rows drawn above and below what is in sight
  const byId = (id) => document.getElementById(id);
  const browser = byId("browser");
  const list = byId("list");
  const spacer = byId("spacer");
  const detail = byId("detail");
  let height = 84; // of a list row in px: the longest name decides, see `measure`
  let shown = rows; // what the filters leave
  let selected = 0; // a place in `shown`
  let comparing = false; // whether the chosen dialogue's card is shown across supporters

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
  const dimension = byId("filter-dimension");
  const bounds = [byId("filter-low"), byId("filter-high")];
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
  const inRange = () => {
    if (dimension.value === "") {
      bounds.forEach((box) => (box.disabled = true));
      return () => true;
    }
    bounds.forEach((box) => (box.disabled = false));
    const place = Number(dimension.value);
    const [low, high] = bounds.map((box) => (box.value === "" ? null : Number(box.value)));
    return ({ scores }) => (scores[place] ?? null) !== null && (low === null || scores[place] >= low) && (high === null || scores[place] <= high);
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
    spacer.style.height = `${shown.length * height}px`;
    select(Math.max(0, shown.indexOf(kept)));
  };

  // --- the address: a transcript, whether its card is compared, and the filters that lead to it
  const controls = [...filters.map((field) => [field, byId(`filter-${field}`)]), ["dimension", dimension], ["low", bounds[0]], ["high", bounds[1]], ["text", text]];
  const remember = () => {
    const given = new URLSearchParams(controls.filter(([, box]) => box.value !== "").map(([name, box]) => [name, box.value]));
    if (shown[selected]) given.set("transcript", shown[selected].id);
    if (comparing) given.set("view", "card");
    history.replaceState(null, "", `#${given}`);
  };
  const recall = async () => {
    const given = new URLSearchParams(location.hash.slice(1));
    if (!["transcript", "view", ...controls.map(([name]) => name)].some((name) => given.has(name))) return false;
    for (const [name, box] of controls) {
      const value = given.get(name) ?? "";
      box.value = box.options && ![...box.options].some((option) => option.value === value) ? "" : value;
    }
    comparing = given.get("view") === "card";
    await apply();
    const place = shown.findIndex((row) => row.id === given.get("transcript"));
    if (place >= 0) select(place);
    byId("transcripts").scrollIntoView();
    return true;
  };
  for (const [, box] of controls) box.addEventListener("change", async () => { await apply(); remember(); });
  window.addEventListener("hashchange", recall);

  // --- list: only the rows in sight exist, all of them as high as the one with the longest name
  const listed = (row) => {
    const node = make("div", "row");
    const marks = [row.language, row.termination === "max_turns" ? "" : row.termination, row.unreadable ? `${row.unreadable} without a value` : ""];
    const line = make("p", "marks");
    line.append(make("span", "tag", marks.filter(Boolean).join(" · ")));
    if (data.averaged && data.scorers.length) {
      const found = make("span", "score", averages(row).map(figure).join(" / "));
      found.title = data.scorers.map((scorer) => `average by ${scorer}`).join(" / ");
      line.append(found);
    }
    const opening = make("p", "opening", row.risks.length ? `content warning: ${row.risks.join(", ")}` : row.opening);
    opening.lang = row.risks.length ? "en" : row.language;
    opening.dir = "auto";
    const who = make("p", "who");
    who.append(make("bdi", "", row.supporter));
    who.title = row.supporter;
    node.append(who, line, opening);
    return node;
  };
  const measure = () => {
    const names = [...new Map(rows.map((row) => [row.supporter, row])).values()];
    const nodes = names.sort((a, b) => b.supporter.length - a.supporter.length).slice(0, 8).map(listed);
    spacer.replaceChildren(...nodes);
    height = Math.max(...nodes.map((node) => Math.ceil(node.getBoundingClientRect().height)));
    spacer.style.height = `${shown.length * height}px`;
  };
  const draw = () => {
    const first = Math.max(0, Math.floor(list.scrollTop / height) - EXTRA);
    const last = Math.min(shown.length, Math.ceil((list.scrollTop + list.clientHeight) / height) + EXTRA);
    const nodes = [];
    for (let place = first; place < last; place++) {
      const node = listed(shown[place]);
      node.id = `row-${shown[place].index}`;
      node.setAttribute("role", "option");
      node.setAttribute("aria-selected", String(place === selected));
      node.setAttribute("aria-posinset", String(place + 1));
      node.setAttribute("aria-setsize", String(shown.length));
      Object.assign(node.style, { top: `${place * height}px`, height: `${height}px` });
      node.addEventListener("click", () => { select(place); remember(); });
      nodes.push(node);
    }
    spacer.replaceChildren(...nodes);
    if (shown[selected] && selected >= first && selected < last) list.setAttribute("aria-activedescendant", `row-${shown[selected].index}`);
    else list.removeAttribute("aria-activedescendant");
  };
  list.addEventListener("scroll", () => requestAnimationFrame(draw), { passive: true });
  let width = 0;
  new ResizeObserver(() => {
    if (!list.clientWidth) return; // not in sight while a card is compared
    if (list.clientWidth !== width) measure();
    width = list.clientWidth;
    draw();
  }).observe(list);

  const select = (place) => {
    selected = Math.max(0, Math.min(place, shown.length - 1));
    const top = selected * height;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + height > list.scrollTop + list.clientHeight) list.scrollTop = top + height - list.clientHeight;
    draw();
    show(shown[selected]);
  };
  // The next or previous dialogue; where cards are compared, the first one on the next or previous card.
  const step = (by) => {
    let place = selected + by;
    const same = (one) => shown[one] && beside(shown[one])[0] === beside(shown[selected])[0];
    while (comparing && Math.abs(by) === 1 && same(place)) place += by;
    if (!comparing || shown[place]) select(place);
    remember();
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target;
    const typing = target.matches("input, select, textarea");
    if (typing) {
      if (event.key === "Escape") target.blur();
      return;
    }
    const page = Math.max(1, Math.floor(list.clientHeight / height) - 1);
    const letters = { j: 1, k: -1 };
    const others = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -rows.length, End: rows.length };
    const by = letters[event.key] ?? (target === list ? others[event.key] : undefined);
    if (by !== undefined) {
      event.preventDefault();
      step(by);
    } else if (event.key === "/") {
      event.preventDefault();
      text.focus();
    }
  });

  // --- detail
  const view = (now) => {
    comparing = now;
    browser.classList.toggle("comparing", now); // before the list is scrolled: what is hidden does not scroll
    select(selected);
    remember();
    detail.focus();
  };
  const button = (name, action) => {
    const node = make("button", "", name);
    node.type = "button";
    node.addEventListener("click", action);
    return node;
  };
  const show = async (row) => {
    comparing = comparing && Boolean(row?.subject);
    browser.classList.toggle("comparing", comparing);
    if (!row) {
      detail.replaceChildren(make("p", "meta", "No dialogue passes these filters."));
      return;
    }
    const now = comparing;
    const those = beside(row);
    const one = async (other) => {
      if (!shown.includes(other)) {
        for (const [, box] of controls) box.value = ""; // the filters leave it out
        await apply();
      }
      selected = shown.indexOf(other);
      view(false);
    };
    let content;
    try {
      content = await (now ? across(row, one) : single(row));
    } catch (error) {
      if (!data.packed) throw error;
      const why = data.split ? `The transcripts are not in the folder ${data.folder} beside this page: put it back there` : "This browser cannot unpack the transcripts";
      detail.replaceChildren(make("p", "meta", `${why}; report.json holds them.`));
      return;
    }
    if (shown[selected] !== row || comparing !== now) return;
    const title = make("h3");
    if (now) title.append(`${row.subject}, ${LANGUAGES[row.language]}: ${those.length} dialogues side by side`);
    else title.append(make("bdi", "", row.supporter));
    const ways = make("p", "ways screen");
    if (now) ways.append(button("Back to one transcript", () => view(false)), button(`Previous ${data.person}`, () => step(-1)), button(`Next ${data.person}`, () => step(1)));
    else if (those.length > 1) ways.append(button(`Compare all ${those.length} dialogues on this ${data.person}`, () => view(true)));
    const head = [title, ...(now ? [] : [make("p", "meta", facts(row))]), ways];
    const risks = [...new Set((now ? those : [row]).flatMap((other) => other.risks))];
    const warned = (risks.length || riskyCards.has(row.subject)) && !(now ? those : [row]).every((other) => passed.has(other.id));
    const reveal = () => {
      for (const other of now ? those : [row]) passed.add(other.id);
      detail.replaceChildren(...head, content);
      detail.focus();
    };
    detail.replaceChildren(...head, warned ? warning(risks, now, reveal) : content);
    detail.scrollTop = 0;
  };

  // A dialogue with risk turns, or with a card or profile that speaks of such things, is shown once the reader has asked for it; what was asked for stays open.
  const passed = new Set();
  const warning = (risks, several, reveal) => {
    const box = make("div", "banner warning");
    const about = risks.length ? `${several ? "these dialogues speak" : "this dialogue speaks"} of ${risks.join(", ")}` : `the ${data.person} speaks of danger to someone`;
    box.append(make("p", "", `Content warning: ${about}.`), button(several ? "Show these transcripts" : "Show this transcript", reveal));
    return box;
  };

  // Paper: the whole report has the chosen transcript in it; the button prints that transcript alone.
  byId("print").addEventListener("click", () => {
    document.documentElement.classList.add("only-transcript");
    window.print();
  });
  window.addEventListener("afterprint", () => document.documentElement.classList.remove("only-transcript"));

  measure();
  recall().then((found) => found || apply());
})();
