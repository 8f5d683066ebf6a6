/** Interprets the facts about work that `boxcar doctor` has read, and recommends actions. Pure. */
import { findPrice, needsPrice, type PriceTable, priceTables, WINDOW_FACTOR } from '@boxcar/kernel';
import type { DeadLetter, LateTarget, UsedModel } from '@boxcar/store';
import type { Counted, InvariantReport, WorkFacts } from '@boxcar/store/report';
import { type Finding, fail, ok, quoteWord, warn } from './doctor-finding.js';
import { formatCount } from './text.js';

const many = ({ count, hasMore }: Counted): string =>
  hasMore ? `more than ${formatCount(count)}` : formatCount(count);
const poolOf = (target: string): string => (target === '' ? 'default pool' : `pool '${target}'`);
const startFor = (target: string): string =>
  target === '' ? 'boxcar worker' : `boxcar worker --target ${target}`;

/** Empty when all workers have the same build, and it can read all rows. */
function judgeBuilds({ builds, outdatedWorkers, unreadable }: WorkFacts): Finding[] {
  const findings: Finding[] = [];
  if (outdatedWorkers.count > 0)
    findings.push(
      warn(
        'builds',
        `${many(outdatedWorkers)} living workers belong to builds that a migration has excluded; they stop at their next heartbeat.`,
        'Replace them by workers of the newer build.',
        outdatedWorkers.ids,
      ),
    );
  if (unreadable.count > 0)
    findings.push(
      warn(
        'builds',
        `${many(unreadable)} turns were written by a newer build than any living worker of their pool; they wait.`,
        'Start workers of the newer build.',
        unreadable.ids,
      ),
    );
  if (builds.length > 1) {
    const list = builds.map(
      ({ schemaVersion, workers }) => `${formatCount(workers)} know migration ${schemaVersion}`,
    );
    findings.push(ok('builds', `Workers of ${builds.length} builds are alive: ${list.join(', ')}.`));
  }
  return findings;
}

/** @param lost - Rings that no queue knows; undefined when the queue could not be queried. */
export function judgeWork(facts: WorkFacts, lost: readonly { turnId: string }[] | undefined): Finding[] {
  const findings: Finding[] = [];
  const live = facts.targets.filter((target) => target.liveWorkers > 0);
  if (live.length === 0) findings.push(warn('workers', 'No worker is alive.', 'Start one: boxcar worker'));
  for (const { target, liveWorkers, concurrency, hasQueued, dispatched } of facts.targets) {
    if (liveWorkers === 0) {
      if (hasQueued || dispatched > 0) {
        findings.push(
          warn(
            'workers',
            `Turns wait for the ${poolOf(target)}, which no living worker serves.`,
            `Start one: ${startFor(target)}`,
          ),
        );
      }
      continue;
    }
    const size = `${formatCount(liveWorkers)} alive, ${formatCount(concurrency)} turns at once`;
    const window = concurrency * WINDOW_FACTOR;
    findings.push(
      dispatched > window
        ? warn(
            'workers',
            `${poolOf(target)}: ${size}; ${formatCount(dispatched)} turns are dispatched, more than the window of ${formatCount(window)}.`,
            `Normal for a while after workers have left or many turns were resumed; else start more: ${startFor(target)}`,
          )
        : ok(
            'workers',
            `${poolOf(target)}: ${size}; ${formatCount(dispatched)} dispatched${hasQueued ? ', more are queued' : ''}.`,
          ),
    );
  }
  findings.push(...judgeBuilds(facts));
  const hasLive = live.length > 0;
  const late = (check: string, found: Counted, what: string): Finding => {
    if (found.count === 0) return ok(check, `No ${what}.`);
    const message = `${many(found)} ${what}.`;
    return hasLive
      ? fail(
          check,
          message,
          'The sweep of the workers should have taken them; read the log of a worker for sweep.failed or sweep.part_failed.',
          found.ids,
        )
      : warn(check, message, 'Start a worker; its first sweep takes them: boxcar worker', found.ids);
  };
  findings.push(
    late('turn deadlines', facts.overdueTurns, 'turns past their deadline'),
    late('call deadlines', facts.overdueCalls, 'calls past their deadline'),
    late('dead leases', facts.deadLeases, 'turns held by workers that are gone'),
  );
  if (lost === undefined) {
    findings.push(
      warn(
        'rings',
        'The queue cannot be asked which rings it knows.',
        'See the finding about the queue; workers take turns from the rows meanwhile.',
      ),
    );
  } else if (lost.length === 0) {
    findings.push(ok('rings', 'No ring is lost.'));
  } else {
    const ids = lost.slice(0, 5).map((ring) => ring.turnId);
    const message = `${formatCount(lost.length)} dispatched turns have no ring in any queue.`;
    findings.push(
      hasLive
        ? warn(
            'rings',
            message,
            'The sweep rings again within seconds; run boxcar doctor again to see that they are gone.',
            ids,
          )
        : warn('rings', message, 'Start a worker; its first sweep rings again: boxcar worker', ids),
    );
  }
  if (facts.openForks.count > 0)
    findings.push(
      warn(
        'forks',
        `${many(facts.openForks)} forks of tapes have been open for an hour, and no turn will end them.`,
        'Merge or discard each: boxcar tape merge <tape> <fork> [--discard] (docs/reference/tape.md, "Forks").',
        facts.openForks.ids,
      ),
    );
  if (facts.deadWorkers.count > 0)
    findings.push(
      ok(
        'dead workers',
        `${many(facts.deadWorkers)} rows of workers that are gone; the sweep removes them after a day.`,
      ),
    );
  return findings;
}

