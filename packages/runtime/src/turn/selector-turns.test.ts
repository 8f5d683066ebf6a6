/** Turns whose worker lacks their selector. Source: docs/reference/views.md, "Selectors". */
import { parseId, type Select, type TurnId } from '@boxcar/kernel';
import { describeWait } from '@boxcar/kernel/words';
import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';
import { loadWaitFacts } from '@boxcar/store/report';
import { queueBackends, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { type OpenRuntime, openRuntime } from '../open.js';
import { Sweeper } from '../sweep/sweeper.js';
import { checkInvariants } from '../testing/invariants.js';
import { type TestBackend, testBackend } from '../testing/queue-backend.js';
import { createWorker, type Worker } from '../worker/worker.js';

const kinds = queueBackends();
const select: Select = (entries) => entries.flatMap(({ messages }) => messages);

let backend: TestBackend;
let sides: OpenRuntime[];
let workers: Worker[];
let gates: (() => void)[];
let targets = 0;

const rows = async <R extends Record<string, unknown>>(text: string, values: unknown[] = []): Promise<R[]> =>
  (await backend.database.pool.query<R>(text, values)).rows;

/** A process with these versions of the selector `picks`. Its tool `hold` waits for a gate if `holds` is true. */
function open(versions: readonly string[], holds = false): OpenRuntime {
  const answer: ScriptedFunction = ({ turn }, { call }) =>
    turn.step === 1 ? { toolCalls: [call('hold', {}, 'a')] } : { text: 'done' };
  const opened = openRuntime({
    ...backend.urls,
    model: createModelRouter({ scripted: { functions: { answer } } }),
  });
  for (const version of versions) opened.runtime.registerSelector('picks', { version, select });
  opened.runtime.registerTool({
    name: 'hold',
    description: 'Holds.',
    input: z.strictObject({}),
    retry: 'safe',
    run: async (_input, { signal }) => {
      if (!holds) return 'held';
      return new Promise((resolve, reject) => {
        gates.push(() => resolve('held'));
        signal.addEventListener('abort', () => reject(signal.reason));
      });
    },
  });
  sides.push(opened);
  return opened;
}

async function worker(
  { runtime }: OpenRuntime,
  target: string,
  concurrency = 4,
  sweepMs = 50,
): Promise<Worker> {
  const started = await createWorker(runtime, {
    targets: [target],
    concurrency,
    sweepMs,
    lostRingMs: 200,
    graceMs: 0,
  });
  workers.push(started);
  return started;
}

/** Submits to a pool of its own. */
async function submit({ runtime }: OpenRuntime, target: string, view?: object | string): Promise<TurnId> {
  const name = `of-${target}`;
  await runtime.applyProfile({
    name,
    instructions: 'Go.',
    model: 'scripted:answer',
    tools: ['hold'],
    worker_target: target,
    view: { selector: 'picks' },
  });
  const args = { target_strategy: 'new', target_ref: name, instruction: 'go', ...(view ? { view } : {}) };
  const { turn_id } = (await runtime.submit('delegate_async', args)) as { turn_id: string };
  return parseId(turn_id, 'turn');
}

const handedBack = (turnId: TurnId, step: number) =>
  waitFor(
    async () =>
      (
        await rows(
          "select from boxcar.waits w join boxcar.turns t on t.id = w.turn_id where t.id = $1 and w.kind = 'selector' and t.step_count = $2 - 1",
          [turnId, step],
        )
      ).length === 1,
    { message: `the turn waits for its selector before step ${step}`, deadlineMs: 20_000 },
  );

const turnOf = async (turnId: TurnId) =>
  (
    await rows<{ status: string; attempt: number; losses: number; version: string | null; epoch: number }>(
      'select status, attempt, losses, selector_version as version, epoch from boxcar.turns where id = $1',
      [turnId],
    )
  )[0];
const stepsOf = (turnId: TurnId) =>
  rows<{ step: number; attempt: number; holder: string }>(
    'select step, attempt, holder_id as holder from boxcar.steps where turn_id = $1 order by step, attempt',
    [turnId],
  );
const why = async (turnId: TurnId) =>
  describeWait(await loadWaitFacts(backend.database.pool, turnId))?.links[0];
const end = ({ runtime }: OpenRuntime, turnId: TurnId) => runtime.waitForTurn(turnId, { timeoutMs: 60_000 });

async function start(kind: (typeof kinds)[number]): Promise<void> {
  backend = await testBackend(kind);
  sides = [];
  workers = [];
  gates = [];
}

async function stop(): Promise<void> {
  for (const started of workers) await started.close({ graceMs: 0 });
  for (const opened of sides) await opened.close();
  await checkInvariants(backend.database.pool);
  await backend.close();
}

describe.each(kinds)('queues on %s', (kind) => {
  beforeAll(() => start(kind));
  afterAll(stop);

  test('a worker without the selector hands the turn back once, and nothing of the turn is lost', async () => {
    const target = `t${++targets}`;
    const [without, has] = [open([]), open(['1'])];
    await worker(without, target);
    const turnId = await submit(without, target);
    await handedBack(turnId, 1);
    expect(await turnOf(turnId)).toEqual({
      status: 'suspended',
      attempt: 0,
      losses: 0,
      version: null,
      epoch: 1,
    });
    expect(await stepsOf(turnId)).toEqual([]);
    expect(await why(turnId)).toMatchObject({
      kind: 'selector',
      what: "waits for a worker with selector 'picks'; no living worker of its pool has it",
      next: expect.stringContaining('boxcar worker --plugin'),
    });
    // A worker outside the pool of the turn cannot take it.
    await worker(has, `${target}-other`);
    expect((await why(turnId))?.what).toContain('no living worker');
    const { id } = await worker(has, target);
    expect((await end(has, turnId)).status).toBe('success');
    const holder = id;
    expect(await stepsOf(turnId)).toEqual([
      { step: 1, attempt: 1, holder },
      { step: 2, attempt: 1, holder },
    ]);
    // Taken from the rows, not rung: it was not delivered to the worker without the selector again.
    expect(await turnOf(turnId)).toMatchObject({ status: 'success', losses: 0, version: '1', epoch: 2 });
    await has.runtime.explainStep(turnId, { step: 2 }).then(({ verified }) => expect(verified).toBe(true));
  });

  test('during a turn the version of its selector counts, and other workers continue until the next prompt', async () => {
    const target = `t${++targets}`;
    const [first, newer, both] = [open(['1'], true), open(['2']), open(['1', '2'])];
    const one = await worker(first, target);
    const turnId = await submit(first, target);
    await waitFor(() => gates.length > 0, { message: 'the tool holds' });
    const two = await worker(newer, target);
    await one.close({ graceMs: 0 });
    await handedBack(turnId, 2);
    // The claim for the open call counts as usual; the claim for the prompt is taken back.
    expect(await turnOf(turnId)).toMatchObject({ status: 'suspended', attempt: 1, losses: 0, version: '1' });
    expect(await stepsOf(turnId)).toEqual([{ step: 1, attempt: 1, holder: one.id }]);
    expect(await why(turnId)).toMatchObject({
      what: "waits for a worker with selector 'picks' version '1'; no living worker of its pool has it",
    });
    const three = await worker(both, target);
    expect((await end(both, turnId)).status).toBe('success');
    expect((await stepsOf(turnId)).map(({ attempt, holder }) => [attempt, holder])).toEqual([
      [1, one.id],
      [2, three.id],
    ]);
    expect(await turnOf(turnId)).toMatchObject({ version: '1' });
    expect((await stepsOf(turnId)).some(({ holder }) => holder === two.id)).toBe(false);
  });
});

describe('the wait for a worker with the selector', () => {
  beforeAll(() => start(kinds[0] ?? 'postgres'));
  afterAll(stop);

  const sweepIn = ({ runtime }: OpenRuntime, seconds: number) =>
    new Sweeper(runtime, {
      lostRingMs: 3_600_000,
      claimFromRows: async () => undefined,
      wakeProvider: async () => undefined,
    }).sweep({ now: new Date(Date.now() + seconds * 1_000) });

  test('ends after 60 s without such a worker, and the turn fails', async () => {
    const target = `t${++targets}`;
    const without = open([]);
    const own = await worker(without, target);
    const turnId = await submit(without, target);
    await handedBack(turnId, 1);
    // Its own sweeps would interfere with the sweeps below.
    await own.close({ graceMs: 0 });
    await sweepIn(without, 50);
    expect((await turnOf(turnId))?.status).toBe('suspended');
    await sweepIn(without, 62);
    const { status, error } = await end(without, turnId);
    expect(status).toBe('failed');
    expect(error).toMatchObject({
      code: 'selector_unknown',
      message: expect.stringMatching(
        /^Selector 'picks' makes the prompts of this turn, and for 60 s no worker of its pool had it\. Register this name/,
      ),
      details: { selector: 'picks', turn_id: turnId, step: 1 },
    });
    expect(await rows('select from boxcar.waits where turn_id = $1', [turnId])).toEqual([]);
  });

  test('is extended by a worker that has the selector and no free slot, which takes the turn when a slot is free', async () => {
    const target = `t${++targets}`;
    const [without, has] = [open([]), open(['1'], true)];
    const busy = await worker(has, target, 1);
    const first = await submit(has, target);
    await waitFor(() => gates.length > 0, { message: 'the only slot is taken' });
    await worker(without, target);
    const turnId = await submit(has, target);
    await handedBack(turnId, 1);
    const due = "due_at > now() + interval '50 seconds'";
    await rows("update boxcar.waits set due_at = now() + interval '5 seconds' where turn_id = $1", [turnId]);
    await waitFor(
      async () =>
        (await rows(`select from boxcar.waits where turn_id = $1 and ${due}`, [turnId])).length === 1,
      { message: 'the end is put off' },
    );
    expect((await why(turnId))?.what).toMatch(
      new RegExp(
        `^waits for a worker with selector 'picks'; of the living workers of its pool ${busy.id} \\(.*\\) has it$`,
      ),
    );
    for (const gate of gates.splice(0)) gate();
    await waitFor(() => gates.length > 0, { message: 'the second turn holds' });
    for (const gate of gates.splice(0)) gate();
    expect((await end(has, turnId)).status).toBe('success');
    expect((await end(has, first)).status).toBe('success');
  });

  test('ends for turn after turn, with each slot of the worker, not only with its sweeps', async () => {
    const target = `t${++targets}`;
    const [without, has] = [open([]), open(['1'])];
    const own = await worker(without, target);
    const turnIds = await Promise.all([1, 2, 3].map(() => submit(without, target)));
    for (const turnId of turnIds) await handedBack(turnId, 1);
    await own.close({ graceMs: 0 });
    // It sweeps only once, when it starts.
    await worker(has, target, 1, 3_600_000);
    for (const turnId of turnIds) expect((await end(has, turnId)).status).toBe('success');
  });

  test('ends between the turns of the queue, at a worker whose queue is never empty', async () => {
    const target = `t${++targets}`;
    const [without, has] = [open([]), open(['1'], true)];
    await worker(has, target, 1);
    const first = await submit(has, target);
    await waitFor(() => gates.length > 0, { message: 'the only slot is taken' });
    const other = await worker(without, target);
    const turnId = await submit(has, target);
    await handedBack(turnId, 1);
    await other.close({ graceMs: 0 });
    const queued = [];
    for (let n = 0; n < 8; n++) queued.push(await submit(has, target, 'last_anchor'));
    await rows("update boxcar.waits set due_at = now() + interval '5 seconds' where turn_id = $1", [turnId]);
    const putOff = "select from boxcar.waits where turn_id = $1 and due_at > now() + interval '50 seconds'";
    await waitFor(async () => (await rows(putOff, [turnId])).length === 1, {
      message: 'the worker has seen that it has no room for the turn',
    });
    const all = [first, turnId, ...queued];
    const endedAt =
      'select id from boxcar.turns where id = any ($1) and ended_at is not null order by ended_at';
    const order = await waitFor(
      async () => {
        for (const gate of gates.splice(0)) gate();
        const ids = (await rows<{ id: TurnId }>(endedAt, [all])).map(({ id }) => id);
        return ids.length === all.length ? ids : undefined;
      },
      { message: 'all have ended' },
    );
    expect(order.indexOf(turnId)).toBeLessThan(4);
  });

  test('is ended by a cancel', async () => {
    const target = `t${++targets}`;
    const without = open([]);
    await worker(without, target);
    const turnId = await submit(without, target, { selector: 'nowhere' });
    await handedBack(turnId, 1);
    await without.runtime.submit('cancel', { turn_id: turnId });
    expect((await end(without, turnId)).status).toBe('canceled');
    expect(await rows('select from boxcar.waits where turn_id = $1', [turnId])).toEqual([]);
  });
});
