/**
 * Two builds on one database: docs/reference/operations.md, "Two builds at once". The older build is this build, unless
 * a test states otherwise.
 */
import { parseId, type TurnId } from '@boxcar/kernel';
import { describeWait } from '@boxcar/kernel/words';
import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';
import { type Build, findStaleRings, THIS_BUILD } from '@boxcar/store';
import { loadWaitFacts } from '@boxcar/store/report';
import { queueBackends, waitFor } from '@boxcar/testkit';
import { beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { type OpenRuntime, openRuntime } from '../open.js';
import { checkInvariants } from '../testing/invariants.js';
import { type TestBackend, testBackend } from '../testing/queue-backend.js';
import { createWorker, type Worker, type WorkerOptions } from './worker.js';

const NO_ARGUMENTS = z.strictObject({});
const NEXT = THIS_BUILD.schemaVersion + 1;
const NEWER: Build = { ...THIS_BUILD, schemaVersion: NEXT, turnFormat: NEXT };
/** A build that does not know files: other processes may at any time write entries that it cannot read. */
const WITHOUT_FILES: Build = {
  ...THIS_BUILD,
  kinds: new Set([...THIS_BUILD.kinds].filter((kind) => kind !== 'file')),
};
const FAST: WorkerOptions = {
  heartbeatMs: 1_000,
  sweepMs: 50,
  lostRingMs: 200,
  concurrency: 4,
  graceMs: 300,
};

interface Side {
  readonly opened: OpenRuntime;
  readonly log: string[];
  worker(options?: WorkerOptions): Promise<Worker>;
  submit(profile: string, rest?: Readonly<Record<string, unknown>>): Promise<TurnId>;
}

let backend: TestBackend;
let sides: Side[];
let workers: Worker[];
/** The turns whose model was called, with the side that called it. */
let asked: { side: number; turnId: string }[];
let gates: Map<string, () => void>;

/** A process of a given build, as far as the rows and the queues can tell. */
function open(build: Build): Side {
  const number = sides.length;
  const log: string[] = [];
  const answer: ScriptedFunction = async ({ turn }, { call }) => {
    asked.push({ side: number, turnId: turn.turnId });
    return turn.step === 1 ? { toolCalls: [call('note', {}, 'a')] } : { text: 'done' };
  };
  // On the first side the model answers only when its gate opens.
  const wait: ScriptedFunction = async (request, { call, signal }) => {
    asked.push({ side: number, turnId: request.turn.turnId });
    if (number === 0)
      await new Promise<void>((resolve, reject) => {
        gates.set(request.turn.turnId, resolve);
        signal.addEventListener('abort', () => reject(signal.reason));
      });
    return request.turn.step === 1 ? { toolCalls: [call('note', {}, 'a')] } : { text: 'done' };
  };
  const opened = openRuntime(
    {
      ...backend.urls,
      model: createModelRouter({ scripted: { functions: { answer, wait } } }),
      log: (_level, event) => void log.push(event),
    },
    build,
  );
  opened.runtime.registerTool({
    name: 'note',
    description: 'Takes a note.',
    input: NO_ARGUMENTS,
    retry: 'safe',
    run: () => ({ noted: true }),
  });
  const side: Side = {
    opened,
    log,
    worker: async (options = {}) => {
      const worker = await createWorker(opened.runtime, { ...FAST, ...options });
      workers.push(worker);
      return worker;
    },
    submit: async (profile, rest = {}) => {
      const answered = await opened.runtime.accept('launch_principal', {
        profile_name: profile,
        instruction: 'go',
        ...rest,
      });
      return parseId((answered.answer as { turn_id: string }).turn_id, 'turn');
    },
  };
  sides.push(side);
  return side;
}

const rows = async <R extends Record<string, unknown>>(text: string, values: unknown[] = []): Promise<R[]> =>
  (await backend.database.pool.query<R>(text, values)).rows;

/** The row that a migration of a newer build leaves. */
const migrateTo = (version: number, minCompatible: number) =>
  rows(
    "insert into boxcar.schema_version (version, name, checksum, min_compatible) values ($1, 'next', '', $2)",
    [version, minCompatible],
  );

interface TurnRow extends Record<string, unknown> {
  readonly status: string;
  readonly epoch: number;
  readonly losses: number;
  readonly format: number;
}

async function turnOf(turnId: TurnId): Promise<TurnRow> {
  const [row] = await rows<TurnRow>('select status, epoch, losses, format from boxcar.turns where id = $1', [
    turnId,
  ]);
  if (row === undefined) throw new Error(`no turn ${turnId}`);
  return row;
}

const ended = (turnIds: readonly TurnId[]) =>
  waitFor(
    async () =>
      (await rows('select from boxcar.turns where id = any ($1) and ended_at is null', [turnIds])).length ===
      0,
    { message: 'all turns have ended', deadlineMs: 60_000 },
  );

const successes = async (turnIds: readonly TurnId[]): Promise<number> =>
  (
    await rows("select from boxcar.turns where id = any ($1) and status = 'success' and losses = 0", [
      turnIds,
    ])
  ).length;

/** The holders of the committed steps of these turns. */
const makersOf = async (turnIds: readonly TurnId[]): Promise<string[]> =>
  (
    await rows<{ holder_id: string }>(
      'select distinct holder_id from boxcar.steps where turn_id = any ($1) and committed_at is not null',
      [turnIds],
    )
  ).map((row) => row.holder_id);

const why = async (turnId: TurnId) => describeWait(await loadWaitFacts(backend.database.pool, turnId));

const fileBox = async (side: Side): Promise<string> => {
  const { answer } = await side.opened.runtime.accept('create_box', {
    cards: [{ type: 'task.context', content: { kind: 'file', uri: 'file:///a', checksum: 'x' } }],
  });
  return (answer as { box_id: string }).box_id;
};

describe.each(queueBackends())('queues on %s', (kind) => {
  beforeEach(async () => {
    backend = await testBackend(kind);
    sides = [];
    workers = [];
    asked = [];
    gates = new Map();
    return async () => {
      for (const worker of workers) await worker.close({ graceMs: 0 });
      for (const { opened } of sides) await opened.close();
      await backend.close();
    };
  });

  const profiles = async ({ opened: { runtime } }: Side): Promise<void> => {
    const base = { instructions: 'Go.', tools: ['note'] };
    await runtime.applyProfile({ ...base, name: 'answers', model: 'scripted:answer' });
    await runtime.applyProfile({ ...base, name: 'waits', model: 'scripted:wait' });
  };

  test('a build below the minimum neither starts a worker nor submits, and writes nothing', async () => {
    const older = open(THIS_BUILD);
    await profiles(older);
    await migrateTo(NEXT, NEXT);
    await expect(older.worker()).rejects.toMatchObject({ code: 'schema_too_new' });
    await expect(older.submit('answers')).rejects.toMatchObject({ code: 'schema_too_new' });
    expect(await rows('select from boxcar.workers')).toEqual([]);
    expect(await rows('select from boxcar.turns')).toEqual([]);
    expect(await rows("select from boxcar.operations where primitive = 'launch_principal'")).toEqual([]);
  });

  test('a worker that a migration excludes stops and hands its turns to the newer build, which ends each turn once', async () => {
    const older = open(THIS_BUILD);
    await profiles(older);
    const door = older.opened.serveQueueDoor();
    const worker = await older.worker({ concurrency: 6 });
    const turnIds = await Promise.all(Array.from({ length: 6 }, () => older.submit('waits')));
    await waitFor(() => gates.size === 6, { message: 'all models are asked' });
    await migrateTo(NEXT, NEXT);
    expect(await worker.outdated).toMatchObject({ code: 'schema_too_new' });
    expect(older.log).toContain('worker.outdated');
    // Half of the answers arrive in time and are kept; the end of the grace period cuts off the others.
    for (const turnId of turnIds.slice(0, 3)) gates.get(turnId)?.();
    await worker.close();
    expect(await rows('select from boxcar.workers')).toEqual([]);
    expect(await makersOf(turnIds)).toEqual([worker.id]);
    expect(
      await rows("select from boxcar.turns where status = 'dispatched' and epoch > 1 and losses = 0"),
    ).toHaveLength(6);
    await expect(older.submit('answers')).rejects.toMatchObject({ code: 'schema_too_new' });

    // A job that arrives now is not refused: the newer door takes it.
    await waitFor(() => older.log.includes('door.outdated'), { message: 'the older door has closed' });
    const job = await backend.queue('boxcar-primitives').add('launch_principal', {
      project_id: 'default',
      arguments: { profile_name: 'answers', instruction: 'go' },
    });
    const newer = open(NEWER);
    await using _door = newer.opened.serveQueueDoor();
    await newer.worker();
    const accepted = await waitFor(
      async () =>
        (await rows<{ id: TurnId }>('select id from boxcar.turns where not id = any ($1)', [turnIds]))[0],
      { message: `job ${job.id} is accepted` },
    );
    await ended([...turnIds, accepted.id]);
    expect(await successes([...turnIds, accepted.id])).toBe(7);
    expect(older.log).not.toContain('door.retry');
    await door.close();
    // Kept answers were not requested again.
    expect(
      await rows(
        'select distinct holder_id from boxcar.steps where turn_id = any ($1) and step = 1 and committed_at is not null',
        [turnIds.slice(0, 3)],
      ),
    ).toEqual([{ holder_id: worker.id }]);
    await checkInvariants(backend.database.pool);
  });

  test('inside the supported range turns of both builds are ended once, and newer turns only by the newer build', async () => {
    await migrateTo(NEXT, THIS_BUILD.schemaVersion);
    const older = open(THIS_BUILD);
    const newer = open(NEWER);
    await profiles(older);
    const oldWorkers = [await older.worker(), await older.worker(), await older.worker()];
    const newWorker = await newer.worker({ concurrency: 2 });
    const [old, recent] = await Promise.all([
      Promise.all(Array.from({ length: 20 }, () => older.submit('answers'))),
      Promise.all(Array.from({ length: 20 }, () => newer.submit('answers'))),
    ]);
    await ended([...old, ...recent]);
    expect(await successes([...old, ...recent])).toBe(40);
    expect(await makersOf(recent)).toEqual([newWorker.id]);
    expect((await makersOf(old)).some((id) => oldWorkers.some((worker) => worker.id === id))).toBe(true);
    // Turns that the newer worker has held are of its format.
    expect(
      await rows(
        'select from boxcar.turns t where t.format <> case when exists (select from boxcar.steps s where s.turn_id = t.id and s.holder_id = $1) then $2 else $3 end::int',
        [newWorker.id, NEXT, THIS_BUILD.turnFormat],
      ),
    ).toEqual([]);
    await checkInvariants(backend.database.pool);
  });

  test('a turn that turns out unreadable after the claim is handed back at the next epoch, waits, says so, and is taken by the newer build at once', async () => {
    await migrateTo(NEXT, THIS_BUILD.schemaVersion);
    const older = open(WITHOUT_FILES);
    await profiles(older);
    await older.worker();
    const turnId = await older.submit('answers', { context_box_id: await fileBox(older) });
    await waitFor(async () => (await turnOf(turnId)).format === NEXT, { message: 'it is handed back' });
    const handed = await turnOf(turnId);
    expect(handed).toMatchObject({ status: 'dispatched', losses: 0 });
    expect(handed.epoch).toBeGreaterThan(1);
    expect(await why(turnId)).toMatchObject({
      is_live: false,
      links: [{ kind: 'format', next: expect.stringMatching(/newer build/) }],
    });
    // The pool continues meanwhile, and no process rings for the turn again.
    const other = await older.submit('answers');
    await ended([other]);
    const look = { lostRingMs: -60_000, limit: 10 };
    expect((await findStaleRings(backend.database.pool, look)).rings).toEqual([]);
    expect(await turnOf(turnId)).toEqual(handed);
    expect(asked.filter((ask) => ask.turnId === turnId)).toEqual([]);

    const newer = open(NEWER);
    const newWorker = await newer.worker();
    await ended([turnId]);
    expect(await makersOf([turnId])).toEqual([newWorker.id]);
    expect(await successes([turnId, other])).toBe(2);
    await checkInvariants(backend.database.pool);
  });

  test('a profile with a setting that an older build does not know waits for a build that may ignore the setting', async () => {
    await migrateTo(NEXT, THIS_BUILD.schemaVersion);
    const older = open(THIS_BUILD);
    await profiles(older);
    // The form in which a newer build would have stored it.
    await rows(`with c as (
        insert into boxcar.cards (id, project_id, type, role, content, content_hash, size_bytes, token_estimate, author_id)
        select gen_random_uuid(), c.project_id, c.type, c.role, jsonb_set(c.content::jsonb, '{data,limits,max_regrets}', '3')::json, c.content_hash, c.size_bytes, c.token_estimate, c.author_id
        from boxcar.cards c join boxcar.profiles f on f.card_id = c.id where f.name = 'answers' returning id)
      update boxcar.profiles set card_id = c.id from c where name = 'answers'`);
    await older.worker();
    const turnId = await older.submit('answers');
    await waitFor(async () => (await turnOf(turnId)).format === NEXT, { message: 'it is handed back' });
    expect(await turnOf(turnId)).toMatchObject({ status: 'dispatched', losses: 0 });
    const newWorker = await open(NEWER).worker();
    await ended([turnId]);
    expect(await makersOf([turnId])).toEqual([newWorker.id]);
    await checkInvariants(backend.database.pool);
  });

  test('after a rollback the turns of the newer build wait without using room, and continue when it returns', async () => {
    await migrateTo(NEXT, THIS_BUILD.schemaVersion);
    const newer = open(NEWER);
    await profiles(newer);
    const newWorker = await newer.worker({ concurrency: 2 });
    const started = await Promise.all(Array.from({ length: 8 }, () => newer.submit('waits')));
    await waitFor(() => gates.size === 2, { message: 'two models are asked' });
    await newWorker.close({ graceMs: 0 });
    const older = open(THIS_BUILD);
    // Its window is four; eight turns that it cannot read precede this turn.
    await older.worker({ concurrency: 1 });
    const late = await newer.submit('answers');
    expect(await turnOf(late)).toMatchObject({ status: 'queued' });
    expect(await why(late)).toMatchObject({ is_live: false, links: [{ kind: 'format' }] });
    const old = await Promise.all(Array.from({ length: 6 }, () => older.submit('answers')));
    await ended(old);
    expect(await successes(old)).toBe(6);
    expect(
      await rows("select from boxcar.turns where format = $1 and status in ('queued', 'dispatched')", [NEXT]),
    ).toHaveLength(9);

    const back = open(NEWER);
    await back.worker();
    await ended([...started, late]);
    expect(await successes([...started, late])).toBe(9);
    await checkInvariants(backend.database.pool);
  });

  test('content that no newer build can have written is damage, and ends the turn', async () => {
    const only = open(WITHOUT_FILES);
    await profiles(only);
    await only.worker();
    const turnId = await only.submit('answers', { context_box_id: await fileBox(only) });
    await ended([turnId]);
    expect(await rows('select status, error, losses from boxcar.turns')).toEqual([
      {
        status: 'failed',
        error: expect.objectContaining({
          code: 'unsupported_format',
          details: expect.objectContaining({ card_id: expect.any(String) }),
        }),
        losses: 1,
      },
    ]);
    await checkInvariants(backend.database.pool);
  });
});
