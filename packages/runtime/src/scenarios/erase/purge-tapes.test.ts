/** Tapes without runs are removed on their own. */
import { type KeptTape, purgeTapes, type TapePurgeReport } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { beforeEach, expect, test } from 'vitest';
import { type Harness, harness } from '../../testing/harness.js';
import { checkInvariants } from '../../testing/invariants.js';
import { rowCounts } from '../../testing/row-counts.js';

let h: Harness;
const say = { kind: 'message', content: 'a note' } as const;

beforeEach(async () => {
  h = await harness();
  await h.profile('child', [{ say: 'done' }]);
  await h.worker();
  return async () => {
    await checkInvariants(h.database.pool);
    await h[Symbol.asyncDispose]();
  };
});

/** A moment after everything that was written before it, and before everything that is written later. */
async function now(): Promise<Date> {
  const [row] = await h.rows<{ at: Date }>("select clock_timestamp() + interval '1 millisecond' as at");
  const at = row?.at ?? new Date(0);
  await h.rows('select pg_sleep(greatest(0, extract(epoch from $1::timestamptz - clock_timestamp())))', [at]);
  return at;
}
const purge = async (options: Partial<Parameters<typeof purgeTapes>[1]> = {}): Promise<TapePurgeReport> =>
  purgeTapes(h.database.pool, { before: await now(), ...options });
const kept = (tape_id: string, cause: KeptTape['cause'], holder: unknown) => ({ tape_id, cause, holder });
async function* lines(): AsyncGenerator<string> {
  yield '{"id":1,"kind":"anchor","payload":{"name":"session/start"},"meta":{},"date":"2020-01-01T00:00:00Z"}';
  yield '{"id":2,"kind":"message","payload":{"role":"user","content":"old words"},"meta":{},"date":"2020-01-01T00:00:01Z"}';
}
const importInto = (name: string) => h.runtime.importTape(name, { main: { lines } });

test('a purge of an archived incarnation, a discarded fork and an imported tape leaves nothing', async () => {
  const notes = await h.runtime.tape('notes');
  const before = await rowCounts(h.database.pool);
  await importInto('imported');
  const fork = await notes.forkTape();
  const inner = await fork.tape.forkTape();
  await inner.discard();
  await fork.tape.append([say]);
  await fork.discard();
  const words = await h.runtime.tape('words');
  await words.append([say]);
  expect(await words.search('note')).toHaveLength(1);
  await words.reset({ archive: true });
  expect(await purge({ isDryRun: true })).toMatchObject({ removed: { tapes: 4 }, kept: [] });
  expect(await purge()).toEqual({ removed: { tapes: 4, cards: 4 }, kept: [], isStopped: false });
  // The next incarnation of `words` remains; it begins with a card of its own.
  const after = await rowCounts(h.database.pool);
  expect(after).toEqual({
    ...before,
    boxes: before.boxes + 1,
    tape_entries: before.tape_entries + 2,
    cards: before.cards + 1,
  });
  expect(await notes.info()).toMatchObject({ entries: 2 });
  expect(await (await h.runtime.tape('words')).messages()).toBeDefined();
});

test('tapes in use, younger tapes and tapes of other projects stay, and so do tapes that can still be used', async () => {
  await (await h.runtime.tape('notes')).append([say]);
  await (await h.runtime.tape('open')).forkTape();
  await importInto('imported');
  const before = await now();
  await (await h.runtime.tape('imported')).append([say]);
  const old = await h.runtime.tape('late');
  await old.reset();
  const imported = await h.runtime.tape('imported');
  expect(await purge({ before })).toEqual({
    removed: { tapes: 0, cards: 0 },
    kept: [kept(imported.boxId, 'entry', imported.boxId)],
    isStopped: false,
  });
  const [project] = await h.rows<{ id: never }>('select gen_random_uuid() as id');
  expect((await purge({ projectId: project?.id })).removed.tapes).toBe(0);
  expect((await purge()).removed.tapes).toBe(2);
});

test('a tape stays because of a reference to it, and the report names the reference', async () => {
  const { turn_id: turn, agent_id: agent } = (await h.runtime.submit('launch_principal', {
    profile_name: 'child',
    instruction: 'go',
  })) as { turn_id: never; agent_id: string };
  await h.runtime.waitForTurn(turn);
  const { boxId: written } = await h.runtime.tape({ agent });
  await (await h.runtime.tape({ agent })).reset();
  const { boxId } = await importInto('imported');
  const tape = await h.runtime.tape('imported');
  const fork = await tape.forkTape({ mergeBack: false });
  const { boxId: granted } = await importInto('granted');
  await h.runtime.submit('grant_box', { box_id: granted, grantee: agent });
  const { boxId: listed } = await importInto('listed');
  const [card] = await h.rows<{ id: string }>(
    "select card_id as id from boxcar.tape_entries where box_id = $1 and kind = 'message'",
    [listed],
  );
  const { box_id: box } = (await h.runtime.submit('create_box', { card_ids: [card?.id] })) as {
    box_id: string;
  };
  const report = await purge();
  expect(report.removed.tapes).toBe(0);
  expect(report.kept).toHaveLength(4);
  expect(report.kept).toEqual(
    expect.arrayContaining([
      kept(written, 'turn', turn),
      kept(boxId, 'fork', fork.tape.boxId),
      kept(granted, 'grant', agent),
      kept(listed, 'card', box),
    ]),
  );
  await fork.discard();
  // The fork is removed together with its parent.
  expect((await purge()).removed.tapes).toBe(2);
});

