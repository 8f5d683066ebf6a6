import { buildView, parseId, promptHash, type TurnId } from '@boxcar/kernel';
import { newId, type Tape } from '@boxcar/runtime';
import { toRows } from '@boxcar/runtime/internal';
import { loadViews } from '@boxcar/store';
import { PROFILE } from '../boxcar/system.js';
import { appendBare, insertTape } from '../floor/rows.js';
import { sampleTimes } from '../measure.js';
import { type Figure, median } from '../report.js';
import type { Bench, Figures } from '../suite.js';
import { alternate, settle } from './pair.js';
import { openWorld, textOf, type World } from './world.js';

const SAMPLES = 300;
const WARM_UP = 20;
/** The number of entries before the anchor: few, and many. The cost of a view must not depend on it. */
const BEHIND = { few: 100, many: 100_000 } as const;
/** The number of messages in the view. */
const SHOWN = 20;

/**
 * Three measurements: an append of one message, compared with one statement that moves the head and writes card and entry. The view of a
 * turn after an anchor, with few and with many entries before the anchor. Forks of these two tapes.
 */
export async function benchTape({ servers, options, say }: Bench): Promise<Figures> {
  const perRound = Math.ceil((options.samples ?? SAMPLES) / options.rounds);
  await using world = await openWorld(servers, 'tape');
  const tape = await world.runtime.tape('bench');
  const floorId = newId();
  await insertTape(world.pool, floorId);
  const append = {
    boxcar: () => tape.append([{ kind: 'message', content: textOf(1) }]),
    floor: () => appendBare(world.pool, floorId, newId(), textOf(1)),
  };
  const few = await turnAfter(world, BEHIND.few);
  const many = await turnAfter(world, BEHIND.many);
  const view = { boxcar: () => viewOnce(world, many.turnId), floor: () => viewOnce(world, few.turnId) };
  const fork = { boxcar: () => many.tape.forkTape(), floor: () => few.tape.forkTape() };
  await settle(world.databaseUrl);
  const measure = async (sides: Record<'boxcar' | 'floor', () => Promise<unknown>>): Promise<Figure> => {
    for (const side of [sides.floor, sides.boxcar]) await sampleTimes(side, Math.min(WARM_UP, perRound));
    const times = await alternate(options.rounds, {
      floor: () => sampleTimes(sides.floor, perRound),
      boxcar: () => sampleTimes(sides.boxcar, perRound),
    });
    return { value: median(times.boxcar.flat()), floor: median(times.floor.flat()) };
  };
  const appended = await measure(append);
  say(`tape append: ${perRound * options.rounds} samples of each`);
  const { value, floor } = await measure(view);
  say(
    `tape view after ${BEHIND.many} and ${BEHIND.few} earlier entries: ${perRound * options.rounds} samples of each`,
  );
  const forked = await measure(fork);
  say(`tape fork of ${BEHIND.many} and ${BEHIND.few}: ${perRound * options.rounds} samples of each`);
  return {
    append: appended,
    'view behind 100000 ÷ 100': { value: value / floor, floor: 1 },
    'fork of 100000': forked,
  };
}

/** A queued turn whose tape has the given number of entries, then an anchor, and then a few messages. */
async function turnAfter(
  { runtime, pool }: World,
  behind: number,
): Promise<{ readonly turnId: TurnId; readonly tape: Tape }> {
  const receipt = (await runtime.submit('launch_principal', {
    profile_name: PROFILE.name,
    instruction: 'go',
  })) as {
    readonly turn_id: string;
    readonly output_box_id: string;
  };
  const tape: Tape = await runtime.tape({ box: receipt.output_box_id });
  const { first } = await tape.append([{ kind: 'message', content: textOf(0) }]);
  // In one statement, since single appends would take longer than everything else.
  await pool.query(
    `with more as (
       insert into boxcar.tape_entries (box_id, position, kind, card_id, tokens, author_id)
       select e.box_id, e.position + n, e.kind, e.card_id, e.tokens, e.author_id from boxcar.tape_entries e, generate_series(1, $3) n where e.box_id = $1 and e.position = $2
     )
     update boxcar.boxes set head_position = head_position + $3 where id = $1`,
    [receipt.output_box_id, first, behind],
  );
  await tape.handoff('phase', { state: { summary: textOf(0) } });
  await tape.append(
    Array.from({ length: SHOWN }, (_, index) => ({ kind: 'message', content: textOf(index) })),
  );
  return { turnId: parseId<'turn'>(receipt.turn_id, 'turn_id'), tape };
}

async function viewOnce({ pool }: World, turnId: TurnId): Promise<void> {
  const { rows: found } = await pool.query({
    name: 'bench_turn',
    text: 'select agent_id as "agentId", context_box_id as "contextBoxId" from boxcar.turns where id = $1',
    values: [turnId],
  });
  const turn = { turnId, ...found[0] };
  const rows = (await loadViews(pool, [turn])).get(turnId);
  if (rows === undefined) throw new Error(`turn ${turnId} has no view`);
  const profile = { instructions: PROFILE.instructions, tools: [], must_end_with: [] };
  const { messages } = buildView({ ...toRows(rows), turn, profile });
  promptHash(messages, []);
  if (messages.length < SHOWN) throw new Error(`a view of ${SHOWN} messages has ${messages.length}`);
}
