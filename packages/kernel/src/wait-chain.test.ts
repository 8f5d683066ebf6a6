import { describe, expect, test } from 'vitest';
import type { AgentId, RunId, ToolCallId, TurnId, WorkerId } from './ids.js';
import { explainWait, type WaitFacts, type WaitFactsCall, type WaitFactsTurn } from './wait-chain.js';

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
  status: 'suspended',
  worker_target: '',
  created_at: EARLIER,
  dispatched_at: EARLIER,
  deadline_at: null,
  ended_at: null,
  step_opened_at: null,
  holder: null,
  calls: [],
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
  given_up: null,
  ...rest,
});
const awaits = (id: string): WaitFactsCall => call(`>${id}`, { awaited_turn_id: id as TurnId });
const explain = (turns: readonly WaitFactsTurn[], rest: Partial<WaitFacts> = {}) => {
  const report = explainWait({ at: AT, live_workers: 1, has_more: false, turns, ...rest });
  if (report === undefined) throw new Error('no report');
  return {
    isLive: report.is_live,
    links: report.links.map(
      ({ level, turn_id, kind, is_live }) => `${level} ${turn_id} ${kind}${is_live ? '' : ' !'}`,
    ),
    all: report.links,
  };
};

test('a chain is followed through calls and queues down to the lease that moves it', () => {
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

describe('a chain that ends in nothing says so, and what to do', () => {
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
      'a turn that was given up',
      turn('b', { status: 'running', holder: worker, given_up: 'dead_leases: x' }),
      {},
      '1 b given_up !',
      /--retry-dead/,
    ],
    [
      'a call that was given up',
      turn('b', { calls: [call('x', { given_up: 'y' })] }),
      {},
      '1 b given_up !',
      /--retry-dead/,
    ],
    [
      'a dead worker, and no other one',
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

test('a circle is shown once, as one', () => {
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

test('what several turns wait for is told once, and what was not read is said to be so', () => {
  const turns = [
    turn('a', { calls: [awaits('b'), awaits('c')] }),
    turn('b', { calls: [awaits('d')] }),
    turn('c', { calls: [awaits('d')] }),
    turn('d', { status: 'running', holder: worker }),
  ];
  expect(explain(turns).links).toEqual(['0 a child', '1 b child', '2 d lease', '0 a child', '1 c child']);
  expect(explain(turns.slice(0, 3), { has_more: true }).links).toContain('2 d unread');
});

test('a call of a worker outside names its queue; a turn that has ended waits for nothing', () => {
  const outside = turn('a', { calls: [call('x', { route: 'queue', target: 'py' })] });
  expect(explain([outside]).all).toMatchObject([
    { kind: 'tool', tool_call_id: 'x', until: LATER, what: expect.stringContaining('boxcar-tools-py') },
  ]);
  expect(explain([turn('a', { status: 'success', ended_at: AT, calls: [call('x')] })]).links).toEqual([
    '0 a ended',
  ]);
});

test('a chain of 20,000 turns does not overflow', () => {
  const turns = Array.from({ length: 20_000 }, (_, n) => turn(`t${n}`, { calls: [awaits(`t${n + 1}`)] }));
  const report = explain([...turns, turn('t20000', { status: 'running', holder: worker })]);
  expect(report.links).toHaveLength(20_001);
  expect(report.links.at(-1)).toBe('20000 t20000 lease');
});