test('a card that is listed after the decision keeps the tape', async () => {
  const { boxId } = await importInto('imported');
  const before = await now();
  const [card] = await h.rows<{ id: string }>(
    "select card_id as id from boxcar.tape_entries where box_id = $1 and kind = 'message'",
    [boxId],
  );
  const client = await h.database.pool.connect();
  await client.query('begin');
  await client.query('select from boxcar.boxes where id = $1 for update', [boxId]);
  const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid');
  const report = purge({ before });
  await waitFor(
    async () =>
      (await h.rows('select from pg_stat_activity where $1 = any (pg_blocking_pids(pid))', [rows[0]?.pid]))
        .length > 0,
    { message: 'the purge waits' },
  );
  const made = (await h.runtime.submit('create_box', { card_ids: [card?.id] })) as { box_id: string };
  await client.query('commit');
  client.release();
  expect((await report).kept).toEqual([kept(boxId, 'card', made.box_id)]);
});

test('a session that was reset keeps its row, and the tape with which it began', async () => {
  const { turn_id: turn, agent_id: agent } = (await h.runtime.submit('launch_principal', {
    profile_name: 'child',
    instruction: 'go',
  })) as { turn_id: never; agent_id: string };
  await h.runtime.waitForTurn(turn);
  const parent = await h.runtime.tape({ agent });
  const session = await parent.forkSession('sub', { triggerOnComplete: 'notify_parent' });
  const { boxId: began } = session.tape;
  await session.tape.append([say]);
  await session.tape.reset();
  await (await h.runtime.tape('sub')).reset();
  const report = await purge();
  expect(report.removed.tapes).toBe(0);
  expect(report.kept).toContainEqual(kept(began, 'session', session.agentId));
  const again = (await h.runtime.submit('delegate_async', {
    target_strategy: 'reuse',
    target_ref: 'sub',
    instruction: 'go',
  })) as { turn_id: never };
  expect(await h.runtime.waitForTurn(again.turn_id)).toMatchObject({ status: 'success' });
  const told = `select from boxcar.tape_entries where box_id = $1 and dedup_key like 'fork-result:%'
    and not exists (select from boxcar.turns where ended_at is null or notifies or unseen_position is not null)`;
  await waitFor(async () => (await h.rows(told, [parent.boxId])).length > 0, {
    message: 'the parent is told',
  });
  await h.runtime.sessions.setStatus('sub', 'done');
});

test('an imported session is removed with its tape, but not while a later tape has its name', async () => {
  const graph = (name: string): string =>
    `{"session_id":"${name}","parent_session_id":"other","from_anchor":null,"status":"active","created_at":null}\n`;
  for (const name of ['gone', 'reset'])
    await h.runtime.importTape(name, { main: { lines }, sessionGraph: graph(name) });
  const tape = await h.runtime.tape('reset');
  const { boxId: began } = tape;
  await tape.reset();
  const report = await purge();
  expect(report.removed.tapes).toBe(1);
  expect(report.kept).toEqual([kept(began, 'session', tape.boxId)]);
  expect(await h.rows('select name from boxcar.sessions')).toEqual([{ name: 'reset' }]);
});

test('an open fork that was reset can still be merged, and so can a fork that was already merged', async () => {
  const notes = await h.runtime.tape('notes');
  const fork = await notes.forkTape();
  await fork.tape.append([say]);
  await fork.tape.reset();
  expect((await purge()).removed.tapes).toBe(0);
  const receipt = await fork.merge();
  expect(receipt).toMatchObject({ status: 'merged' });
  expect((await purge()).removed.tapes).toBe(0);
  expect(await fork.merge()).toEqual(receipt);
});

test('a discarded fork that was reset leaves nothing', async () => {
  const notes = await h.runtime.tape('notes');
  const before = await rowCounts(h.database.pool);
  const fork = await notes.forkTape();
  await fork.tape.append([say]);
  await fork.tape.reset();
  await fork.discard();
  expect((await purge()).removed.tapes).toBe(2);
  expect(await rowCounts(h.database.pool)).toEqual(before);
});

test('an incarnation stays while an earlier incarnation stays, so that its open forks are found', async () => {
  const notes = await h.runtime.tape('notes');
  const { boxId: first } = notes;
  await notes.append([say]);
  const fork = await notes.forkTape();
  await notes.reset();
  const { boxId: second } = notes;
  await notes.reset();
  const report = await purge();
  expect(report.removed.tapes).toBe(0);
  expect(report.kept).toContainEqual(kept(second, 'incarnation', first));
  expect(await (await h.runtime.tape('notes')).forks()).toHaveLength(1);
  await fork.discard();
  expect((await purge()).removed.tapes).toBe(3);
});

test('a tape into which old events were recently imported is young', async () => {
  await importInto('imported');
  const before = await now();
  const { boxId } = await h.runtime.tape('imported');
  const event =
    '{"id":3,"kind":"event","payload":{"name":"x","data":{}},"meta":{},"date":"2020-01-01T00:00:02Z"}';
  await h.runtime.importTape({ box: boxId }, { main: { lines: () => [event] } }, { append: true });
  expect((await purge({ before })).kept).toEqual([kept(boxId, 'entry', boxId)]);
  expect((await purge()).removed.tapes).toBe(1);
});
