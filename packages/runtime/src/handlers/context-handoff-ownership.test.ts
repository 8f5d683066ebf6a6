import type { AgentId, BoxId, KernelError } from '@boxcar/kernel';
import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { handoffStage, type Receipt, refTo, refusal, says } from '../testing/handoff-stage.js';
import type { Harness } from '../testing/harness.js';

const { open, close, submit, handOff, end, agent, promptOf, headOf, tape, cast } = handoffStage();
let h: Harness;

// The file uses one database: each test has its own agents.
beforeAll(async () => {
  h = await open();
});

afterAll(close);

/** Only this database, because other test files hold locks on the same server. */
const BLOCKED =
  'select from pg_stat_activity where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0';

/** Makes `work` wait for locked rows, changes these rows in the meantime, and then releases the locks. */
async function meanwhile<T>(
  lock: string,
  change: string,
  values: readonly string[],
  work: () => Promise<T>,
): Promise<PromiseSettledResult<T>> {
  const client = await h.database.pool.connect();
  try {
    await client.query('begin');
    await client.query(lock, [values[0]]);
    const done = Promise.allSettled([work()]);
    await waitFor(async () => (await h.rows(BLOCKED)).length > 0, { message: 'the work waits for the lock' });
    await client.query(change, [...values]);
    await client.query('commit');
    const [result] = await done;
    return result;
  } finally {
    client.release();
  }
}

const transfer = (boxId: BoxId, target_ref: string, sourceAgentId: AgentId, rest = {}) =>
  handOff(
    { target_ref, tape_ref: refTo(boxId, 'entry/1'), ownership: 'transfer', ...rest },
    { sourceAgentId },
  );
/** A tape that two agents may append to: its maker, and a helper with a grant. */
async function shared(name: string) {
  const [maker, helper, target] = await Promise.all(
    ['maker', 'helper', 'target'].map((role) => agent(`${name}-${role}`, 'source')),
  );
  if (maker === undefined || helper === undefined || target === undefined) throw new Error('no agents');
  const { box_id: boxId } = await (await h.runtime.tape(name, { as: maker.agent_id })).info();
  for (const mode of ['read', 'append'])
    await submit('grant_box', { box_id: boxId, grantee: helper.agent_id, mode });
  const appends = async (as: AgentId): Promise<boolean> =>
    (await tape(boxId, as)).append([says('more')]).then(
      () => true,
      (error: KernelError) => {
        expect(error.code).toBe('box_not_authorized');
        return false;
      },
    );
  const readsAll = async (as: AgentId): Promise<boolean> =>
    (await (await tape(boxId, as)).info()).entries === (await headOf(boxId));
  return { boxId, maker, helper, target, appends, readsAll };
}

