/* The page: load the model with its progress, then compare, rank and group the sentences at each change. */

"use strict";

const MAX_SENTENCES = 200; // that are ranked and grouped
const MAX_CELLS = 40; // sentences of the heat map
const EXAMPLES = {
  "every day": {
    query: "a musician on stage",
    sentences: [
      "A man plays the guitar.",
      "Someone is making music.",
      "The band gave a concert last night.",
      "A cat sleeps on the sofa.",
      "The kitten is taking a nap on the couch.",
      "Two dogs run through the park.",
      "The recipe needs two eggs and some flour.",
      "She bakes a cake for her birthday.",
      "The stock market fell on Monday.",
      "Share prices dropped at the start of the week.",
    ],
  },
  "help desk": {
    query: "my parcel has not come",
    sentences: [
      "How do I reset my password?",
      "I cannot log in to my account any more.",
      "Where is my order?",
      "The package should have been delivered a week ago.",
      "Can I change the delivery address?",
      "I want my money back.",
      "How long does a refund take?",
      "The app crashes when I open it.",
      "After the update the program does not start.",
      "Do you ship to Canada?",
    ],
  },
  "science": {
    query: "why are there seasons?",
    sentences: [
      "Water boils at 100 degrees Celsius.",
      "Ice melts when it is heated.",
      "The Earth moves around the Sun in one year.",
      "The Moon is about 384,000 kilometers away.",
      "Plants turn sunlight into sugar.",
      "Leaves are green because of chlorophyll.",
      "The heart pumps blood through the body.",
      "Arteries carry blood away from the heart.",
      "Dinosaurs died out 66 million years ago.",
      "Fossils show how life has changed.",
    ],
  },
};

const $ = (id) => document.getElementById(id);
let encoder;
let embeddings = new Map(); // text -> its embedding: a sentence is computed once
let similarities = []; // of the sentences that are shown, (N, N)
let chosen = [0, 1]; // the pair that is shown above the heat map, as indices of sentences
let updates = 0; // a newer update ends an older one that is still computing

// ------------------------------------------------------------------------------------------------- loading

/** Return a function that reads files beside the page, and shows the progress of all of them together. */
function downloads(folder) {
  let [received, expected, isKnown] = [0, 0, true];
  const show = () => {
    if (isKnown && expected > 0) $("progress").value = received / expected;
    else $("progress").removeAttribute("value");
    $("status").textContent = `Loading the model … ${(received / 1e6).toFixed(1)} MB`;
  };
  return async (path) => {
    let response;
    try {
      response = await fetch(`${folder}/${path}`);
    } catch {
      throw new Error(`${path} cannot be loaded: the connection failed`);
    }
    if (!response.ok) throw new Error(`${path} cannot be loaded: the server answers ${response.status}`);
    const size = Number(response.headers.get("Content-Length"));
    isKnown &&= size > 0 && !response.headers.get("Content-Encoding"); // else it is the size of something else
    expected += size;
    const chunks = [];
    try {
      for (const reader = response.body.getReader(); ; show()) {
        const { done, value } = await reader.read();
        if (done) break;
        chunks.push(value);
        received += value.length;
      }
    } catch {
      throw new Error(`${path} is cut short: the connection failed`);
    }
    return new Uint8Array(await new Blob(chunks).arrayBuffer());
  };
}

/** Return a function that reads the files of a folder that was chosen on this device. */
function chosenFiles(files) {
  const byPath = new Map(Array.from(files, (file) => [file.webkitRelativePath.split("/").slice(1).join("/"), file]));
  return async (path) => {
    if (!byPath.has(path)) throw new Error(`${path} is missing in the folder`);
    return new Uint8Array(await byPath.get(path).arrayBuffer());
  };
}

/** Load a model and compute, or say why not. Without a model there are no embeddings, so nothing is shown. */
async function start(readFile) {
  encoder = undefined;
  updates++;
  embeddings = new Map();
  $("main").hidden = $("problem").hidden = true;
  $("loading").hidden = false;
  $("figures").textContent = "";
  try {
    const begin = performance.now();
    let bytes = 0;
    const loaded = await Encoder.load(async (path) => {
      const content = await readFile(path);
      bytes += content.length;
      return content;
    });
    loaded.encode(""); // a forward pass that fails is noticed now
    encoder = loaded;
    const seconds = ((performance.now() - begin) / 1000).toFixed(1);
    $("figures").textContent = `Loaded ${(bytes / 1e6).toFixed(2)} MB in ${seconds} s. `;
    $("figures").append(Object.assign(document.createElement("span"), { id: "speed" }));
    $("main").hidden = false;
    await update();
  } catch (error) {
    showProblem(error);
  } finally {
    $("loading").hidden = true;
  }
}

