/**
 * Runs every statement that writes the status of a turn, or raises its epoch, on turns of every status, and compares the changes with
 * the table of transitions. A trigger records each change under the label of the statement (`select /* claims.claim *\/ …`). A
 * statement in the sources that is not run here fails by its label.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  type FinalStatus,
  isFinal,
  TRANSITIONS,
  type TransitionCause,
  TURN_STATUSES,
  type TurnStatus,
  type WorkerId,
} from '@boxcar/kernel';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { wakeDecided } from '../approval/gated-calls.js';
import { pauseForBudget, wakeForBudget } from '../budget/budget-waits.js';
import { transaction } from '../db/db.js';
import { retryAttempt } from '../handoff/handoff-changes.js';
import * as tables from '../schema/schema.js';
import { DEFAULT_PROJECT, newId, type TestProfile, type TestTurn, World } from '../testing/world.js';
import { BLOCKED_WORKER } from '../work/blocked-worker.js';
import { promote } from '../work/promote.js';
import { setProviderLimits } from '../work/provider-limits.js';
import { enterProvider, leaveProvider } from '../work/providers.js';
import { takeForSelectors, waitForSelector } from '../work/selector-waits.js';
import { ringAgain } from '../work/stale-rings.js';
import { takeOver } from '../work/sweep.js';
import { retryLater, wakeDue } from '../work/waits.js';
import { claim } from './claims.js';
import { commitSteps } from './commits.js';
import { advanceTurns, recordResults } from './tool-calls.js';
import { releaseTurns } from './turns.js';

/** The transitions that each statement may make. */
const STATEMENTS: Readonly<Record<string, readonly TransitionCause[]>> = {
  'submission-sql.build': ['submit'],
  'promote.promote': ['promote'],
  'claims.claim': ['claim'],
  'stale-rings.ring_again': ['ring_again'],
  'tool-calls.advance': ['call', 'resume'],
  'budget-waits.pause': ['wait'],
  'providers.wait': ['wait'],
  'selector-waits.wait': ['wait'],
  'waits.retry_later': ['wait'],
  'handoff-changes.retry_attempt': ['wait'],
  'budget-waits.wake': ['wake'],
  'providers.wake': ['wake'],
  'waits.wake': ['wake'],
  'gated-calls.wake': ['wake'],
  'turns.release': ['release'],
  'blocked-worker.release': ['release'],
  'sweep.take_over': ['take_over'],
  'commit-sql.commit': ['end'],
  'commit-sql.commit_one': ['end'],
};

const FINAL_STATUSES: readonly FinalStatus[] = TURN_STATUSES.filter(isFinal);

let world: World;
let profile: TestProfile;
let queue: TestProfile;
let holder: WorkerId;

beforeAll(async () => {
  world = await World.open();
  await world.pool.query(`
    create table public.transitions (label text, "from" text, "to" text, unique nulls not distinct (label, "from", "to"));
    create function public.note_transition() returns trigger language plpgsql as $$ begin
      insert into public.transitions values (
        substring(current_query() from '/[*] ([a-z.-]+[a-z_.-]*) [*]/'), case tg_op when 'UPDATE' then old.status end, new.status) on conflict do nothing;
      return null;
    end $$;
    create trigger note_new after insert on boxcar.turns for each row execute function public.note_transition();
    create trigger note_change after update on boxcar.turns for each row
      when (old.status is distinct from new.status or old.epoch <> new.epoch) execute function public.note_transition()`);
  profile = await world.profile('writer');
  queue = await world.profile('waiter', { workerTarget: 'later' });
  holder = await world.worker({ concurrency: 1_000 });
});
afterAll(() => world[Symbol.asyncDispose]());

const running = (): Promise<TestTurn> => world.running({ profile, holder });
const ringOf = async ({ turnId }: TestTurn) => ({ turnId, epoch: (await world.row({ turnId })).epoch });
const heldOf = async (turn: TestTurn) => ({ ...(await ringOf(turn)), holderId: holder });

/** A turn that waits for a call. */
async function suspended(): Promise<TestTurn> {
  const turn = await running();
  await world.call(turn, 1);
  await advanceTurns(world.pool, [{ ...(await heldOf(turn)), results: [] }]);
  return turn;
}

/** A turn that is ready for a statement, and the call that sends the statement. */
interface Ready {
  readonly turn: TestTurn;
  readonly act: () => Promise<unknown>;
}

