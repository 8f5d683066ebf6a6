/** Interprets the facts about Postgres and Redis. Pure. */
import { OLDEST_SERVER, type ReplicaFacts } from '@boxcar/store';
import type { DirectFacts, ServerFacts } from '@boxcar/store/report';
import { type Finding, fail, ok, quoteWord, warn, worstOf } from './doctor-finding.js';
import { formatCount } from './text.js';

const OLDEST_REDIS = [6, 2] as const;
const SKEW_WARN_MS = 2_000;
const SKEW_FAIL_MS = 60_000;

export function judgeServer(facts: ServerFacts): Finding[] {
  const findings: Finding[] = [];
  const { version, connections, maxConnections } = facts;
  if (facts.versionNumber < OLDEST_SERVER) {
    findings.push(
      fail(
        'database',
        `Postgres ${version} is too old.`,
        `Move to Postgres ${OLDEST_SERVER / 10_000} or newer.`,
      ),
    );
  } else if (facts.isReadOnly) {
    findings.push(
      fail('database', `Postgres ${version} is read-only.`, 'Point DATABASE_URL to the primary server.'),
    );
  } else if (connections > maxConnections * 0.9) {
    findings.push(
      warn(
        'database',
        `Postgres ${version}; ${connections} of ${maxConnections} connections are taken.`,
        'Raise max_connections, run fewer workers (eight each), or put a pooler in between.',
      ),
    );
  } else {
    findings.push(ok('database', `Postgres ${version}; ${connections} of ${maxConnections} connections.`));
  }
  findings.push(
    facts.missingRights.length === 0
      ? ok('permissions', `Role ${facts.role} has the rights that a worker needs.`)
      : fail(
          'permissions',
          `Role ${facts.role} lacks ${facts.missingRights.slice(0, 5).join(', ')}${facts.missingRights.length > 5 ? ` and ${facts.missingRights.length - 5} more` : ''}.`,
          `Grant it, with DATABASE_URL of the role that migrates: boxcar migrate --grant-worker ${quoteWord(facts.role)}`,
        ),
  );
  const skew = Math.abs(facts.clockSkewMs);
  const side = facts.clockSkewMs > 0 ? 'ahead of' : 'behind';
  const clock = `The clock of this machine is ${formatCount(skew)} ms ${side} that of Postgres.`;
  const next = 'Let a time service set both clocks: new ids carry the time of this machine, and sort by it.';
  findings.push(
    skew >= SKEW_FAIL_MS
      ? fail('clock', clock, next)
      : skew >= SKEW_WARN_MS
        ? warn('clock', clock, next)
        : ok('clock', clock),
  );
  return findings;
}

export function judgeDirect(facts: DirectFacts): Finding {
  if (facts.isOneSession && facts.locksHold && facts.isNotified)
    return ok('direct connection', 'Session locks hold and LISTEN is heard.');
  const broken = [
    ...(facts.isOneSession ? [] : ['statements of one connection run in several sessions']),
    ...(facts.locksHold ? [] : ['session locks do not hold']),
    ...(facts.isNotified ? [] : ['LISTEN is not heard']),
  ];
  return fail(
    'direct connection',
    `It uses a pooler that reassigns sessions between transactions: ${broken.join('; ')}.`,
    'Set DATABASE_DIRECT_URL to Postgres itself, or to a pooler in session mode.',
  );
}

const PRIMARY_READS = 'Until then lists and reports are read on the primary.';

export function judgeReplica({ state, lagMs, behindBytes, problem }: ReplicaFacts): Finding {
  const check = 'read replica';
  switch (state) {
    case 'ready':
      return ok(check, 'It has all that the primary has.');
    case 'behind': {
      const lag = lagMs === null ? '' : `, ${formatCount(Math.round(lagMs))} ms`;
      return warn(
        check,
        `It is ${formatCount(behindBytes ?? 0)} bytes of the log behind${lag}.`,
        `If it stays so, find the reason: pg_stat_replication of the primary, long reads on the replica. ${PRIMARY_READS}`,
      );
    }
    case 'busy':
      return ok(check, 'All connections of this program to it are in use.');
    case 'not_a_standby':
      return fail(
        check,
        'It accepts writes, so it is not a standby.',
        'Point DATABASE_READ_URL to a standby of DATABASE_URL.',
      );
    case 'other_server':
      return fail(
        check,
        'It is a copy of another server, or follows another timeline.',
        `Point DATABASE_READ_URL to a standby of DATABASE_URL. After a failover this finding ends with the next checkpoint of the standby. ${PRIMARY_READS}`,
      );
    case 'unavailable':
      return fail(
        check,
        `It does not answer: ${problem ?? 'no reason is known'}`,
        `Start it, or unset DATABASE_READ_URL. ${PRIMARY_READS}`,
      );
  }
}

export interface RedisFacts {
  readonly version: string;
  readonly policy: string;
  readonly maxMemory: number;
  readonly isPersistent: boolean;
}

/** Takes one entry per node; for a cluster, the worst finding of each check counts. */
export function judgeRedis(nodes: readonly RedisFacts[]): Finding[] {
  const found = nodes.map(judgeNode);
  const [first = []] = found;
  const worst = first.map(({ check }) => {
    const all = found.flatMap((findings) => findings.filter((finding) => finding.check === check));
    return all.find(({ level }) => level === worstOf(all));
  });
  return [
    ...(nodes.length > 1
      ? [ok('queue cluster', `A cluster of ${nodes.length} masters; every slot has one.`)]
      : []),
    ...worst.filter((finding) => finding !== undefined),
  ];
}

function judgeNode(facts: RedisFacts): Finding[] {
  const { version, policy } = facts;
  const [major = 0, minor = 0] = version.split('.').map(Number);
  const isOld = major < OLDEST_REDIS[0] || (major === OLDEST_REDIS[0] && minor < OLDEST_REDIS[1]);
  const keeps = facts.isPersistent
    ? 'It keeps its data over a restart.'
    : 'It keeps nothing over a restart, which costs time, never work.';
  return [
    isOld
      ? fail('queue', `Redis ${version} is too old.`, `Move to Redis ${OLDEST_REDIS.join('.')} or newer.`)
      : ok('queue', `Redis ${version}. ${keeps}`),
    policy === 'noeviction'
      ? ok('queue memory', 'maxmemory-policy is noeviction.')
      : warn(
          'queue memory',
          `maxmemory-policy is ${policy}: ${facts.maxMemory === 0 ? 'without maxmemory it has no effect yet' : 'jobs vanish when the memory is full, and wait for the sweep'}.`,
          'Set maxmemory-policy noeviction.',
        ),
  ];
}