function showProblem(error) {
  const isFile = location.protocol === "file:" && !$("folder").files.length;
  const lines = isFile
    ? [
        "A page that is opened from a file may not read the files beside it.",
        "Choose the folder “model”, which is beside this page, under “Another model” below. Or run " +
          "“python -m http.server --directory docs/demo” and open the address that it prints.",
      ]
    : [`The model cannot be used: ${error.message}.`, "Load the page again, or export the model again."];
  $("problem").replaceChildren(...lines.map((text) => element("p", {}, text)));
  $("problem").hidden = false;
  document.querySelector("details").open ||= isFile;
}

// ------------------------------------------------------------------------------------------------- at each change

function readSentences() {
  const lines = $("sentences").value.split("\n").map((line) => line.trim());
  return lines.filter((line) => line !== "");
}

/** Compute what is new and show everything again. Between sentences the page stays responsive. */
async function update() {
  if (!encoder) return;
  const thisUpdate = ++updates;
  const all = readSentences();
  const sentences = all.slice(0, MAX_SENTENCES);
  const query = $("query").value.trim();
  const missing = [...new Set([...sentences, query])].filter((text) => text !== "" && !embeddings.has(text));
  let [milliseconds, pause] = [0, performance.now()];
  for (const [n, text] of missing.entries()) {
    const begin = performance.now();
    embeddings.set(text, encoder.encode(text));
    milliseconds += performance.now() - begin;
    if (performance.now() - pause > 30) {
      $("notice").textContent = `computing ${n + 1} of ${missing.length} …`;
      await new Promise((resolve) => setTimeout(resolve));
      if (thisUpdate !== updates) return;
      pause = performance.now();
    }
  }
  if (missing.length) {
    $("speed").textContent = `The last ${missing.length === 1 ? "sentence" : `${missing.length} sentences`} took ${milliseconds.toFixed(0)} ms.`;
  }
  similarities = similarityMatrix(sentences.map((sentence) => embeddings.get(sentence)));
  $("notice").textContent = describeLimits(all, sentences);
  const groups = cluster(similarities, Number($("threshold").value));
  showGroups(sentences, groups);
  showHeatMap(sentences, groups);
  showRanking(sentences, query);
}

/** What of the input is not read. */
function describeLimits(all, sentences) {
  const cut = sentences.filter((sentence) => encoder.tokenizer.encode(sentence).isCut).length;
  return [
    all.length > sentences.length && `The first ${MAX_SENTENCES} of ${all.length} sentences are read.`,
    sentences.length > MAX_CELLS && `The chart shows the first ${MAX_CELLS}.`,
    cut > 0 && `${cut} long ${cut > 1 ? "sentences are" : "sentence is"} cut off after ${encoder.tokenizer.maxLength} tokens.`,
  ].filter(Boolean).join(" ");
}

// ------------------------------------------------------------------------------------------------- showing

/** element("li", {className: "x"}, "text", anotherElement). Text is never read as HTML. */
function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** Cosines are shown between 0 and 1. */
const level = (similarity) => Math.min(Math.max(similarity, 0), 1).toFixed(3);

/** Groups of several sentences get a color each, those of one sentence none. */
function colorize(made, group, groups) {
  const several = groups.filter((one) => one.length > 1);
  if (group.length > 1) {
    made.classList.add("group");
    made.style.setProperty("--hue", (270 + (several.indexOf(group) * 137.5)) % 360);
  }
  return made;
}

