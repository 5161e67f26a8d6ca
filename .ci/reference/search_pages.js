// The search of all pages: a section is found if it has every word of the query, in its heading or in its text.
const root = document.currentScript.dataset.root;
const box = document.querySelector("input[type=search]");
const found = document.querySelector("#found");
let sections = null; // [address, page, heading, text], from sections.js

function load() {
  if (sections) return;
  sections = [];
  const script = document.createElement("script");
  script.src = root + "sections.js";
  script.onload = show;
  document.head.append(script);
}

function score([, , heading, text], words) {
  const [title, body] = [heading.toLowerCase(), text.toLowerCase()];
  let sum = title === words.join(" ") ? 100 : 0;
  for (const word of words) {
    const times = body.split(word).length - 1;
    if (!title.includes(word) && !times) return 0;
    sum += (title.includes(word) ? 20 : 0) + Math.min(times, 5);
  }
  return sum;
}

function excerpt(text, word) {
  const start = Math.max(0, text.toLowerCase().indexOf(word) - 60);
  return text.slice(start, start + 200);
}

function show() {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  const scored = words.length ? sections.map((section) => [score(section, words), section]) : [];
  const best = scored.filter(([sum]) => sum).sort((a, b) => b[0] - a[0]).slice(0, 20);
  found.hidden = !words.length;
  found.replaceChildren(...best.map(([, [address, page, heading, text]]) => {
    const link = document.createElement("a");
    link.href = root + address;
    link.textContent = page === heading ? heading : `${heading} (${page})`;
    const entry = document.createElement("p");
    entry.append(link, document.createElement("br"), excerpt(text, words[0]));
    return entry;
  }));
  if (!best.length) found.textContent = "Nothing has all of these words.";
}

box.addEventListener("focus", load);
box.addEventListener("input", () => { load(); show(); });
found.addEventListener("click", (event) => {
  if (event.target.tagName === "A") { box.value = ""; show(); } // the address may be on this page
});
