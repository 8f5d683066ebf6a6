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
import { benchIdle } from './suites/idle.js';
import { benchPack } from './suites/pack.js';
import { benchQuiet } from './suites/quiet.js';
import { benchRecover } from './suites/recover.js';
import { benchSteps } from './suites/steps.js';
import { benchTurns } from './suites/turns.js';
import { benchView } from './suites/view.js';

type Suite =
  | { readonly hasQueue: true; run(bench: Bench, queue: QueueName): Promise<Figures> }
  | { readonly hasQueue: false; run(bench: Bench): Promise<Figures> };

const suites: Readonly<Record<SuiteName, Suite>> = {
  turns: { hasQueue: true, run: benchTurns },
  drain: { hasQueue: true, run: benchDrain },
  idle: { hasQueue: true, run: benchIdle },
  steps: { hasQueue: true, run: benchSteps },
  pack: { hasQueue: false, run: benchPack },
  view: { hasQueue: false, run: benchView },
  chain: { hasQueue: true, run: benchChain },
  fanout: { hasQueue: true, run: benchFanout },
  growth: { hasQueue: true, run: benchGrowth },
  recover: { hasQueue: true, run: benchRecover },
  cancel: { hasQueue: true, run: benchCancel },
  quiet: { hasQueue: true, run: benchQuiet },
  backlog: { hasQueue: false, run: benchBacklog },
};

/** Runs suites on servers of their own; figures go to stdout, and into the file of `--readme`. */
export async function runSuites(options: Options, say: Say): Promise<void> {
  const readme = options.readme === undefined ? undefined : readReadme(options.readme);
  await using cleanup = new Cleanup();
  const servers = await startServers(cleanup, {
    needsRedis: options.queues.includes('redis'),
    hasStatistics: options.profile !== undefined,
  });
  say(servers.machine);
  const cases: Case[] = [];
  for (const name of options.suites) {
    const found = await runSuite({ servers, options, say }, name);
    if (options.json) for (const of of found) console.log(JSON.stringify(of));
    cases.push(...found);
  }
  if (!options.json) console.log(formatTable(cases));
  if (readme !== undefined) {
    const date = new Date().toISOString().slice(0, 10);
    writeFileSync(readme.path, replaceBlock(readme.text, { machine: servers.machine, date, cases }));
    say(`wrote the table of ${readme.path}`);
  }
}

/** Before the run: after it, half an hour would be lost. */
function readReadme(path: string): { readonly path: string; readonly text: string } {
  const text = readFileSync(path, 'utf8');
  if (!hasBlock(text)) throw new Error(`${path} has no block between the bench markers`);
  return { path, text };
}

async function runSuite(bench: Bench, name: SuiteName): Promise<Case[]> {
  const suite = suites[name];
  if (!suite.hasQueue) return judgeAll(name, undefined, await suite.run(bench));
  const cases: Case[] = [];
  for (const queue of bench.options.queues) {
    const { redis } = bench.servers;
    const specs = CASES.filter((spec) => spec.suite === name && spec.queue === queue);
    if (queue === 'redis' && 'missing' in redis)
      cases.push(...specs.map((spec) => skip(spec, redis.missing)));
    else cases.push(...judgeAll(name, queue, await suite.run(bench, queue)));
  }
  return cases;
}

function judgeAll(suite: SuiteName, queue: QueueName | undefined, figures: Figures): Case[] {
  return CASES.filter((spec) => spec.suite === suite && spec.queue === queue).map((spec) => {
    const figure = figures[spec.name];
    if (figure === undefined) throw new Error(`${suite} ${labelOf(spec)} was not measured`);
    return judge(spec, figure);
  });
}
