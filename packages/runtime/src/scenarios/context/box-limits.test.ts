import { type CardInput, KernelError } from '@boxcar/kernel';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { PackLimits } from '../../pack/index.js';
import { InProcessDoorbell } from '../../queue/doorbell-in-process.js';
import { Runtime } from '../../runtime.js';
import { type Harness, harness } from '../../testing/harness.js';
import { rowCounts } from '../../testing/row-counts.js';

let h: Harness;
const opened: Runtime[] = [];

beforeAll(async () => {
  h = await harness();
});

afterAll(async () => {
  for (const runtime of opened) await runtime.close();
  await h[Symbol.asyncDispose]();
});

/** The same database under other limits. */
function withLimits(limits: PackLimits): Runtime {
  const runtime = new Runtime({
    pool: h.database.pool,
    directUrl: h.database.url,
    doorbell: new InProcessDoorbell(),
    model: h.runtime.model,
    limits,
  });
  opened.push(runtime);
  return runtime;
}

const cards = (count: number, bytes: number): CardInput[] =>
  Array.from({ length: count }, () => ({
    type: 'task.context',
    // `{"kind":"text","text":""}` are 25 bytes.
    content: { kind: 'text', text: 'x'.repeat(bytes - 25) },
  }));

async function refusal(work: Promise<unknown>): Promise<KernelError> {
  const thrown: unknown = await work.then(
    () => undefined,
    (error: unknown) => error,
  );
  expect(thrown).toBeInstanceOf(KernelError);
  return thrown as KernelError;
}

describe('the size of a box made by hand', () => {
  test('is limited for all its new cards together, as configured, and a refusal leaves nothing', async () => {
    const runtime = withLimits({ maxBoxBytes: 1_000 });
    expect(await runtime.submit('create_box', { cards: cards(10, 100) })).toMatchObject({
      box_id: expect.any(String),
    });
    const before = await rowCounts(h.database.pool);
    expect(await refusal(runtime.submit('create_box', { cards: cards(11, 100) }))).toMatchObject({
      code: 'payload_too_large',
      details: { field: 'cards.10', sizeBytes: 1_100, limitBytes: 1_000 },
    });
    expect(
      await refusal(
        runtime.packer.createCards({ projectId: 'default', authorId: 'operator', cards: cards(11, 100) }),
      ),
    ).toMatchObject({ code: 'payload_too_large' });
    expect(await rowCounts(h.database.pool)).toEqual(before);
  });

  test('is 16 MiB unless configured', async () => {
    const megabytes = cards(17, 1024 * 1024);
    expect(await refusal(h.runtime.submit('create_box', { cards: megabytes }))).toMatchObject({
      code: 'payload_too_large',
      details: { limitBytes: 16 * 1024 * 1024 },
    });
  });

  test('has the card limit of any context, including listed cards, and the limit can be higher than 10,000', async () => {
    const few = withLimits({ maxContextCards: 3 });
    const ids = await few.packer.createCards({
      projectId: 'default',
      authorId: 'operator',
      cards: cards(3, 100),
    });
    expect(await few.submit('create_box', { card_ids: ids })).toMatchObject({ box_id: expect.any(String) });
    for (const args of [{ cards: cards(1, 100), card_ids: ids }, { cards: cards(4, 100) }])
      expect(await refusal(few.submit('create_box', args))).toMatchObject({
        code: 'payload_too_large',
        details: { cards: 4, limitCards: 3 },
      });
    const many = withLimits({ maxContextCards: 10_001 });
    const made = (await many.submit('create_box', { cards: cards(10_001, 30) })) as { box_id: string };
    expect(await h.rows('select card_count from boxcar.boxes where id = $1', [made.box_id])).toEqual([
      { card_count: 10_001 },
    ]);
  });
});
