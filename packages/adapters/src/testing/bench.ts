/** Definitions shared by the cases of the contract. */
import type { AdapterResult, ExecuteOptions, HandoffAdapter } from '../adapter.js';
import { AdapterError } from '../adapter-error.js';
import type { Target } from '../targets/target.js';
import type { requestFor } from './cards.js';
import type { Behaviour, Dialect, PlatformServer } from './platform-server.js';

export interface AdapterSubject {
  readonly name: string;
  createAdapter(): HandoffAdapter;
  dialect(): Dialect;
  /** The entry that leads to the server, with `api_key_env: CONTRACT_KEY`. */
  targetAt(origin: string): Target;
  /** Texts of the entry that only the operator may see, in addition to the address and the key. */
  readonly secrets: readonly string[];
  /** The number of requests of one handoff when nothing fails. */
  readonly requests: number;
  /** Cards of every kind that the platform does not carry. */
  readonly notCarried: readonly string[];
  /** False when an answer is one document, whose first half is not usable. */
  readonly isStreaming: boolean;
  /** True: a task with a known id is polled when its stream breaks off. */
  readonly recoversCut?: boolean;
}

export const ANSWER = 'The harbour has four cranes and one clock.';

export interface Bench {
  run(
    server: PlatformServer,
    given?: Parameters<typeof requestFor>[1],
    options?: Partial<ExecuteOptions>,
  ): Promise<AdapterResult>;
  open(...behaviours: readonly Behaviour[]): Promise<PlatformServer>;
  expectConcealed(server: PlatformServer, shown: unknown): void;
}

export async function failureOf(work: Promise<unknown>): Promise<AdapterError> {
  const error: unknown = await work.then(
    (value) => new Error(`it ended with ${JSON.stringify(value)}`),
    (thrown: unknown) => thrown,
  );
  if (error instanceof AdapterError) return error;
  throw error;
}
