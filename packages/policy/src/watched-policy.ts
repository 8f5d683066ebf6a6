/**
 * The policy of a file, kept current without a timer: each question looks at the file, at most once a second.
 *
 * W1 A change is used by every question that is asked 4 s after it, or later.
 * W2 A file that is being written is not used: it must have been left alone for a second, by its own time or by ours.
 * W3 A file that is broken, or that cannot be read, leaves the last good policy in use. Each such state is reported once.
 */
import { errorText, KernelError, sha256 } from '@boxcar/kernel';
import { parsePolicy } from './parse-policy.js';
import type { Policy } from './policy.js';
import { type FileState, lookAt, readPolicyFile } from './policy-file.js';

/** Between two looks. */
const LOOK_MS = 1_000;
/** How long a file must have been left alone. */
const SETTLED_MS = 1_000;
/** After a pause between two looks as long as this, a state is used although its time says nothing. */
const LONG_PAUSE_MS = 3_000;

export interface PolicyClock {
  /** Milliseconds that never go back. */
  monotonicMs(): number;
  /** Milliseconds since 1970, by which the file system marks files. */
  wallMs(): number;
}

export const systemClock: PolicyClock = {
  monotonicMs: () => performance.now(),
  wallMs: () => Date.now(),
};

export interface WatchOptions {
  readonly clock: PolicyClock;
  onProblem(problem: KernelError): void;
}

const codeOf = (error: unknown): string =>
  error instanceof Error && 'code' in error ? String(error.code) : errorText(error);

const unreadable = (path: string, cause: unknown): KernelError =>
  new KernelError('bad_config', {
    message: `The policy file ${path} cannot be read: ${errorText(cause)}.`,
    details: { file: path },
    cause,
  });

export class WatchedPolicy {
  readonly #path: string;
  readonly #options: WatchOptions;
  #policy: Policy;
  #problem: { readonly key: string; readonly error: KernelError } | undefined;
  /** Of the state that was read last; undefined when it has to be read again. */
  #mark: string | undefined;
  /** A state that may still be being written. */
  #seen: { readonly mark: string; readonly atMs: number } | undefined;
  #lookedAtMs: number;

  /** @throws KernelError `bad_config` for a file that cannot be read, `policy_invalid` for what is wrong in it. */
  constructor(path: string, options: WatchOptions) {
    this.#path = path;
    this.#options = options;
    this.#lookedAtMs = options.clock.monotonicMs();
    let bytes: Buffer;
    try {
      ({ bytes } = readPolicyFile(path));
    } catch (error) {
      throw unreadable(path, error);
    }
    // The first look reads it once more: it may still be being written, or be written again within the same tick of its time.
    this.#policy = parsePolicy(bytes, { file: path });
  }

  /** The last good policy of the file. */
  get policy(): Policy {
    this.#look();
    return this.#policy;
  }

  /** Why the file is not what is used now; undefined when it is. */
  get problem(): KernelError | undefined {
    this.#look();
    return this.#problem?.error;
  }

  #look(): void {
    const nowMs = this.#options.clock.monotonicMs();
    const pauseMs = nowMs - this.#lookedAtMs;
    if (pauseMs < LOOK_MS) return;
    this.#lookedAtMs = nowMs;
    try {
      const state = lookAt(this.#path);
      if (state.mark === this.#mark || !this.#isSettled(state, { nowMs, pauseMs })) return;
      this.#load();
    } catch (error) {
      this.#mark = undefined;
      this.#seen = undefined;
      this.#report(codeOf(error), () => unreadable(this.#path, error));
    }
  }

  /** Since the file changed, by its own time; negative when that is the time of another machine, or was set. */
  #ageMs({ modifiedMs }: FileState): number {
    return this.#options.clock.wallMs() - modifiedMs;
  }

  /** A file without a usable time is settled when a look has seen the same state before, or after a long pause between two looks. */
  #isSettled(state: FileState, { nowMs, pauseMs }: { nowMs: number; pauseMs: number }): boolean {
    const ageMs = this.#ageMs(state);
    if (ageMs >= SETTLED_MS || (ageMs < 0 && pauseMs >= LONG_PAUSE_MS)) return true;
    if (this.#seen?.mark === state.mark) return nowMs - this.#seen.atMs >= SETTLED_MS;
    this.#seen = { mark: state.mark, atMs: nowMs };
    return false;
  }

  #load(): void {
    const { bytes, state } = readPolicyFile(this.#path);
    // What changed while it was read is read at the next look.
    if (state === undefined) return;
    this.#mark = state.mark;
    try {
      this.#policy = parsePolicy(bytes, { file: this.#path });
      this.#problem = undefined;
    } catch (error) {
      if (!(error instanceof KernelError)) throw error;
      this.#report(sha256(bytes.toString('base64')), () => error);
    }
  }

  /** @param key - Equal for the same state of the file. */
  #report(key: string, describe: () => KernelError): void {
    if (this.#problem?.key === key) return;
    const error = describe();
    this.#problem = { key, error };
    this.#options.onProblem(error);
  }
}
