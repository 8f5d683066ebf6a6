import {
  type BoxId,
  type DeliveryId,
  type HandoffId,
  type Id,
  KernelError,
  type KeyId,
  type ProjectId,
  type RunId,
  type TicketId,
  type TurnId,
  tryParseId,
} from '@boxcar/kernel';
import { type Queryable, run, type Statement, statement } from '../db/index.js';

const MIN_PREFIX = 8;

const digitsOf = (ref: string): string => ref.toLowerCase().replaceAll('-', '');

/** The smallest and the greatest id that begin with these digits. */
const rangeOf = (digits: string): (string | undefined)[] =>
  ['0', 'f'].map((fill) => tryParseId(digits.padEnd(32, fill)));

const findIn = (
  table: 'turns' | 'boxes' | 'approvals' | 'handoffs' | 'webhook_deliveries' | 'api_keys',
): Statement =>
  statement(`
    select /* turn-ref.find_${table} */ p.id as project_id, f.id
    from (
      select id
      from boxcar.projects
      where id = $1 or name = $2
      order by (id = $1) desc nulls last
      limit 1
    ) p
    left join lateral (
      select x.id
      from boxcar.${table} x
      where x.project_id = p.id and x.id between $3 and $4
      order by x.id
      limit 4
    ) f on true
    order by f.id`);
const FIND = {
  turn: findIn('turns'),
  box: findIn('boxes'),
  ticket: findIn('approvals'),
  handoff: findIn('handoffs'),
  delivery: findIn('webhook_deliveries'),
  key: findIn('api_keys'),
} as const;

interface Found<K extends string> {
  readonly id: Id<K>;
  readonly projectId: ProjectId;
}

const FIND_RUNS = statement(`
  select /* turn-ref.find_runs */ r.id, r.root_turn_id
  from boxcar.runs r
  where r.project_id = $1 and r.id between $2 and $3
  limit 2`);

/** Throws an error that names the first turn when `ref` is a run in place of a turn. @throws KernelError `not_found`. */
async function refuseRun(db: Queryable, ref: string, projectId: ProjectId): Promise<void> {
  const rows = await run<{ id: RunId; root_turn_id: TurnId }>(db, FIND_RUNS, [
    projectId,
    ...rangeOf(digitsOf(ref)),
  ]);
  const [found, another] = rows;
  if (found === undefined || another !== undefined) return;
  throw new KernelError('not_found', {
    message: `'${ref}' is a run, and this needs a turn. Its first turn is ${found.root_turn_id}.`,
    next: `Give the id of a turn; boxcar tree ${found.id} --ids lists those of the run.`,
    details: { turn_id: ref, run_id: found.id, root_turn_id: found.root_turn_id, project_id: projectId },
  });
}

async function findByBeginning<K extends keyof typeof FIND>(
  db: Queryable,
  ref: string,
  { kind, project }: { readonly kind: K; readonly project: string },
): Promise<Found<K>> {
  const digits = digitsOf(ref);
  if (!/^[0-9a-f]+$/.test(digits) || digits.length < MIN_PREFIX || digits.length > 32) {
    throw new KernelError('bad_request', {
      message: `${kind}: '${ref.slice(0, 80)}' is not a ${kind} id. Pass the full id or at least its first ${MIN_PREFIX} hex digits.`,
      details: { field: kind },
    });
  }
  const rows = await run<{ project_id: ProjectId; id: Id<K> | null }>(db, FIND[kind], [
    tryParseId<'project'>(project) ?? null,
    project,
    ...rangeOf(digits),
  ]);
  const [row] = rows;
  if (row === undefined)
    throw new KernelError('not_found', {
      message: `No project '${project}'.`,
      details: { project_id: project },
    });
  const [first, ...others] = rows.flatMap((found) => found.id ?? []);
  if (first === undefined && kind === 'turn') await refuseRun(db, ref, row.project_id);
  if (first === undefined)
    throw new KernelError('not_found', {
      message: `No ${kind} '${ref}' in project '${project}'.`,
      details: { [`${kind}_id`]: ref, project_id: row.project_id },
    });
  if (others.length > 0) {
    const some = [first, ...others].slice(0, 3).join(', ');
    throw new KernelError('bad_request', {
      message: `${kind}: '${ref}' is the beginning of several ids (${some}${others.length > 2 ? ', …' : ''}); give more digits.`,
      details: { field: kind, [`${kind}_ids`]: [first, ...others] },
    });
  }
  return { id: first, projectId: row.project_id };
}

/**
 * Finds a turn of a project by its id, with dashes or as 32 hex digits, or by the beginning of its id (at least eight digits).
 *
 * @param project - The id or the name. A turn of another project is not found.
 * @throws KernelError `not_found`, which names the first turn when `ref` is a run; `bad_request` when `ref` is not a valid id or fits
 *   several turns.
 */
export async function findTurnId(
  db: Queryable,
  ref: string,
  project: string,
): Promise<{ readonly turnId: TurnId; readonly projectId: ProjectId }> {
  const { id, projectId } = await findByBeginning(db, ref, { kind: 'turn', project });
  return { turnId: id, projectId };
}

/** Finds a box of a project in the way `findTurnId` finds a turn. One statement; none for a complete id. */
export const findBoxId = async (db: Queryable, ref: string, project: string): Promise<BoxId> =>
  tryParseId<'box'>(ref) ?? (await findByBeginning(db, ref, { kind: 'box', project })).id;