async function readyToPromote(): Promise<Ready> {
  const workerTarget = newId<'run'>();
  const turn = await world.submit({ profile: await world.profile(workerTarget, { workerTarget }) });
  await world.worker({ targets: [workerTarget] });
  return { turn, act: () => promote(world.pool, workerTarget) };
}

async function readyToClaim(): Promise<Ready> {
  const turn = await world.submit({ profile });
  const ring = await ringOf(turn);
  return { turn, act: () => claim(world.pool, [ring], holder) };
}

async function readyToRingAgain(): Promise<Ready> {
  const turn = await world.submit({ profile });
  const ring = { ...(await ringOf(turn)), workerTarget: '' };
  return { turn, act: () => ringAgain(world.pool, [ring]) };
}

async function readyForCalls(): Promise<Ready> {
  const turn = await running();
  await world.call(turn, 1);
  const held = await heldOf(turn);
  return { turn, act: () => advanceTurns(world.pool, [{ ...held, results: [] }]) };
}

async function readyForResult(): Promise<Ready> {
  const turn = await running();
  const [call] = await world.call(turn, 1);
  if (call === undefined) throw new Error('no call');
  await advanceTurns(world.pool, [{ ...(await heldOf(turn)), results: [] }]);
  return { turn, act: () => recordResults(world.pool, [world.result(turn, call)]) };
}

/** A turn calls a provider that takes one call at a time; another turn is about to call it. */
async function readyForProvider(): Promise<Ready & { readonly leave: () => Promise<unknown> }> {
  const name = newId<'run'>();
  await setProviderLimits(world.pool, name, { maxConcurrent: 1 });
  const [first, turn] = [await running(), await running()];
  const callOf = async (one: TestTurn) => ({ ...(await heldOf(one)), step: 1, attempt: 1 });
  const [calling, waiting] = [await callOf(first), await callOf(turn)];
  await enterProvider(world.pool, name, { callers: [calling] });
  return {
    turn,
    act: () => enterProvider(world.pool, name, { callers: [waiting] }),
    leave: () => leaveProvider(world.pool, name, { turns: [calling], hasProved: false }),
  };
}

async function readyForRoom(): Promise<Ready> {
  const { turn, act, leave } = await readyForProvider();
  await act();
  return { turn, act: leave };
}

async function readyForBudget(): Promise<Ready & { readonly raise: () => Promise<unknown> }> {
  const turn = await running();
  const accountId = newId<'run'>();
  const pause = { accountId, kind: 'tokens', limit: 1, used: 1, needed: 1 } as const;
  return {
    turn,
    act: () =>
      transaction(world.pool, (tx) =>
        pauseForBudget(tx, { turnId: turn.turnId, projectId: DEFAULT_PROJECT }, pause),
      ),
    raise: () => transaction(world.pool, (tx) => wakeForBudget(tx, { runId: turn.runId, accountId })),
  };
}

async function readyForRaise(): Promise<Ready> {
  const { turn, act, raise } = await readyForBudget();
  await act();
  return { turn, act: raise };
}

async function readyToRetry(): Promise<Ready> {
  const turn = await running();
  const { step } = await world.commit(turn);
  if (step === null) throw new Error('no step');
  const held = await heldOf(turn);
  return { turn, act: () => retryLater(world.pool, { ...held, step, delayMs: 0, detail: {} }) };
}

async function readyToWake(): Promise<Ready> {
  const { turn, act } = await readyToRetry();
  await act();
  const now = new Date(Date.now() + 3_600_000);
  return { turn, act: () => wakeDue(world.pool, { now, limit: 10, turnIds: [turn.turnId] }) };
}

async function readyForSelector(): Promise<Ready> {
  const turn = await running();
  await world.pool.query('update boxcar.turns set selector = $2 where id = $1', [turn.turnId, turn.turnId]);
  const held = await heldOf(turn);
  return { turn, act: () => waitForSelector(world.pool, held) };
}

async function readyToTake(): Promise<Ready> {
  const { turn, act } = await readyForSelector();
  await act();
  const mine = { targets: [''], selectors: [{ name: turn.turnId, version: '1' }] };
  return { turn, act: () => takeForSelectors(world.pool, mine, 1) };
}

