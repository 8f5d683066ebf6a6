/** Work on tapes by programs: handoff, fork, merge, reset, sessions. Each step finds out how much of it is already done. */
import type { JsonValue } from '@boxcar/kernel';
import type { Runtime } from '../../runtime.js';
import type { TapeFork } from '../../tape/fork.js';
import type { Tape } from '../../tape/tape.js';
import type { Scenario } from './scenario.js';

const writer = { name: 'writer', script: [{ say: 'written {{instruction}}' }] };
const ADA = { agent: 'ada' };

const provision = { action: 'create', agent_id: 'ada', profile_name: 'writer' };

/** The open fork, or a new one. */
async function forkOnce(tape: Tape): Promise<TapeFork> {
  const [open] = await tape.forks({ status: 'open' });
  return open === undefined ? tape.forkTape() : tape.openFork(open.fork_id);
}

/** The texts of a tape, in order, and how often it was reset. */
async function wordsOf(tape: Tape): Promise<JsonValue> {
  const { incarnation } = await tape.info();
  const records = await tape.query().all();
  return [
    incarnation,
    ...records.map(({ kind, payload }) => `${kind} ${String(payload.name ?? payload.content)}`),
  ];
}

/** @throws Error when a tape does not contain the expected texts. */
function expectWords(words: JsonValue, expected: readonly JsonValue[]): null {
  if (JSON.stringify(words) !== JSON.stringify(expected))
    throw new Error(`the tape says ${JSON.stringify(words)}`);
  return null;
}

/** A fork is written to and merged, in any process. */
export const forkAndMerge: Scenario = {
  name: 'a fork that is merged',
  profiles: [writer],
  drive: async (client) => {
    await client.submit('provision_agent', provision);
    const use = (work: (tape: Tape, runtime: Runtime) => Promise<JsonValue>): Promise<JsonValue> =>
      client.use(async (runtime) => work(await runtime.tape(ADA), runtime));
    await use(async (tape) => (await tape.handoff('phase', { state: { n: 1 }, dedupKey: 'phase' })).anchor);
    const id = await use(async (tape) => {
      const fork = await forkOnce(tape);
      await fork.tape.append([{ kind: 'message', content: 'within' }], { dedupKey: 'within' });
      await fork.tape.handoff('inner', { dedupKey: 'inner' });
      return fork.id;
    });
    await use(async (tape) => (await (await tape.openFork(String(id))).merge()).merged);
    return expectWords(await use(wordsOf), [
      1,
      'anchor session/start',
      'event handoff',
      'anchor phase',
      'event handoff',
      'message within',
      'anchor inner',
      'event handoff',
      'event fork/merge',
    ]);
  },
};

/** A fork is reset and replaces its tape; afterwards the tape is reset once more. */
export const resetAndReplace: Scenario = {
  name: 'a fork that takes the place of its tape, and a reset',
  profiles: [writer],
  drive: async (client) => {
    await client.submit('provision_agent', provision);
    const use = (work: (tape: Tape) => Promise<JsonValue>): Promise<JsonValue> =>
      client.use(async (runtime) => work(await runtime.tape(ADA)));
    const id = await use(async (tape) => {
      const fork = await forkOnce(tape);
      if ((await fork.tape.info()).incarnation === 1) await fork.tape.reset();
      await fork.tape.append([{ kind: 'message', content: 'anew' }], { dedupKey: 'anew' });
      return fork.id;
    });
    await use(async (tape) => {
      const fork = (await tape.info()).incarnation === 1 ? await tape.openFork(String(id)) : undefined;
      return (await fork?.merge())?.merged ?? null;
    });
    expectWords(await use(wordsOf), [
      2,
      'anchor session/start',
      'event handoff',
      'message anew',
      'event fork/merge',
    ]);
    await use(async (tape) => {
      if ((await tape.info()).incarnation === 2) await tape.reset({ archive: true });
      return null;
    });
    return expectWords(await use(wordsOf), [3, 'anchor session/start', 'event handoff']);
  },
};

/** A session completes its turn, and its parent is notified and woken. */
export const notifyParent: Scenario = {
  name: 'a session that notifies its parent',
  profiles: [writer],
  drive: async (client) => {
    await client.submit('provision_agent', provision);
    await client.use(async (runtime) => {
      if ((await runtime.sessions.list()).length > 0) return;
      await (await runtime.tape(ADA)).forkSession('scout', {
        intention: { next_steps: 'look', context_summary: 'dark', trigger_on_complete: 'notify_parent' },
      });
    });
    return client.submit('delegate_async', {
      target_strategy: 'reuse',
      target_ref: 'scout',
      instruction: 'look around',
    });
  },
};

/** The first use of a session by name makes its tape and agent; its next turn sees the whole tape. */
export const sessionByName: Scenario = {
  name: 'a session by name, and a turn with a view of its own',
  profiles: [writer],
  drive: async (client) => {
    const ask = (instruction: string, rest: Readonly<Record<string, JsonValue>> = {}): Promise<JsonValue> =>
      client.submit('delegate_async', {
        target_strategy: 'reuse',
        target_ref: { workspace: '/srv/demo', session: 'main', profile_name: 'writer' },
        instruction,
        ...rest,
      });
    await ask('one');
    return ask('two', { view: 'full' });
  },
};
