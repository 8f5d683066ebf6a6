import { KernelError, type TurnId } from '@boxcar/kernel';
import { tcpProxy, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { newId } from '../lib/new-id.js';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import { type TurnEnd, TurnWatcher } from './turn-watcher.js';

let h: Harness;
const [projectId, operatorId] = [newId<'project'>(), newId<'agent'>()];

beforeAll(async () => {
  h = await harness();
  await h.rows(
    `insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id)
     select $1, 'elsewhere', $2, bootstrap_card_id from boxcar.projects limit 1`,
    [projectId, operatorId],
  );
  await h.rows(`insert into boxcar.agents (id, project_id, name) values ($1, $2, 'operator')`, [
    operatorId,
    projectId,
  ]);
  const profile = { name: 'p', instructions: 'x', model: 'scripted', script: [{ say: 'done' }] };
  await h.runtime.applyProfile(profile, { projectId: 'elsewhere' });
});

afterAll(() => h[Symbol.asyncDispose]());

const launch = { profile_name: 'p', instruction: 'x' };
const codeOf = (work: Promise<unknown>): Promise<unknown> =>
  work.then(
    () => 'found',
    (error: unknown) => (error instanceof KernelError ? error.code : error),
  );

test('a turn is found only in its own project, by the project’s id or name', async () => {
  const { turn_id } = (await h.runtime.submit('launch_principal', launch, {
    projectId: 'elsewhere',
  })) as { turn_id: string };
  for (const scope of [
    { projectId: 'elsewhere' },
    { projectId },
    { projectId: projectId.replaceAll('-', '') },
  ])
    expect(await h.runtime.getTurn(turn_id, scope)).toMatchObject({ turn_id, status: 'queued' });
  for (const scope of [{}, { projectId: 'default' }, { projectId: 'nowhere' }, { projectId: newId() }]) {
    expect(await codeOf(h.runtime.getTurn(turn_id, scope))).toBe('not_found');
    expect(await codeOf(h.runtime.waitForTurn(turn_id, { ...scope, timeoutMs: 60_000 }))).toBe('not_found');
  }
  const waiting = h.runtime.waitForTurn(turn_id, { projectId: 'elsewhere', timeoutMs: 60_000 });
  await h.worker();
  expect(await waiting).toMatchObject({ status: 'success', result: 'done' });
  expect(await codeOf(h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 }))).toBe('not_found');
});

test('a submission that waits finds its turn in the project in which it was made', async () => {
  expect(
    await h.runtime.submit('launch_principal', { ...launch, wait: true }, { projectId: 'elsewhere' }),
  ).toMatchObject({ status: 'success', result: 'done' });
});

test('a listening connection that falls silent during a wait is replaced', async () => {
  await using proxy = await tcpProxy(h.database.url);
  const events: string[] = [];
  const watcher = new TurnWatcher({
    pool: h.database.pool,
    directUrl: proxy.url,
    log: (_level, event) => void events.push(event),
    answerMs: 300,
    askEveryMs: 300,
  });
  const unserved = { name: 'unserved', instructions: 'x', model: 'scripted', worker_target: 'nowhere' };
  await h.runtime.applyProfile({ ...unserved, script: [{ say: 'never' }] }, { projectId: 'elsewhere' });
  const { turn_id } = (await h.runtime.submit(
    'launch_principal',
    { ...launch, profile_name: 'unserved' },
    { projectId: 'elsewhere' },
  )) as { turn_id: TurnId };
  const listeners = async (): Promise<number[]> =>
    (
      await h.rows<{ pid: number }>(
        "select pid from pg_stat_activity where datname = current_database() and application_name = 'boxcar-listen' and query ~* '^(listen|select true)'",
      )
    ).map(({ pid }) => pid);
  // The connection of the other runtime stays.
  const others = await listeners();
  const waiting = watcher.wait(turn_id, { project: 'elsewhere', timeoutMs: 60_000 });
  const ended = waiting.catch((error: unknown) => error);
  const isNew = (pid: number): boolean => !others.includes(pid);
  const first = await waitFor(async () => (await listeners()).find(isNew), { message: 'it listens' });
  proxy.stall();
  await waitFor(() => events.includes('watcher.listener_silent'), { message: 'it notices' });
  await proxy.restore();
  await waitFor(async () => (await listeners()).some((pid) => isNew(pid) && pid !== first), {
    message: 'it listens again',
  });
  // The close takes a bounded time, even when the server does not answer.
  proxy.stall();
  await watcher.close();
  expect(await ended).toMatchObject({ code: 'internal_error' });
});

