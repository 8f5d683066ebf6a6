import { describe, expect, test } from 'vitest';
import type { AgentId, BatchId, RunId, TicketId, ToolCallId, TurnId, WorkerId } from '../base/ids.js';
import { describeWait } from '../words/wait-words.js';
import type { WaitFacts, WaitFactsBatch, WaitFactsCall, WaitFactsTurn, WaitFactsWait } from './wait-facts.js';

const AT = '2026-01-01T00:01:00.000Z';
const EARLIER = '2026-01-01T00:00:00.000Z';
const LATER = '2026-01-01T01:00:00.000Z';
const worker = {
  worker_id: 'w' as WorkerId,
  hostname: 'h',
  pid: 1,
  lease_until: LATER,
  is_alive: true,
};

const turn = (id: string, rest: Partial<WaitFactsTurn> = {}): WaitFactsTurn => ({
  turn_id: id as TurnId,
  run_id: 'run' as RunId,
  agent_id: `agent-${id}` as AgentId,
  agent: id,
  profile: `${id}-profile@1`,
  status: 'suspended',
  worker_target: '',
  created_at: EARLIER,
  dispatched_at: EARLIER,
  deadline_at: null,
  ended_at: null,
  step_opened_at: null,
  holder: null,
  calls: [],
  wait: null,
  project: null,
  held: null,
  behind_turn_id: null,
  ahead: null,
  live_workers: 1,
  format: 11,
  newest_build: null,
  window: 4,
  dispatched: 0,
  given_up: null,
  ...rest,
});
const call = (id: string, rest: Partial<WaitFactsCall> = {}): WaitFactsCall => ({
  tool_call_id: id as ToolCallId,
  name: 'ask',
  route: 'primitive',
  target: null,
  created_at: EARLIER,
  deadline_at: LATER,
  awaited_turn_id: null,
  batch: null,
  given_up: null,
  ...rest,
});
const asks = call('>pay', {
  name: 'pay',
  approval: { ticket_id: 'k1' as TicketId, created_at: EARLIER, expires_at: LATER },
});
const awaits = (id: string): WaitFactsCall => call(`>${id}`, { awaited_turn_id: id as TurnId });
const joins = (open: readonly string[], rest: Partial<WaitFactsBatch> = {}): WaitFactsCall =>
  call('>batch', {
    name: 'fork_join',
    // The batch's deadline counts, whatever the deadline of the call.
    deadline_at: EARLIER,
    batch: {
      batch_id: 'batch' as BatchId,
      kind: 'fork_join',
      status: 'running',
      closing: null,
      total: 1_000,
      remaining: open.length,
      succeeded: 0,
      min_success: null,
      is_due: false,
      created_at: EARLIER,
      deadline_at: LATER,
      open_turn_ids: open as readonly TurnId[],
      ...rest,
    },
  });
const waits = (kind: WaitFactsWait['kind'], rest: Partial<WaitFactsWait> = {}): WaitFactsTurn =>
  turn('a', { wait: { kind, created_at: EARLIER, due_at: LATER, detail: {}, provider: null, ...rest } });
const explain = (turns: readonly WaitFactsTurn[], rest: Partial<WaitFacts> = {}) => {
  const report = describeWait({ at: AT, live_workers: 1, has_more: false, turns, ...rest });
  if (report === undefined) throw new Error('no report');
  return {
    isLive: report.is_live,
    links: report.links.map(
      ({ level, turn_id, kind, is_live }) => `${level} ${turn_id} ${kind}${is_live ? '' : ' !'}`,
    ),
    all: report.links,
  };
};

test('a chain is followed through calls and queues to the lease that moves it', () => {
  const running = turn('d', { status: 'running', holder: worker, step_opened_at: EARLIER });
  expect(
    explain([
      turn('a', { calls: [awaits('b')] }),
      turn('b', { status: 'queued', behind_turn_id: 'c' as TurnId }),
      turn('c', { calls: [awaits('d')] }),
      running,
    ]),
  ).toMatchObject({
    isLive: true,
    links: ['0 a child', '1 b agent_busy', '2 c child', '3 d lease'],
  });
});

