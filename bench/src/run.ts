import { readFileSync, writeFileSync } from 'node:fs';
import { CASES, labelOf, type SuiteName } from './catalogue.js';
import { Cleanup } from './cleanup.js';
import type { Options, QueueName } from './options.js';
import { hasBlock, replaceBlock } from './readme.js';
import { type Case, formatTable, judge, skip } from './report.js';
import { startServers } from './servers.js';
import type { Bench, Figures, Say } from './suite.js';
import { benchBacklog } from './suites/backlog.js';
import { benchCancel } from './suites/cancel.js';
import { benchChain } from './suites/chain.js';
import { benchDrain } from './suites/drain.js';
import { benchFanout } from './suites/fanout.js';
import { benchGrowth } from './suites/growth.js';
import { benchHandoff } from './suites/handoff.js';
import { benchIdle } from './suites/idle.js';
import { benchMcp } from './suites/mcp.js';
import { benchMigrate } from './suites/migrate.js';
import { benchPack } from './suites/pack.js';
import { openPair, type Pair } from './suites/pair.js';
import { benchQuiet } from './suites/quiet.js';
import { benchRecover } from './suites/recover.js';
import { benchScale } from './suites/scale.js';
import { benchSteps } from './suites/steps.js';
import { benchTape } from './suites/tape.js';
import { benchTurns } from './suites/turns.js';
import { benchView } from './suites/view.js';

type Suite =
  | { readonly queue: 'none'; run(bench: Bench): Promise<Figures> }
  /** `pair`: on one pair of workers, shared with the other suites of the queue; `own`: on separate workers. */
  | { readonly queue: 'pair' | 'own'; run(bench: Bench, queue: QueueName): Promise<Figures> };

const suites: Readonly<Record<SuiteName, Suite>> = {
  turns: { queue: 'pair', run: benchTurns },
  drain: { queue: 'own', run: benchDrain },
  idle: { queue: 'pair', run: benchIdle },
  chain: { queue: 'pair', run: benchChain },
  steps: { queue: 'pair', run: benchSteps },
  handoff: { queue: 'pair', run: benchHandoff },
  fanout: { queue: 'own', run: benchFanout },
  pack: { queue: 'none', run: benchPack },
  view: { queue: 'none', run: benchView },
  tape: { queue: 'none', run: benchTape },
  growth: { queue: 'pair', run: benchGrowth },
  recover: { queue: 'own', run: benchRecover },
  cancel: { queue: 'pair', run: benchCancel },
  quiet: { queue: 'own', run: benchQuiet },
  backlog: { queue: 'none', run: benchBacklog },
  mcp: { queue: 'none', run: benchMcp },
  migrate: { queue: 'none', run: benchMigrate },
  scale: { queue: 'own', run: benchScale },
};

/** Runs suites on separate servers; figures go to stdout, and into the file of `--readme`. */
export async function runSuites(options: Options, say: Say): Promise<void> {
  const readme = options.readme === undefined ? undefined : readReadme(options.readme);
  await using cleanup = new Cleanup();
  const servers = await startServers(cleanup, {
    needsRedis: options.queues.includes('redis'),
    hasStatistics: options.profile !== undefined,
  });
  say(servers.machine);
  const found: Case[] = [];
  const from = performance.now();
  const isChosen = (use: Suite['queue']) => (name: SuiteName) => suites[name].queue === use;
  const runAll = async (names: readonly SuiteName[], on: Stage): Promise<void> => {
    for (const name of names) {
      say(`${minutesSince(from)} ${name}${on.queue === undefined ? '' : ` on ${on.queue}`}`);
      const cases = await runSuite({ servers, options, say, openPair: on.openPair }, name, on.queue);
      if (options.json) for (const of of cases) console.log(JSON.stringify(of));
      found.push(...cases);
    }
  };
  for (const queue of options.queues) {
    await using shared = new SharedPair(() => openPair({ servers, options }, queue));
    await runAll(options.suites.filter(isChosen('pair')), { queue, openPair: () => shared.open() });
  }
  // When the other suites run, no worker of the pair remains.
  for (const queue of options.queues)
    await runAll(options.suites.filter(isChosen('own')), { queue, openPair: noPair });
  await runAll(options.suites.filter(isChosen('none')), { queue: undefined, openPair: noPair });
  const cases = inOrder(found);
  if (!options.json && cases.length > 0) console.log(formatTable(cases));
  if (readme !== undefined) {
    const date = new Date().toISOString().slice(0, 10);
    writeFileSync(readme.path, replaceBlock(readme.text, { machine: servers.machine, date, cases }));
    say(`wrote the table of ${readme.path}`);
  }
}

/** Checked before the run: a later failure would lose half an hour. */
function readReadme(path: string): { readonly path: string; readonly text: string } {
  const text = readFileSync(path, 'utf8');
  if (!hasBlock(text)) throw new Error(`${path} has no block between the bench markers`);
  return { path, text };
}

interface Stage {
  readonly queue: QueueName | undefined;
  readonly openPair: Bench['openPair'];
}

const noPair = (): never => {
  throw new Error('a suite of workers of its own asked for the pair');
};

const minutesSince = (from: number): string => `[${((performance.now() - from) / 60_000).toFixed(1)} min]`;

/** Opened by the first suite that needs it. */
class SharedPair implements AsyncDisposable {
  readonly #open: () => Promise<Pair>;
  #pair: Promise<Pair> | undefined;

  constructor(open: () => Promise<Pair>) {
    this.#open = open;
  }

  open(): Promise<Pair> {
    this.#pair ??= this.#open();
    return this.#pair;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const pair = await this.#pair?.catch(() => undefined);
    await pair?.[Symbol.asyncDispose]();
  }
}

/** In the order of the catalogue, whatever the order of measurement. */
function inOrder(cases: readonly Case[]): Case[] {
  const place = new Map(CASES.map((spec, index) => [`${spec.suite} ${labelOf(spec)}`, index]));
  const placeOf = (of: Case): number => place.get(`${of.suite} ${of.case}`) ?? CASES.length;
  return [...cases].sort((a, b) => placeOf(a) - placeOf(b));
}

async function runSuite(bench: Bench, name: SuiteName, queue: QueueName | undefined): Promise<Case[]> {
  const suite = suites[name];
  if (suite.queue === 'none') return judgeAll(name, undefined, await suite.run(bench));
  if (queue === undefined) throw new Error(`${name} needs a queue`);
  const { redis } = bench.servers;
  if (queue === 'redis' && 'missing' in redis)
    return CASES.filter((spec) => spec.suite === name && spec.queue === queue).map((spec) =>
      skip(spec, redis.missing),
    );
  return judgeAll(name, queue, await suite.run(bench, queue));
}

function judgeAll(suite: SuiteName, queue: QueueName | undefined, figures: Figures): Case[] {
  return CASES.filter((spec) => spec.suite === suite && spec.queue === queue).map((spec) => {
    const figure = figures[spec.name];
    if (figure === undefined) throw new Error(`${suite} ${labelOf(spec)} was not measured`);
    return 'missing' in figure ? skip(spec, figure.missing) : judge(spec, figure);
  });
}
