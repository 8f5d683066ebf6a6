/** The commands that change stored data: erase, purge, projects. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Stack } from '@boxcar/host/open';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type CliResult, cliHere, prepare } from '../../testing/cli.js';

let database: TestDatabase;
let stack: Stack;
const boxcar = (...args: string[]): Promise<CliResult> => cliHere(args, { DATABASE_URL: database.url });

beforeAll(async () => {
  database = await testDatabase();
  stack = await prepare({ DATABASE_URL: database.url });
});
afterAll(async () => {
  await stack.close();
  await database.close();
});

const create = async (...texts: string[]): Promise<string> => {
  const args = texts.flatMap((text) => ['--text', text]);
  return (await boxcar('box', 'create', ...args)).stdout.trim();
};
const cardsOf = async (box: string): Promise<string[]> => {
  const { rows } = await database.pool.query<{ id: string }>(
    'select unnest(card_ids) as id from boxcar.boxes where id = $1',
    [box],
  );
  return rows.map(({ id }) => id);
};

describe('boxcar erase', () => {
  it('erases the named cards and reports each; the second time it reports that they are erased', async () => {
    const [one = '', two = ''] = await cardsOf(await create('secret one', 'kept'));
    const first = await boxcar('erase', one, '--reason', 'asked for', '--yes');
    expect(first).toMatchObject({
      code: 0,
      stdout: expect.stringMatching(new RegExp(`${one}\\s+erased\\n`)),
    });
    const again = await boxcar('erase', one, '--reason', 'asked for', '--yes', '--json');
    expect(JSON.parse(again.stdout)).toEqual({ cards: [{ card_id: one, outcome: 'already_erased' }] });
    const { rows } = await database.pool.query('select id from boxcar.cards where content is null');
    expect(rows).toEqual([{ id: one }]);
    expect(two).not.toBe(one);
  });

  it('--box erases all own cards of a box, and the box shows it', async () => {
    const box = await create('secret two', 'secret three');
    expect((await boxcar('erase', '--box', box, '--reason', 'leak', '--yes')).code).toBe(0);
    const shown = await boxcar('box', 'show', box, '--cards');
    expect(shown.stdout).toContain('(erased)');
    expect(shown.stdout).not.toContain('secret');
  });

  it('exits with 3 when a card is kept or does not exist', async () => {
    const { stdout, code } = await boxcar(
      ...['erase', '00000000-0000-7000-8000-000000000003', '0198c1f2-5d1e-7000-8000-9f1b2c3d4e5f'],
      ...['--reason', 'x', '--yes'],
    );
    expect(code).toBe(3);
    expect(stdout).toContain('all tapes begin with it');
    expect(stdout).toContain('not in this project');
  });

  it.each([
    ['no card to erase', ['--reason', 'x', '--yes'], /name the cards to erase, or give --box/],
    ['an id that is not valid', ['x', '--reason', 'x', '--yes'], /cards\.0: 'x' is not a valid id/],
    [
      'a blank reason',
      ['0198c1f2-5d1e-7000-8000-9f1b2c3d4e5f', '--reason', ' ', '--yes'],
      /--reason.*must not be blank/,
    ],
    [
      'an id that is not a box',
      ['--box', '0198c1f2-5d1e-7000-8000-9f1b2c3d4e5f', '--reason', 'x', '--yes'],
      /not_found: No box/,
    ],
    [
      'an unknown project',
      ['0198c1f2-5d1e-7000-8000-9f1b2c3d4e5f', '--project', 'nope', '--reason', 'x', '--yes'],
      /not_found: No project 'nope'/,
    ],
    [
      'no confirmation and no terminal',
      ['0198c1f2-5d1e-7000-8000-9f1b2c3d4e5f', '--reason', 'x', '--json'],
      /give --yes/,
    ],
  ])('is refused with %s', async (name, args, message) => {
    const { code, stderr } = await boxcar('erase', ...args);
    expect(code).toBe(/^(no |a blank |an id that is not valid)/.test(name) ? 2 : 1);
    expect(stderr).toMatch(message);
  });
});

describe('boxcar purge', () => {
  const submit = (): Promise<unknown> =>
    stack.runtime.submit('launch_principal', { profile_name: 'writer', instruction: 'go' });
  const end = (): Promise<unknown> =>
    database.pool.query(
      `with d as (select t.id, gen_random_uuid() as card from boxcar.turns t where t.ended_at is null),
       c as (insert into boxcar.cards (id, project_id, type, content, content_hash, size_bytes, token_estimate, author_id)
         select d.card, t.project_id, 'task.deliverable', '{"kind":"text","text":"x"}', sha256('x'), 1, 1, 'kernel' from d join boxcar.turns t using (id)),
       h as (update boxcar.boxes b set head_position = head_position + 1 from boxcar.turns t join d using (id) where b.id = t.output_box_id returning b.id, b.head_position, t.id as turn_id),
       e as (insert into boxcar.tape_entries (box_id, position, kind, card_id, turn_id, author_id) select h.id, h.head_position, 'message', d.card, d.id, 'kernel' from h join d on d.id = h.turn_id)
       update boxcar.turns t set status = 'canceled', ended_at = now() - interval '40 days', created_at = now() - interval '41 days', deliverable_card_id = d.card from d where t.id = d.id`,
    );
  const age = (): Promise<unknown> =>
    // Entries have the same age as their runs.
    database.pool.query(
      `begin; set local session_replication_role = replica;
       update boxcar.runs set created_at = now() - interval '41 days';
       update boxcar.cards set created_at = now() - interval '40 days';
       update boxcar.tape_entries set created_at = now() - interval '40 days';
       update boxcar.boxes set created_at = now() - interval '40 days', archived_at = archived_at - interval '40 days'; commit`,
    );

  it('shows what would be removed, then removes it, and names what it kept', async () => {
    const profiles = await boxcar('profiles', 'ls', '--json');
    expect(profiles.stdout).toContain('"writer"');
    await submit();
    await end();
    await submit();
    await age();
    const dry = await boxcar('purge', '--older-than', '30d', '--dry-run');
    expect(dry).toMatchObject({
      code: 0,
      stdout: expect.stringMatching(/^would remove 1 run: 1 agent, 2 boxes\n/),
    });
    const done = await boxcar('purge', '--older-than', '30d', '--yes', '--json');
    expect(JSON.parse(done.stdout)).toMatchObject({
      dry_run: false,
      removed: { runs: 1, turns: 1, agents: 1, boxes: 2 },
      kept: [{ cause: 'unfinished' }],
      stopped: false,
    });
    const again = await boxcar('purge', '--older-than', '30d', '--project', 'default', '--yes');
    expect(again.stdout).toMatch(
      /^removed 0 runs.*\n\nkept {3}[0-9a-f-]{36}\n {7}has turns that have not ended\n$/,
    );
  });

  it('removes tapes that no run has written to, and names what it kept', async () => {
    const [left, forked] = [await stack.runtime.tape('left'), await stack.runtime.tape('forked')];
    const fork = await forked.forkTape();
    for (const tape of [left, forked]) await tape.reset();
    await age();
    const dry = await boxcar('purge', '--tapes', '--older-than', '30d', '--dry-run');
    expect(dry).toMatchObject({
      code: 0,
      stdout: expect.stringMatching(
        /^would remove 1 tape\n\nkept {3}[0-9a-f-]{36}\n {7}it was forked as box/,
      ),
    });
    const done = await boxcar(
      'purge',
      '--tapes',
      '--older-than',
      '30d',
      '--project',
      'default',
      '--yes',
      '--json',
    );
    expect(JSON.parse(done.stdout)).toMatchObject({
      removed: { tapes: 1, cards: 0 },
      kept: [{ cause: 'fork', holder: fork.tape.boxId }],
      stopped: false,
    });
    const again = await boxcar('purge', '--tapes', '--older-than', '30d', '--yes');
    expect(again.stdout).toMatch(/^removed 0 tapes: 0 cards\n\nkept/);
  });

  it.each([
    ['no age', ['--yes'], 2, /--older-than/],
    ['an age that is not valid', ['--older-than', '30', '--yes'], 2, /hours, days or weeks/],
    ['an age of zero', ['--older-than', '0d', '--yes'], 2, /hours, days or weeks/],
    ['an unknown project', ['--older-than', '30d', '--project', 'nope', '--yes'], 1, /No project 'nope'/],
    ['no confirmation and no terminal', ['--older-than', '30d', '--json'], 2, /give --yes/],
  ])('is refused with %s', async (_name, args, exit, message) => {
    const { code, stderr } = await boxcar('purge', ...args);
    expect(code).toBe(exit);
    expect(stderr).toMatch(message);
  });
});

describe('boxcar projects', () => {
  it('sets a limit, shows it and removes it; limits that are not named stay', async () => {
    expect(
      (await boxcar('projects', 'set', 'default', '--max-concurrent', '20', '--max-depth', '5')).code,
    ).toBe(0);
    const none = await boxcar('projects', 'set', 'default', '--max-depth', 'none', '--json');
    expect(JSON.parse(none.stdout)).toMatchObject({ name: 'default', limits: { max_concurrent: 20 } });
    expect((await boxcar('projects', 'ls')).stdout).toMatch(/default .* max_concurrent=20/);
    const { stdout } = await boxcar('projects', 'set', 'default', '--max-concurrent', 'none');
    expect(stdout).toMatch(/limits +none/);
  });

  it('makes a project once, shows it, archives it and restores it', async () => {
    const made = await boxcar('projects', 'create', 'team', '--max-concurrent', '2', '--json');
    expect(JSON.parse(made.stdout)).toMatchObject({
      name: 'team',
      outcome: 'created',
      limits: { max_concurrent: 2 },
    });
    const again = await boxcar('projects', 'create', 'team');
    expect(again).toMatchObject({ code: 0, stderr: expect.stringContaining('nothing was changed') });
    expect((await boxcar('projects', 'create', 'team', '--max-depth', '2')).stderr).toContain('conflict');
    const archived = await boxcar('projects', 'archive', 'team');
    expect(archived.stdout).toMatch(
      /^project +team\nid +[0-9a-f-]{36}\nmade +.*Z\narchived +.*Z: takes no new submissions\nturns +0 active, 0 queued, 0 suspended\n/,
    );
    expect((await boxcar('projects', 'ls', '--archived')).stdout).toMatch(
      /^project .*\nteam +0 +0 +\S+ +archived +max_concurrent=2\n$/,
    );
    const box = ['box', 'create', '--text', 'x', '--project', 'team'];
    expect(await boxcar(...box)).toMatchObject({
      code: 1,
      stderr: expect.stringContaining('project_archived'),
    });
    expect((await boxcar('projects', 'archive', 'team', '--undo')).stdout).not.toContain('archived');
    expect(await boxcar(...box)).toMatchObject({ code: 0 });
    expect((await boxcar('projects', 'show', 'nobody')).stderr).toContain('not_found');
  });

  it.each([
    ['no limit', [], /give a limit to set/],
    ['zero', ['--max-concurrent', '0'], /limits\.max_concurrent/],
    ['too many', ['--max-concurrent', '100001'], /limits\.max_concurrent/],
    ['a word', ['--max-depth', 'deep'], /limits\.max_depth/],
    ['a part', ['--max-depth', '1.5'], /limits\.max_depth/],
    ['an unknown limit of a budget', ['--run-budget', '{tokenz: 5}'], /limits\.run_budget: .*tokenz/],
    ['a budget that limits nothing', ['--run-budget', '{}'], /limits\.run_budget: must limit something/],
    ['a budget that is not a mapping', ['--run-budget', '5'], /limits\.run_budget/],
    [
      'text that is not YAML',
      ['--run-budget', '{tokens: [}'],
      /limits\.run_budget: is neither YAML nor JSON/,
    ],
    ['a file that does not exist', ['--prices', '@/nowhere.yaml'], /limits\.prices: ENOENT/],
    ['a negative price', ['--prices', '{a: {input: -1, output: 1}}'], /limits\.prices\.a\.input/],
    ['a price without one of its halves', ['--prices', '{"a": {"input": 1}}'], /limits\.prices\.a\.output/],
  ])('refuses %s', async (name, args, message) => {
    const { code, stderr } = await boxcar('projects', 'set', 'default', ...args);
    expect(code).toBe(name.startsWith('a file') ? 1 : 2);
    expect(stderr).toMatch(message);
  });

  it('sets prices, and the budget of runs that have none, which then limits them', async () => {
    const set = (...args: string[]): Promise<CliResult> => boxcar('projects', 'set', 'default', ...args);
    const folder = await mkdtemp(join(tmpdir(), 'boxcar-'));
    const prices = join(folder, 'prices.yaml');
    await writeFile(prices, 'scripted:\n  input: 1000000\n  output: 2000000\n');
    const { code, stdout } = await set('--run-budget', '{turns: 2, cost_usd: 1.5}', '--prices', `@${prices}`);
    await rm(folder, { recursive: true });
    expect(code).toBe(0);
    expect(stdout).toContain('run_budget={"turns":2,"cost_usd":1.5} prices=1 model');
    expect(stdout).toMatch(/price scripted +{"input":1000000,"output":2000000}/);
    expect((await boxcar('projects', 'ls')).stdout).toContain('prices=1 model');
    const submit = ['submit', 'launch_principal', '--arg', 'profile_name=writer', '--arg', 'instruction=go'];
    const { turn_id } = JSON.parse((await boxcar(...submit, '--json')).stdout) as { turn_id: string };
    const shown = JSON.parse((await boxcar('budget', 'show', turn_id, '--json')).stdout);
    expect(shown.budgets).toMatchObject([{ limits: { turns: 2, cost_micros: 1_500_000 } }]);
    expect(
      JSON.parse((await set('--run-budget', 'none', '--prices', 'none', '--json')).stdout).limits,
    ).toEqual({});
    expect((await boxcar('budget', 'show', turn_id)).code).toBe(0);
  });

  it('refuses a project that does not exist', async () => {
    expect((await boxcar('projects', 'set', 'nope', '--max-depth', '2')).stderr).toMatch(/No project 'nope'/);
  });
});

describe('boxcar submit --priority', () => {
  it('is the argument of the primitive, and is refused outside its range', async () => {
    const args = ['launch_principal', '--arg', 'profile_name=writer', '--arg', 'instruction=go'];
    const { stdout } = await boxcar('submit', ...args, '--priority', '7', '--json');
    const receipt: { turn_id: string } = JSON.parse(stdout);
    const { rows } = await database.pool.query('select priority from boxcar.turns where id = $1', [
      receipt.turn_id,
    ]);
    expect(rows).toEqual([{ priority: 7 }]);
    for (const priority of ['101', '-101', 'high', '1.5']) {
      const { code, stderr } = await boxcar('submit', ...args, '--priority', priority);
      expect(code).toBe(priority === 'high' ? 2 : 1);
      expect(stderr).toMatch(/priority/);
    }
  });
});
