/**
 * Counting tokens without a network. OpenAI publishes the encodings of its models; Anthropic and most others do not, so for
 * them the count is an estimate by OpenAI's newest encoding. Nothing that is stored depends on it: budgets are counted in
 * the kernel's own estimate.
 */
import { KernelError } from '@boxcar/kernel';

export interface Tokenizer {
  readonly encoding: 'o200k_base' | 'cl100k_base';
  /** False: the provider publishes no encoding for this model, and the true count may differ by a fifth or more. */
  readonly isExact: boolean;
}

/** Which encoding counts for a model name of a profile, `<provider>:<model>`. */
export function tokenizerOf(model: string): Tokenizer {
  const [provider, ...rest] = model.split(':');
  const name = rest.join(':').toLowerCase();
  // Fine-tuned models are named ft:<base>:…
  const base = name.startsWith('ft:') ? name.slice(3) : name;
  const isOpenAi = provider === 'openai';
  if (/^(gpt-4(?!o|\.\d)|gpt-3\.5)/.test(base)) return { encoding: 'cl100k_base', isExact: isOpenAi };
  const isKnown = /^(gpt-4o|gpt-4\.\d|gpt-[5-9]|gpt-oss|chatgpt-4o|codex-|o\d)/.test(base);
  return { encoding: 'o200k_base', isExact: isOpenAi && isKnown };
}

type Count = (text: string) => number;

/** About 70 MB of memory and 0.3 s each: loaded by the first count, kept afterwards. */
const load: Readonly<Record<Tokenizer['encoding'], () => Promise<Count>>> = {
  o200k_base: async () => {
    const { countTokens: count } = await import('gpt-tokenizer/encoding/o200k_base');
    return (text) => count(text, AS_TEXT);
  },
  cl100k_base: async () => {
    const { countTokens: count } = await import('gpt-tokenizer/encoding/cl100k_base');
    return (text) => count(text, AS_TEXT);
  },
};

/** Cards are data: what looks like a control token in them is text. */
const AS_TEXT = { disallowedSpecial: new Set<string>() };

const loaded = new Map<Tokenizer['encoding'], Promise<Count>>();

/**
 * Runs without any boundary take time with the square of their length (100,000 spaces: 16 s), so they are counted in
 * slices. No prose or code has such runs; where one is cut, the count is at most one token too high.
 */
const LONG_RUN = /[\p{L}\p{M}]{512,}|[^\s\p{L}\p{N}]{512,}|\s{512,}/gu;
const SLICE = /.{1,512}/gsu;

function countText(text: string, count: Count): number {
  let tokens = 0;
  let from = 0;
  for (const run of text.matchAll(LONG_RUN)) {
    if (run.index > from) tokens += count(text.slice(from, run.index));
    for (const [slice] of run[0].matchAll(SLICE)) tokens += count(slice);
    from = run.index + run[0].length;
  }
  return from < text.length ? tokens + count(text.slice(from)) : tokens;
}

/** The tokens of a text for a model; whether that is exact, `tokenizerOf` says. */
export async function countTokens(text: string, model: string): Promise<number> {
  const { encoding } = tokenizerOf(model);
  let counting = loaded.get(encoding);
  if (counting === undefined) {
    counting = load[encoding]();
    loaded.set(encoding, counting);
    counting.catch(() => loaded.delete(encoding));
  }
  let count: Count;
  try {
    count = await counting;
  } catch (error) {
    throw new KernelError('internal_error', {
      message: `The encoding ${encoding} could not be loaded.`,
      details: { encoding },
      cause: error,
    });
  }
  return countText(text, count);
}