describe('a chain that nothing moves says so, and says what to do', () => {
  test.each<[string, WaitFactsTurn, Partial<WaitFacts>, string, RegExp]>([
    [
      'no worker for a ring',
      turn('b', { status: 'dispatched', live_workers: 0, worker_target: 'gpu' }),
      {},
      '1 b ring !',
      /boxcar worker --target gpu$/,
    ],
    [
      'no worker for a queue',
      turn('b', { status: 'queued', live_workers: 0 }),
      {},
      '1 b window !',
      /boxcar worker$/,
    ],
    ['a suspended turn without calls', turn('b'), {}, '1 b nothing !', /boxcar doctor/],
    [
      'a turn that was set aside after too many failures',
      turn('b', { status: 'running', holder: worker, given_up: 'dead_leases: x' }),
      {},
      '1 b given_up !',
      /--retry-dead/,
    ],
    [
      'a call that was set aside after too many failures',
      turn('b', { calls: [call('x', { given_up: 'y' })] }),
      {},
      '1 b given_up !',
      /--retry-dead/,
    ],
    [
      'a dead worker without another living worker',
      turn('b', { status: 'running', holder: { ...worker, is_alive: false, lease_until: EARLIER } }),
      { live_workers: 0 },
      '1 b lease !',
      /boxcar worker$/,
    ],
    [
      'a call past its deadline that no worker answers',
      turn('b', { calls: [call('x', { deadline_at: EARLIER })] }),
      { live_workers: 0 },
      '1 b tool !',
      /boxcar worker$/,
    ],
  ])('%s', (_what, last, facts, link, next) => {
    const report = explain([turn('a', { calls: [awaits('b')] }), last], facts);
    expect(report.isLive).toBe(false);
    expect(report.links).toEqual(expect.arrayContaining(['0 a child', link]));
    expect(report.all.find(({ is_live }) => !is_live)?.next).toMatch(next);
  });
});

test('a circle of waits is reported once', () => {
  const turns = [
    turn('a', { calls: [awaits('b')] }),
    turn('b', { status: 'queued', behind_turn_id: 'c' as TurnId }),
    turn('c', { calls: [awaits('d')] }),
    turn('d', { status: 'queued', behind_turn_id: 'a' as TurnId }),
  ];
  const links = ['0 a child', '1 b agent_busy', '2 c child', '3 d cycle'];
  expect(explain(turns)).toMatchObject({ isLive: true, links });
  expect(explain(turns, { live_workers: 0 }).links.at(-1)).toBe('3 d cycle !');
});

test('a turn that several turns wait for is explained once, and a turn that was not read is marked as unread', () => {
  const turns = [
    turn('a', { calls: [awaits('b'), awaits('c')] }),
    turn('b', { calls: [awaits('d')] }),
    turn('c', { calls: [awaits('d')] }),
    turn('d', { status: 'running', holder: worker }),
  ];
  expect(explain(turns).links).toEqual(['0 a child', '1 b child', '2 d lease', '0 a child', '1 c child']);
  expect(explain(turns.slice(0, 3), { has_more: true }).links).toContain('2 d unread');
});

test('a call for a worker outside names its queue; a turn that has ended waits for nothing', () => {
  const outside = turn('a', { calls: [call('x', { route: 'queue', target: 'py' })] });
  expect(explain([outside]).all).toMatchObject([
    { kind: 'tool', tool_call_id: 'x', until: LATER, what: expect.stringContaining('boxcar-tools-py') },
  ]);
  expect(explain([turn('a', { status: 'success', ended_at: AT, calls: [call('x')] })]).links).toEqual([
    '0 a ended',
  ]);
});

test('a call that waits for an approval names the ticket and the action that a person must take', () => {
  const waiting = explain([turn('a', { calls: [asks] })]);
  expect(waiting).toMatchObject({ isLive: true, links: ['0 a approval'] });
  expect(waiting.all).toMatchObject([
    {
      kind: 'approval',
      since: EARLIER,
      until: LATER,
      what: 'waits for the approval of pay (ticket k1); a person with approvals:write decides',
      next: 'Decide: boxcar approvals show k1, then approve or deny',
    },
  ]);
  // Without a living worker, no sweep ends the expired request.
  expect(explain([turn('a', { calls: [asks] })], { live_workers: 0 }).isLive).toBe(false);
});

test('a chain of 20,000 turns does not overflow the stack', () => {
  const turns = Array.from({ length: 20_000 }, (_, n) => turn(`t${n}`, { calls: [awaits(`t${n + 1}`)] }));
  const report = explain([...turns, turn('t20000', { status: 'running', holder: worker })]);
  expect(report.links).toHaveLength(20_001);
  expect(report.links.at(-1)).toBe('20000 t20000 lease');
});

