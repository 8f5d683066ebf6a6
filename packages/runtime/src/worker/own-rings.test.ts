import { AsyncLocalStorage } from 'node:async_hooks';
import type { Model, Ring } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { waitFor } from '@boxcar/testkit';
import { beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { statementsOf } from '../testing/count-statements.js';
import { sendAllRings } from '../testing/far-rings.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';

class CountingDoorbell extends InProcessDoorbell {
  /** The turn of each ring. */
  readonly rungTurns: string[] = [];

  get rung(): number {
    return this.rungTurns.length;
  }

  override ring(rings: readonly Ring[]): Promise<void> {
    this.rungTurns.push(...rings.map(({ turnId }) => turnId));
    return super.ring(rings);
  }
}

let h: Harness;
let bell: CountingDoorbell;
/** The promise for which models of turns without tools wait. */
let gate: Promise<void>;

const holdLeaves = (): { release: () => void } => {
  let release = (): void => undefined;
  gate = new Promise((settle) => {
    release = settle;
  });
  return { release };
};

beforeEach(async () => {
  bell = new CountingDoorbell();
  gate = Promise.resolve();
  const router = createModelRouter({});
  const model: Model = {
    ...router,
    generate: async (request, options) => {
      if (request.tools.length === 0) await gate;
      return router.generate(request, options);
    },
  };
  const made = await harness({ doorbell: bell, model });
  h = {
    ...made,
    worker: async (options) => {
      const worker = await made.worker(options);
      sendAllRings(made.runtime);
      return worker;
    },
  };
  return () => made[Symbol.asyncDispose]();
});

const lead = (name: string, calls: readonly { tool: string; arguments: object }[]) =>
  h.profile(name, [{ calls: [...calls] as never }, { say: 'done' }], {
    tools: calls.map(({ tool }) => tool),
    delegation_policy: { target_profiles: null },
  });
const asks = (profile_name: string) => ({
  tool: 'launch_principal',
  arguments: { profile_name, instruction: 'go', wait: true },
});
const run = async (profile_name: string): Promise<void> => {
  expect(
    await h.runtime.submit('launch_principal', { profile_name, instruction: 'go', wait: true }),
  ).toMatchObject({ status: 'success' });
};
/** root → middle → leaf, and back. */
const chain = async (leaf: Readonly<Record<string, unknown>> = {}): Promise<void> => {
  await h.profile('leaf', [{ say: 'leaf' }], leaf);
  await lead('middle', [asks('leaf')]);
  await lead('root', [asks('middle')]);
};

/** The statements that begin, write, claim and commit, by their labels. */
const claimsOf = (statements: readonly string[]): string[] =>
  statements.flatMap((text) => {
    const [label] =
      /^begin|^commit|(submission-sql\.build|claims\.claim|tool-calls\.advance)/.exec(text) ?? [];
    return label === undefined ? [] : [label];
  });

/** Makes this number of claims fail for turns that match `which`. Sequences are not rolled back. */
const failClaims = (count: number, which: string): Promise<unknown> =>
  h.database.pool.query(`create sequence claims;
    create function fail_claims() returns trigger language plpgsql as $$ begin
      if nextval('claims') <= ${count} then raise exception 'not now'; end if; return new; end $$;
    create trigger fail_claims before update on boxcar.turns for each row
      when (new.status = 'running' and old.status = 'dispatched' and ${which}) execute function fail_claims()`);

describe('a turn that this process submits', () => {
  beforeEach(async () => {
    await h.profile('leaf', [{ say: 'leaf' }]);
  });
  const submit = () => h.runtime.submit('launch_principal', { profile_name: 'leaf', instruction: 'go' });
  const statuses = async () =>
    (await h.rows<{ status: string }>('select status from boxcar.turns order by id')).map(
      ({ status }) => status,
    );

  test('is taken by its worker without the queue while the worker has a free slot', async () => {
    await h.worker({ concurrency: 4, sweepMs: 3_600_000 });
    for (let turn = 0; turn < 3; turn += 1) await run('leaf');
    expect(bell.rung).toBe(0);
    await checkInvariants(h.database.pool);
  });

  test('is submitted and taken in one transaction, alone and in parallel', async () => {
    await h.worker({ concurrency: 4, sweepMs: 3_600_000 });
    await run('leaf');
    const alone = await statementsOf(h.database, () => run('leaf'));
    expect(claimsOf(alone)).toEqual(['begin', 'submission-sql.build', 'claims.claim', 'commit']);
    const several = await statementsOf(h.database, () =>
      Promise.all([run('leaf'), run('leaf'), run('leaf')]),
    );
    expect(claimsOf(several)).toEqual(claimsOf(alone));
    expect(bell.rung).toBe(0);
    await checkInvariants(h.database.pool);
  });

  test('is submitted although its claim fails, and is then rung', async () => {
    await h.worker({ concurrency: 4, sweepMs: 3_600_000 });
    await failClaims(1, 'new.depth = 0');
    await run('leaf');
    expect(bell.rung).toBe(1);
    await checkInvariants(h.database.pool);
  });

  test('is answered and rung while another session locks its existing tape', async () => {
    await h.runtime.submit('provision_agent', { action: 'ensure', agent_id: 'shared', profile_name: 'leaf' });
    await h.worker({ concurrency: 4, sweepMs: 3_600_000 });
    const give = () =>
      h.runtime.submit('delegate_async', {
        target_strategy: 'reuse',
        target_ref: 'shared',
        instruction: 'go',
        wait: false,
      });
    await give();
    await waitFor(async () => (await statuses()).every((status) => status === 'success'), {
      message: 'the tape has a turn',
    });
    const before = bell.rung;
    const other = await h.database.pool.connect();
    await other.query('begin');
    await other.query(
      'select from boxcar.boxes b join boxcar.agents a on a.tape_box_id = b.id for update of b',
    );
    await give();
    await waitFor(() => bell.rung > before, { message: 'it is rung' });
    const [last] = (await statuses()).slice(-1);
    await other.query('rollback');
    other.release();
    expect(last).toBe('dispatched');
    await waitFor(async () => (await statuses()).every((status) => status === 'success'), {
      message: 'it has ended',
    });
    await checkInvariants(h.database.pool);
  });

  test('is answered with the content of its rows', async () => {
    await h.profile('teller', [{ calls: [{ tool: 'submit_result', arguments: { result: { sum: 42 } } }] }]);
    const short = { must_end_with: ['submit_result'], limits: { max_steps: 1 } };
    await h.profile('failer', [{ say: 'not yet' }], short);
    await h.worker({ concurrency: 4, sweepMs: 3_600_000 });
    await run('leaf');
    await waitFor(() => h.runtime.watcher.isListening, { message: 'it listens' });
    for (const profile_name of ['leaf', 'teller', 'failer']) {
      const args = { profile_name, instruction: 'go' };
      const { turn_id } = (await h.runtime.submit('launch_principal', args)) as { turn_id: string };
      expect(await h.runtime.waitForTurn(turn_id)).toEqual(await h.runtime.getTurn(turn_id));
    }
  });

  test('runs in the asynchronous context of the worker, not of the submitting code', async () => {
    const user = new AsyncLocalStorage<string>();
    const seen: unknown[] = [];
    h.runtime.registerTool({
      name: 'who',
      description: 'Says who asks.',
      input: z.strictObject({}),
      run: async () => {
        seen.push(user.getStore());
        return 'somebody';
      },
    });
    await h.profile('asker', [{ calls: [{ tool: 'who', arguments: {} }] }, { say: 'done' }], {
      tools: ['who'],
    });
    await h.worker({ concurrency: 4, sweepMs: 3_600_000 });
    await user.run('alice', () => run('asker'));
    expect(bell.rung).toBe(0);
    expect(seen).toEqual([undefined]);
  });

  test('is rung when the worker has no free slot, as are further turns', async () => {
    const { release } = holdLeaves();
    await h.worker({ concurrency: 2, sweepMs: 3_600_000 });
    for (let turn = 0; turn < 5; turn += 1) await submit();
    await waitFor(async () => bell.rung === 3, { message: 'three of five are rung' });
    release();
    await waitFor(async () => (await statuses()).every((status) => status === 'success'), {
      message: 'all have ended',
    });
    await checkInvariants(h.database.pool);
  });

  test('is rung while another ring waits in the queue of the worker', async () => {
    const { release } = holdLeaves();
    const worker = await h.worker({ concurrency: 1, sweepMs: 3_600_000 });
    await submit();
    await waitFor(() => worker.activeCount === 1, { message: 'the first one runs' });
    await submit();
    await submit();
    release();
    await waitFor(async () => (await statuses()).every((status) => status === 'success'), {
      message: 'all have ended',
    });
    expect(bell.rung).toBe(2);
  });

  test('is rung when it is one of several, has another target, or the worker takes no own rings', async () => {
    await h.profile('gpu', [{ say: 'gpu' }], { worker_target: 'gpu' });
    await h.worker({ concurrency: 4, sweepMs: 3_600_000, takesOwnRings: false });
    await run('leaf');
    expect(bell.rung).toBe(1);
    await h.worker({ concurrency: 4, sweepMs: 3_600_000 });
    await h.runtime.submit('launch_principal', { profile_name: 'gpu', instruction: 'go' });
    const task = { target_strategy: 'new', target_ref: 'leaf', instruction: 'go' };
    await h.runtime.submit('fork_join', { tasks: [task, task] });
    await waitFor(() => bell.rung === 3, { message: 'the members of the join are rung' });
  });

  test('goes to the queue once the worker closes, and is taken back from a worker that closes meanwhile', async () => {
    const { release } = holdLeaves();
    const worker = await h.worker({ concurrency: 4, sweepMs: 3_600_000 });
    await submit();
    await waitFor(() => worker.activeCount === 1, { message: 'it runs' });
    const closing = worker.close({ graceMs: 10 });
    await submit();
    await closing;
    // If no worker is left, there is no room for the second turn yet.
    const left = await statuses();
    expect(left.filter((status) => status !== 'dispatched' && status !== 'queued')).toEqual([]);
    release();
    await h.worker({ concurrency: 4, sweepMs: 100 });
    await waitFor(async () => (await statuses()).every((status) => status === 'success'), {
      message: 'another worker has them',
    });
    await checkInvariants(h.database.pool);
  });
});

describe('a turn that the turns of a worker dispatch', () => {
  test('is taken by that worker while it has a free slot: children, and parents when their children end', async () => {
    await chain();
    await h.worker({ concurrency: 4, sweepMs: 3_600_000 });
    await run('root');
    expect(bell.rung).toBe(0);
    await checkInvariants(h.database.pool);
  });

  const suspended = () => h.rows("select from boxcar.turns where status = 'suspended'");

  test('resumes as a parent in the commit of the end for which it waits', async () => {
    await chain();
    await h.worker({ concurrency: 4, sweepMs: 3_600_000 });
    const { release } = holdLeaves();
    const over = run('root');
    await waitFor(async () => (await suspended()).length === 2, { message: 'both parents wait' });
    const statements = await statementsOf(h.database, async () => {
      release();
      await over;
    });
    const resumed = ['tool-calls.advance', 'claims.claim'];
    expect(claimsOf(statements)).toEqual([...resumed, ...resumed]);
    // The claim immediately follows: no round trip was awaited between them.
    const before = statements.filter((_text, index) => statements[index + 1]?.includes('claims.claim'));
    expect(claimsOf(before)).toEqual(['tool-calls.advance', 'tool-calls.advance']);
    expect(await h.rows('select from boxcar.turns where epoch > 2')).toEqual([]);
  });

  test('is rung by the sweep when it is a parent whose claim fails, and its child has ended', async () => {
    await chain();
    await h.worker({ concurrency: 4, sweepMs: 100 });
    await failClaims(2, 'new.depth = 1 and new.epoch = 2');
    const { release } = holdLeaves();
    const over = run('root');
    await waitFor(async () => (await suspended()).length === 2, { message: 'both parents wait' });
    const before = bell.rung;
    release();
    await over;
    // Only this parent is rung. On a busy machine a second sweep may ring it before the first ring is handled.
    const [parent] = await h.rows<{ id: string }>('select id from boxcar.turns where depth = 1');
    expect([...new Set(bell.rungTurns.slice(before))]).toEqual([parent?.id]);
    const ends = await h.rows("select from boxcar.cards where type = 'task.deliverable'");
    expect(ends).toHaveLength(3);
    await checkInvariants(h.database.pool);
  });

  test('waits after older turns of the queue when the worker has no free slot', async () => {
    await chain();
    await h.worker({ concurrency: 1, sweepMs: 3_600_000 });
    await run('root');
    // The first turn was taken without the queue.
    expect(bell.rung).toBe(4);
  });

  test('is rung for another target', async () => {
    await chain({ worker_target: 'gpu' });
    await h.worker({ concurrency: 4, sweepMs: 3_600_000 });
    await h.worker({ concurrency: 4, sweepMs: 3_600_000, targets: ['gpu'] });
    const { release } = holdLeaves();
    const over = run('root');
    // Otherwise the parent might learn of the end before it suspends, and nothing would be rung.
    const waiting = () => h.rows("select from boxcar.turns where status = 'suspended' and depth = 1");
    await waitFor(async () => (await waiting()).length === 1, { message: 'the parent of the leaf waits' });
    release();
    await over;
    // The other worker of this process takes the leaf. The worker that ends the leaf does not serve the target of its
    // parent.
    expect(bell.rung).toBe(1);
  });

  test('is rung for all workers when there are many at once', async () => {
    await h.profile('leaf', [{ say: 'leaf' }]);
    const task = { target_strategy: 'new', target_ref: 'leaf', instruction: 'go' };
    await lead('root', [{ tool: 'fork_join', arguments: { tasks: [task, task, task] } }]);
    await h.worker({ concurrency: 8, sweepMs: 3_600_000 });
    await run('root');
    expect(bell.rung).toBe(3 + 1);
  });

  test('is rung by the sweep when its claim fails', async () => {
    await chain();
    await h.worker({ concurrency: 4, sweepMs: 100 });
    // One claim in the commit that dispatches the turn, and one claim after it.
    await failClaims(2, 'new.depth = 1');
    await run('root');
    expect(bell.rung).toBe(1);
    await checkInvariants(h.database.pool);
  });

  test('never exceeds the slots of the worker', async () => {
    await h.profile('leaf', [{ say: 'leaf' }]);
    const leaf = { tool: 'launch_principal', arguments: { profile_name: 'leaf', instruction: 'go' } };
    await lead('root', [leaf, leaf, leaf, leaf]);
    const { release } = holdLeaves();
    await h.worker({ concurrency: 3, sweepMs: 3_600_000 });
    await run('root');
    // Its own slot is free again, and the two others are taken.
    expect(bell.rung).toBe(2);
    release();
    const unfinished = () => h.rows('select from boxcar.turns where ended_at is null');
    await waitFor(async () => (await unfinished()).length === 0, { message: 'all turns have ended' });
    await checkInvariants(h.database.pool);
  });
});
