/** One additional round with full recording, to find the costs of a turn. It is never used for a figure. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { loadFor } from '../measure.js';
import { query, type Servers } from '../servers.js';
import type { System } from '../system.js';
import { Recorder } from '../worker-process.js';
import { readSelfTimes, type SelfTime } from './cpu-profile.js';
import { readUsage } from './usage.js';

const TOP = 25;

export interface ProfileOptions {
  readonly clients: number;
  readonly seconds: number;
  readonly folder: string;
  readonly name: string;
}

/**
 * Writes `<name>.md` (statements, CPU by process, self time by function) and the raw `.cpuprofile` of caller and worker.
 *
 * @returns The path of the summary.
 */
export async function profileLoad(
  servers: Servers,
  system: System,
  options: ProfileOptions,
): Promise<string> {
  const { folder, name } = options;
  mkdirSync(folder, { recursive: true });
  const caller = new Recorder();
  await system.startProfile();
  await caller.start();
  await query(servers.databaseUrl, 'select pg_stat_statements_reset()');
  const before = readUsage(servers, system);
  const { rate, total } = await loadFor(system, options);
  const after = readUsage(servers, system);
  const statements = await readStatements(servers.databaseUrl);
  const profiles = { caller: await caller.stop(), worker: await system.stopProfile() };
  const lines = [`# ${name}: ${rate.toFixed(0)} turns/s while profiled, ${total} turns`];
  if (before !== undefined && after !== undefined) {
    lines.push('', '## CPU, ms per turn', '');
    for (const who of ['caller', 'worker', 'postgres', 'redis'] as const)
      lines.push(`- ${who} ${((after[who] - before[who]) / total).toFixed(3)}`);
  }
  lines.push(
    '',
    '## Statements, by time',
    '',
    '| per turn | mean ms | ms per turn | rows per call | WAL bytes per turn | statement |',
  );
  lines.push('|---|---|---|---|---|---|');
  for (const row of statements) lines.push(formatStatement(row, total));
  for (const [who, text] of Object.entries(profiles)) {
    writeFileSync(join(folder, `${name}-${who}.cpuprofile`), text);
    const { busy, functions, packages } = readSelfTimes(text);
    const list = (times: readonly SelfTime[]): string[] =>
      times
        .slice(0, TOP)
        .map(
          (of) =>
            `- ${percent(of.microseconds / busy)} ${(of.microseconds / total).toFixed(1)} µs/turn ${of.name}`,
        );
    lines.push('', `## ${who}: self time by package`, '', ...list(packages));
    lines.push('', `## ${who}: self time by function`, '', ...list(functions));
  }
  const path = join(folder, `${name}.md`);
  writeFileSync(path, `${lines.join('\n')}\n`);
  return path;
}

interface StatementRow extends Record<string, unknown> {
  readonly query: string;
  readonly calls: number;
  readonly mean_ms: number;
  readonly total_ms: number;
  readonly rows: number;
  readonly wal_bytes: number;
}

const readStatements = (databaseUrl: string): Promise<StatementRow[]> =>
  query<StatementRow>(
    databaseUrl,
    `select regexp_replace(query, '\\s+', ' ', 'g') as query, calls::int, mean_exec_time as mean_ms,
       total_exec_time as total_ms, rows::int, wal_bytes::float8
     from pg_stat_statements s join pg_database d on d.oid = s.dbid and d.datname = current_database()
     where query not like '%pg_stat_statements%' order by total_exec_time desc limit ${TOP}`,
  );

function formatStatement(row: StatementRow, turns: number): string {
  const cells = [
    (row.calls / turns).toFixed(3),
    row.mean_ms.toFixed(3),
    (row.total_ms / turns).toFixed(3),
    (row.rows / row.calls).toFixed(1),
    (row.wal_bytes / turns).toFixed(0),
    row.query.trim().replaceAll('|', '\\|').slice(0, 160),
  ];
  return `| ${cells.join(' | ')} |`;
}

const percent = (share: number): string => `${(share * 100).toFixed(1)} %`;
