// Joins SentencePiece's pieces to words, and their weights.

const START = "▁"; // begins a piece that begins a word
const END = "</s>";

/** Returns the text of pieces; bytes `<0xE2>` become characters. */
function textOf(pieces) {
  const encoder = new TextEncoder();
  const bytes = pieces.flatMap((piece) => {
    const byte = /^<0x([0-9A-F]{2})>$/.exec(piece);
    if (byte) return [parseInt(byte[1], 16)];
    return [...encoder.encode(piece.replaceAll(START, " "))];
  });
  return new TextDecoder().decode(new Uint8Array(bytes)).trim();
}

/** Returns whether only punctuation follows until the next word. */
function isTrailing(pieces, index) {
  for (const piece of pieces.slice(index)) {
    if (piece.startsWith(START) || piece === END) break;
    if (!/^\p{P}+$/u.test(piece)) return false;
  }
  return true;
}

/**
 * Groups pieces into words, or returns a group for each piece.
 *
 * A group has its `text`, the `indices` of its pieces, and whether it `starts`
 * a word and is the `end` piece. Punctuation after a word is a group.
 */
export function groupPieces(pieces, byPiece) {
  const groups = [];
  pieces.forEach((piece, index) => {
    const end = piece === END;
    const starts = piece.startsWith(START) || end || index === 0;
    const isSuffix = isTrailing(pieces, index) && groups.at(-1)?.text;
    if (byPiece || starts || isSuffix) {
      groups.push({ pieces: [], indices: [], starts, end });
    }
    const group = groups.at(-1);
    group.pieces.push(piece);
    group.indices.push(index);
    group.text = end ? "end" : textOf(group.pieces);
  });
  for (const group of groups) group.text ||= "␣";
  return groups;
}

/** Returns the ranges of groups in the text they were made of, or nulls. */
export function locate(groups, text) {
  let from = 0;
  return groups.map((group) => {
    const start = group.end ? -1 : text.indexOf(group.text, from);
    if (start < 0) return null;
    from = start + group.text.length;
    return { start, end: from };
  });
}

/** Returns the mean of matrices of one shape. */
export function mean(matrices) {
  return matrices[0].map((row, t) =>
    row.map((_, s) => {
      const sum = matrices.reduce((total, matrix) => total + matrix[t][s], 0);
      return sum / matrices.length;
    }),
  );
}

const SMOOTHING = 0.02; // as in `inference/alignment.py`

/** Returns the matrix `[target][source]` of groups, 1 where they belong
 * together, from the mean attention of pieces: see `inference/alignment.py`.
 */
export function alignGroups(matrix, target, source) {
  const rows = target.flatMap(({ end, indices }) => (end ? [] : indices));
  const total = (s, indices) =>
    indices.reduce((sum, t) => sum + matrix[t][s], 0);
  const isText = ({ end, text }) => !end && !/^>>.*<<$/.test(text);
  const columns = source.flatMap((group) =>
    isText(group) ? group.indices : [],
  );
  const scales = matrix[0].map((_, s) => total(s, rows) / rows.length);
  return target.map(({ end, indices }) => {
    const weights = columns.map(
      (s) => total(s, indices) / (scales[s] + SMOOTHING),
    );
    const best = columns[weights.indexOf(Math.max(...weights))];
    return source.map((group) =>
      Number(!end && group.indices.includes(best)),
    );
  });
}

/** Returns the weights `[target][source]` of groups. */
export function groupWeights(matrix, target, source) {
  return target.map((t) =>
    source.map((s) => {
      let sum = 0;
      for (const i of t.indices) for (const j of s.indices) sum += matrix[i][j];
      return sum / t.indices.length;
    }),
  );
}
