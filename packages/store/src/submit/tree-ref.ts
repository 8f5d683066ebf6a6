/** Resolves an id from the command line. The id, or the beginning of an id, names a run, a turn or a batch. */
import { type BatchId, KernelError, type RunId, type TurnId, tryParseId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';

const MIN_PREFIX = 8;

/** The smallest and the greatest id with this beginning; undefined when no id can have it. */
const rangeOf = (ref: string): (string | undefined)[] =>
  ['0', 'f'].map((fill) => tryParseId<'turn'>(ref.toLowerCase().replaceAll('-', '').padEnd(32, fill)));

// Takes no locks: ids never change, and a row that is committed later is not found. Each part reads at most four keys of an index, enough
// to say that a beginning fits several ids.
const FIND = statement(`
  with /* tree-ref.find */
  p as (
    select id
    from boxcar.projects
    where name = $1 or id = $2
    order by id = $2 desc
    limit 1
  )
  select
    (select id from p) as project_id,
    (
      select json_agg(turn_id)
      from (
        (
          select t.id as turn_id
          from boxcar.turns t
          where t.project_id = (select id from p) and t.id between $3 and $4
          order by t.id
          limit 4
        )
        union
        (
          select r.root_turn_id
          from boxcar.runs r
          where r.project_id = (select id from p) and r.id between $3 and $4
          order by r.id
          limit 4
        )
      ) found
    ) as turn_ids`);

/**
 * Finds the turn that a run or turn id names. The id of a run stands for its root turn.
 *
 * @param ref - The id, or at least its first eight digits.
 * @throws KernelError `not_found`; `bad_request` when `ref` is not a valid id or fits several turns.
 */
export async function findTreeRoot(
  db: Queryable,
  ref: string,
  options: { readonly project: string },
): Promise<TurnId> {
  const digits = ref.replaceAll('-', '');
  const [from, to] = rangeOf(ref);
  if (digits.length < MIN_PREFIX || from === undefined || to === undefined) {
    throw new KernelError('bad_request', {
      message: `'${ref.slice(0, 80)}' is not an id of a run or turn. Pass the full id or at least its first ${MIN_PREFIX} hex digits.`,
      details: { field: 'run' },
    });
  }
  const { project } = options;
  const [row] = await run<{ project_id: string | null; turn_ids: TurnId[] | null }>(db, FIND, [
    project,
    tryParseId<'project'>(project) ?? null,
    from,
    to,
  ]);
  if (row === undefined || row.project_id === null) {
    throw new KernelError('not_found', {
      message: `No project '${project}'.`,
      details: { project_id: project },
    });
  }
  const [first, ...others] = row.turn_ids ?? [];
  if (first === undefined) {
    throw new KernelError('not_found', {
      message: `No run or turn '${ref}' in project '${project}'.`,
      details: { turn_id: ref, project_id: row.project_id },
    });
  }
  if (others.length > 0) {
    throw new KernelError('bad_request', {
      message: `'${ref}' is the beginning of several ids (${[first, ...others].slice(0, 3).join(', ')}${others.length > 2 ? ', …' : ''}); give more digits.`,
      details: { field: 'run', turn_ids: [first, ...others] },
    });
  }
  return first;
}

const RUN = statement(
  'select /* tree-ref.run */ r.id from boxcar.runs r where r.root_turn_id = $1 and r.id between $2 and $3',
);

/**
 * Finds the turn that a run or turn id names (for a run its first root), and the run if an id of a run begins in this way too.
 *
 * @throws KernelError as `findTreeRoot`.
 */
export async function findNamed(
  db: Queryable,
  ref: string,
  options: { readonly project: string },
): Promise<{ readonly turnId: TurnId; readonly runId: RunId | undefined }> {
  const turnId = await findTreeRoot(db, ref, options);
  const [found] = await run<{ id: RunId }>(db, RUN, [turnId, ...rangeOf(ref)]);
  return { turnId, runId: found?.id };
}

/** The object whose tree is shown. */
export type TreeOf =
  | { readonly kind: 'run'; readonly id: RunId }
  | { readonly kind: 'turn'; readonly id: TurnId }
  | { readonly kind: 'batch'; readonly id: BatchId };

type FoundTree = TreeOf & { readonly turn_ids: readonly TurnId[]; readonly is_joined: boolean };

// Takes no locks. A root that is added to a run meanwhile is missing in its list, as if the list had been read before.
const FIND_TREES = statement(`
  with /* tree-ref.find_trees */
  p as (
    select id
    from boxcar.projects
    where name = $1 or id = $2
    order by id = $2 desc
    limit 1
  )
  select
    (select id from p) as project_id,
    (
      select json_agg(f order by f.id)
      from (
        (
          select
            'run' as kind, r.id,
            array(
              select t.id
              from boxcar.turns t
              where t.run_id = r.id and t.parent_turn_id is null
              order by t.id
            ) as turn_ids,
            false as is_joined
          from boxcar.runs r
          where r.project_id = (select id from p) and r.id between $3 and $4
          order by r.id
          limit 4
        )
        union all
        (
          select 'turn', t.id, array[t.id], false
          from boxcar.turns t
          where t.project_id = (select id from p) and t.id between $3 and $4
          order by t.id
          limit 4
        )
        union all
        (
          select 'batch', b.id, b.turn_ids, b.kind = 'collect'
          from boxcar.batches b
          where b.project_id = (select id from p) and b.id between $3 and $4
          order by b.id
          limit 4
        )
      ) f
    ) as found`);

// Turns that a collect has joined may be of several runs, and one of them may be below another.
const JOINED = statement(`
  with recursive /* tree-ref.joined */
  above as (
    select t.id as turn_id, t.parent_turn_id as id
    from boxcar.turns t
    where t.id = any ($1::uuid[])
    union all
    select a.turn_id, t.parent_turn_id
    from above a
    join boxcar.turns t on t.id = a.id
  )
  select t.id, t.run_id
  from boxcar.turns t
  where t.id = any ($1::uuid[])
    and not exists (select from above a where a.turn_id = t.id and a.id = any ($1::uuid[]))
  order by t.id`);

/** @throws KernelError `bad_request` for turns of several runs. */
async function findJoined(db: Queryable, { id, turn_ids: turnIds }: FoundTree): Promise<readonly TurnId[]> {
  const rows = await run<{ id: TurnId; run_id: RunId }>(db, JOINED, [turnIds]);
  const runIds = [...new Set(rows.map((row) => row.run_id))];
  if (runIds.length > 1)
    throw new KernelError('bad_request', {
      message: `Batch ${id} joins turns of ${runIds.length} runs (${runIds.slice(0, 3).join(', ')}${runIds.length > 3 ? ', …' : ''}); name one of them.`,
      details: { field: 'run', batch_id: id, run_ids: runIds },
    });
  return rows.map((row) => row.id);
}

/**
 * Finds the tree that an id names, and its roots: all roots of a run, a turn itself, or the turns of a batch. A beginning that fits a
 * run and its only root means the run.
 *
 * @param ref - The id, or at least its first eight digits.
 * @throws KernelError `not_found`; `bad_request` when `ref` is not a valid id, fits several ids, or names a batch with turns of several
 *   runs.
 */
export async function findTree(
  db: Queryable,
  ref: string,
  { project }: { readonly project: string },
): Promise<{ readonly of: TreeOf; readonly roots: readonly TurnId[] }> {
  const digits = ref.replaceAll('-', '');
  const [from, to] = rangeOf(ref);
  if (digits.length < MIN_PREFIX || from === undefined || to === undefined)
    throw new KernelError('bad_request', {
      message: `'${ref.slice(0, 80)}' is not an id of a run, turn or batch. Pass the full id or at least its first ${MIN_PREFIX} hex digits.`,
      details: { field: 'run' },
    });
  type Row = pg.QueryResultRow & { project_id: string | null; found: readonly FoundTree[] | null };
  const values = [project, tryParseId<'project'>(project) ?? null, from, to];
  const [row] = await run<Row>(db, FIND_TREES, values);
  if (row === undefined || row.project_id === null)
    throw new KernelError('not_found', {
      message: `No project '${project}'.`,
      details: { project_id: project },
    });
  const all = row.found ?? [];
  const onlyRoots = new Set(
    all.flatMap(({ kind, turn_ids: ids }) => (kind === 'run' && ids.length === 1 ? ids : [])),
  );
  const found = all.filter(({ kind, id }) => kind !== 'turn' || !onlyRoots.has(id));
  const [first] = found;
  if (first === undefined)
    throw new KernelError('not_found', {
      message: `No run, turn or batch '${ref}' in project '${project}'.`,
      details: { id: ref, project_id: row.project_id },
    });
  if (found.length > 1) {
    const some = found.slice(0, 3).map(({ kind, id }) => `${kind} ${id}`);
    throw new KernelError('bad_request', {
      message: `'${ref}' is the beginning of several ids (${some.join(', ')}${found.length > 3 ? ', …' : ''}); give more digits.`,
      details: { field: 'run', ids: found.map(({ id }) => id) },
    });
  }
  const { turn_ids: turnIds, is_joined: isJoined, ...of } = first;
  return { of, roots: isJoined ? await findJoined(db, first) : turnIds };
}

const NEXT_TO = statement(`
  select /* tree-ref.next_to */ n.id
  from unnest($1::uuid[]) as u(id)
  cross join lateral (
    (select x.id from boxcar.turns x where x.id < u.id order by x.id desc limit 1)
    union all
    (select x.id from boxcar.turns x where x.id > u.id order by x.id limit 1)
    union all
    (select x.id from boxcar.runs x where x.id < u.id order by x.id desc limit 1)
    union all
    (select x.id from boxcar.runs x where x.id > u.id order by x.id limit 1)
    union all
    (select x.id from boxcar.batches x where x.id < u.id order by x.id desc limit 1)
    union all
    (select x.id from boxcar.batches x where x.id > u.id order by x.id limit 1)
  ) n`);

/**
 * The neighbors of each id among the ids of turns, runs and batches. A beginning that distinguishes an id from its neighbors
 * distinguishes it from all ids. One statement.
 */
export async function findIdsNextTo(db: Queryable, ids: readonly string[]): Promise<readonly string[]> {
  if (ids.length === 0) return [];
  return (await run<{ id: string }>(db, NEXT_TO, [ids])).map((row) => row.id);
}
