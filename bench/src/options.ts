import { parseArgs } from 'node:util';

export const SUITES = ['turns', 'idle'] as const;
export type SuiteName = (typeof SUITES)[number];
export type QueueName = 'redis' | 'postgres';

export interface Options {
  readonly suites: readonly SuiteName[];
  readonly queues: readonly QueueName[];
  readonly json: boolean;
  /** Turns the worker runs at once. */
  readonly concurrency: number;
  /** Length of one round of `turns`. */
  readonly seconds: number;
  /** Rounds of each side. */
  readonly rounds: number;
  /** Samples of each side of `idle`. */
  readonly samples: number;
  /** Folder for profiles; nothing is profiled without it. */
  readonly profile: string | undefined;
}

export const HELP = `usage: npm run bench -- <suite>... [options]

suites
  turns   submit → answer, one step, one worker process: turns per second
  idle    one durable turn at a time on an idle system: p50 and p99 of submit → answer

options
  --json              one JSON line per case on stdout, everything else on stderr
  --queue <which>     redis, postgres or both (default both)
  --concurrency <n>   turns the worker runs at once (default 50)
  --seconds <n>       turns: length of a round (default 4)
  --rounds <n>        rounds of the floor and of Boxcar, in turns (default 5)
  --samples <n>       idle: samples of each (default 300)
  --profile <folder>  turns: one more round of each, with CPU profiles and Postgres statement statistics
  --help

How it measures, and what the floor is: bench/README.md`;

/** What the command line asks for that cannot be had; its message is the one line to print. */
export class UsageError extends Error {
  override readonly name = 'UsageError';
}

/** @throws UsageError */
export function parseOptions(args: readonly string[]): Options | 'help' {
  const { values, positionals } = parse(args);
  if (values.help === true) return 'help';
  const known = `known are ${SUITES.join(', ')}; see --help`;
  if (positionals.length === 0) throw new UsageError(`no suite given; ${known}`);
  const suites = positionals.map((name) => {
    const suite = SUITES.find((candidate) => candidate === name);
    if (suite === undefined) throw new UsageError(`unknown suite '${name}'; ${known}`);
    return suite;
  });
  return {
    suites: [...new Set(suites)],
    queues: readQueues(values.queue ?? 'both'),
    json: values.json ?? false,
    concurrency: readCount(values.concurrency, 'concurrency', 50),
    seconds: readNumber(values.seconds, 'seconds', 4),
    rounds: readCount(values.rounds, 'rounds', 5),
    samples: readCount(values.samples, 'samples', 300),
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
        queue: { type: 'string' },
        concurrency: { type: 'string' },
        seconds: { type: 'string' },
        rounds: { type: 'string' },
        samples: { type: 'string' },
        profile: { type: 'string' },
        help: { type: 'boolean', short: 'h' },
      },
    });
  } catch (error) {
    const [why = ''] = (error instanceof Error ? error.message : String(error)).split('. ');
    throw new UsageError(`${why}; see --help`);
  }
}

function readQueues(text: string): readonly QueueName[] {
  switch (text) {
    case 'both':
      return ['redis', 'postgres'];
    case 'redis':
    case 'postgres':
      return [text];
    default:
      throw new UsageError(`--queue: '${text}' is none of redis, postgres, both`);
  }
}

function readNumber(text: string | undefined, name: string, otherwise: number): number {
  const value = text === undefined ? otherwise : Number(text);
  if (Number.isFinite(value) && value > 0) return value;
  throw new UsageError(`--${name}: '${text}' is no number above 0`);
}

function readCount(text: string | undefined, name: string, otherwise: number): number {
  const value = readNumber(text, name, otherwise);
  if (Number.isInteger(value)) return value;
  throw new UsageError(`--${name}: '${text}' is no whole number`);
}