/** A turn serves a handoff, and an adapter's attempt has failed. */
async function readyToRetryHandoff(): Promise<Ready> {
  const turn = await running();
  const held = await heldOf(turn);
  await world.pool.query(
    `insert into boxcar.handoffs (id, project_id, phase, source_agent, source_agent_id, target_agent, platform, context_box_id, task_card_id, turn_id, root_handoff_id, timeout_ms, retry, request_hash)
     select $1, t.project_id, 'in_progress', 'a', t.agent_id, 'b', 'openai', t.context_box_id, (select id from boxcar.cards limit 1), t.id, $1, 1000, '{}', repeat('0', 64)
     from boxcar.turns t where t.id = $2`,
    [newId<'handoff'>(), turn.turnId],
  );
  const failed = {
    ...held,
    step: 1,
    attempt: 1,
    error: { code: 'x', message: 'x' },
    delayMs: 0,
    spent: undefined,
  };
  return { turn, act: () => retryAttempt(world.pool, failed) };
}

/** A call waits for an approval that was given. */
async function readyForApproval(): Promise<Ready> {
  const turn = await running();
  const [call] = await world.call(turn, 1);
  if (call === undefined) throw new Error('no call');
  await advanceTurns(world.pool, [{ ...(await heldOf(turn)), results: [] }]);
  const [card] = await world.rows<{ id: string }>('select id from boxcar.cards limit 1');
  await world.pool.query(
    `insert into boxcar.approvals (id, project_id, run_id, turn_id, tool_call_id, agent, tool_name, card_id, args_hash, status, expires_at, resolved_at, resolved_by)
     values ($1, $2, 'r', $3, $4, 'a', 'pay', $5, repeat('0', 64), 'approved', now() + interval '1 hour', now(), 'x')`,
    [newId<'ticket'>(), DEFAULT_PROJECT, turn.turnId, call, card?.id],
  );
  return { turn, act: () => wakeDecided(world.pool, [turn.turnId]) };
}

async function readyToRelease(): Promise<Ready> {
  const turn = await running();
  return { turn, act: () => world.release(holder, [turn]) };
}

/** All turns of a worker that is leaving. */
async function readyToLeave(): Promise<Ready> {
  const leaving = await world.worker();
  const turn = await world.running({ profile, holder: leaving });
  return { turn, act: () => releaseTurns(world.pool, leaving, null) };
}

async function readyToTakeOver(): Promise<Ready> {
  const turn = await world.running({ profile, holder: await world.worker({ leaseMs: 1 }) });
  const options = { now: new Date(Date.now() + 60_000), maxLosses: 3, limit: 10, turnIds: [turn.turnId] };
  return { turn, act: () => takeOver(world.pool, options) };
}

async function readyToReplace(): Promise<Ready> {
  const blocked = await world.worker();
  const turn = await world.running({ profile, holder: blocked });
  return { turn, act: () => world.pool.query(BLOCKED_WORKER.release, [[blocked], turn.turnId, false]) };
}

/** Ends a turn, alone or together with another turn. These are two different statements. */
async function readyToEnd(
  make: () => Promise<TestTurn>,
  { end, isAlone }: { readonly end: FinalStatus; readonly isAlone: boolean },
): Promise<Ready> {
  const turn = await make();
  const step = (await world.statusOf(turn)) === 'running' ? 'next' : 'none';
  const commits = [await world.commit(turn, { end, step })];
  if (!isAlone) commits.push(await world.commit(await running()));
  return { turn, act: () => commitSteps(world.pool, commits) };
}

const READY: readonly (() => Promise<Ready>)[] = [
  readyToPromote,
  readyToClaim,
  readyToRingAgain,
  readyForCalls,
  readyForResult,
  readyForProvider,
  readyForRoom,
  readyForBudget,
  readyForRaise,
  readyToRetry,
  readyToRetryHandoff,
  readyToWake,
  readyForSelector,
  readyToTake,
  readyForApproval,
  readyToRelease,
  readyToLeave,
  readyToTakeOver,
  readyToReplace,
];

/** Ends of a turn of each status. */
const ends = (): readonly (() => Promise<Ready>)[] => {
  const makers: readonly (readonly [() => Promise<TestTurn>, readonly FinalStatus[]])[] = [
    [running, FINAL_STATUSES],
    ...[() => world.submit({ profile: queue }), () => world.submit({ profile }), suspended].map(
      (make) => [make, FINAL_STATUSES.filter((end) => end !== 'success')] as const,
    ),
  ];
  return makers.flatMap(([make, finals]) =>
    finals.flatMap((end) => [true, false].map((isAlone) => () => readyToEnd(make, { end, isAlone }))),
  );
};