describe('a batch', () => {
  test('is followed through the members that are shown, and reports their number and the deadline', () => {
    const running = turn('b', { status: 'running', holder: worker });
    const lost = turn('c', { status: 'queued', live_workers: 0, worker_target: 'gpu' });
    const report = explain([turn('a', { calls: [joins(['b', 'c'], { remaining: 15 })] }), running, lost]);
    expect(report).toMatchObject({ isLive: false, links: ['0 a batch', '1 b lease', '1 c window !'] });
    expect(report.all[0]).toMatchObject({
      batch_id: 'batch',
      tool_call_id: '>batch',
      on_turn_ids: ['b', 'c'],
      members: { total: 1_000, open: 15, needed: 15 },
      since: EARLIER,
      until: LATER,
      what: 'call fork_join waits for batch batch: 985 of 1000 done; 2 of 15 open ones are shown',
    });
  });

  test.each<[string, Partial<WaitFactsBatch>, RegExp]>([
    ['all of which have ended', { remaining: 0, is_due: true }, /its answer is not made yet/],
    ['that is closing', { closing: 'fail_fast', is_due: true }, /it is being ended \(fail_fast\)/],
    ['whose deadline has passed', { deadline_at: EARLIER }, /its deadline is over/],
  ])('%s is moved by any living worker', (_what, rest, words) => {
    const stuck = [turn('a', { calls: [joins(['b'], rest)] }), turn('b')];
    expect(explain(stuck)).toMatchObject({ isLive: true, links: ['0 a batch'] });
    expect(explain(stuck).all[0]?.what).toMatch(words);
    expect(explain(stuck, { live_workers: 0 }).links).toEqual(['0 a batch !']);
  });

  test('that has ended without an answer to its parent is reported as a defect', () => {
    expect(explain([turn('a', { calls: [joins([], { status: 'failed' })] })]).links).toEqual([
      '0 a nothing !',
    ]);
  });

  test('whose member waits for the parent is a circle, unless the batch can succeed without that member', () => {
    const back = turn('b', { status: 'queued', behind_turn_id: 'a' as TurnId });
    const free = turn('c', { status: 'running', holder: worker });
    const all = explain([turn('a', { calls: [joins(['b', 'c'])] }), back, free]);
    expect(all.links).toEqual(['0 a batch', '1 b cycle', '1 c lease']);
    const around = turn('d', { calls: [awaits('a')] });
    const reached = explain([around, turn('a', { calls: [joins(['d', 'c'])] }), free]);
    expect(reached.links).toEqual(['0 d child', '1 a cycle', '2 c lease']);
    expect(reached.all[1]).toMatchObject({ batch_id: 'batch', on_turn_id: 'd' });
    const spare = explain([around, turn('a', { calls: [joins(['d', 'c'], { min_success: 1 })] }), free]);
    expect(spare.links).toEqual(['0 d child', '1 a batch', '2 c lease']);
  });
});

describe('a turn that waits for no call reports what it waits for, since when, until when, and what to do', () => {
  const room = {
    name: 'openai',
    open_until: null,
    failures: 0,
    max_concurrent: 2,
    requests_per_minute: 60,
    waiting: 7,
  };
  test.each<[string, WaitFactsTurn, string, RegExp, RegExp | null]>([
    [
      'a time to try again',
      waits('retry', { detail: { retry: 2, code: 'model_timeout', message: 'too slow' } }),
      '0 a retry',
      /retry 2\): model_timeout: too slow$/,
      null,
    ],
    [
      'room at a provider',
      waits('limit', { detail: { reason: 'rate' }, provider: room }),
      '0 a provider',
      /provider openai \(2 at once, 60 a minute\): its calls per minute are used up; 7 turns/,
      /boxcar providers set openai/,
    ],
    [
      'a provider that fails',
      waits('limit', { provider: { ...room, open_until: LATER, failures: 12 } }),
      '0 a breaker',
      /provider openai, which failed 12 times in a row/,
      /boxcar providers ls/,
    ],
    [
      'a budget',
      waits('budget', {
        due_at: null,
        detail: { budget_id: 'b1', limit: 'cost_usd', limit_value: 2, needed: 0.5 },
      }),
      '0 a budget !',
      /budget b1 allows 2 cost_usd, and 0.5 more are needed/,
      /^boxcar budget raise b1 --cost-usd <n>$/,
    ],
  ])('%s', (_what, waiting, link, what, next) => {
    const [found] = explain([waiting]).all;
    expect(explain([waiting]).links).toEqual([link]);
    expect(found?.what).toMatch(what);
    expect(found?.since).toBe(EARLIER);
    if (next === null) expect(found?.next).toBeNull();
    else expect(found?.next).toMatch(next);
    expect(explain([waiting], { live_workers: 0 }).isLive).toBe(false);
  });

  test('a turn of a project at its limit of turns under way reports that limit', () => {
    const queued = turn('a', { status: 'queued', project: { name: 'p', max_concurrent: 3, active: 3 } });
    expect(explain([queued]).all).toMatchObject([
      {
        kind: 'project_limit',
        is_live: true,
        next: expect.stringContaining('projects set p --max-concurrent'),
      },
    ]);
    const room = turn('a', { status: 'queued', project: { name: 'p', max_concurrent: 3, active: 2 } });
    expect(explain([room]).links).toEqual(['0 a window']);
  });
});
