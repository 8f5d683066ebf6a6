import { settingSchemas } from '@boxcar/host/config';
import { errorLine } from '@boxcar/host/errors';
import { openServer, openStack, type Server } from '@boxcar/host/open';
import { toErrorBody } from '@boxcar/kernel';
import { PermissionEvaluator } from '@boxcar/policy';
import {
  checkSchemaVersion,
  createPool,
  endPool,
  findDeliveryTrouble,
  hasQueueTables,
  listDeadLetters,
  listUsedModels,
  ReadReplica,
  retryDeadLetters,
  THIS_BUILD,
  toDatabaseError,
} from '@boxcar/store';
import {
  inspectInvariants,
  probeDirectConnection,
  readServerFacts,
  readWorkFacts,
} from '@boxcar/store/report';
import { type Command, Option } from 'commander';
import { EXIT, flag, helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { openReader, type Reader } from '../../reader.js';
import { type Finding, worstOf } from '../../text/doctor-finding.js';
import {
  judgeDeadLetters,
  judgeInvariants,
  judgePrices,
  judgeToolQueues,
  judgeWebhooks,
  judgeWork,
} from '../../text/doctor-findings.js';
import { judgeDirect, judgeRedis, judgeReplica, judgeServer } from '../../text/doctor-servers.js';
import { createProgress } from '../../text/progress.js';
import { countOf, formatCount, wrap } from '../../text/text.js';
import { readRedisFacts } from './check-redis.js';

const DEFAULT_TURNS = 10_000;
const DEFAULT_TIMEOUT_MS = 5_000;
/** Work that was due a moment ago is not late: sweeps run every second. */
const LATE_MS = 10_000;
/** A healthy standby has replayed the writes of a moment ago. */
const CATCH_UP_MS = 1_000;
const LISTED_IDS = 5;
const LISTED_LETTERS = 100;
const WIDTH = 80;

interface DoctorFlags {
  readonly turns?: number;
  readonly all?: boolean;
  /** Seconds. */
  readonly timeout?: number;
  readonly retryDead?: boolean;
  readonly invariants?: boolean;
}

interface Extent {
  /** Undefined: all turns. */
  readonly turns: number | undefined;
  readonly timeoutMs: number;
}

const POOLER_TROUBLE = /prepared statement .{0,200} exist|unsupported startup parameter/;
const POOLER_NEXT =
  'A transaction pooler is in between: it must support prepared statements (PgBouncer 1.21 or newer with max_prepared_statements), and DATABASE_DIRECT_URL must bypass it.';

/** A check that failed to run is a finding too. */
function failed(check: string, thrown: unknown): Finding {
  const error = toErrorBody(toDatabaseError(thrown));
  const isPooler = POOLER_TROUBLE.test(error.message);
  return {
    check,
    level: 'fail',
    message: errorLine(error),
    ...(isPooler ? { next: POOLER_NEXT } : {}),
  };
}

async function attempt(check: string, work: () => Promise<readonly Finding[]>): Promise<readonly Finding[]> {
  try {
    return await work();
  } catch (error) {
    return [failed(check, error)];
  }
}

async function examineQueue(context: Context, server: Server): Promise<readonly Finding[]> {
  const { redisUrl } = context.config;
  if (redisUrl !== undefined) return judgeRedis(await readRedisFacts(redisUrl));
  const pool = createPool({ connectionString: server.databaseUrl, max: 1, isPooled: true });
  try {
    if (await hasQueueTables(pool))
      return [
        { check: 'queue', level: 'ok', message: 'The queues live in Postgres, and their tables are there.' },
      ];
    return [
      {
        check: 'queue',
        level: 'fail',
        message: 'The queues live in Postgres, and their tables are not there.',
        next: 'Run: boxcar migrate',
      },
    ];
  } finally {
    await endPool(pool);
  }
}

async function examineReplica({ config }: Context, server: Server): Promise<readonly Finding[]> {
  if (config.readUrl === undefined) return [];
  const primary = createPool({ connectionString: server.databaseUrl, max: 1, isPooled: true });
  try {
    await using replica = new ReadReplica({ primary, url: config.readUrl, applicationName: 'boxcar-doctor' });
    return [judgeReplica(await replica.inspect({ waitMs: CATCH_UP_MS }))];
  } finally {
    await endPool(primary);
  }
}

/** The findings that a program that starts now would report about the policy. */
function examinePolicy({ config }: Context): Promise<readonly Finding[]> {
  return attempt('policy', async () => {
    const { policyFile: file } = config;
    if (file === undefined) return [];
    const { policy } = new PermissionEvaluator({ file, environment: config.environment });
    return [{ check: 'policy', level: 'ok', message: `${file} is valid, version ${policy.version}.` }];
  });
}

async function examineInvariants(
  context: Context,
  pool: Reader['pool'],
  { turns, timeoutMs }: Extent,
): Promise<readonly Finding[]> {
  const scope =
    turns === undefined
      ? 'all rows'
      : `the newest ${formatCount(turns)} turns and the open ones; --all asks more of them, on all rows`;
  using progress = createProgress(context);
  const reports = await inspectInvariants(pool, {
    limit: LISTED_IDS,
    timeoutMs,
    onProgress: ({ name, checked, total }) =>
      progress.show(`boxcar: ${checked} of ${total} invariants checked, next: ${name}`),
    ...(turns === undefined ? {} : { turns }),
  });
  return judgeInvariants(reports, scope);
}

/** Checks that need the schema: work in progress, and the invariants. */
async function examineRows(context: Context, server: Server, extent: Extent): Promise<readonly Finding[]> {
  const { timeoutMs } = extent;
  const config = { ...context.config, databaseUrl: server.databaseUrl, directUrl: server.directUrl };
  await using stack = await openStack(config, { log: context.log('error'), policy: false });
  const { pool, doorbell } = stack.runtime;
  const work = await attempt('work', async () => {
    const facts = await readWorkFacts(pool, { lateMs: LATE_MS, timeoutMs });
    return judgeWork(facts, await doorbell.findLost(facts.waitingRings));
  });
  const letters = await attempt('dead letters', async () =>
    judgeDeadLetters(await listDeadLetters(pool, LISTED_LETTERS)),
  );
  const webhooks = await attempt('webhooks', async () =>
    judgeWebhooks(await findDeliveryTrouble(pool, { lateMs: 2 * LATE_MS, limit: LISTED_IDS })),
  );
  const toolQueues = await attempt('tool queues', async () =>
    judgeToolQueues(await stack.runtime.outside?.findUnserved(LATE_MS)),
  );
  const prices = await attempt('prices', async () =>
    judgePrices(await listUsedModels(pool), stack.runtime.prices),
  );
  const invariants = await attempt('invariants', () => examineInvariants(context, pool, extent));
  return [...work, ...letters, ...webhooks, ...toolQueues, ...prices, ...invariants];
}

async function examine(context: Context, server: Server, extent: Extent): Promise<readonly Finding[]> {
  const findings: Finding[] = [];
  const pool = createPool({
    connectionString: server.databaseUrl,
    max: 1,
    applicationName: 'boxcar-doctor',
    // The connection may lead to a pooler that rejects settings, which the checks must be able to report.
    isPooled: true,
  });
  try {
    const hasQueues = context.config.redisUrl === undefined;
    findings.push(...judgeServer(await readServerFacts(pool, { hasQueues })));
  } catch (error) {
    // Every further check would report the same failure.
    return [failed('database', error)];
  } finally {
    await endPool(pool);
  }
  findings.push(
    ...(await attempt('direct connection', async () => [
      judgeDirect(await probeDirectConnection(server.directUrl)),
    ])),
    ...(await attempt('read replica', () => examineReplica(context, server))),
    ...(await attempt('queue', () => examineQueue(context, server))),
    ...(await examinePolicy(context)),
  );
  const schemaPool = createPool({ connectionString: server.databaseUrl, max: 1, isPooled: true });
  const schema = await attempt('schema', async () => {
    const version = await checkSchemaVersion(schemaPool);
    const what =
      version > THIS_BUILD.schemaVersion
        ? 'newer than this program, which may work on it'
        : 'as this program needs it';
    return [{ check: 'schema', level: 'ok', message: `Version ${version}, ${what}.` }];
  });
  await endPool(schemaPool);
  findings.push(...schema);
  if (worstOf(findings.filter(({ check }) => check === 'schema' || check === 'permissions')) === 'fail')
    return findings;
  return [...findings, ...(await attempt('work', () => examineRows(context, server, extent)))];
}

function describe(findings: readonly Finding[]): string {
  const width = Math.min(Math.max(...findings.map(({ check }) => check.length)), 18);
  const indent = ' '.repeat(width + 8);
  const lines = findings.flatMap(({ check, level, message, next, ids = [] }) => {
    const label = `${level.padEnd(4)}  ${check.padEnd(width)}`;
    const isLong = check.length > width;
    const text = wrap(message, WIDTH - indent.length);
    const head = isLong
      ? [label, ...text.map((line) => indent + line)]
      : [`${label}  ${text[0]}`, ...text.slice(1).map((line) => indent + line)];
    const also = ids.length > 1 ? ids.slice(1).map((id) => `${indent}  ${id}`) : [];
    const then =
      next === undefined
        ? []
        : wrap(next, WIDTH - indent.length - 2).map(
            (line, index) => `${indent}${index === 0 ? '→ ' : '  '}${line}`,
          );
    return [...head, ...also, ...then];
  });
  const count = (level: string): number => findings.filter((finding) => finding.level === level).length;
  return `${lines.join('\n')}\n\n${countOf(findings.length, 'finding')}: ${count('ok')} ok, ${count('warn')} warn, ${count('fail')} fail`;
}

/** `boxcar doctor --retry-dead`: the only repair that the command makes. */
async function retryDead(context: Context): Promise<number> {
  await using reader = await openReader(context.config, context.log('warn'));
  const count = await retryDeadLetters(reader.pool);
  context.answer({ retried: count }, () =>
    count === 0
      ? 'The sweep has given up no rows.'
      : `${countOf(count, 'row')} will be tried again by the next sweep; boxcar doctor shows what becomes of it.`,
  );
  return EXIT.success;
}

/** `boxcar doctor --invariants`: for use after a test, an upgrade or a manual repair. */
async function onlyInvariants(context: Context, extent: Extent): Promise<readonly Finding[]> {
  await using reader = await openReader(context.config, context.log('warn'));
  return await examineInvariants(context, reader.pool, extent);
}

async function examineAll(context: Context, extent: Extent): Promise<readonly Finding[]> {
  await using server = await openServer(context.config, context.log('warn'));
  return await examine(context, server, extent);
}

/** `boxcar doctor`: checks, and changes nothing. */
async function runDoctor(context: Context, flags: DoctorFlags): Promise<number> {
  if (flags.retryDead === true) return retryDead(context);
  const extent = {
    turns: flags.all === true ? undefined : (flags.turns ?? DEFAULT_TURNS),
    timeoutMs: Math.ceil((flags.timeout ?? DEFAULT_TIMEOUT_MS / 1_000) * 1_000),
  };
  const findings = await (flags.invariants === true ? onlyInvariants : examineAll)(context, extent);
  const status = worstOf(findings);
  context.answer({ status, findings }, () => describe(findings));
  return status === 'fail' ? EXIT.error : EXIT.success;
}

export function addDoctor(program: Command, run: Run): void {
  program
    .command('doctor')
    .option(
      '--turns <n>',
      'how many of the newest turns the invariants are checked on (10000)',
      flag(settingSchemas.turns),
    )
    .option('--all', 'check them on all rows, whatever their number')
    .option('--invariants', 'check the invariants and nothing else')
    .addOption(
      new Option('--retry-dead', 'skip the checks; requeue rows that the sweep has given up').conflicts(
        'invariants',
      ),
    )
    .option('--timeout <seconds>', 'how long one statement may take (5)', flag(settingSchemas.seconds))
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'Without --retry-dead the command changes nothing, and none of its statements takes longer than --timeout.',
        examples: [
          'boxcar doctor',
          'boxcar doctor --invariants --all --timeout 600',
          'boxcar doctor --retry-dead',
          'boxcar doctor --json | jq \'.findings[] | select(.level != "ok")\'',
        ],
        error: 'a check has failed',
      }),
    )
    .action((flags: DoctorFlags) => run((context) => runDoctor(context, flags)));
}
