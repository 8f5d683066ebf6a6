import type { WorkerId } from '@boxcar/kernel';
import pg from 'pg';
import { beforeEach, describe, expect, test } from 'vitest';
import { newId, type TestProfile, World } from '../testing/world.js';
import type { KnownTape } from '../visible/known-tapes.js';
import { commitSteps } from './commits.js';
import { claimWithViews, loadViews } from './views.js';

let world: World;
let profile: TestProfile;
let holderId: WorkerId;

beforeEach(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  holderId = await world.worker();
  return () => world[Symbol.asyncDispose]();
});

const LARGE = 1_000_000;
const ringOf = async (turn: { readonly turnId: Parameters<World['row']>[0]['turnId'] }) => ({
  turnId: turn.turnId,
  epoch: (await world.row(turn)).epoch,
});

describe('a claim with its view', () => {
  test('returns the rows that a separately loaded view has, for each turn its own', async () => {
    const turns = [await world.submit({ profile }), await world.submit({ profile })];
    const rings = await Promise.all(turns.map(ringOf));
    const claims = await claimWithViews(world.pool, rings, { holderId, maxViewBytes: LARGE });
    const apart = await loadViews(world.pool, turns);
    claims.forEach((claim, index) => {
      if (claim.outcome === 'stale') throw new Error('the claim was lost');
      expect(claim.turn.turnId).toBe(turns[index]?.turnId);
      expect(claim.view).toEqual(apart.get(claim.turn.turnId));
      expect(claim.view?.entries.at(-1)?.payload).toMatchObject({ name: 'turn.started' });
      expect(claim.view?.sizeBytes).toBeGreaterThan(0);
    });
  });

  test('sees the rows that the claim itself wrote, also on a pool that sends one statement at a time', async () => {
    const pool = new pg.Pool({ connectionString: world.pool.options.connectionString });
    // The connection may outlive the database of the test.
    pool.on('connect', (client) => client.on('error', () => undefined)).on('error', () => undefined);
    const turn = await world.submit({ profile });
    const [claim] = await claimWithViews(pool, [await ringOf(turn)], { holderId, maxViewBytes: LARGE });
    expect(claim).toMatchObject({ outcome: 'claimed', view: { entries: { length: 3 } } });
    await pool.end();
  });

  test('is returned without the view when the view is too large, on the tape or in the context', async () => {
    const turn = await world.submit({ profile });
    const options = { holderId, maxViewBytes: 16 };
    const [fatContext] = await claimWithViews(world.pool, [await ringOf(turn)], options);
    expect(fatContext).toMatchObject({ outcome: 'claimed', view: undefined });

    const again = await world.running({ profile, holder: holderId });
    await commitSteps(world.pool, [await world.commit(again, { says: 'x'.repeat(5_000), end: 'success' })]);
    const next = await world.submit({ profile, reuse: again });
    const [fatTape] = await claimWithViews(world.pool, [await ringOf(next)], {
      holderId,
      maxViewBytes: 4_000,
    });
    expect(fatTape).toMatchObject({ outcome: 'claimed', view: undefined });
  });

  test('returns the contexts of earlier turns unless all of them together are too large', async () => {
    const first = await world.running({ profile, holder: holderId });
    await commitSteps(world.pool, [await world.commit(first, { end: 'success' })]);
    const next = await world.submit({ profile, reuse: first });
    const [claim] = await claimWithViews(world.pool, [await ringOf(next)], { holderId, maxViewBytes: LARGE });
    if (claim?.outcome !== 'claimed') throw new Error('the claim was lost');
    expect([...(claim.view?.contexts.keys() ?? [])].sort()).toEqual(
      [first.contextBoxId, next.contextBoxId].sort(),
    );
    expect(claim.view).toEqual((await loadViews(world.pool, [next])).get(next.turnId));
  });

  describe('of a tape that the worker knows', () => {
    /** A turn that has ended, a second turn on its tape, and the part of the tape that the reader knows. */
    async function conversation() {
      const first = await world.running({ profile, holder: holderId });
      await commitSteps(world.pool, [await world.commit(first, { end: 'success' })]);
      const read = (await loadViews(world.pool, [first])).get(first.turnId);
      if (read === undefined) throw new Error('no view');
      const next = await world.submit({ profile, reuse: first });
      const { from, erasures, entries, contexts } = read;
      const known = { from, erasures, contexts, to: entries.at(-1)?.position ?? 0 };
      const claim = async (part: Partial<KnownTape> = {}) => {
        const options = {
          holderId,
          maxViewBytes: LARGE,
          known: new Map([[first.tapeId, { ...known, ...part }]]),
        };
        const [outcome] = await claimWithViews(world.pool, [await ringOf(next)], options);
        if (outcome?.outcome !== 'claimed') throw new Error('the claim was lost');
        return outcome.view;
      };
      return { first, next, known, claim };
    }

    test('returns only the new entries', async () => {
      const { next, known, claim } = await conversation();
      const view = await claim();
      expect(view?.entries.map(({ position }) => position)).toEqual([known.to + 1]);
      expect([...(view?.contexts.keys() ?? [])]).toEqual([next.contextBoxId]);
      expect(view?.from).toBe(known.from);
    });

    test('returns the last entry when nothing is new, so that the tape is not taken for empty', async () => {
      const { next, claim, known, first } = await conversation();
      await claim();
      const options = new Map([[first.tapeId, { ...known, to: known.to + 1 }]]);
      const view = (await loadViews(world.pool, [next], options)).get(next.turnId);
      expect(view?.entries.map(({ position }) => position)).toEqual([known.to + 1]);
    });

    test.each<[string, Partial<KnownTape>]>([
      ['now begins elsewhere', { from: 2 }],
      ['was read before an erasure', { erasures: 7 }],
    ])('returns the whole tape when the known part %s', async (_name, part) => {
      const { known, claim } = await conversation();
      const view = await claim(part);
      expect(view?.entries).toHaveLength(known.to + 1);
      expect(view?.contexts.size).toBe(2);
    });
  });

  test('of an old ring is stale and reads nothing', async () => {
    const turn = await world.submit({ profile });
    const rings = [
      { turnId: turn.turnId, epoch: 7 },
      { turnId: newId<'turn'>(), epoch: 1 },
    ];
    expect(await claimWithViews(world.pool, rings, { holderId, maxViewBytes: LARGE })).toEqual([
      { outcome: 'stale' },
      { outcome: 'stale' },
    ]);
  });
});
