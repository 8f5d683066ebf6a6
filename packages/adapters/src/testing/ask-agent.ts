/** A helper that makes a handoff to an agent or an app on loopback. */
import { KernelError } from '@boxcar/kernel';
import type { AdapterResult, ExecuteOptions, PackedCard } from '../adapter.js';
import { type ADKAdapterOptions, ADKHandoffAdapter } from '../adk/adk-adapter.js';
import { type A2ADialectOptions, a2aDialect } from './a2a-dialect.js';
import { requestFor } from './cards.js';
import { openPlatform, type PlatformServer } from './platform-server.js';

export const ANSWER = { kind: 'answer', text: 'Done.' } as const;
export const LOCAL = { allowPrivate: ['127.0.0.1'], pollMs: 1 } as const;

interface Given {
  readonly options?: Partial<ExecuteOptions>;
  readonly cards?: readonly PackedCard[];
  readonly adapter?: ADKAdapterOptions;
  readonly cardUrl?: string;
  readonly app?: string;
}

export function run(server: PlatformServer, given: Given = {}): Promise<AdapterResult> {
  const { options, cards = [], adapter = LOCAL, cardUrl = `${server.origin}/card.json`, app } = given;
  const shared = { platform: 'adk', api_key_env: 'HARBOUR_KEY' } as const;
  const target =
    app === undefined ? { ...shared, card_url: cardUrl } : { ...shared, app, base_url: server.origin };
  return new ADKHandoffAdapter(adapter).executeHandoff(requestFor(target, { cards }), {
    signal: new AbortController().signal,
    attempt: 1,
    idempotencyKey: 'k',
    ...options,
  });
}

export async function failureOf(work: Promise<unknown>): Promise<KernelError> {
  const error: unknown = await work.then(
    (value) => new Error(`it ended with ${JSON.stringify(value)}`),
    (thrown: unknown) => thrown,
  );
  if (error instanceof KernelError) return error;
  throw error;
}

export const agent = (given: Partial<A2ADialectOptions> = {}): Promise<PlatformServer> =>
  openPlatform(a2aDialect({ version: '1.0', ...given }), ANSWER);
