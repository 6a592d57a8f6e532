// Translates text files: reads, splits and puts them together again.

const LARGEST_FILE = 5_000_000; // bytes
const BLOCK = 60_000; // characters that are split into sentences at once
const CHUNK = 32; // sentences of one request

/** Returns a file's text; throws an `Error` with a message for the user. */
export async function readText(file) {
  if (file.size === 0) throw new Error(`“${file.name}” is empty.`);
  if (file.size > LARGEST_FILE) {
    const size = (file.size / 1e6).toFixed(1);
    throw new Error(
      `“${file.name}” is too large: ${size} MB. ` +
        `At most ${LARGEST_FILE / 1e6} MB are translated at once.`,
    );
  }
  const bytes = new Uint8Array(await file.arrayBuffer());
  const text = decode(bytes);
  if (text === null || text.includes("\0")) {
    throw new Error(
      `“${file.name}” is not a text file. Save it as plain text in UTF-8.`,
    );
  }
  if (!text.trim()) throw new Error(`“${file.name}” has no words.`);
  return text;
}

function decode(bytes) {
  const mark = (bytes[0] << 8) | bytes[1];
  const encodings = { 0xfffe: "utf-16le", 0xfeff: "utf-16be" };
  try {
    const decoder = new TextDecoder(encodings[mark] ?? "utf-8", {
      fatal: true,
    });
    return decoder.decode(bytes);
  } catch {
    return null;
  }
}

/** Returns the name of the translated file, such as `letter.de.txt`. */
export function translatedName(name, language) {
  return `${name.replace(/\.[^.]+$/, "")}.${language || "translated"}.txt`;
}

/** Cuts a text where no sentence is cut: at blank lines, else at line ends. */
export function blocks(text, size = BLOCK) {
  const result = [];
  let rest = text;
  while (rest.length > size) {
    const end = blockEnd(rest, size);
    result.push(rest.slice(0, end));
    rest = rest.slice(end);
  }
  return [...result, rest];
}

function blockEnd(text, size) {
  const head = text.slice(0, size);
  for (const separator of ["\n\n", "\r\n\r\n", "\n", " "]) {
    const start = head.lastIndexOf(separator);
    if (start >= 0) return start + separator.length;
  }
  return size;
}

/** Puts sentences between their separators. */
export function join(separators, sentences) {
  return separators
    .map((separator, i) => separator + (sentences[i] ?? ""))
    .join("");
}

const WIDE = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\u3000-\u303f\uff00-\uff60]/u;

/**
 * Returns the separators of translations. There is a space where sentences of
 * Chinese or Japanese, which have none between them, become another script.
 */
export function separatorsOf({ sentences, separators }, translations) {
  // The last letter or digit, and the marks behind it.
  const endOf = (text) => /[\p{L}\p{N}][^\p{L}\p{N}]*$/u.exec(text ?? "");
  const isWide = (text) => WIDE.test(endOf(text)?.[0] ?? "");
  return separators.map((separator, i) => {
    const isBetween = i > 0 && i < sentences.length && !separator;
    const wasWide = isBetween && isWide(sentences[i - 1]);
    return wasWide && !isWide(translations[i - 1]) ? " " : separator;
  });
}

/**
 * Translates a text of any length.
 *
 * `split(text)` returns its `sentences` and `separators`; `translate(list)`
 * returns `{translations, truncated}`. `onProgress(done, total)` counts
 * sentences. Returns `{text, cut}`: the translation and the number of
 * sentences that were too long.
 */
export async function translateText(text, { split, translate, onProgress }) {
  const parts = [];
  for (const block of blocks(text)) parts.push(await split(block));
  const total = parts.reduce((sum, part) => sum + part.sentences.length, 0);
  let done = 0;
  let cut = 0;
  const result = [];
  onProgress(done, total);
  for (const { sentences, separators } of parts) {
    const translations = [];
    for (let i = 0; i < sentences.length; i += CHUNK) {
      const chunk = sentences.slice(i, i + CHUNK);
      const answer = await translate(chunk);
      translations.push(...answer.translations);
      cut += answer.truncated.filter(Boolean).length;
      done += chunk.length;
      onProgress(done, total);
    }
    const parts = { sentences, separators };
    result.push(join(separatorsOf(parts, translations), translations));
  }
  return { text: result.join(""), cut };
}
