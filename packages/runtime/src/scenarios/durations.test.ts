/**
 * Durations and other numbers from callers are checked at the place where they are given, and no timer fires too early.
 */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { type Harness, harness } from '../testing/harness.js';
import { createWorker } from '../worker/worker.js';

let h: Harness;

beforeAll(async () => {
  h = await harness();
  await h.profile('p', [{ say: 'done' }]);
});

afterAll(() => h[Symbol.asyncDispose]());

const DAY_MS = 86_400_000;
/** Values that are not positive or exceed 30 days; the text distinguishes them in a title. */
const WRONG: readonly [string, unknown][] = [
  ['0', 0],
  ['-1', -1],
  ['NaN', Number.NaN],
  ['31 days', 31 * DAY_MS],
  ['a text', '1000'],
];

const tool = (name: string, timeoutMs: unknown) => ({
  name,
  description: 'Answers.',
  input: z.object({}),
  run: () => 'answered',
  timeoutMs: timeoutMs as number,
});

describe('the timeout of a tool', () => {
  test.each([...WRONG, ['Infinity', Infinity]])('of %s is refused when it is registered', (_title, value) => {
    expect(() => h.runtime.registerTool(tool('odd', value))).toThrow(
      expect.objectContaining({ code: 'bad_request', details: { field: 'odd: timeoutMs' } }),
    );
    expect(h.runtime.tools.has('odd')).toBe(false);
  });

  test('of 30 days does not end a short call', async () => {
    h.runtime.registerTool({
      ...tool('patient', 30 * DAY_MS),
      run: () => new Promise((resolve) => setTimeout(resolve, 100, 'answered')),
    });
    await h.profile('asks', [{ calls: [{ tool: 'patient' }] }, { say: 'done' }], {
      tools: ['patient'],
    });
    await using _worker = await h.worker();
    const { turn_id } = (await h.runtime.submit('launch_principal', {
      profile_name: 'asks',
      instruction: 'x',
    })) as { turn_id: string };
    expect(await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
    expect(await h.rows('select status from boxcar.tool_calls where turn_id = $1', [turn_id])).toEqual([
      { status: 'success' },
    ]);
  });
});

describe('a wait of the library', () => {
  let turnId: string;

  beforeAll(async () => {
    const receipt = await h.runtime.submit('launch_principal', { profile_name: 'p', instruction: 'x' });
    turnId = (receipt as { turn_id: string }).turn_id;
  });

  test.each(WRONG)('of %s is refused', async (_title, value) => {
    const timeoutMs = value as number;
    const refusal = { code: 'bad_request', details: { field: 'timeoutMs' } };
    await expect(h.runtime.waitForTurn(turnId, { timeoutMs })).rejects.toMatchObject(refusal);
    await expect(h.runtime.waitForBatch(turnId, { timeoutMs })).rejects.toMatchObject(refusal);
  });

  test('of 30 days, and one without limit, end with the turn', async () => {
    const waits = [30 * DAY_MS, Infinity].map((timeoutMs) => h.runtime.waitForTurn(turnId, { timeoutMs }));
    // A timer with an overflow would fire at once.
    const first = await Promise.race([
      Promise.allSettled(waits).then(() => 'ended'),
      new Promise((resolve) => setTimeout(resolve, 100, 'waits')),
    ]);
    expect(first).toBe('waits');
    await using _worker = await h.worker();
    for (const wait of waits) expect(await wait).toMatchObject({ status: 'success' });
  });
});

describe('the options of a worker', () => {
  test.each(
    (['leaseMs', 'heartbeatMs', 'sweepMs', 'lostRingMs', 'graceMs'] as const).flatMap((field) =>
      [...WRONG, ['Infinity', Infinity] as const]
        .filter(([, value]) => !(field === 'graceMs' && value === 0))
        .map(([title, value]) => [field, title, value] as const),
    ),
  )('%s of %s is refused by name', async (field, _title, value) => {
    await expect(createWorker(h.runtime, { [field]: value })).rejects.toMatchObject({
      code: 'bad_config',
      details: { field },
    });
  });

  test.each([0, 1.5, Number.NaN, 2 ** 31, '5'])('a concurrency of %s is refused by name', async (value) => {
    await expect(createWorker(h.runtime, { concurrency: value as number })).rejects.toMatchObject({
      code: 'bad_config',
      details: { field: 'concurrency' },
    });
  });

  test('pauses of 30 days do not become loops without pauses', async () => {
    const before = h.log.length;
    await using _worker = await h.worker({
      sweepMs: 30 * DAY_MS,
      heartbeatMs: 30 * DAY_MS,
      leaseMs: 30 * DAY_MS,
    });
    const { rows } = await h.database.pool.query<{ beats: string }>(
      'select lease_until::text as beats from boxcar.workers',
    );
    await new Promise((resolve) => setTimeout(resolve, 200));
    const again = await h.database.pool.query('select lease_until::text as beats from boxcar.workers');
    expect(again.rows).toEqual(rows);
    expect(h.log.slice(before).filter(({ event }) => event.endsWith('failed'))).toEqual([]);
  });

  test('the grace time of a close is checked like that of a worker', async () => {
    await using worker = await h.worker();
    await expect(worker.close({ graceMs: Number.NaN })).rejects.toMatchObject({
      code: 'bad_request',
      details: { field: 'graceMs' },
    });
  });
});

describe('a handler of a user', () => {
  test.each([
    ['deadlineMs', Number.NaN],
    ['deadlineMs', 31 * DAY_MS],
    ['deadlineMs', Infinity],
    ['deadlineMs', 0],
    ['priority', 1.5],
    ['priority', 40_000],
  ])('that gives a turn the %s %s is refused by name, and leaves no rows', async (field, value) => {
    const name = `odd_${field}_${value}`.toLowerCase().replaceAll(/[^a-z0-9_]/g, '_');
    h.runtime.registerHandler(name, {
      description: 'Submits a turn.',
      input: z.object({}),
      handle: async (_input, tools) => {
        const profile = await tools.findProfile('p');
        const { contextBoxId } = await tools.packer.packContextWithInstruction({
          projectId: tools.ctx.projectId,
          toolSuffix: name,
          sourceAgentId: tools.ctx.source.agentId,
          profileName: 'p',
          instruction: 'x',
        });
        const turn = await tools.submitTurn({
          target: { kind: 'new', profile },
          contextBoxId,
          [field]: value,
        });
        return { turn_id: turn.turnId };
      },
    });
    const count = async () => (await h.rows('select count(*)::int as n from boxcar.turns'))[0];
    const before = await count();
    await expect(h.runtime.submit(name, {})).rejects.toMatchObject({
      code: 'bad_request',
      details: { field },
    });
    expect(await count()).toEqual(before);
  });
});
