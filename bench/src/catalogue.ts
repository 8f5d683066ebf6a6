/** Every case of every suite with its goal. Goals apply to Redis; the Postgres queue has its own reference values. */
import type { QueueName } from './options.js';

export const SUITES = [
  'turns',
  'drain',
  'idle',
  'chain',
  'steps',
  'handoff',
  'fanout',
  'pack',
  'view',
  'tape',
  'growth',
  'recover',
  'cancel',
  'quiet',
  'backlog',
  'mcp',
  'migrate',
] as const;
/** Run only by name: they have no case in the table of the README, and print a separate table. */
export const EXTRA_SUITES = ['scale'] as const;
export type SuiteName = (typeof SUITES)[number] | (typeof EXTRA_SUITES)[number];
export const UNITS = ['turns/s', 'ms', 'KB', 'MiB', 'times', 'statements/s', '% CPU', 'max ÷ min'] as const;
export type Unit = (typeof UNITS)[number];

export interface CaseSpec {
  readonly suite: SuiteName;
  /** Absent when no queue is involved. */
  readonly queue?: QueueName;
  /** The measured quantity, when the suite measures more than one. */
  readonly name: string;
  readonly unit: Unit;
  /** Null: the figure is reported, but not judged. */
  readonly goal: Goal | null;
}

/** In the row's unit, or as value ÷ floor. */
export type Goal = number | { readonly ofFloor: number };

/** A goal that holds on any machine. */
const times = (ofFloor: number): Goal => ({ ofFloor });

