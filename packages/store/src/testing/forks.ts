/** Forks that are made directly as rows, for tests of readers: a chain of forks with the same content as one flat tape. */
import type { BoxId } from '@boxcar/kernel';
import type pg from 'pg';
import { newId } from './world.js';

/** One more tape in the chain. */
export interface ForkStep {
  /** The position at which it is forked from the tape before. */
  readonly at: number;
  /** The last position with the content of the flat tape: `at` or more. */
  readonly upto: number;
  /** The number of its own entries after that position, which no fork reads. */
  readonly noise: number;
}

interface Line {
  readonly boxes: readonly BoxId[];
  readonly ends: readonly number[];
}

/** The line of a fork: the line of its parent, and the parent, each up to the fork point. */
function lineOf(
  parent: { readonly id: BoxId; readonly line: Line; readonly behind: number },
  at: number,
): Line {
  const boxes: BoxId[] = [];
  const ends: number[] = [];
  let behind = 0;
  for (const [index, id] of [...parent.line.boxes, parent.id].entries()) {
    const end = Math.min(parent.line.ends[index] ?? at, at);
    if (end <= behind || behind >= at) continue;
    boxes.push(id);
    ends.push(end);
    behind = end;
  }
  return { boxes, ends };
}

/**
 * Makes a chain of tapes as rows: the first is a separate tape, each other tape is forked from the one before. The last tape reads as the
 * flat tape, to its head.
 *
 * @returns The boxes, the last one last.
 */
export async function forkChain(
  pool: pg.Pool,
  flat: BoxId,
  steps: readonly ForkStep[],
): Promise<readonly BoxId[]> {
  const boxes: BoxId[] = [];
  let parent: { id: BoxId; line: Line; behind: number } | undefined;
  for (const [index, step] of steps.entries()) {
    const id = newId<'box'>();
    const isLast = index === steps.length - 1;
    const behind = parent === undefined ? 0 : step.at;
    const line = parent === undefined ? { boxes: [], ends: [] } : lineOf(parent, step.at);
    const head = step.upto + (isLast ? 0 : step.noise);
    await pool.query(
      `
        insert into boxcar.boxes (
          id, project_id, kind, owner_agent_id, maker_agent_id, incarnation, head_position, last_anchor_position,
          view_position, anchor_count, view_anchor_position, parent_box_id, fork_position, line_boxes, line_ends
        )
        select
          $2, f.project_id, 'tape', f.owner_agent_id, f.maker_agent_id, 1, $3,
          (
            select max(e.position)
            from boxcar.tape_entries e
            where e.box_id = f.id and e.kind = 'anchor' and e.position <= $4
          ),
          case
            when $9 then f.view_position
            else (
              select max(e.position)
              from boxcar.tape_entries e
              where e.box_id = f.id and e.kind = 'anchor' and e.position <= $4
            )
          end,
          (
            select count(*)
            from boxcar.tape_entries e
            where e.box_id = f.id and e.kind = 'anchor' and e.position <= $4
          ),
          case when $9 then f.view_anchor_position end,
          $5, $6, $7, $8
        from boxcar.boxes f
        where f.id = $1`,
      [
        flat,
        id,
        head,
        step.upto,
        parent?.id ?? null,
        parent === undefined ? null : step.at,
        parent === undefined ? null : line.boxes,
        parent === undefined ? null : line.ends,
        isLast,
      ],
    );
    await pool.query(
      `
        insert into boxcar.tape_entries (
          box_id, position, kind, card_id, tokens, payload, anchor_name, turn_id, step, author_id, meta, created_at
        )
        select $2::uuid, e.position, e.kind, e.card_id, e.tokens, e.payload, e.anchor_name, e.turn_id, e.step,
          e.author_id, e.meta, e.created_at
        from boxcar.tape_entries e
        where e.box_id = $1 and e.position > $3::int and e.position <= $4::int
        union all
        select $2::uuid, $4::int + n, 'event', null::uuid, 0, '{"name":"noise"}'::json, null, null::uuid, null::int,
          'noise', null::jsonb, now()
        from generate_series(1, $5::int - $4::int) n`,
      [flat, id, behind, step.upto, head],
    );
    boxes.push(id);
    parent = { id, line, behind };
  }
  return boxes;
}
