/**
 * Cards are erased while other work packs them, merges them, imports them, searches for them and joins texts that turns have derived from
 * them.
 */
import type { CardId, ProjectId } from '@boxcar/kernel';
import { eraseCards } from '@boxcar/store';
import type { Runtime } from '../../runtime.js';
import type { Client, Scenario, Watcher } from './scenario.js';

const PROJECT = '00000000-0000-7000-8000-000000000001' as ProjectId;
const WORD = 'sesquipedalian';
/** A word in a card that the first erasure takes and the search finds. */
const QUOTED = 'antepenultimate';
const ADA = { agent: 'ada' };

const CARDS = `select coalesce(json_agg(c.id), '[]') as ids from boxcar.cards c where c.content::text like '%${WORD}%'`;

/** The places of the word: as text of a row, by table. */
const PLACES = `
  select coalesce(json_agg(w.place order by w.place), '[]') as places
  from (
    select distinct x.place
    from (
      ${[
        'cards',
        'tape_entries',
        'tape_words',
        'batches',
        'turns',
        'steps',
        'tool_calls',
        'operations',
        'waits',
        'boxes',
        'forks',
        'sessions',
      ]
        .map((table) => `select '${table}' as place, t::text as text from boxcar.${table} t`)
        .join(' union all ')}
    ) x
    where x.text like '%${WORD}%'
  ) w`;

/**
 * The answer of a search is stored after the first erasure, which waits until the answer was read. A process may die in between, so the
 * database waits for a few seconds at most.
 */
const LATE_ANSWERS = `
  create or replace function public.wait_for_erasure() returns trigger language plpgsql as $$
  begin
    perform pg_advisory_xact_lock_shared(1421);
    for n in 1..200 loop
      exit when exists (select from boxcar.projects p where p.id = new.project_id and p.erasures > 0);
      perform pg_sleep(0.02);
    end loop;
    return new;
  end $$;
  create or replace trigger wait_for_erasure before insert on boxcar.operations
    for each row when (new.response->>'command' = 'search') execute function public.wait_for_erasure()`;

const IS_READ = `
  select 1 as one
  where exists (
      select from pg_locks l
      where l.locktype = 'advisory'
        and l.objid = 1421
        and l.database = (select d.oid from pg_database d where d.datname = current_database())
    )
    or exists (select from boxcar.operations o where o.response->>'command' = 'search')`;

/** Answers that repeat words of erased cards. There must be none: either the first erasure found them, or they were read after it. */
const QUOTES = `select count(*)::int as quotes from boxcar.operations o where o.response::text like '%${QUOTED}%'`;

/** Erases every card that contains the word now. A repetition finds the remaining cards. */
async function eraseAll(client: Client, watcher: Watcher): Promise<null> {
  return client.use(async (runtime) => {
    const { ids } = await watcher.until(CARDS);
    await eraseCards(runtime.pool, ids as unknown as readonly CardId[], {
      projectId: PROJECT,
      reason: 'asked for',
    });
    return null;
  });
}

async function mergeOnce(runtime: Runtime): Promise<null> {
  const tape = await runtime.tape(ADA);
  const [open] = await tape.forks({ status: 'open' });
  if (open !== undefined) await (await tape.openFork(open.fork_id)).merge();
  return null;
}

const lines = [
  JSON.stringify({
    id: 1,
    kind: 'message',
    payload: { role: 'user', content: `from a file: ${WORD}` },
    meta: {},
  }),
];

export const erasures: Scenario = {
  name: 'erasures beside packing, merging, importing, searching and resuming',
  prepare: LATE_ANSWERS,
  profiles: [
    { name: 'writer', script: [{ say: 'said {{instruction}}' }] },
    {
      name: 'lead',
      tools: ['fork_join'],
      delegation_policy: { target_profiles: ['writer'] },
      script: [
        {
          calls: [
            {
              tool: 'fork_join',
              arguments: {
                tasks: [{ target_strategy: 'new', target_ref: 'writer', instruction: '{{instruction}}' }],
              },
            },
          ],
        },
        { say: 'joined' },
      ],
    },
  ],
  drive: async (client, watcher) => {
    await client.submit('provision_agent', { action: 'create', agent_id: 'ada', profile_name: 'writer' });
    const { box_id } = (await client.submit('create_box', {
      cards: [{ type: 'note', content: { kind: 'text', text: WORD } }],
    })) as { box_id: string };
    await client.use(async (runtime) => {
      const tape = await runtime.tape(ADA);
      await tape.append([{ kind: 'message', content: `${WORD} ${QUOTED}` }], { dedupKey: 'first' });
      const [open] = await tape.forks();
      const fork = open === undefined ? await tape.forkTape() : await tape.openFork(open.fork_id);
      await fork.tape.append([{ kind: 'message', content: `within: ${WORD}` }], { dedupKey: 'within' });
    });
    await Promise.all([
      watcher.until(IS_READ).then(() => eraseAll(client, watcher)),
      client.submit('delegate_async', {
        target_strategy: 'new',
        target_ref: 'writer',
        instruction: 'read',
        context_box_id: box_id,
      }),
      client.submit('launch_principal', { profile_name: 'lead', instruction: WORD }),
      client.submit('fork_join', {
        tasks: [{ target_strategy: 'new', target_ref: 'writer', instruction: WORD }],
        wait: false,
      }),
      client.use(mergeOnce),
      client.use((runtime) =>
        runtime.importTape('filed', { main: { lines: () => lines } }, { append: true, dedupKey: 'import' }),
      ),
      client.submit('delegate_async', {
        target_strategy: 'reuse',
        target_ref: 'ada',
        instruction: `,tape.search ${WORD}`,
      }),
    ]);
    // Before another erasure removes all answers of the project.
    const { quotes = null } = await watcher.until(QUOTES);
    await eraseAll(client, watcher);
    await watcher.until(`
      select 1 as one
      where not exists (select from boxcar.turns where ended_at is null)
        and not exists (select from boxcar.batches where status = 'running')`);
    await eraseAll(client, watcher);
    const { places = null } = await watcher.until(PLACES);
    return { quotes, places };
  },
  judge: ({ turns, batches, driven }) => [
    ...turns.flatMap(({ profile, status }) => (status === 'success' ? [] : [`${profile} is ${status}`])),
    ...batches.flatMap(({ kind, status }) => (status === 'success' ? [] : [`${kind} is ${status}`])),
    ...(JSON.stringify(driven) === '{"quotes":0,"places":[]}'
      ? []
      : [`the word is left: ${JSON.stringify(driven)}`]),
  ],
};
