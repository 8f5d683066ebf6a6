/**
 * Counts tokens without a network. OpenAI publishes the encodings of its models; Anthropic and most others do not, so for them the count
 * is an estimate by OpenAI's newest encoding. No stored figure depends on it: budgets use the kernel's own estimate.
 */
import { Worker } from 'node:worker_threads';
import { KernelError, providerOf } from '@boxcar/kernel';

export interface Tokenizer {
  readonly encoding: 'o200k_base' | 'cl100k_base';
  /** False: the provider publishes no encoding for this model, and the true count may differ by a fifth or more. */
  readonly isExact: boolean;
}

/** The encoding for a model name of a profile, `<provider>:<model>`. */
export function tokenizerOf(model: string): Tokenizer {
  const [, ...rest] = model.split(':');
  const name = rest.join(':').toLowerCase();
  // Fine-tuned models are named ft:<base>:…
  const base = name.startsWith('ft:') ? name.slice(3) : name;
  const isOpenAi = providerOf(model) === 'openai';
  if (/^(gpt-4(?!o|\.\d)|gpt-3\.5)/.test(base)) return { encoding: 'cl100k_base', isExact: isOpenAi };
  const isKnown = /^(gpt-4o|gpt-4\.\d|gpt-[5-9]|gpt-oss|chatgpt-4o|codex-|o\d)/.test(base);
  return { encoding: 'o200k_base', isExact: isOpenAi && isKnown };
}

interface Request {
  readonly resolve: (counts: readonly number[]) => void;
  readonly reject: (error: Error) => void;
}

type Answer =
  | { readonly id: number; readonly counts: readonly number[] }
  | { readonly id: number; readonly error: string };

/** The counting thread. The first count starts it; it stays afterwards and does not keep the process alive. */
class TokenizerThread {
  readonly #worker = new Worker(new URL('../tokenizer-thread.js', import.meta.url), { execArgv: [] });
  readonly #requests = new Map<number, Request>();
  #next = 0;

  /** @param onEnd - Called when the thread will not answer again. */
  constructor(onEnd: (thread: TokenizerThread) => void) {
    const end = (reason: unknown): void => {
      onEnd(this);
      for (const { reject } of this.#requests.values())
        reject(new Error('The thread that counts tokens has ended.', { cause: reason }));
      this.#requests.clear();
    };
    this.#worker.on('error', end);
    this.#worker.on('exit', end);
    this.#worker.on('message', (answer: Answer) => this.#answer(answer));
    this.#worker.unref();
  }

  count(encoding: Tokenizer['encoding'], texts: readonly string[]): Promise<readonly number[]> {
    this.#next += 1;
    const id = this.#next;
    return new Promise((resolve, reject) => {
      this.#requests.set(id, { resolve, reject });
      this.#worker.ref();
      this.#worker.postMessage({ id, encoding, texts });
    });
  }

  #answer(answer: Answer): void {
    const request = this.#requests.get(answer.id);
    this.#requests.delete(answer.id);
    if (this.#requests.size === 0) this.#worker.unref();
    if ('counts' in answer) request?.resolve(answer.counts);
    else request?.reject(new Error(answer.error));
  }
}

let thread: TokenizerThread | undefined;

/** The tokens of each text for a model; `tokenizerOf` tells whether the count is exact. Counted off the event loop. */
export async function countAllTokens(texts: readonly string[], model: string): Promise<readonly number[]> {
  const { encoding } = tokenizerOf(model);
  thread ??= new TokenizerThread((ended) => {
    // An ended thread reports twice, by its error and by its exit; in between, another thread may have been started.
    if (thread === ended) thread = undefined;
  });
  try {
    return await thread.count(encoding, texts);
  } catch (error) {
    throw new KernelError('internal_error', {
      message: `Tokens could not be counted by the encoding ${encoding}.`,
      details: { encoding },
      cause: error,
    });
  }
}

/** The tokens of one text. */
export async function countTokens(text: string, model: string): Promise<number> {
  return (await countAllTokens([text], model))[0] ?? 0;
}