function showHeatMap(sentences, groups) {
  const shown = $("by-group").checked ? groups.flat() : [...sentences.keys()];
  const order = shown.slice(0, MAX_CELLS);
  const table = $("heat-map");
  const focused = table.contains(document.activeElement);
  if (!chosen.every((index) => order.includes(index))) chosen = [order[0] ?? 0, order[1] ?? order[0] ?? 0];
  table.style.setProperty("--count", order.length);
  table.classList.toggle("several", order.length > 6); // too many for numbers on a phone
  table.classList.toggle("many", order.length > 20); // and on any screen
  const head = element("tr", {}, element("td", {}));
  head.append(...order.map((index) => element("th", { scope: "col" }, String(index + 1))));
  const rows = order.map((row) => {
    const dot = colorize(element("span", { className: "dot" }), groups.find((group) => group.includes(row)), groups);
    const number = element("span", { className: "number" }, String(row + 1));
    const label = element("th", { scope: "row", title: sentences[row] }, number, dot, sentences[row]);
    return element("tr", {}, label, ...order.map((column) => cell(row, column)));
  });
  table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
  $("compare").hidden = order.length === 0;
  showPair(...chosen, focused);
}

/** One cell of the heat map. It shows its pair when the pointer is over it, or the focus on it. */
function cell(row, column) {
  const value = similarities[row][column];
  const made = element("td", { tabIndex: -1, className: value >= 0.7 ? "strong" : "" }, value.toFixed(2));
  made.style.setProperty("--level", level(value));
  made.dataset.pair = `${row},${column}`;
  return made;
}

/** Show a pair above the heat map and mark its cell, the only one that the tab key reaches. */
function showPair(row, column, focus = false) {
  chosen = [row, column];
  const sentences = readSentences();
  for (const made of $("heat-map").querySelectorAll("td.chosen")) {
    made.classList.remove("chosen");
    made.tabIndex = -1;
  }
  const made = $("heat-map").querySelector(`[data-pair="${row},${column}"]`);
  if (!made) return;
  made.classList.add("chosen");
  made.tabIndex = 0;
  if (focus) made.focus();
  const texts = [row, column].map((index) => element("p", {}, sentences[index]));
  $("pair").replaceChildren(
    element("strong", {}, similarities[row][column].toFixed(2)),
    element("div", {}, ...texts),
  );
}

function showRanking(sentences, query) {
  const found = query === "" ? [] : rank(embeddings.get(query), sentences.map((sentence) => embeddings.get(sentence)));
  const items = found.slice(0, 10).map(({ index, similarity }) => {
    const bar = element("span", { className: "bar" });
    bar.style.setProperty("--level", level(similarity));
    const value = element("span", { className: "value" }, similarity.toFixed(2));
    return element("li", {}, value, element("span", { className: "text" }, sentences[index]), bar);
  });
  $("ranking").replaceChildren(...items);
}

function showGroups(sentences, groups) {
  $("threshold-value").textContent = Number($("threshold").value).toFixed(2);
  const list = (indices) => element("ul", {}, ...indices.map((index) => element("li", {}, sentences[index])));
  const several = groups.filter((group) => group.length > 1);
  const alone = groups.filter((group) => group.length === 1).flat();
  const shown = several.map((group, n) =>
    colorize(element("div", {}, element("h3", {}, `Group ${n + 1}`), list(group)), group, groups),
  );
  if (alone.length) shown.push(element("div", { className: "group alone" }, element("h3", {}, "Alone"), list(alone)));
  $("groups").replaceChildren(...shown);
}

// ------------------------------------------------------------------------------------------------- the user's actions

function showExample({ query, sentences }) {
  $("sentences").value = sentences.join("\n");
  $("query").value = query;
  return update();
}

const pairOf = (target) => target.closest?.("[data-pair]")?.dataset.pair.split(",").map(Number);
for (const event of ["pointerover", "click", "focusin"]) {
  $("heat-map").addEventListener(event, ({ target }) => {
    const pair = pairOf(target);
    if (pair && pair.join() !== chosen.join()) showPair(...pair);
  });
}

$("heat-map").addEventListener("keydown", (event) => {
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  const here = event.target.closest("td");
  if (!step || !here) return;
  event.preventDefault();
  const row = here.parentElement.parentElement.rows[here.parentElement.rowIndex - 1 + step[0]];
  const pair = pairOf(row?.cells[here.cellIndex + step[1]] ?? document.body);
  if (pair) showPair(...pair, true);
});

for (const id of ["sentences", "query", "threshold", "by-group"]) $(id).addEventListener("input", update);
$("folder").addEventListener("change", () => start(chosenFiles($("folder").files)));
for (const [name, example] of Object.entries(EXAMPLES)) {
  $("examples").append(element("button", { type: "button", onclick: () => showExample(example) }, name));
}
showExample(Object.values(EXAMPLES)[0]);
start(downloads("model"));
