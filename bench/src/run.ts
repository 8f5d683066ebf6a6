import { Cleanup } from './cleanup.js';
import type { Options, SuiteName } from './options.js';
import { type Case, formatTable } from './report.js';
import { type Servers, startServers } from './servers.js';
import { benchIdle } from './suites/idle.js';
import { benchTurns } from './suites/turns.js';

/** Told in one line what happens. */
type Say = (line: string) => void;
type Suite = (servers: Servers, options: Options, say: Say) => Promise<readonly Case[]>;

const suites: Readonly<Record<SuiteName, Suite>> = { turns: benchTurns, idle: benchIdle };

/** Runs suites on servers of their own; figures go to stdout. */
export async function runSuites(options: Options, say: Say): Promise<void> {
  await using cleanup = new Cleanup();
  const servers = await startServers(cleanup, {
    needsRedis: options.queues.includes('redis'),
    hasStatistics: options.profile !== undefined,
  });
  say(servers.machine);
  const cases: Case[] = [];
  for (const suite of options.suites) {
    const found = await suites[suite](servers, options, say);
    if (options.json) for (const of of found) console.log(JSON.stringify(of));
    cases.push(...found);
  }
  if (!options.json) console.log(formatTable(cases));
}
