/* What one does with embeddings: compare, rank and group them. N embeddings of D dimensions each. */

"use strict";

/** The cosine of two embeddings: 1 for the same direction, about 0 for sentences that have nothing in common. */
function cosine(u, v) {
  let [product, uu, vv] = [0, 0, 0];
  for (let d = 0; d < u.length; d++) {
    product += u[d] * v[d];
    uu += u[d] * u[d];
    vv += v[d] * v[d];
  }
  return product / Math.max(Math.sqrt(uu * vv), 1e-12);
}

/** All cosines: N embeddings -> N rows of N numbers */
function similarityMatrix(embeddings) {
  return embeddings.map((u) => embeddings.map((v) => cosine(u, v)));
}

/** The indices of the embeddings, the most similar to the query first, with their cosines: [{index, similarity}] */
function rank(query, embeddings) {
  const found = embeddings.map((embedding, index) => ({ index, similarity: cosine(query, embedding) }));
  return found.sort((a, b) => b.similarity - a.similarity);
}

/** Groups of sentences that are similar, by average linkage: the two groups with the largest mean similarity are
    merged, again and again, while it is at least `threshold`. (N, N) -> lists of indices, in the order of their first */
function cluster(similarities, threshold) {
  const groups = similarities.map((_, index) => [index]);
  const between = similarities.map((row) => [...row]); // mean similarity of two groups
  const alive = new Set(groups.keys());
  for (;;) {
    let best = { mean: -Infinity };
    for (const a of alive) {
      for (const b of alive) {
        if (a < b && between[a][b] > best.mean) best = { a, b, mean: between[a][b] };
      }
    }
    if (!(best.mean >= threshold)) break;
    const { a, b } = best;
    const [sizeA, sizeB] = [groups[a].length, groups[b].length];
    for (const c of alive) {
      between[a][c] = between[c][a] = (sizeA * between[a][c] + sizeB * between[b][c]) / (sizeA + sizeB);
    }
    groups[a] = [...groups[a], ...groups[b]];
    alive.delete(b);
  }
  return [...alive].map((a) => groups[a].sort((m, n) => m - n));
}

if (typeof module !== "undefined") module.exports = { cosine, similarityMatrix, rank, cluster }; // for Node.js
