/**
 * The policy of a file, kept current without a timer: each request checks the file, at most once a second.
 *
 * W1 Every request made 4 s or more after a change uses the change.
 * W2 A file that is being written is not used: it must have been unchanged for a second, by its own time or by our clock.
 * W3 When a file is not valid or cannot be read, the last good policy stays in use. Each such state is reported once.
 */
import { errorText, KernelError, sha256 } from '@boxcar/kernel';
import { parsePolicy } from './parse-policy.js';
import type { Policy } from './policy.js';
import { type FileState, lookAt, readPolicyFile } from './policy-file.js';

/** The interval between two checks. */
const LOOK_MS = 1_000;
/** How long a file must have been unchanged. */
const SETTLED_MS = 1_000;
/** After a pause of at least this length between two checks, a state is used even when its own time is not usable. */
const LONG_PAUSE_MS = 3_000;

export interface PolicyClock {
  /** Milliseconds of a clock that never goes back. */
  monotonicMs(): number;
  /** Milliseconds since 1970, the clock with which the file system marks files. */
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
  /** The mark of the state that was read last; undefined when the file must be read again. */
  #mark: string | undefined;
  /** A state that may still be being written. */
  #seen: { readonly mark: string; readonly atMs: number } | undefined;
  #lookedAtMs: number;

  /** @throws KernelError `bad_config` for a file that cannot be read, `policy_invalid` for errors in it. */
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
    // The first check reads the file once more: it may be incomplete, or be written again within the same tick of its timestamp.
    this.#policy = parsePolicy(bytes, { file: path });
  }

  /** The last good policy of the file. */
  get policy(): Policy {
    this.#look();
    return this.#policy;
  }

  /** Why the current state of the file is not in use; undefined when it is in use. */
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

  /** The time since the file changed, by its own timestamp; negative when the timestamp is from another machine's clock, or was set. */
  #ageMs({ modifiedMs }: FileState): number {
    return this.#options.clock.wallMs() - modifiedMs;
  }

  /**
   * A file without a usable timestamp is settled when an earlier check has seen the same state, or after a long pause between two checks.
   */
  #isSettled(state: FileState, { nowMs, pauseMs }: { nowMs: number; pauseMs: number }): boolean {
    const ageMs = this.#ageMs(state);
    if (ageMs >= SETTLED_MS || (ageMs < 0 && pauseMs >= LONG_PAUSE_MS)) return true;
    if (this.#seen?.mark === state.mark) return nowMs - this.#seen.atMs >= SETTLED_MS;
    this.#seen = { mark: state.mark, atMs: nowMs };
    return false;
  }

  #load(): void {
    const { bytes, state } = readPolicyFile(this.#path);
    // A file that changed while it was read is read again at the next check.
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
