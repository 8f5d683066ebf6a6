/** Every submission to an archived project gets the same answer, whenever the project was archived. */
import type { TurnId } from '@boxcar/kernel';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import type { SubmitOptions } from '../core/index.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';

let h: Harness;
let outside: pg.Pool;
let projectId: string;
let open: TurnId;
let ended: TurnId;

const ENTRY = { workspace: '/work', session: 'one' };
const PROJECT = 'closing';
const archive = (isArchived = true) => h.runtime.archiveProject(PROJECT, { isArchived });
const launch = async (options: SubmitOptions = {}): Promise<TurnId> =>
  (
    (await h.runtime.submit(
      'launch_principal',
      { profile_name: 'echo', instruction: 'go' },
      { projectId: PROJECT, ...options },
    )) as unknown as { turn_id: TurnId }
  ).turn_id;

beforeAll(async () => {
  h = await harness();
  outside = new pg.Pool({ connectionString: h.database.url });
  projectId = (await h.runtime.createProject({ name: PROJECT })).project_id;
  await h.runtime.applyProfile(
    {
      name: 'echo',
      instructions: 'You answer.',
      model: 'scripted',
      script: [{ say: 'done' }],
      delegation_policy: { target_profiles: null },
    },
    { projectId: PROJECT },
  );
  await h.runtime.submit(
    'provision_agent',
    { action: 'ensure', agent_id: ENTRY, profile_name: 'echo' },
    { projectId: PROJECT },
  );
  h.runtime.registerHandler('own', {
    description: 'Packs a context and gives it to an agent.',
    input: z.strictObject({}),
    handle: async (_input, tools) => {
      const profile = await tools.findProfile('echo');
      const [packed] = await tools.packer.packResolved([
        {
          projectId: tools.ctx.projectId,
          actorId: tools.ctx.source.agentId,
          toolSuffix: 'own',
          arguments: {},
          handover: {},
          access: 'actor',
        },
      ]);
      if (packed === undefined) throw new Error('nothing was packed');
      const { contextBoxId } = packed;
      const turn = await tools.submitTurn({ target: { kind: 'new', profile }, contextBoxId });
      return { turn_id: turn.turnId };
    },
  });
  h.runtime.registerHandler('archives', {
    description: 'Archives its project before it is written.',
    input: z.strictObject({}),
    handle: async (_input, { ctx }) => {
      await h.runtime.archiveProject(ctx.projectId);
      return 'answered';
    },
  });
  ended = await launch();
  open = await launch();
  await h.runtime.submit('cancel', { turn_id: ended }, { projectId: PROJECT });
});
afterAll(async () => {
  await outside.end();
  await checkInvariants(h.database.pool, { isSettled: false });
  await h[Symbol.asyncDispose]();
});

type Answered = (error: Error | undefined, result: unknown) => void;

/** Runs a statement after each accepting write, before the kernel has its answer. @returns The number of writes. */
async function afterEachWrite(statement: string, work: () => Promise<unknown>): Promise<number> {
  const { query } = pg.Client.prototype;
  let writes = 0;
  const act = async (): Promise<void> => {
    writes += 1;
    await using client = Object.assign(new pg.Client(h.database.url), {
      [Symbol.asyncDispose]: () => client.end(),
    });
    await client.connect();
    await client.query(statement);
  };
  pg.Client.prototype.query = function (this: pg.Client, ...args: unknown[]): unknown {
    const [config] = args;
    const text =
      typeof config === 'string' ? config : ((config as { text?: string } | undefined)?.text ?? '');
    if (!text.includes('insert into boxcar.operations')) return Reflect.apply(query, this, args);
    const done = args.at(-1);
    if (typeof done !== 'function')
      return (Reflect.apply(query, this, args) as Promise<unknown>).then(async (result) => {
        await act();
        return result;
      });
    const answered: Answered = (error, result) =>
      void act().then(
        () => (done as Answered)(error, result),
        (failure: Error) => (done as Answered)(failure, undefined),
      );
    return Reflect.apply(query, this, [...args.slice(0, -1), answered]);
  } as typeof query;
  try {
    await work();
  } finally {
    pg.Client.prototype.query = query;
  }
  return writes;
}

const OWN = { primitive: 'own', args: {} };
const LAUNCH = { primitive: 'launch_principal', args: { profile_name: 'echo', instruction: 'go' } };

const ways: readonly [string, typeof OWN | typeof LAUNCH, () => SubmitOptions][] = [
  ['by the name of the project', LAUNCH, () => ({ projectId: PROJECT })],
  ['by the id of the project', LAUNCH, () => ({ projectId })],
  ['by a primitive of a program', OWN, () => ({ projectId })],
  ['under a key of the caller', LAUNCH, () => ({ projectId, idempotencyKey: 'mine' })],
  ['below a turn that has not ended', LAUNCH, () => ({ projectId, parentTurnId: open })],
  ['below a turn that has ended', LAUNCH, () => ({ projectId, parentTurnId: ended })],
  ['by a session', LAUNCH, () => ({ projectId, sourceAgentId: ENTRY })],
];

describe('a submission to an archived project is refused with that reason', () => {
  describe.each(ways)('%s', (_title, { primitive, args }, options) => {
    test('when the project was archived before the submission', async () => {
      await archive();
      await expect(h.runtime.submit(primitive, args, options())).rejects.toMatchObject({
        code: 'project_archived',
        details: { project_id: projectId, primitive },
      });
      await archive(false);
    });

    test('when the project was archived before the submission, in a transaction of the caller', async () => {
      await archive();
      const tx = await outside.connect();
      await tx.query('begin');
      await expect(h.runtime.submit(primitive, args, { ...options(), tx })).rejects.toMatchObject({
        code: 'project_archived',
        details: { project_id: projectId, primitive },
      });
      await tx.query('rollback');
      tx.release();
      await archive(false);
    });
  });

  test.each(ways.filter(([title]) => !title.includes('has ended')))(
    '%s, when the project was archived between look-up and write, and restored before the refusal is explained',
    async (_title, _what, options) => {
      const writes = await afterEachWrite('update boxcar.projects set archived_at = null', async () => {
        await expect(h.runtime.submit('archives', {}, options())).rejects.toMatchObject({
          code: 'project_archived',
          details: { project_id: projectId, primitive: 'archives' },
        });
      });
      expect(writes).toBe(1);
      expect(await h.runtime.getProject(PROJECT)).toMatchObject({ archived_at: null });
    },
  );
});

test('a key that is used and freed again while a submission is written does not refuse the submission', async () => {
  let tries = 0;
  h.runtime.registerHandler('late', {
    description: 'Loses its key to another submission on the first try.',
    input: z.strictObject({}),
    handle: async (_input, { ctx }) => {
      tries += 1;
      if (tries === 1)
        await h.rows(
          `insert into "boxcar".operations (project_id, idempotency_key, primitive, request_hash, response)
           values ($1, 'lent', 'late', sha256(''), '"another"')`,
          [ctx.projectId],
        );
      return 'answered';
    },
  });
  const forget = 'delete from boxcar.operations where response::text = \'"another"\'';
  const writes = await afterEachWrite(forget, async () => {
    expect(await h.runtime.submit('late', {}, { projectId, idempotencyKey: 'lent' })).toBe('answered');
  });
  expect([tries, writes]).toEqual([2, 2]);
});
