/**
 * Counts tokens in a thread of its own: loading an encoding takes 0.3 s and 70 MB, and a long prompt 0.1 s, in which the
 * loop of the process would stand still. Plain JavaScript, because a thread is started from a file as it is, from the sources as from the build.
 *
 * In: { id, encoding, texts }. Out: { id, counts } or { id, error }.
 */
import { parentPort } from 'node:worker_threads';

const load = {
  o200k_base: () => import('gpt-tokenizer/encoding/o200k_base'),
  cl100k_base: () => import('gpt-tokenizer/encoding/cl100k_base'),
};

/** Cards are data: what looks like a control token in them is text. */
const AS_TEXT = { disallowedSpecial: new Set() };

/**
 * Runs without any boundary take time with the square of their length (100,000 spaces: 16 s), so they are counted in
 * slices. No prose or code has such runs; where one is cut, the count is at most one token too high.
 */
const LONG_RUN = /[\p{L}\p{M}]{512,}|[^\s\p{L}\p{N}]{512,}|\s{512,}/gu;
const SLICE = /.{1,512}/gsu;

function countText(text, count) {
  let tokens = 0;
  let from = 0;
  for (const run of text.matchAll(LONG_RUN)) {
    if (run.index > from) tokens += count(text.slice(from, run.index), AS_TEXT);
    for (const [slice] of run[0].matchAll(SLICE)) tokens += count(slice, AS_TEXT);
    from = run.index + run[0].length;
  }
  return from < text.length ? tokens + count(text.slice(from), AS_TEXT) : tokens;
}

parentPort.on('message', async ({ id, encoding, texts }) => {
  try {
    const { countTokens } = await load[encoding]();
    parentPort.postMessage({ id, counts: texts.map((text) => countText(text, countTokens)) });
  } catch (error) {
    parentPort.postMessage({ id, error: String(error?.message ?? error) });
  }
});