describe('ownership: transfer', () => {
  test('of a tape that the caller made gives it to the target, which appends and reads on; the caller can only read', async () => {
    const { boxId, maker, helper, target, appends, readsAll } = await shared('made');
    await transfer(boxId, target.agent_id, maker.agent_id);
    expect([await appends(target.agent_id), await appends(maker.agent_id)]).toEqual([true, false]);
    expect([await readsAll(target.agent_id), await readsAll(maker.agent_id)]).toEqual([true, true]);
    // The transfer does not affect the grants of others, and an agent that has lost its right cannot hand it over again.
    expect(await appends(helper.agent_id)).toBe(true);
    expect(await refusal(transfer(boxId, 'target', maker.agent_id))).toMatchObject({
      code: 'box_not_authorized',
    });
    expect(
      await refusal(
        submit(
          'grant_box',
          { box_id: boxId, grantee: maker.agent_id, mode: 'append' },
          { sourceAgentId: maker.agent_id },
        ),
      ),
    ).toMatchObject({ code: 'box_not_authorized' });
    // The tape is handed back to the maker.
    await transfer(boxId, maker.agent_id, target.agent_id, { target_ref: maker.agent_id });
    expect([await appends(target.agent_id), await appends(maker.agent_id)]).toEqual([false, true]);
  });

  test('of a fork gives it to the target as a fork, to which its own forks return; the target’s own tape is not affected', async () => {
    const made = await agent('fork-taker', 'target');
    const fork = await (await h.runtime.tape('forked')).forkTape();
    const inner = await fork.tape.forkTape();
    await inner.tape.append([says('from within')]);
    const before = await fork.tape.forkSession('before-it-moved', { profile: 'target' });
    const { turn_id } = await handOff({
      target_ref: made.agent_id,
      tape_ref: refTo(fork.id, 'entry/1'),
      ownership: 'transfer',
    });
    await end(turn_id);
    const after = await fork.tape.forkSession('after-it-moved', { profile: 'target' });
    const children = await h.runtime.sessions.getChildrenOf(fork.id);
    expect(children.map(({ session_id }) => session_id)).toEqual([before.name, after.name]);

    const own = await headOf(made.output_box_id);
    const theirs = await tape(fork.id, made.agent_id);
    await theirs.reset();
    expect(await inner.merge()).toMatchObject({ parent: theirs.boxId, merged: 1 });
    expect(await headOf(made.output_box_id)).toBe(own);
    expect(await fork.merge()).toMatchObject({ replaced: true });
    expect((await h.runtime.tape('forked')).boxId).toBe(theirs.boxId);
  });

  test('by an agent with a grant for the tape passes on only that right', async () => {
    const { boxId, maker, helper, target, appends, readsAll } = await shared('lent');
    await transfer(boxId, target.agent_id, helper.agent_id);
    expect([
      await appends(target.agent_id),
      await appends(helper.agent_id),
      await appends(maker.agent_id),
    ]).toEqual([true, false, true]);
    expect([await readsAll(target.agent_id), await readsAll(helper.agent_id)]).toEqual([true, true]);
  });

  test('of the tape of an agent’s turns lets the target append and read on, and the tape stays with the agent', async () => {
    const { source } = await cast();
    const taker = await agent('taker', 'target');
    const made = await transfer(source.output_box_id, 'taker', source.agent_id);
    await end(made.turn_id);
    await (await tape(source.output_box_id, taker.agent_id)).append([says('from the taker')]);
    await (await tape(source.output_box_id, source.agent_id)).append([says('from its agent')]);
    const next = (await submit('delegate_async', {
      target_strategy: 'reuse',
      target_ref: source.agent_id,
      instruction: 'go on',
      wait: true,
    })) as unknown as Receipt;
    expect(promptOf(next.turn_id)).toContain('user: from the taker');
    expect((await (await tape(source.output_box_id, taker.agent_id)).info()).entries).toBe(
      await headOf(source.output_box_id),
    );
  });

  test('to a new agent of a profile, or by the operator to another agent, gives the tape to that agent, and no earlier agent may append', async () => {
    const { boxId, maker, target, appends, readsAll } = await shared('moved-on');
    const { turn_id } = await transfer(boxId, 'target', maker.agent_id);
    const fresh = { agent_id: (await end(turn_id)).agent_id as AgentId };
    expect([await appends(fresh.agent_id), await appends(maker.agent_id)]).toEqual([true, false]);
    // The new owner loses its earlier grants when it hands the tape on.
    await submit('grant_box', { box_id: boxId, grantee: fresh.agent_id, mode: 'append' });
    await handOff({ target_ref: target.agent_id, tape_ref: refTo(boxId, 'entry/1'), ownership: 'transfer' });
    expect([await appends(target.agent_id), await appends(fresh.agent_id)]).toEqual([true, false]);
    expect([await readsAll(target.agent_id), await readsAll(fresh.agent_id)]).toEqual([true, true]);
    await transfer(boxId, 'operator', target.agent_id);
    expect(await appends(target.agent_id)).toBe(false);
    expect(await readsAll(target.agent_id)).toBe(true);
  });

  test('twice at once with the same key is one transfer with one answer', async () => {
    const { boxId, maker, target } = await shared('keyed');
    const args = { target_ref: target.agent_id, tape_ref: refTo(boxId, 'entry/1'), ownership: 'transfer' };
    const options = { sourceAgentId: maker.agent_id, idempotencyKey: 'moved once' };
    const answers = await Promise.all([handOff(args, options), handOff(args, options)]);
    expect(answers[0]).toEqual(answers[1]);
    const turns = await h.rows('select from boxcar.turns where agent_id = $1', [target.agent_id]);
    expect(turns).toHaveLength(1);
  });

  test.each(['maker', 'helper'] as const)(
    'that arrives twice at once by its %s is done once',
    async (who) => {
      const cast = await shared(`raced-${who}`);
      const { boxId, target, appends } = cast;
      const other = await agent(`raced-${who}-other`, 'target');
      const ends = await Promise.allSettled(
        [target, other].map(({ agent_id }) => transfer(boxId, agent_id, cast[who].agent_id)),
      );
      expect(ends.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected']);
      expect([await appends(target.agent_id), await appends(other.agent_id)].sort()).toEqual([false, true]);
    },
  );
});

describe('a right that is taken away during its use', () => {
  const MOVE = 'update boxcar.boxes set owner_agent_id = $2, maker_agent_id = $2 where id = $1';
  const LOCK_TAPE = 'select from boxcar.boxes where id = $1 for no key update';
  const refused = (result: PromiseSettledResult<unknown>) =>
    expect(result).toMatchObject({ status: 'rejected', reason: { code: 'box_not_authorized' } });

  test('is not passed on: neither for a tape that was handed over, nor for a grant that has ended', async () => {
    const { boxId, maker, helper, target } = await shared('lost');
    const head = await headOf(boxId);
    const moved = await meanwhile(LOCK_TAPE, MOVE, [boxId, target.agent_id], () =>
      transfer(boxId, 'target', maker.agent_id),
    );
    refused(moved);
    const ended = await meanwhile(
      'select from boxcar.grants where box_id = $1 for update',
      'update boxcar.grants set expires_at = now() where box_id = $1 and agent_id = $2',
      [boxId, helper.agent_id],
      () =>
        handOff(
          { target_ref: 'target', tape_ref: refTo(boxId, `entry/${head}`) },
          { sourceAgentId: helper.agent_id },
        ),
    );
    refused(ended);
    expect(await headOf(boxId)).toBe(head);
  });

  test('does not allow the merge of a fork, which stays open', async () => {
    const { boxId, helper } = await shared('raced-merge');
    const fork = await (await tape(boxId, helper.agent_id)).forkTape();
    await fork.tape.append([says('from the fork')]);
    const head = await headOf(boxId);
    const END = 'update boxcar.grants set expires_at = now() where box_id = $1 and agent_id = $2';
    refused(await meanwhile(LOCK_TAPE, END, [boxId, helper.agent_id], () => fork.merge()));
    expect([await headOf(boxId), fork.status]).toEqual([head, 'open']);
  });

  test('does not allow a reset of the tape or an append to it', async () => {
    const { boxId, maker, target } = await shared('raced-reset');
    const makers = await tape(boxId, maker.agent_id);
    const head = await headOf(boxId);
    refused(await meanwhile(LOCK_TAPE, MOVE, [boxId, target.agent_id], () => makers.reset()));
    expect(await headOf(boxId)).toBe(head);
    refused(
      await meanwhile(LOCK_TAPE, MOVE, [boxId, maker.agent_id], async () =>
        (await tape(boxId, target.agent_id)).append([says('too late')]),
      ),
    );
    expect((await (await tape(boxId)).info()).entries).toBe(head);
  });
});

describe('a tape that was reset', () => {
  test('is reported up to its last entry, although an entry was appended during the reset', async () => {
    const { boxId, maker } = await shared('grown');
    const makers = await tape(boxId, maker.agent_id);
    const client = await h.database.pool.connect();
    await client.query('begin');
    await client.query('select from boxcar.boxes where id = $1 for update', [boxId]);
    const waiting = (n: number) =>
      waitFor(async () => (await h.rows(BLOCKED)).length >= n, { message: `${n} wait for the lock` });
    // The first statement that waits for the tape is served first. The owner's append is one statement.
    const appended = makers.append([says('the last word')]);
    await waiting(1);
    const reset = makers.reset({ archive: true });
    await waiting(2);
    await client.query('commit');
    client.release();
    const { last } = await appended;
    expect((await reset).archived).toContain(`/entry/${last}?head=${last}`);
  });

  test('is read by its box, and continues under its name; the archived tape cannot be handed over', async () => {
    const made = await h.runtime.tape('daily/log:1');
    const { box_id: old } = await made.info();
    await made.handoff('phase', { state: { n: 1 } });
    const byName = 'tape://default/daily%2Flog:1/anchor/phase';
    expect(await h.runtime.resolveTapeRef(byName)).toMatchObject({ boxId: old, position: 3, head: 4 });
    const { archived } = await made.reset({ archive: true });
    expect(await h.runtime.resolveTapeRef(archived ?? '')).toMatchObject({ boxId: old, isArchived: true });
    expect(await refusal(h.runtime.resolveTapeRef(byName))).toMatchObject({ code: 'not_found' });
    const next = await h.runtime.resolveTapeRef('tape://default/daily%2Flog:1/entry/1');
    expect(next.boxId).not.toBe(old);
    for (const ownership of ['share', 'transfer'])
      expect(await refusal(handOff({ target_ref: 'target', tape_ref: archived, ownership }))).toMatchObject({
        code: 'tape_conflict',
        details: { box_id: old },
      });
  });
});