/** Outcomes of handoffs that their receivers have not received. */
export function judgeWebhooks({
  failed,
  late,
}: {
  readonly failed: readonly string[];
  readonly late: readonly string[];
}): Finding[] {
  const findings: Finding[] = [];
  if (failed.length > 0)
    findings.push(
      warn(
        'webhooks',
        `Callbacks were given up, the newest: ${failed[0]}`,
        'See the reason: boxcar webhooks ls --status failed. Then: boxcar webhooks retry <delivery>',
        failed,
      ),
    );
  if (late.length > 0)
    findings.push(
      warn(
        'webhooks',
        `Callbacks are due, and no process sends them, the oldest: ${late[0]}`,
        'Start a worker with BOXCAR_WEBHOOK_SECRET.',
        late,
      ),
    );
  return findings;
}

/** @param letters - Up to the checked maximum, with the letters that were given up first. */
export function judgeDeadLetters(letters: readonly DeadLetter[]): Finding[] {
  const dead = letters.filter((letter) => letter.is_dead);
  const blocked = letters.filter((letter) => letter.kind === 'blocked_jobs');
  const tried = letters.filter((letter) => !letter.is_dead && letter.kind !== 'blocked_jobs');
  const findings = dead.map(({ kind, row_id, attempts, last_error, first_failed_at }) =>
    fail(
      'dead letters',
      `The sweep has given up ${row_id} (${kind}) after ${attempts} tries since ${first_failed_at.toISOString()}: ${last_error}`,
      'Fix the cause, then: boxcar doctor --retry-dead',
      [row_id],
    ),
  );
  if (tried.length > 0)
    findings.push(
      warn(
        'dead letters',
        `The sweep fails on ${formatCount(tried.length)} rows, and tries them again: ${tried.at(-1)?.last_error ?? ''}`,
        'A row that fails five times is given up; the log of the workers has the details (sweep.row_failed).',
        tried.slice(0, 5).map((letter) => letter.row_id),
      ),
    );
  if (blocked.length > 0)
    findings.push(
      warn(
        'dead letters',
        `${formatCount(blocked.length)} jobs of the queue door have ended workers within a day: ${blocked.at(-1)?.last_error ?? ''}`,
        'Fix the handler; a job fails after the fifth worker.',
        [],
      ),
    );
  return findings.length > 0 ? findings : [ok('dead letters', 'The sweep has given up no row.')];
}

/** @param unserved - Undefined when the queue could not be queried. */
export function judgeToolQueues(unserved: readonly LateTarget[] | undefined): Finding[] {
  if (unserved === undefined)
    return [
      warn(
        'tool queues',
        'The queue cannot be asked whether its calls are taken.',
        'See the finding about the queue.',
      ),
    ];
  if (unserved.length === 0) return [ok('tool queues', 'No call waits in a queue without a worker.')];
  return unserved.map(({ target, count, oldest_at, ids }) =>
    warn(
      'tool queues',
      `No worker serves the queue boxcar-tools-${target}: ${formatCount(count)} calls wait in it since ${oldest_at.toISOString()}, and no worker has taken the oldest.`,
      `Start a worker for boxcar-tools-${target}; each call ends by its deadline otherwise (tool_timeout).`,
      ids.slice(0, 5),
    ),
  );
}

export function judgeInvariants(reports: readonly InvariantReport[], scope: string): Finding[] {
  const bad = reports.flatMap((report): Finding[] => {
    const { name, rule, state, broken } = report;
    const check = `invariant ${name}`;
    if (state === 'holds') return [];
    if (state === 'unchecked')
      return [
        warn(
          check,
          `Not checked: it took too long (${rule}).`,
          'Raise --timeout, or look at fewer turns: --turns 1000',
        ),
      ];
    const [first] = broken;
    const more = report.hasMore
      ? ` and more than ${broken.length - 1} others`
      : broken.length > 1
        ? ` and ${broken.length - 1} others`
        : '';
    return [
      fail(
        check,
        `Broken: ${rule}. ${first?.id} ${first?.what}${more}.`,
        'A defect, or rows changed by hand: keep the database as it is, and report the ids with the log of the workers.',
        broken.map(({ id }) => id),
      ),
    ];
  });
  const held = reports.filter((report) => report.state === 'holds').length;
  return [ok('invariants', `${held} of ${reports.length} hold (${scope}).`), ...bad];
}

/** Models of current profiles whose price is unknown. */
export function judgePrices(models: readonly UsedModel[], tables: readonly PriceTable[]): Finding[] {
  const unpriced = models.filter(
    ({ model, prices }) => needsPrice(model) && findPrice(model, priceTables(prices, tables)) === undefined,
  );
  if (unpriced.length === 0) return [ok('prices', 'Every model of a profile has a price.')];
  return unpriced.map(({ model, project, profiles }) =>
    warn(
      'prices',
      `${model} has no price; profiles of project ${project}: ${profiles.slice(0, 5).join(', ')}${profiles.length > 5 ? ', …' : ''}. Runs with a limit of cost_usd are refused, and the others count it as 0.`,
      `Run: boxcar prices set ${quoteWord(model)} --project ${quoteWord(project)} --input <dollars> --output <dollars>, or --free`,
    ),
  );
}