const setStatus = ({ turnId }: TestTurn, status: TurnStatus): Promise<unknown> =>
  world.pool.query(
    `update boxcar.turns set status = $2, ended_at = case when $3 then now() end, deliverable_card_id = case when $3 then id end where id = $1`,
    [turnId, status, isFinal(status)],
  );

/** The recorded changes: label, status before, status after. */
async function noted(): Promise<readonly string[]> {
  const rows = await world.rows<{ label: string; from: string | null; to: string }>(
    'select * from public.transitions where label is not null',
  );
  return rows.map(({ label, from, to }) => `${label}: ${from} → ${to}`).sort();
}

const allowed = (): readonly string[] => {
  const all = Object.entries(STATEMENTS).flatMap(([label, causes]) =>
    TRANSITIONS.filter(({ cause }) => causes.includes(cause)).map(
      ({ from, to }) => `${label}: ${from} → ${to}`,
    ),
  );
  return [...new Set(all)].sort();
};

const ROOT = join(import.meta.dirname, '..', '..', '..', '..');
const SOURCES = readdirSync(join(ROOT, 'packages')).map((name) => join(ROOT, 'packages', name, 'src'));
/** Matches statements in SQL, with or without a label, and statements of the query builder. */
const WRITES =
  /\b(update|insert into)\s+(?:\/\* (\S+) \*\/\s+)?boxcar\.turns\b|\borm\s*\.(update|insert)\(\s*([^)]*?)\s*\)/g;
const OTHER_TABLES = new Set(Object.keys(tables).filter((name) => name !== 'turns'));
/** False only for the name of another table: a computed name may mean the table of turns. */
const mayBeTurns = (argument: string): boolean => !OTHER_TABLES.has(argument.replace(/^tables\./, ''));
const LABELS = /\/\* ([\w.-]+\.[\w-]+) \*\/|\bquery(?:Retrying)?\(\s*\w+,\s*'([^']*)'/g;