export const CASES: readonly CaseSpec[] = [
  { suite: 'turns', queue: 'redis', name: '', unit: 'turns/s', goal: times(0.5) },
  { suite: 'turns', queue: 'redis', name: 'CPU per turn', unit: 'ms', goal: times(2.2) },
  { suite: 'turns', queue: 'redis', name: 'WAL per turn', unit: 'KB', goal: 5 },
  { suite: 'turns', queue: 'postgres', name: '', unit: 'turns/s', goal: 400 },
  { suite: 'turns', queue: 'postgres', name: 'CPU per turn', unit: 'ms', goal: null },
  { suite: 'turns', queue: 'postgres', name: 'WAL per turn', unit: 'KB', goal: null },
  { suite: 'drain', queue: 'redis', name: 'rate', unit: 'turns/s', goal: null },
  { suite: 'drain', queue: 'redis', name: 'RSS at the end', unit: 'MiB', goal: 250 },
  { suite: 'drain', queue: 'redis', name: 'RSS at its peak', unit: 'MiB', goal: null },
  { suite: 'drain', queue: 'postgres', name: 'rate', unit: 'turns/s', goal: null },
  { suite: 'drain', queue: 'postgres', name: 'RSS at the end', unit: 'MiB', goal: 250 },
  { suite: 'drain', queue: 'postgres', name: 'RSS at its peak', unit: 'MiB', goal: null },
  { suite: 'idle', queue: 'redis', name: 'p50', unit: 'ms', goal: times(1.8) },
  { suite: 'idle', queue: 'redis', name: 'p99', unit: 'ms', goal: 18 },
  { suite: 'idle', queue: 'redis', name: 'in process p50', unit: 'ms', goal: times(1.1) },
  { suite: 'idle', queue: 'postgres', name: 'p50', unit: 'ms', goal: 15 },
  { suite: 'idle', queue: 'postgres', name: 'p99', unit: 'ms', goal: null },
  { suite: 'idle', queue: 'postgres', name: 'in process p50', unit: 'ms', goal: null },
  { suite: 'chain', queue: 'redis', name: 'hop', unit: 'ms', goal: times(1.5) },
  { suite: 'chain', queue: 'postgres', name: 'hop', unit: 'ms', goal: null },
  { suite: 'steps', queue: 'redis', name: 'without a tool', unit: 'ms', goal: times(3.2) },
  { suite: 'steps', queue: 'redis', name: 'with a tool call', unit: 'ms', goal: times(4) },
  { suite: 'steps', queue: 'redis', name: 'end by submit_result', unit: 'ms', goal: times(1.3) },
  { suite: 'steps', queue: 'postgres', name: 'without a tool', unit: 'ms', goal: null },
  { suite: 'steps', queue: 'postgres', name: 'with a tool call', unit: 'ms', goal: null },
  { suite: 'steps', queue: 'postgres', name: 'end by submit_result', unit: 'ms', goal: null },
  { suite: 'handoff', queue: 'redis', name: 'approved ÷ idle', unit: 'times', goal: null },
  { suite: 'handoff', queue: 'redis', name: 'native ÷ plain', unit: 'times', goal: null },
  { suite: 'handoff', queue: 'redis', name: 'cached ÷ plain', unit: 'times', goal: null },
  { suite: 'handoff', queue: 'redis', name: 'approved', unit: 'ms', goal: null },
  { suite: 'handoff', queue: 'redis', name: 'native', unit: 'ms', goal: null },
  { suite: 'handoff', queue: 'redis', name: 'callback after its model', unit: 'ms', goal: null },
  { suite: 'handoff', queue: 'redis', name: 'first part beyond a relay', unit: 'ms', goal: 10 },
  { suite: 'handoff', queue: 'postgres', name: 'approved ÷ idle', unit: 'times', goal: null },
  { suite: 'handoff', queue: 'postgres', name: 'native ÷ plain', unit: 'times', goal: null },
  { suite: 'handoff', queue: 'postgres', name: 'cached ÷ plain', unit: 'times', goal: null },
  { suite: 'handoff', queue: 'postgres', name: 'approved', unit: 'ms', goal: null },
  { suite: 'handoff', queue: 'postgres', name: 'native', unit: 'ms', goal: null },
  { suite: 'handoff', queue: 'postgres', name: 'callback after its model', unit: 'ms', goal: null },
  { suite: 'handoff', queue: 'postgres', name: 'first part beyond a relay', unit: 'ms', goal: 10 },
  { suite: 'fanout', queue: 'redis', name: '1000 children, cold', unit: 'ms', goal: times(1.6) },
  { suite: 'fanout', queue: 'redis', name: '1000 children', unit: 'ms', goal: times(1.6) },
  { suite: 'fanout', queue: 'redis', name: '10000 children', unit: 'ms', goal: times(1.6) },
  { suite: 'fanout', queue: 'redis', name: 'memory of 10000', unit: 'MiB', goal: null },
  { suite: 'fanout', queue: 'redis', name: 'memory of 10000 at its peak', unit: 'MiB', goal: null },
  { suite: 'fanout', queue: 'postgres', name: '1000 children, cold', unit: 'ms', goal: null },
  { suite: 'fanout', queue: 'postgres', name: '1000 children', unit: 'ms', goal: 2_000 },
  { suite: 'fanout', queue: 'postgres', name: '10000 children', unit: 'ms', goal: null },
  { suite: 'fanout', queue: 'postgres', name: 'memory of 10000', unit: 'MiB', goal: null },
  { suite: 'fanout', queue: 'postgres', name: 'memory of 10000 at its peak', unit: 'MiB', goal: null },
  { suite: 'pack', name: '1000 cards', unit: 'ms', goal: 5 },
  { suite: 'pack', name: '9000 cards', unit: 'ms', goal: 25 },
  { suite: 'view', name: '1000 cards', unit: 'ms', goal: 15 },
  { suite: 'view', name: '9000 cards', unit: 'ms', goal: 80 },
  { suite: 'tape', name: 'append', unit: 'ms', goal: 1 },
  { suite: 'tape', name: 'view behind 100000 ÷ 100', unit: 'times', goal: 1.3 },
  { suite: 'tape', name: 'fork of 100000', unit: 'ms', goal: 5 },
  { suite: 'growth', queue: 'redis', name: 'stored ÷ new', unit: 'times', goal: 3.5 },
  { suite: 'growth', queue: 'redis', name: 'late ÷ early', unit: 'times', goal: 2.2 },
  { suite: 'growth', queue: 'postgres', name: 'stored ÷ new', unit: 'times', goal: null },
  { suite: 'growth', queue: 'postgres', name: 'late ÷ early', unit: 'times', goal: null },
  { suite: 'recover', queue: 'redis', name: 'p50', unit: 'ms', goal: 500 },
  { suite: 'recover', queue: 'redis', name: 'max', unit: 'ms', goal: 2_000 },
  { suite: 'recover', queue: 'postgres', name: 'p50', unit: 'ms', goal: null },
  { suite: 'recover', queue: 'postgres', name: 'max', unit: 'ms', goal: null },
  { suite: 'cancel', queue: 'redis', name: '1000 turns', unit: 'ms', goal: 300 },
  { suite: 'cancel', queue: 'postgres', name: '1000 turns', unit: 'ms', goal: null },
  { suite: 'quiet', queue: 'redis', name: 'statements', unit: 'statements/s', goal: 2 },
  { suite: 'quiet', queue: 'redis', name: 'CPU', unit: '% CPU', goal: 1 },
  { suite: 'quiet', queue: 'postgres', name: 'statements', unit: 'statements/s', goal: null },
  { suite: 'quiet', queue: 'postgres', name: 'CPU', unit: '% CPU', goal: null },
  { suite: 'backlog', name: 'claim p99', unit: 'ms', goal: 10 },
  { suite: 'backlog', name: 'promote p99', unit: 'ms', goal: 10 },
  { suite: 'backlog', name: 'fairness', unit: 'max ÷ min', goal: 1.3 },
  { suite: 'backlog', name: 'newcomer', unit: 'ms', goal: 500 },
  { suite: 'mcp', name: 'stdio register p50', unit: 'ms', goal: null },
  { suite: 'mcp', name: 'stdio register p95', unit: 'ms', goal: 100 },
  { suite: 'mcp', name: 'stdio update 10 p50', unit: 'ms', goal: null },
  { suite: 'mcp', name: 'stdio update 10 p95', unit: 'ms', goal: 50 },
  { suite: 'mcp', name: 'stdio update 10000 p50', unit: 'ms', goal: null },
  { suite: 'mcp', name: 'stdio update 10000 p95', unit: 'ms', goal: 50 },
  { suite: 'mcp', name: 'stdio handoff 10 p50', unit: 'ms', goal: null },
  { suite: 'mcp', name: 'stdio handoff 10 p95', unit: 'ms', goal: 200 },
  { suite: 'mcp', name: 'stdio handoff 10000 p50', unit: 'ms', goal: null },
  { suite: 'mcp', name: 'stdio handoff 10000 p95', unit: 'ms', goal: 200 },
  { suite: 'mcp', name: 'stdio handoff 10 beside a bare turn', unit: 'ms', goal: null },
  { suite: 'mcp', name: 'stdio handoff 10000 ÷ 10', unit: 'times', goal: 1.3 },
  { suite: 'mcp', name: 'http register p50', unit: 'ms', goal: null },
  { suite: 'mcp', name: 'http register p95', unit: 'ms', goal: 100 },
  { suite: 'mcp', name: 'http update 10 p50', unit: 'ms', goal: null },
  { suite: 'mcp', name: 'http update 10 p95', unit: 'ms', goal: 50 },
  { suite: 'mcp', name: 'http update 10000 p50', unit: 'ms', goal: null },
  { suite: 'mcp', name: 'http update 10000 p95', unit: 'ms', goal: 50 },
  { suite: 'mcp', name: 'http handoff 10 p50', unit: 'ms', goal: null },
  { suite: 'mcp', name: 'http handoff 10 p95', unit: 'ms', goal: 200 },
  { suite: 'mcp', name: 'http handoff 10000 p50', unit: 'ms', goal: null },
  { suite: 'mcp', name: 'http handoff 10000 p95', unit: 'ms', goal: 200 },
  { suite: 'mcp', name: 'http handoff 10 beside a bare turn', unit: 'ms', goal: null },
  { suite: 'mcp', name: 'http handoff 10000 ÷ 10', unit: 'times', goal: 1.3 },
  { suite: 'migrate', name: 'longest wait', unit: 'ms', goal: 200 },
];

/** The name of a case within its suite. */
export const labelOf = ({ queue, name }: Pick<CaseSpec, 'queue' | 'name'>): string =>
  [queue, name].filter((part) => part !== undefined && part !== '').join(' ');