describe('the end of a turn that this process has submitted', () => {
  let watcher: TurnWatcher;
  // Without polls each read has a cause.
  beforeAll(async () => {
    vi.useFakeTimers({ toFake: ['setInterval'] });
    watcher = new TurnWatcher({ pool: h.database.pool, directUrl: h.database.url, log: () => undefined });
    await listen(watcher);
  });
  afterAll(async () => {
    vi.useRealTimers();
    await watcher.close();
  });

  const project = 'default';
  const waitFrom = (of: Pick<TurnWatcher, 'wait'>, id: TurnId): Promise<unknown> =>
    codeOf(of.wait(id, { project, timeoutMs: 60_000 }));
  /** A wait starts the listening connection in parallel with its read. */
  async function listen(of: TurnWatcher): Promise<void> {
    await waitFor(
      async () => {
        await waitFrom(of, newId());
        return of.isListening;
      },
      { message: 'it listens' },
    );
  }
  /** Counts the reads of turns while `wait` begins, including one read for a turn that does not exist. */
  async function readsDuring(of: Pick<TurnWatcher, 'wait'>, wait: () => Promise<unknown>): Promise<number> {
    const seen = await statementsOf(h.database, async () => {
      void wait();
      await waitFrom(of, newId());
    });
    return seen.filter((text) => text.includes('turns.turn_ends')).length;
  }

  test('is waited for without a read before the wait', async () => {
    const id = newId<'turn'>();
    expect(await readsDuring(watcher, () => waitFrom(watcher, id))).toBe(2);
    watcher.expect([id], [project]);
    expect(await readsDuring(watcher, () => waitFrom(watcher, id))).toBe(1);
  });

  test('is read when it was announced before the wait', async () => {
    const id = newId<'turn'>();
    watcher.expect([id], [project]);
    watcher.hint([id]);
    expect(await waitFrom(watcher, id)).toBe('not_found');
  });

  test('is read by a wait that names another project, and by the second wait', async () => {
    const id = newId<'turn'>();
    watcher.expect([id], ['elsewhere']);
    expect(await waitFrom(watcher, id)).toBe('not_found');
    watcher.expect([id], [project]);
    void waitFrom(watcher, id);
    expect(await waitFrom(watcher, id)).toBe('not_found');
  });

  test('is read when the listening connection was lost meanwhile', async () => {
    const id = newId<'turn'>();
    watcher.expect([id], [project]);
    await h.rows(
      "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'boxcar-listen'",
    );
    await waitFor(() => !watcher.isListening, { message: 'it notices' });
    expect(await waitFrom(watcher, id)).toBe('not_found');
    await listen(watcher);
  });

  describe('and was announced in this process', () => {
    const endOf = (turn_id: TurnId): TurnEnd => ({
      project_id: projectId,
      turn_id,
      run_id: newId(),
      status: 'success',
      agent_id: newId(),
      context_box_id: newId(),
      output_box_id: newId(),
      step_count: 1,
      error: null,
      content: { kind: 'text', text: 'done' },
    });
    /** There are no rows, so a wait that reads ends as `not_found`. */
    const wait = (id: TurnId): Promise<unknown> =>
      watcher.wait(id, { project, timeoutMs: 60_000 }).catch((error: KernelError) => error.code);

    test('is returned without a read, only after its commit', async () => {
      // The reads after the lost connection of an earlier test end before this read does.
      await waitFrom(watcher, newId());
      const id = newId<'turn'>();
      watcher.expect([id], [project]);
      const waiting = wait(id);
      const takeBack = watcher.foretell(endOf(id));
      expect(
        await readsDuring(watcher, () => {
          watcher.tell([id]);
          return waiting;
        }),
      ).toBe(1);
      takeBack();
      expect(await waiting).toMatchObject({ status: 'success', content: { text: 'done' } });
    });

    test('is read when another process announced it, when the announcement was withdrawn, and when the turn was not expected', async () => {
      const [announced, taken, unexpected] = [newId<'turn'>(), newId<'turn'>(), newId<'turn'>()];
      watcher.expect([announced, taken], [project]);
      const waits = [announced, taken].map(wait);
      const takeBacks = [announced, taken, unexpected].map((id) => watcher.foretell(endOf(id)));
      watcher.hint([announced]);
      expect(await waits[0]).toBe('not_found');
      takeBacks[1]?.();
      watcher.tell([taken]);
      watcher.hint([taken]);
      expect(await waits[1]).toBe('not_found');
      const late = wait(unexpected);
      watcher.tell([unexpected]);
      expect(await late).toBe('not_found');
      for (const takeBack of takeBacks) takeBack();
    });
  });

  test('is expected by each submission from outside a turn', async () => {
    const { runtime } = h;
    await listen(runtime.watcher);
    const unserved = { name: 'unserved', instructions: 'x', model: 'scripted', worker_target: 'nowhere' };
    await runtime.applyProfile({ ...unserved, script: [{ say: 'never' }] });
    const { turn_id } = (await runtime.submit('launch_principal', {
      ...launch,
      profile_name: 'unserved',
    })) as {
      turn_id: TurnId;
    };
    const wait = (): Promise<unknown> => codeOf(runtime.waitForTurn(turn_id, { timeoutMs: 60_000 }));
    expect(await readsDuring(runtime.watcher, wait)).toBe(1);
    expect(await readsDuring(runtime.watcher, wait)).toBe(2);
  });
});