/** Finds an approval ticket of a project in the way `findTurnId` finds a turn. */
export async function findTicketId(
  db: Queryable,
  ref: string,
  project: string,
): Promise<{ readonly ticketId: TicketId; readonly projectId: ProjectId }> {
  const { id, projectId } = await findByBeginning(db, ref, { kind: 'ticket', project });
  return { ticketId: id, projectId };
}

/** Finds a handoff of a project in the way `findTurnId` finds a turn. */
export async function findHandoffId(
  db: Queryable,
  ref: string,
  project: string,
): Promise<{ readonly handoffId: HandoffId; readonly projectId: ProjectId }> {
  const { id, projectId } = await findByBeginning(db, ref, { kind: 'handoff', project });
  return { handoffId: id, projectId };
}

/** Finds a delivery of a project in the way `findTurnId` finds a turn. */
export async function findDeliveryId(
  db: Queryable,
  ref: string,
  project: string,
): Promise<{ readonly deliveryId: DeliveryId; readonly projectId: ProjectId }> {
  const { id, projectId } = await findByBeginning(db, ref, { kind: 'delivery', project });
  return { deliveryId: id, projectId };
}

/** Finds a key of the HTTP frame of a project in the way `findTurnId` finds a turn. */
export async function findKeyId(
  db: Queryable,
  ref: string,
  project: string,
): Promise<{ readonly keyId: KeyId; readonly projectId: ProjectId }> {
  const { id, projectId } = await findByBeginning(db, ref, { kind: 'key', project });
  return { keyId: id, projectId };
}

// Takes no locks: ids never change, and a row that is committed later is not found. Each part reads at most four keys of an index.
const FIND_EITHER = statement(`
  with /* turn-ref.find_turn_or_run */
  p as (
    select id
    from boxcar.projects
    where id = $1 or name = $2
    order by (id = $1) desc nulls last
    limit 1
  )
  select p.id as project_id, f.kind, f.id
  from p
  left join lateral (
    (
      select 'turn' as kind, t.id
      from boxcar.turns t
      where t.project_id = p.id and t.id between $3 and $4
      order by t.id
      limit 4
    )
    union all
    (
      select 'run', r.id
      from boxcar.runs r
      where r.project_id = p.id and r.id between $3 and $4
      order by r.id
      limit 4
    )
  ) f on true
  order by f.id`);

/**
 * Finds a turn or a run of a project by its id, or by the beginning of its id (at least eight digits).
 *
 * @throws KernelError `not_found`; `bad_request` when `ref` is not a valid id or fits several ids.
 */
export async function findTurnOrRun(
  db: Queryable,
  ref: string,
  { project }: { readonly project: string },
): Promise<{ readonly kind: 'turn'; readonly id: TurnId } | { readonly kind: 'run'; readonly id: RunId }> {
  const digits = digitsOf(ref);
  if (!/^[0-9a-f]+$/.test(digits) || digits.length < MIN_PREFIX || digits.length > 32)
    throw new KernelError('bad_request', {
      message: `'${ref.slice(0, 80)}' is not an id of a turn or run. Pass the full id or at least its first ${MIN_PREFIX} hex digits.`,
      details: { field: 'turn' },
    });
  type Found = { kind: 'turn'; id: TurnId } | { kind: 'run'; id: RunId } | { kind: null; id: null };
  const rows = await run<{ project_id: ProjectId } & Found>(db, FIND_EITHER, [
    tryParseId<'project'>(project) ?? null,
    project,
    ...rangeOf(digits),
  ]);
  const [first] = rows;
  if (first === undefined)
    throw new KernelError('not_found', {
      message: `No project '${project}'.`,
      details: { project_id: project },
    });
  if (first.kind === null)
    throw new KernelError('not_found', {
      message: `No turn or run '${ref}' in project '${project}'.`,
      details: { turn_id: ref, project_id: first.project_id },
    });
  if (rows.length > 1) {
    const some = rows.slice(0, 3).map(({ kind, id }) => `${kind} ${id}`);
    throw new KernelError('bad_request', {
      message: `'${ref}' is the beginning of several ids (${some.join(', ')}${rows.length > 3 ? ', …' : ''}); give more digits.`,
      details: { field: 'turn', ids: rows.map(({ id }) => id) },
    });
  }
  return first.kind === 'turn' ? { kind: 'turn', id: first.id } : { kind: 'run', id: first.id };
}

const BOXES_NEXT_TO = statement(`
  select /* turn-ref.boxes_next_to */ n.id
  from unnest($1::uuid[]) as u(id)
  cross join lateral (
    (select x.id from boxcar.boxes x where x.id < u.id order by x.id desc limit 1)
    union all
    (select x.id from boxcar.boxes x where x.id > u.id order by x.id limit 1)
  ) n`);

/**
 * The neighbors of each id among the ids of boxes. A beginning that distinguishes an id from its neighbors distinguishes it from all
 * ids. One statement.
 */
export async function findBoxIdsNextTo(db: Queryable, ids: readonly string[]): Promise<readonly string[]> {
  if (ids.length === 0) return [];
  return (await run<{ id: string }>(db, BOXES_NEXT_TO, [ids])).map((row) => row.id);
}
