import { setTimeout as delay } from 'node:timers/promises';
import type { JsonValue } from '@boxcar/kernel';
import { type NodeChild, spawnNode, type TcpProxy, tcpProxy } from '@boxcar/testkit/standalone';
import type { CallerProcessOptions, CallerRequest } from '../caller-process.js';
import type { Random } from './random.js';

/** How long a stopped or cut-off caller may delay others. */
export const CALLER_LIMIT_MS = 12_000;
/** Sometimes longer than `CALLER_LIMIT_MS`. */
const STOP_MS = [4_000, 15_000] as const;
const STARTS = { deadlineMs: 60_000 };
const LOOK_MS = 10;

interface Pending {
  readonly settle: (answer: JsonValue) => void;
  readonly fail: (error: Error) => void;
}

/** A process that submits, with a separate proxy to Postgres. */
class Caller {
  readonly child: NodeChild;
  readonly postgres: TcpProxy;
  /** Submissions that were repeated because the database was unavailable. */
  repeated = 0;
  readonly #pending = new Map<string, Pending>();
  readonly #reading: Promise<void>;
  #isClosed = false;

  private constructor(child: NodeChild, postgres: TcpProxy) {
    this.child = child;
    this.postgres = postgres;
    this.#reading = this.#read();
  }

  static async open(options: CallerProcessOptions): Promise<Caller> {
    const postgres = await tcpProxy(options.databaseUrl);
    const child = spawnNode(new URL('../caller-process.ts', import.meta.url), [
      JSON.stringify({ ...options, databaseUrl: postgres.url }),
    ]);
    await child.line(/^ready/, STARTS);
    return new Caller(child, postgres);
  }

  submit(request: CallerRequest): Promise<JsonValue> {
    return new Promise((settle, fail) => {
      this.#pending.set(request.key, { settle, fail });
      this.child.writeLine(JSON.stringify(request));
    });
  }

  async #read(): Promise<void> {
    for (let seen = 0; !this.#isClosed; await delay(LOOK_MS)) {
      const fresh = this.child.stdout.slice(seen);
      const end = fresh.lastIndexOf('\n') + 1;
      seen += end;
      for (const line of fresh.slice(0, end).split('\n')) this.#hear(line);
    }
    for (const { fail } of this.#pending.values()) fail(new Error(`a caller ended: ${this.child.stderr}`));
  }

  #hear(line: string): void {
    const [, what, key = '', rest = ''] = /^(answer|refused|again) (\S+)(?: (.*))?$/.exec(line) ?? [];
    if (what === 'again') this.repeated += 1;
    const pending = this.#pending.get(key);
    if (pending === undefined || what === 'again') return;
    this.#pending.delete(key);
    if (what === 'answer') pending.settle(JSON.parse(rest) as JsonValue);
    else pending.fail(new Error(`${key} was refused: ${rest}`));
  }

  async close(): Promise<void> {
    await this.child.kill('SIGKILL');
    this.#isClosed = true;
    await this.#reading;
    await this.postgres.close();
  }
}

/** Programs that submit, each in a separate process. */
export class Callers {
  readonly #callers: readonly Caller[];
  #next = 0;

  private constructor(callers: readonly Caller[]) {
    this.#callers = callers;
  }

  static async open(count: number, options: CallerProcessOptions): Promise<Callers> {
    return new Callers(await Promise.all(Array.from({ length: count }, () => Caller.open(options))));
  }

  get repeated(): number {
    return this.#callers.reduce((sum, caller) => sum + caller.repeated, 0);
  }

  /** Uses the callers in rotation. Settles when the submission is answered. */
  async submit(request: CallerRequest): Promise<JsonValue> {
    const caller = this.#callers[this.#next++ % this.#callers.length];
    if (caller === undefined) throw new Error('there is no caller');
    return caller.submit(request);
  }

  /** Stops a random caller, then continues it. */
  async freeze(random: Random, wait: (ms: number) => Promise<void>): Promise<void> {
    const victim = random.pick(this.#callers);
    if (victim === undefined) return;
    process.kill(victim.child.pid, 'SIGSTOP');
    await wait(random.between(...STOP_MS)).finally(() => process.kill(victim.child.pid, 'SIGCONT'));
  }

  /** Silences the Postgres connections of a random caller: they stay open, but no data gets through. */
  async silence(random: Random, wait: (ms: number) => Promise<void>): Promise<void> {
    const victim = random.pick(this.#callers);
    if (victim === undefined) return;
    victim.postgres.stall();
    await wait(random.between(...STOP_MS)).finally(() => victim.postgres.restore());
  }

  async close(): Promise<void> {
    await Promise.all(this.#callers.map((caller) => caller.close()));
  }
}
