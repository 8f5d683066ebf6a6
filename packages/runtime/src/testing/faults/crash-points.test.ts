import { describe, expect, it } from 'vitest';
import { deathsAtCommits, everyFault, fewFaults, type Sent, someFaults } from './crash-points.js';

/** Statements on one connection; those between `begin` and `commit` are in one transaction. */
function sent(...statements: readonly string[]): Sent {
  let open = 0;
  let begun = 0;
  const transactions = statements.map((text) => {
    if (text === 'begin') open = ++begun;
    const within = open;
    if (text === 'commit') open = 0;
    return within;
  });
  return {
    statements,
    places: ['', ...statements.slice(0, -1)],
    transactions,
    leaveAt: statements.length,
  };
}

const few = (run: Sent, covered = new Set<string>()): string[] =>
  fewFaults(run, covered).map(
    ({ at, when, scope }) => `${scope} ${when} ${at.text}${at.behind ? ` of ${at.behind}` : ''} ${at.nth}`,
  );

const WRITE = 'insert into boxcar.cards';
const OTHER = 'update boxcar.boxes';
const TURN = 'update boxcar.turns';

describe('the short selection of statements to cut', () => {
  it('has, for a repeated read and a write, one read and the write, with its process alive and dead', () => {
    expect(few(sent('select 1', WRITE, 'select 1', WRITE))).toEqual([
      'connection before select 1 1',
      `connection after ${WRITE} 1`,
      `process after ${WRITE} 1`,
    ]);
  });

  it('has, for a transaction, the connection after each write, the process after the last write, and the commit', () => {
    expect(few(sent('begin', 'select 1 for no key update', WRITE, OTHER, 'commit'))).toEqual([
      `connection after ${WRITE} 1`,
      `connection after ${OTHER} 1`,
      `process after ${OTHER} 1`,
      `connection after commit of ${OTHER} 1`,
      `process after commit of ${OTHER} 1`,
    ]);
  });

  it('has, for a transaction that only reads, one statement and the commit once', () => {
    expect(few(sent('begin', 'select 1', 'select 2', 'commit'))).toEqual([
      'connection before begin 1',
      'connection before commit of select 2 1',
    ]);
  });

  it('leaves out statements that another scenario has cut, except a death at the last deciding statement', () => {
    const covered = new Set<string>();
    few(sent('begin', TURN, 'commit', WRITE, TURN), covered);
    expect(few(sent('begin', TURN, 'commit', 'begin', TURN, 'commit', WRITE, TURN, TURN), covered)).toEqual([
      `process after commit of ${TURN} 2`,
      `process after ${TURN} 4`,
    ]);
  });

  it('distinguishes commits by the statements that they commit', () => {
    const run = sent('begin', WRITE, 'commit', 'begin', OTHER, 'commit');
    expect(few(run).filter((fault) => fault.includes('process after commit'))).toEqual([
      `process after commit of ${WRITE} 1`,
      `process after commit of ${OTHER} 1`,
    ]);
  });

  it('has no deciding statement for a process that leaves', () => {
    const run = { ...sent(TURN, TURN), leaveAt: 1 };
    expect(deathsAtCommits(run)).toHaveLength(1);
    expect(few(run, new Set([TURN]))).toEqual([]);
  });
});

it('becomes every statement at three moments in the full selection', () => {
  expect(everyFault(sent('begin', WRITE, 'commit'))).toHaveLength(9);
});

describe('a sample of the faults', () => {
  const faults = Array.from({ length: 60 }, (_none, nth) => ({
    at: { text: WRITE, nth },
    scope: nth % 2 === 0 ? ('process' as const) : ('connection' as const),
    when: 'after' as const,
  }));
  const numbers = (of: typeof faults, rank: () => number): number[] =>
    someFaults(of, rank)
      .map(({ at }) => at.nth)
      .sort((a, b) => a - b);

  it('has an eighth of the deaths and of the other cuts, and other ones in another run', () => {
    let rank = 0;
    expect(numbers(faults, () => rank++)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
    expect(numbers(faults, () => -rank++)).toEqual([52, 53, 54, 55, 56, 57, 58, 59]);
  });

  it('has two of each kind, or all if there are fewer', () => {
    expect(numbers(faults.slice(0, 11), Math.random)).toHaveLength(4);
    expect(numbers(faults.slice(0, 3), Math.random)).toEqual([0, 1, 2]);
    expect(numbers([], Math.random)).toEqual([]);
  });
});
