import { KernelError, type ProjectId, type TurnId, tryParseId } from '@boxcar/kernel';
import { type Queryable, run, statement } from './db.js';

const MIN_PREFIX = 8;

const FIND_TURNS = statement(`
  select p.id as project_id, t.id as turn_id
  from (select id from boxcar.projects where id = $1 or name = $2 order by (id = $1) desc nulls last limit 1) p
  left join lateral (
    select id from boxcar.turns t where t.project_id = p.id and t.id between $3 and $4 order by id limit 4
  ) t on true
  order by t.id`);

/**
 * A turn of a project by its id, with dashes or as 32 hex digits, or by a beginning of it of at least eight digits.
 *
 * @param project - Id or name; a turn of another project is not found.
 * @throws KernelError `not_found`; `bad_request` when `ref` is no id, or fits several turns.
 */
export async function findTurnId(
  db: Queryable,
  ref: string,
  project: string,
): Promise<{ readonly turnId: TurnId; readonly projectId: ProjectId }> {
  const digits = ref.toLowerCase().replaceAll('-', '');
  if (!/^[0-9a-f]+$/.test(digits) || digits.length < MIN_PREFIX || digits.length > 32) {
    throw new KernelError('bad_request', {
      message: `turn: '${ref.slice(0, 80)}' is no id and no beginning of one (${MIN_PREFIX} hex digits at least).`,
      details: { field: 'turn' },
    });
  }
  const rows = await run<{ project_id: ProjectId; turn_id: TurnId | null }>(db, FIND_TURNS, [
    tryParseId<'project'>(project) ?? null,
    project,
    tryParseId(digits.padEnd(32, '0')),
    tryParseId(digits.padEnd(32, 'f')),
  ]);
  const [row] = rows;
  if (row === undefined)
    throw new KernelError('not_found', {
      message: `No project '${project}'.`,
      details: { project_id: project },
    });
  const [first, ...others] = rows.flatMap((found) => found.turn_id ?? []);
  if (first === undefined)
    throw new KernelError('not_found', {
      message: `No turn '${ref}' in project '${project}'.`,
      details: { turn_id: ref, project_id: row.project_id },
    });
  if (others.length > 0) {
    const some = [first, ...others].slice(0, 3).join(', ');
    throw new KernelError('bad_request', {
      message: `turn: '${ref}' is the beginning of several ids (${some}${others.length > 2 ? ', …' : ''}); give more digits.`,
      details: { field: 'turn', turn_ids: [first, ...others] },
    });
  }
  return { turnId: first, projectId: row.project_id };
}