/** The end of a list of columns to set, outside of brackets. */
const SET_ENDS = /(?<!distinct )\bfrom\b|\b(?:where|returning)\b|[;`]/y;

/** The text up to the end of the list of columns to set. */
function untilSetEnds(text: string): string {
  let depth = 0;
  for (let at = 0; at < text.length; at += 1) {
    const sign = text.charAt(at);
    if (sign === '(') depth += 1;
    if (sign === ')') depth -= 1;
    SET_ENDS.lastIndex = at;
    if (depth < 0 || (depth === 0 && SET_ENDS.test(text))) return text.slice(0, at);
  }
  return text;
}

/** The statements of a source that write a status or an epoch. */
function writersIn(text: string): readonly { readonly label: string | undefined }[] {
  const labels = [...text.matchAll(LABELS)];
  return [...text.matchAll(WRITES)].flatMap(
    ({ 0: found, 1: verb, 2: own, 3: builder, 4: table = 'turns', index }) => {
      if (!mayBeTurns(table)) return [];
      const isUpdate = verb === 'update' || builder === 'update';
      const set = untilSetEnds(text.slice(index + found.length));
      if (isUpdate && !/\b(?:status|epoch)(?:\s*=|\b *[:,}])/.test(set)) return [];
      if (own !== undefined) return [{ label: own }];
      // In a composed text the parts come before its beginning, which has the label.
      const label = labels.findLast((one) => one.index < index) ?? labels[0];
      return [{ label: label?.[1] ?? label?.[2] }];
    },
  );
}

/** The labels of the statements in the sources that write a status or an epoch. */
function writers(): ReadonlySet<string> {
  const found = new Set<string>();
  const files = SOURCES.filter((folder) => existsSync(folder)).flatMap((folder) =>
    readdirSync(folder, { recursive: true, encoding: 'utf8' })
      .filter((name) => /(?<!\.test)\.ts$/.test(name) && !/^testing\b/.test(name))
      .map((name) => join(folder, name)),
  );
  for (const file of files)
    for (const { label } of writersIn(readFileSync(file, 'utf8')))
      found.add(label ?? `${file}: a statement without a label`);
  return found;
}

test.each([
  ["select /* a.b */ 1; update boxcar.turns t set status = 'queued' where true", 'a.b'],
  ["update /* a.set */ boxcar.turns set status = 'failed'", 'a.set'],
  ['with /* a.raise */ x as (update boxcar.turns set epoch = epoch + 1 where true)', 'a.raise'],
  ['insert /* a.no */ into boxcar.cards; insert into boxcar.turns (id)', 'a.no'],
  ["update boxcar.turns set status = 'failed'", undefined],
  [
    "query(db, 'a.end', ({ orm, tables }) => orm.update(tables.turns).set({ status: 'failed' }).where(x))",
    'a.end',
  ],
  ["query(db, 'a.end', ({ orm, tables: { turns } }) => orm.update(turns).set({ status }).where(x))", 'a.end'],
  ["query(db, 'a.make', ({ orm, tables }) => orm.insert(tables.turns).values(all))", 'a.make'],
  [
    "query(db, 'a.end', ({ orm, tables: { turns: t } }) => orm.update(t).set({ status: 'failed' }).where(x))",
    'a.end',
  ],
  [
    "update /* a.late */ boxcar.turns t set losses = case when t.id is distinct from $1 then (select 1 from x where true) end, status = 'queued' where true",
    'a.late',
  ],
])('the writer of a status is found in the statement %s', (text, label) => {
  expect(writersIn(text)).toEqual([{ label }]);
});

test.each([
  "update /* a.note */ boxcar.turns set attempt = attempt + 1 where status = 'queued'",
  "query(db, 'a.note', ({ orm, tables: { turns } }) => orm.update(turns).set({ attempt: 1 }).where(eq(turns.status, 'queued')))",
  "query(db, 'a.card', ({ orm, tables }) => orm.update(tables.toolCalls).set({ status: 'failed' }).where(x))",
  'select status from boxcar.turns',
])('no writer of a status is found in %s', (text) => {
  expect(writersIn(text)).toEqual([]);
});

test('every statement that writes a status is run in this file', () => {
  expect([...writers()].sort()).toEqual(Object.keys(STATEMENTS).sort());
  const schema = readFileSync(join(ROOT, 'migrations', 'schema.sql'), 'utf8');
  for (const [set] of schema.matchAll(/update boxcar\.turns\b[^;]*/g)) expect(set).not.toMatch(/\bstatus = /);
});

test('each statement makes only transitions of the table, and together they make all of them', async () => {
  for (const ready of [...READY, ...ends()]) {
    const { turn, act } = await ready();
    const before = await world.row(turn);
    await act();
    const after = await world.row(turn);
    expect([after.status, after.epoch], ready.name).not.toEqual([before.status, before.epoch]);
  }
  expect(await noted()).toEqual(allowed());
});

test('no statement changes a turn whose status has changed before the statement', async () => {
  // With these constraints, a statement could rely on a holder or a time that only some statuses have. The statement's own condition is
  // tested here.
  await world.pool.query(`truncate public.transitions;
    alter table boxcar.turns drop constraint turns_check, drop constraint turns_check1, drop constraint turns_check2, drop constraint turns_check3`);
  const lone = [true, false].map((isAlone) => () => readyToEnd(running, { end: 'success', isAlone }));
  for (const ready of [...READY, ...lone])
    for (const status of TURN_STATUSES) {
      const { turn, act } = await ready();
      await setStatus(turn, status);
      await act();
      // A turn that stays in the queue would keep the next turns there.
      await setStatus(turn, 'canceled');
    }
  const may = new Set(allowed());
  expect((await noted()).filter((line) => !may.has(line))).toEqual([]);
});

test('docs/reference/turns.md has the same table', () => {
  const page = readFileSync(join(ROOT, 'docs', 'reference', 'turns.md'), 'utf8');
  const codes = (cell: string): (string | null)[] =>
    cell === '–' ? [null] : [...cell.matchAll(/`(\w+)`/g)].map(([, code = '']) => code);
  const lines = [...page.matchAll(/^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|/gm)].flatMap(([, cause, from, to]) =>
    codes(from?.trim() ?? '').flatMap((a) => codes(to?.trim() ?? '').map((b) => ({ cause, from: a, to: b }))),
  );
  const sorted = (all: readonly object[]): string[] => all.map((one) => JSON.stringify(one)).sort();
  expect(sorted(lines)).toEqual(sorted(TRANSITIONS.map(({ cause, from, to }) => ({ cause, from, to }))));
});
