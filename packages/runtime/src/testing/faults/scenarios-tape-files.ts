/** Work on tapes beside the turns that write them: handoffs, an imported file, and resets, one of them between two turns. */
import type { Runtime } from '../../runtime.js';
import type { Tape } from '../../tape/tape.js';
import type { Scenario, Watcher } from './scenario.js';

interface Receipt {
  readonly agent_id: string;
  readonly turn_id: string;
}

const LINES = [
  '{"id": 1, "kind": "anchor", "payload": {"name": "session/start", "state": {"owner": "human"}}, "meta": {}}',
  '{"id": 2, "kind": "message", "payload": {"role": "user", "content": "from a file"}, "meta": {}}',
];

const untilEnded = (watcher: Watcher, { turn_id: turn }: Receipt): Promise<unknown> =>
  watcher.until(`select id::text from boxcar.turns where id = '${turn}' and ended_at is not null`);

const importUnder = (runtime: Runtime, dedupKey: string): Promise<unknown> =>
  runtime.importTape('filed', { main: { lines: () => LINES } }, { append: true, dedupKey });

/** The reset leaves no moment without a tape. In such a moment, a program that names the tape would make another tape. */
async function resetOnce(tape: Tape): Promise<void> {
  if ((await tape.info()).incarnation === 1) await tape.reset({ archive: true });
}

/** Each tape without its ids: name, incarnation, entries, the last anchor with its state, and whether it is archived. */
const TAPES = `
  select json_agg(json_build_array(
    b.tape_name, b.incarnation, b.head_position, e.anchor_name, c.content->'data'->'n', b.archived_at is not null
  ) order by b.tape_name, b.incarnation)::text as tapes
  from boxcar.boxes b
  join boxcar.tape_entries e on e.box_id = b.id and e.position = b.last_anchor_position
  join boxcar.cards c on c.id = e.card_id
  where b.kind = 'tape'`;
const EXPECTED = [
  ['filed', 1, 4, 'session/start', null, true],
  ['filed', 2, 2, 'session/start', null, false],
  ['notes', 1, 5, 'phase/1', 1, false],
  [null, 1, 6, 'phase/2', 2, true],
  [null, 2, 4, 'session/start', null, false],
];

export const tapeFiles: Scenario = {
  name: 'handoffs, an import and a reset',
  profiles: [{ name: 'keeper', script: [{ say: 'done' }] }],
  drive: async (client, watcher) => {
    const first = (await client.submit('launch_principal', {
      profile_name: 'keeper',
      instruction: 'go',
    })) as unknown as Receipt;
    await client.use(async (runtime) => {
      const notes = await runtime.tape('notes');
      await notes.append([{ kind: 'message', content: 'one' }], { dedupKey: 'one' });
      await notes.handoff('phase/1', { state: { n: 1 }, dedupKey: 'phase/1' });
    });
    await client.use((runtime) => importUnder(runtime, 'made'));
    await client.use((runtime) => importUnder(runtime, 'appended'));
    await client.use(async (runtime) => resetOnce(await runtime.tape('filed')));
    await untilEnded(watcher, first);
    const agent = { agent: first.agent_id };
    await client.use(async (runtime) => {
      await (await runtime.tape(agent)).handoff('phase/2', { state: { n: 2 }, dedupKey: 'phase/2' });
    });
    await client.use(async (runtime) => resetOnce(await runtime.tape(agent)));
    const second = (await client.submit('delegate_async', {
      target_strategy: 'reuse',
      target_ref: first.agent_id,
      instruction: 'again',
    })) as unknown as Receipt;
    await untilEnded(watcher, second);
    const { tapes: found } = await watcher.until(TAPES);
    if (JSON.stringify(JSON.parse(String(found))) !== JSON.stringify(EXPECTED))
      throw new Error(`the tapes are ${String(found)}`);
    return null;
  },
};
