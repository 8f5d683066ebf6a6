import { parseArgs } from 'node:util';
import { errorText } from '@boxcar/kernel';
import { EXTRA_SUITES, SUITES, type SuiteName } from './catalogue.js';

export const QUEUES = ['redis', 'postgres'] as const;
export type QueueName = (typeof QUEUES)[number];

/** Undefined options were not given: each suite has its own defaults. */
export interface Options {
  readonly suites: readonly SuiteName[];
  readonly queues: readonly QueueName[];
  readonly json: boolean;
  /** The file whose block is rewritten with the table of this run. */
  readonly readme: string | undefined;
  /** The number of turns that the worker runs at once. */
  readonly concurrency: number | undefined;
  /** The length of one round of `turns`, and of `quiet`. */
  readonly seconds: number | undefined;
  /** The number of rounds per side. */
  readonly rounds: number;
  /** The number of samples per side. */
  readonly samples: number | undefined;
  /** The number of waiting turns in `drain` and `backlog`. */
  readonly turns: number | undefined;
  /** The folder for profiles; undefined: no profiling. */
  readonly profile: string | undefined;
}

export const HELP = `usage: npm run bench -- <suite>... [options]
       npm run bench -- all [options]
       npm run bench -- --readme docs/reference/benchmarks.md

suites
  turns   submit → answer, one step, one worker process: turns per second,
          CPU and WAL per turn
  drain   a backlog of turns, then a worker: turns per second, and the memory of its process
  idle    one durable turn at a time on an idle system: p50 and p99 of submit → answer
  chain   what each delegated hop costs, in a chain of ten: p50
  steps   what each further step of a turn costs, without a tool and with a tool call;
          an end by submit_result: p50
  handoff approve → model call ÷ submit → model call; a native handoff ÷ a plain delegation;
          a cached result ÷ a plain delegation; from the model of a handoff to
          the receiver of its callback, and to a reader of its first part: p50
  fanout  fork_join of 1,000 and of 10,000 children: submit → parent's answer; memory of the worker
  pack    a context of 1,000 and 9,000 cards from three boxes that overlap: p50
  view    the messages of a context of 1,000 and 9,000 cards, loaded and built: p50
  tape    an append of one message, p50; a view after an anchor with 100,000 entries before it ÷ with 100
  growth  200 turns of 5 KB on one agent: stored ÷ new bytes; the last turns' time ÷ the first ones'
  recover kill -9 of a worker, another one alive: until its turn goes on, p50 and longest
  cancel  a tree of 1,000 turns, until all are canceled and their worker is free
  quiet   a worker with nothing to do: statements per second, CPU
  backlog 100,000 queued turns of ten projects: claim and promotion p99, and how evenly they are served;
          a new project's first turn while another project keeps all places busy: milliseconds beyond two ends, longest
  mcp     register, update and hand on sessions of 10 and 10,000 entries, over stdio and HTTP: p50, p95;
          a handoff with 10,000 entries ÷ with 10
  migrate a million entries of the schema before this one: the longest statement of others meanwhile

suites outside of all
  scale   1, 2 and 4 worker processes with 1 and 2 callers: turns per second, CPU per turn by kind of process,
          and what the model of docs/explanation/scaling.md predicts for 4

options
  --json              one JSON line per case on stdout, everything else on stderr
  --readme <file>     runs all suites and rewrites the file's table, between its bench markers
  --queue <which>     redis, postgres or both (default both)
  --concurrency <n>   turns the worker runs at once (default 50; drain: 100)
  --seconds <n>       length of a round of turns (default 4), of quiet (default 20)
  --rounds <n>        rounds of the floor and of Boxcar, in turns (default 5)
  --samples <n>       samples of each side (default: idle 300, steps, handoff 60, chain, pack, view 40, tape 300, recover 8, backlog 2000)
  --turns <n>         drain, backlog: turns that wait (default 10000, 100000); fanout, cancel: at most so many in a tree;
                      mcp: at most so many entries; migrate: thousands of entries (default 1000)
  --profile <folder>  turns: one more round of each, with CPU profiles and Postgres statement statistics
  --help

How it measures, and what floor and least floor are: bench/README.md`;

/** An error of the command line; its message is the line to print. */
export class UsageError extends Error {
  override readonly name = 'UsageError';
}

/** @throws UsageError */
export function parseOptions(args: readonly string[]): Options | 'help' {
  const { values, positionals } = parse(args);
  if (values.help === true) return 'help';
  return {
    suites: readSuites(positionals, values.readme),
    queues: readQueues(values.queue ?? 'both', values.readme),
    json: values.json ?? false,
    readme: values.readme,
    concurrency: readCount(values.concurrency, 'concurrency'),
    seconds: readNumber(values.seconds, 'seconds'),
    rounds: readCount(values.rounds, 'rounds') ?? 5,
    samples: readCount(values.samples, 'samples'),
    turns: readCount(values.turns, 'turns'),
    profile: values.profile,
  };
}

function parse(args: readonly string[]) {
  try {
    return parseArgs({
      args: [...args],
      allowPositionals: true,
      options: {
        json: { type: 'boolean' },
        readme: { type: 'string' },
        queue: { type: 'string' },
        concurrency: { type: 'string' },
        seconds: { type: 'string' },
        rounds: { type: 'string' },
        samples: { type: 'string' },
        turns: { type: 'string' },
        profile: { type: 'string' },
        help: { type: 'boolean', short: 'h' },
      },
    });
  } catch (error) {
    const [why = ''] = errorText(error).split('. ');
    throw new UsageError(`${why}; see --help`);
  }
}

function readSuites(names: readonly string[], readme: string | undefined): readonly SuiteName[] {
  const known = `known are ${SUITES.join(', ')}, or all of them: all; and ${EXTRA_SUITES.join(', ')}; see --help`;
  if (readme !== undefined) {
    // A table with gaps, or with figures from different days, would be misleading.
    if (names.length > 0) throw new UsageError(`--readme: runs all suites; leave out '${names.join(' ')}'`);
    return SUITES;
  }
  if (names.length === 0) throw new UsageError(`no suite given; ${known}`);
  const rest = names.filter((name) => name !== 'all');
  const suites = rest.map((name) => {
    const suite = [...SUITES, ...EXTRA_SUITES].find((candidate) => candidate === name);
    if (suite === undefined) throw new UsageError(`unknown suite '${name}'; ${known}`);
    return suite;
  });
  return [...new Set([...(rest.length < names.length ? SUITES : []), ...suites])];
}

function readQueues(text: string, readme: string | undefined): readonly QueueName[] {
  if (text === 'both') return QUEUES;
  const queue = QUEUES.find((candidate) => candidate === text);
  if (queue === undefined) throw new UsageError(`--queue: '${text}' is none of redis, postgres, both`);
  if (readme !== undefined) throw new UsageError('--readme: needs both queues; leave out --queue');
  return [queue];
}

function readNumber(text: string | undefined, name: string): number | undefined {
  if (text === undefined) return undefined;
  const value = Number(text);
  if (Number.isFinite(value) && value > 0) return value;
  throw new UsageError(`--${name}: '${text}' is no number above 0`);
}

function readCount(text: string | undefined, name: string): number | undefined {
  const value = readNumber(text, name);
  if (value === undefined || Number.isInteger(value)) return value;
  throw new UsageError(`--${name}: '${text}' is no whole number`);
}
