/**
 * Sessions of clients are registered, written to and ended by processes that die, or lose a connection, at each of their statements. The
 * repeated request gives the same answer, and each entry is written once.
 *
 * These rows belong to no turn and no queue, so the process under fault has only a pool.
 */
import { createPool, isTransient } from '@boxcar/store';
import { type StatementFault, statementProxy } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type HandoffSessions, openHandoffSessions } from '../handoff-session/index.js';
import { untilAborted } from '../testing/faults/client.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';

const MOMENTS: readonly Omit<StatementFault, 'at'>[] = [
  { scope: 'connection', when: 'before' },
  { scope: 'connection', when: 'after' },
  { scope: 'process', when: 'before' },
  { scope: 'process', when: 'after' },
];

let h: Harness;
let witness: HandoffSessions;
let n = 0;

beforeAll(async () => {
  h = await harness();
  witness = await openHandoffSessions(h.runtime);
});
afterAll(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await h[Symbol.asyncDispose]();
});

type Request = (sessions: HandoffSessions) => Promise<{ readonly outcome: string }>;

interface Life {
  /** Undefined: the client got no answer. */
  readonly outcome: string | undefined;
  readonly statements: readonly string[];
  readonly struck: string | undefined;
}

/** One request in a process of its own. */
async function live(request: Request, fault?: StatementFault): Promise<Life> {
  await using proxy = await statementProxy(h.database.url, fault);
  const pool = createPool({ connectionString: proxy.url, max: 1 });
  const work = async (): Promise<string> =>
    (await request(await openHandoffSessions({ pool, limits: {} }))).outcome;
  try {
    const outcome = await untilAborted(work(), proxy.life).catch((error: unknown) => {
      if (!proxy.isDead && !isTransient(error)) throw error;
      return undefined;
    });
    return { outcome, statements: proxy.statements, struck: proxy.struck };
  } finally {
    await pool.end();
  }
}

interface Case {
  readonly prepare: (session_key: string) => Promise<unknown>;
  readonly request: (session_key: string) => Request;
  readonly outcome: string;
  /** The state of the session after the request. */
  readonly afterwards: { readonly status: string; readonly context_entries: number };
}

const says = (content: string) => ({ context_type: 'message', content });
const register = (session_key: string) => witness.register({ session_key, agent_from: 'x' });
const closed = async (session_key: string): Promise<void> => {
  await register(session_key);
  await witness.close({ session_key });
};

const CASES: Readonly<Record<string, Case>> = {
  'a registration': {
    prepare: () => Promise.resolve(),
    request: (session_key) => (sessions) =>
      sessions.register({ session_key, agent_from: 'x', idempotency_key: 'k' }),
    outcome: 'registered',
    afterwards: { status: 'active', context_entries: 1 },
  },
  'a registration that continues another session': {
    prepare: (session_key) => closed(`before-${session_key}`),
    request: (session_key) => (sessions) =>
      sessions.register({
        session_key,
        agent_from: 'x',
        continues: `before-${session_key}`,
        idempotency_key: 'k',
      }),
    outcome: 'registered',
    afterwards: { status: 'active', context_entries: 3 },
  },
  'an update': {
    prepare: register,
    request: (session_key) => (sessions) =>
      sessions.update({ session_key, entries: [says('a'), says('b')], idempotency_key: 'k' }),
    outcome: 'updated',
    afterwards: { status: 'active', context_entries: 3 },
  },
  'an end': {
    prepare: register,
    request: (session_key) => (sessions) => sessions.close({ session_key, idempotency_key: 'k' }),
    outcome: 'closed',
    afterwards: { status: 'completed', context_entries: 2 },
  },
};

test.each(Object.entries(CASES))(
  '%s that is cut at any of its statements is made once',
  async (_name, of) => {
    const play = async (fault?: StatementFault): Promise<Life> => {
      const session_key = `s-${++n}`;
      await of.prepare(session_key);
      const life = await live(of.request(session_key), fault);
      // A client without an answer repeats the request.
      const again = await of.request(session_key)(witness);
      expect(life.outcome ?? of.outcome).toBe(of.outcome);
      expect(again.outcome).toBe(of.outcome);
      expect(await witness.get({ session_key })).toMatchObject(of.afterwards);
      return life;
    };
    const { statements } = await play();
    expect(statements.length).toBeGreaterThan(5);
    for (const at of statements.keys())
      for (const moment of MOMENTS) {
        const fault = { at: at + 1, ...moment };
        const { struck } = await play(fault);
        expect(struck, JSON.stringify(fault)).toBe(statements[at]);
      }
  },
  120_000,
);
