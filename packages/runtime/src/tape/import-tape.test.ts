import { type CardId, KernelError, type TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { eraseCards } from '@boxcar/store';
import { spawnNode, waitFor } from '@boxcar/testkit';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { Runtime } from '../runtime.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { findMissingBuild, openPreviousBuild } from '../testing/previous-build.js';
import type { TapeSource } from './import-source.js';
import type { ImportOptions } from './import-tape.js';
import type { Tape } from './tape.js';
import type { TapeTarget } from './tape-types.js';

const missing = findMissingBuild();
if (missing !== undefined) console.error(`not run: ${missing}`);

let h: Harness;
let n = 0;
const fresh = (): string => `import-${++n}`;

beforeAll(async () => {
  h = await harness();
  await h.profile('writer', [{ say: 'a secret answer' }]);
  await h.worker();
  const { turn_id: turn } = (await h.runtime.submit('launch_principal', {
    profile_name: 'writer',
    instruction: 'a secret task',
  })) as unknown as { turn_id: TurnId };
  await h.runtime.waitForTurn(turn);
});

afterAll(async () => {
  await checkInvariants(h.database.pool);
  await h[Symbol.asyncDispose]();
});

async function client(): Promise<pg.Client & AsyncDisposable> {
  const made = new pg.Client({ connectionString: h.database.url });
  await made.connect();
  return Object.assign(made, { [Symbol.asyncDispose]: () => made.end() });
}

const message = (content: string): string =>
  JSON.stringify({ id: 1, kind: 'message', payload: { role: 'user', content }, meta: {} });
const load = (
  name: TapeTarget,
  source: readonly string[] | TapeSource,
  options: ImportOptions = {},
): ReturnType<Harness['runtime']['importTape']> =>
  h.runtime.importTape(name, 'main' in source ? source : { main: { lines: () => source } }, options);
async function linesOf(tape: Tape): Promise<string[]> {
  const lines: string[] = [];
  for await (const line of tape.export()) lines.push(line);
  return lines;
}
const code = async (work: Promise<unknown>): Promise<unknown> =>
  work.then(
    () => 'done',
    (error: unknown) => (error instanceof KernelError ? error.code : error),
  );

describe('an import with a key', () => {
  test('writes once, also when it is requested again at the same moment, and returns the first answer', async () => {
    const tape = await h.runtime.tape(fresh());
    const { name } = await tape.info();
    const lines = Array.from({ length: 501 }, (_, index) => message(`${index}`));
    const once = () => load(name ?? '', lines, { append: true, dedupKey: `once ${name}` });
    const answers = [...(await Promise.all([once(), once()])), await once()];
    expect(answers.map(({ isRepeated }) => isRepeated).toSorted()).toEqual([false, true, true]);
    for (const answer of answers)
      expect(answer).toMatchObject({ boxId: tape.boxId, first: 3, last: 503, lines: 501, archived: 0 });
    expect((await tape.info()).entries).toBe(503);
    expect(await code(load(name ?? '', [message('other')], { append: true, dedupKey: `once ${name}` }))).toBe(
      'idempotency_conflict',
    );
    expect(await code(load(fresh(), lines, { append: true, dedupKey: `once ${name}` }))).toBe(
      'idempotency_conflict',
    );
    expect((await tape.info()).entries).toBe(503);
  });

  test('that makes the tape also returns the same answer again, and a refused import leaves its key free', async () => {
    const name = fresh();
    const dedupKey = `made ${name}`;
    expect(await code(load(name, ['nonsense'], { dedupKey }))).toBe('bad_request');
    const made = await load(name, [message('one')], { dedupKey });
    expect(await load(name, [message('one')], { dedupKey })).toEqual({ ...made, isRepeated: true });
    expect(await code(load(name, [message('one')]))).toBe('bad_request');
    expect(await code(load(name, [message('one')], { dedupKey: '' }))).toBe('bad_request');
  });

  test('does not show its answer to an agent that may not append there', async () => {
    const name = fresh();
    await load(name, [message('one')], { dedupKey: `mine ${name}` });
    await h.rows(
      "insert into boxcar.agents (id, project_id, name) select gen_random_uuid(), id, 'stranger' from boxcar.projects where name = 'default'",
    );
    expect(await code(load(name, [message('one')], { dedupKey: `mine ${name}`, as: 'stranger' }))).toBe(
      'box_not_authorized',
    );
  });
});

describe('an imported line has the limits of an appended entry:', () => {
  const MIB = 1024 * 1024;
  const line = (kind: string, payload: object, meta: object = {}): string =>
    JSON.stringify({ id: 1, kind, payload, meta });
  const long = 'x'.repeat(MIB + 1);
  const name = 'n'.repeat(4_097);

  test.each<[string, string, string, string]>([
    ['an event', line('event', { name: 'a', data: long }), 'payload_too_large', 'payload'],
    ['a line of another kind', line('thought', { said: long }), 'payload_too_large', 'payload'],
    ['meta', line('message', { role: 'user', content: 'a' }, { note: long }), 'payload_too_large', 'meta'],
    ['the name of an anchor', line('anchor', { name, state: {} }), 'bad_request', 'payload.name'],
    ['the name of an event', line('event', { name }), 'bad_request', 'payload.name'],
    ['a kind', line(name, {}), 'bad_request', 'payload.name'],
  ])('%s', async (_what, text, expected, field) => {
    const tape = fresh();
    const refused = load(tape, [message('before'), text]);
    await expect(refused).rejects.toMatchObject({ code: expected, details: { field, line: 2 } });
    await expect(refused).rejects.toThrow(/^Line 2: /);
    expect(await code(h.runtime.tape(tape, { create: false }))).toBe('not_found');
  });
});

describe('an import in progress', () => {
  const gate = (): { readonly passed: Promise<void>; open(): void } => {
    let open = (): void => undefined;
    const passed = new Promise<void>((settle) => {
      open = settle;
    });
    return { passed, open };
  };
  const openTransactions = () =>
    h.rows<{ query: string }>(
      "select query from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'",
    );

  test('holds no transaction while it waits for its source, which it reads once', async () => {
    let reads = 0;
    const seen: unknown[] = [];
    async function* lines(): AsyncGenerator<string> {
      reads += 1;
      for (let n = 0; n < 600; n++) {
        yield message(`${n}`);
        // Once in the middle of a chunk, and once after a complete chunk.
        if (n === 100 || n === 550) seen.push(await openTransactions());
      }
    }
    const tape = await h.runtime.tape(fresh());
    await load({ box: tape.boxId }, { main: { lines } }, { append: true });
    expect(seen).toEqual([[], []]);
    expect(reads).toBe(1);
  });

  test('does not block its key: the same import, started later, finishes first, and both return the same answer', async () => {
    const [name, source] = [fresh(), gate()];
    const dedupKey = `slow ${name}`;
    const lines = [message('one'), message('two')];
    let reads = 0;
    async function* slowLines(): AsyncGenerator<string> {
      reads += 1;
      yield* lines.slice(0, 1);
      await source.passed;
      yield* lines.slice(1);
    }
    const slow = load(name, { main: { lines: slowLines } }, { dedupKey });
    const quick = await load(name, lines, { dedupKey });
    expect(quick.isRepeated).toBe(false);
    source.open();
    expect(await slow).toEqual({ ...quick, isRepeated: true });
    expect(reads).toBe(1);
  });

  test('does not lock the tape to which it appends before all of its cards are written', async () => {
    const tape = await h.runtime.tape(fresh());
    await using holder = await client();
    await holder.query(`create function boxcar.wait_at_gate() returns trigger language plpgsql as
      $$ begin perform pg_advisory_xact_lock_shared(4711); return new; end $$;
      create trigger gate before insert on boxcar.cards for each row when (new.content::text like '%at the gate%') execute function boxcar.wait_at_gate()`);
    await holder.query('select pg_advisory_lock(4711)');
    const importing = load({ box: tape.boxId }, [message('at the gate')], { append: true });
    try {
      // The transaction of the import while it waits at the gate.
      const waiting = () =>
        h.rows<{ pid: number; began: string }>(
          `select a.pid, a.xact_start::text as began from pg_locks l join pg_stat_activity a using (pid)
           where l.locktype = 'advisory' and l.objid = 4711 and not l.granted and a.datname = current_database()`,
        );
      await waitFor(async () => (await waiting()).length === 1, { message: 'the import writes its cards' });
      const before = await waiting();
      expect(await tape.append([{ kind: 'event', name: 'meanwhile' }])).toMatchObject({ first: 3 });
      expect(await waiting()).toEqual(before);
    } finally {
      await holder.query('select pg_advisory_unlock(4711); drop trigger gate on boxcar.cards');
    }
    expect(await importing).toMatchObject({ first: 4, last: 4 });
  });
});

describe('an import that appends', () => {
  /** Lines of this text wait at a gate before their card is written. */
  async function shutGate(): Promise<{ open(): Promise<void>; reached(): Promise<unknown> }> {
    const holder = await client();
    await holder.query(`create or replace function boxcar.wait_at_gate() returns trigger language plpgsql as
      $$ begin perform pg_advisory_xact_lock_shared(4711); return new; end $$;
      create trigger gate before insert on boxcar.cards for each row when (new.content::text like '%at the gate%') execute function boxcar.wait_at_gate()`);
    await holder.query('select pg_advisory_lock(4711)');
    return {
      open: async () => {
        await holder.query('select pg_advisory_unlock(4711)');
        await holder.query('drop trigger gate on boxcar.cards');
        await holder.end();
      },
      reached: () =>
        waitFor(
          async () =>
            (
              await h.rows(
                "select from pg_locks l join pg_stat_activity a using (pid) where l.locktype = 'advisory' and l.objid = 4711 and not l.granted and a.datname = current_database()",
              )
            ).length > 0,
          { message: 'the import is at the gate', deadlineMs: 60_000 },
        ),
    };
  }
  const CHUNK = 500;
  /** More than two chunks. A call is the last line of the first chunk, and its result the first of the second; the second has a gate. */
  const lines = (): string[] =>
    Array.from({ length: 2 * CHUNK + 10 }, (_, index) => {
      if (index === CHUNK - 1)
        return '{"id": 1, "kind": "tool_call", "payload": {"calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}]}, "meta": {}}';
      if (index === CHUNK)
        return '{"id": 2, "kind": "tool_result", "payload": {"results": ["found"]}, "meta": {}}';
      return message(index === CHUNK + 100 ? 'at the gate' : `${index}`);
    });
  const TOTAL = 2 * CHUNK + 10;
  const says = (content: string) => [{ kind: 'message', content }] as const;

  test('locks the tape for one chunk at a time: other work reads and appends between two chunks', async () => {
    const tape = await h.runtime.tape(fresh());
    const gate = await shutGate();
    const importing = load({ box: tape.boxId }, lines(), { append: true });
    await gate.reached();
    expect(await linesOf(tape)).toHaveLength(CHUNK + 2);
    expect(await tape.append(says('between'))).toMatchObject({ first: CHUNK + 3 });
    await gate.open();
    expect(await importing).toEqual({
      boxId: tape.boxId,
      isRepeated: false,
      first: 3,
      last: TOTAL + 3,
      lines: TOTAL,
      archived: 0,
    });
    const written = await linesOf(tape);
    expect(written.toSpliced(CHUNK + 2, 1).slice(2)).toEqual(lines());
    expect(written[CHUNK + 2]).toContain('between');
  });

  test('is continued with its key after a kill between two chunks, and every line is appended once', async () => {
    const tape = await h.runtime.tape(fresh());
    const dedupKey = `killed ${tape.boxId}`;
    const gate = await shutGate();
    const options = { databaseUrl: h.database.url, box: tape.boxId, dedupKey, lines: lines() };
    await using child = spawnNode(new URL('../testing/import-process.ts', import.meta.url), []);
    child.writeLine(JSON.stringify(options));
    await gate.reached();
    await child.kill();
    expect(await linesOf(tape)).toHaveLength(CHUNK + 2);
    await tape.append(says('between'));
    await gate.open();
    // Other lines do not continue the import, and neither does another tape.
    expect(await code(load({ box: tape.boxId }, lines().slice(1), { append: true, dedupKey }))).toBe(
      'idempotency_conflict',
    );
    expect(await code(load(fresh(), lines(), { append: true, dedupKey }))).toBe('idempotency_conflict');
    const answer = { boxId: tape.boxId, first: 3, last: TOTAL + 3, lines: TOTAL, archived: 0 };
    const again = () => load({ box: tape.boxId }, lines(), { append: true, dedupKey });
    expect(await again()).toEqual({ ...answer, isRepeated: false });
    expect(await again()).toEqual({ ...answer, isRepeated: true });
    expect((await linesOf(tape)).toSpliced(CHUNK + 2, 1).slice(2)).toEqual(lines());
    // The result names the call that the killed process wrote.
    const pair = await h.rows<{ kind: string; id: string }>(
      "select e.kind, c.content->>'tool_call_id' as id from boxcar.tape_entries e join boxcar.cards c on c.id = e.card_id where e.box_id = $1 and e.kind in ('tool_call', 'tool_result') order by e.position",
      [tape.boxId],
    );
    expect(pair).toMatchObject([{ kind: 'tool_call' }, { kind: 'tool_result', id: pair[0]?.id }]);
  });

  test.skipIf(missing !== undefined)(
    'that was stopped between two chunks is finished by the previous build, and is then repeated by this build',
    async () => {
      using previous = await openPreviousBuild();
      const tape = await h.runtime.tape(fresh());
      const dedupKey = `older ${tape.boxId}`;
      const options = { databaseUrl: h.database.url, box: tape.boxId, dedupKey, lines: lines() };
      const program = new URL('../testing/import-process.ts', import.meta.url);
      const gate = await shutGate();
      await using child = spawnNode(program, []);
      child.writeLine(JSON.stringify(options));
      await gate.reached();
      await child.kill();
      await gate.open();
      await using older = spawnNode(previous.place(program), []);
      older.writeLine(JSON.stringify(options));
      const answer = { boxId: tape.boxId, first: 3, last: TOTAL + 2, lines: TOTAL, archived: 0 };
      const finished = await older.line(/^(?:imported|refused) /);
      expect(finished).toMatch(/^imported /);
      expect(JSON.parse(finished.slice('imported '.length))).toMatchObject({ ...answer, isRepeated: false });
      expect((await tape.info()).entries).toBe(TOTAL + 2);
      expect(await load({ box: tape.boxId }, lines(), { append: true, dedupKey })).toEqual({
        ...answer,
        isRepeated: true,
      });
    },
  );

  test('ends when the right to append is taken back between two chunks, and reports its progress', async () => {
    const tape = await h.runtime.tape(fresh());
    await h.rows(
      "insert into boxcar.agents (id, project_id, name) select gen_random_uuid(), id, 'guest' from boxcar.projects where name = 'default'",
    );
    const grant = (until?: string) =>
      h.runtime.submit('grant_box', {
        box_id: tape.boxId,
        grantee: 'guest',
        mode: 'append',
        ...(until === undefined ? {} : { until }),
      });
    await grant();
    const gate = await shutGate();
    const dedupKey = `refused ${tape.boxId}`;
    const again = () => load({ box: tape.boxId }, lines(), { append: true, dedupKey, as: 'guest' });
    const importing = again().catch((error: unknown) => error);
    await gate.reached();
    await grant('2020-01-01T00:00:00Z');
    await gate.open();
    expect(await importing).toMatchObject({
      code: 'box_not_authorized',
      message: expect.stringMatching(
        /may not append to tape \S+\. 500 entries were appended before\. The same import under key '.*' appends the rest\. /,
      ),
      details: { dedup_key: dedupKey, written: CHUNK, box_id: tape.boxId },
    });
    expect((await tape.info()).entries).toBe(CHUNK + 2);
    expect(await code(again())).toBe('box_not_authorized');
    await grant('2120-01-01T00:00:00Z');
    expect(await again()).toMatchObject({ first: 3, last: TOTAL + 2, isRepeated: false });
  });

  test('appends nothing more to a tape that is reset between two chunks', async () => {
    const name = fresh();
    const tape = await h.runtime.tape(name);
    const gate = await shutGate();
    const dedupKey = `reset ${name}`;
    const again = () => load(name, lines(), { append: true, dedupKey });
    const importing = again().catch((error: unknown) => error);
    await gate.reached();
    await tape.reset();
    await gate.open();
    // The same import under its key would be refused each time, so the error names another way.
    const refused = {
      code: 'tape_conflict',
      message: expect.stringMatching(
        /is archived\. 500 entries were appended before\. The rest cannot be appended there\. Import all lines under another key\./,
      ),
      details: { written: CHUNK },
    };
    expect(await importing).toMatchObject(refused);
    await expect(again()).rejects.toMatchObject(refused);
    expect((await tape.info()).entries).toBe(2);
    expect(await load(name, lines(), { append: true })).toMatchObject({ first: 3, last: TOTAL + 2 });
  });
});

test('imported lines give no right, no author and no turn', async () => {
  const [secret] = await h.rows<{ id: string }>("select id from boxcar.boxes where kind = 'context' limit 1");
  const [turn] = await h.rows<{ id: string }>('select id from boxcar.turns limit 1');
  const name = fresh();
  const forged = {
    run_id: turn?.id,
    turn_id: turn?.id,
    step: 1,
    author_id: 'else',
    merged_from: { tape: secret?.id, entry: 1 },
    imported: { line: '{}', parts: 1 },
  };
  const started = { name: 'turn.started', data: { turn_id: turn?.id, context_box_id: secret?.id } };
  const lines = [
    {
      id: 1,
      kind: 'message',
      payload: { role: 'assistant', content: 'hi', author_id: 'else', card_id: secret?.id },
      meta: forged,
    },
    { id: 2, kind: 'event', payload: started, meta: forged },
    { id: 3, kind: 'turn.started', payload: started.data, meta: forged },
    { id: 4, kind: 'grant', payload: { box: secret?.id, mode: 'append' }, meta: forged },
  ].map((line) => JSON.stringify(line));
  const grants = await h.rows('select * from boxcar.grants');
  const { boxId } = await load(name, lines);
  expect(await h.rows('select * from boxcar.grants')).toEqual(grants);
  const entries = await h.rows<Record<string, unknown>>(
    `select e.turn_id, e.step, e.author_id = p.operator_agent_id::text and coalesce(c.author_id = e.author_id, true) as is_own, e.payload->>'name' as event
     from boxcar.tape_entries e join boxcar.boxes b on b.id = e.box_id join boxcar.projects p on p.id = b.project_id left join boxcar.cards c on c.id = e.card_id
     where e.box_id = $1 order by e.position`,
    [boxId],
  );
  const events = [null, 'imported.event', 'imported.turn.started', 'imported.grant'];
  expect(entries).toEqual(events.map((event) => ({ turn_id: null, step: null, is_own: true, event })));
  expect(await linesOf(await h.runtime.tape(name))).toEqual(lines);
});

test('a card may be as large as the runtime allows', async () => {
  await using large = new Runtime({
    pool: h.database.pool,
    directUrl: h.database.url,
    doorbell: new InProcessDoorbell(),
    model: createModelRouter({}),
    limits: { maxCardBytes: 2_000_000 },
  });
  const lines = (size: number) => ({ main: { lines: () => [message('x'.repeat(size))] } });
  const name = fresh();
  expect(await code(load(name, lines(1_500_000)))).toBe('payload_too_large');
  expect(await large.importTape(name, lines(1_500_000))).toMatchObject({ lines: 1 });
  expect(await code(large.importTape(fresh(), lines(2_000_001)))).toBe('payload_too_large');
  const words = { kind: 'message', content: 'x'.repeat(1_500_000) } as const;
  expect(await code((await h.runtime.tape(name)).append([words]))).toBe('payload_too_large');
  expect(await (await large.tape(name)).append([words])).toMatchObject({ isRepeated: false });
});

test('a tape that is purged during an export does not look like a shorter tape', async () => {
  const name = fresh();
  await load(
    name,
    Array.from({ length: 501 }, (_, index) => message(`${index}`)),
  );
  const tape = await h.runtime.tape(name);
  const lines = tape.export();
  await lines.next();
  await h.rows("insert into boxcar.purging (box_id, until) values ($1, now() + interval '1 minute')", [
    tape.boxId,
  ]);
  await h.rows("select boxcar.purge_boxes(array[$1]::uuid[], '{}')", [tape.boxId]);
  const rest = async (): Promise<void> => {
    for await (const _ of lines);
  };
  await expect(rest()).rejects.toMatchObject({ code: 'not_found' });
});

describe('the session graph of a tape', () => {
  test('has the ancestors and forks of the tape, and is restored by an import', async () => {
    const root = await h.runtime.tape(fresh());
    const { name } = await root.info();
    await root.handoff('phase/1', { state: { n: 1.5 } });
    await root.inFork((within) =>
      within.append([
        { kind: 'message', content: 'within' },
        { kind: 'system', content: 'a note' },
      ]),
    );
    const child = await root.forkSession(`${name}-child`, { fromAnchor: 'phase/1', profile: 'writer' });
    const grandchild = await child.tape.forkSession(`${name}-grandchild`);
    await h.runtime.sessions.setStatus(child.name, 'done');
    const graph = async (tape: Tape): Promise<unknown[]> =>
      (await tape.folder()).sessionGraph
        .trimEnd()
        .split('\n')
        .map((line) => {
          const { created_at: at, ...rest } = JSON.parse(line);
          expect(at).toMatch(/\+00:00$/);
          return Object.values(rest);
        });
    const lineage = [
      [child.name, name, 'phase/1', 'done'],
      [grandchild.name, child.name, null, 'active'],
    ];
    expect(await graph(root)).toEqual([[name, null, null, 'active'], ...lineage]);
    expect(await graph(child.tape)).toEqual(lineage);
    expect(await graph(grandchild.tape)).toEqual(lineage);

    const { sessionGraph } = await child.tape.folder();
    const lines = await linesOf(child.tape);
    const projectId = fresh();
    await h.rows(
      `with place as materialized (select gen_random_uuid() as id, gen_random_uuid() as operator),
         made as (insert into boxcar.agents (id, project_id, name) select operator, id, 'operator' from place)
       insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id)
       select p.id, $1, p.operator, d.bootstrap_card_id from place p cross join boxcar.projects d where d.name = 'default'`,
      [projectId],
    );
    await load(child.name, { main: { lines: () => lines }, sessionGraph }, { projectId });
    const copy = await h.runtime.tape(child.name, { projectId, create: false });
    expect(await linesOf(copy)).toEqual(lines);
    for (const options of [{}, { anchor: null }, { anchor: null, strictBub: true }])
      expect(await copy.messages(options)).toEqual(await child.tape.messages(options));
    expect((await copy.folder()).sessionGraph).toBe(sessionGraph);
    const { sessions } = h.runtime;
    expect(await sessions.get(child.name, { projectId })).toMatchObject({
      parent_session_id: name,
      from_anchor: 'phase/1',
      status: 'done',
      agent_id: null,
      box_id: copy.boxId,
    });
    expect(await sessions.getChildren(name ?? '', { projectId })).toHaveLength(1);
    // Changes that are made here follow the imported lines.
    await sessions.setStatus(child.name, 'merged', { projectId });
    const changed = (await copy.folder()).sessionGraph;
    expect(changed.startsWith(sessionGraph)).toBe(true);
    expect(JSON.parse(changed.slice(sessionGraph.length))).toMatchObject({
      session_id: child.name,
      status: 'merged',
    });
  });
});

/** The tables with a row that contains a word. */
async function tablesWith(word: string): Promise<string[]> {
  const tables = await h.rows<{ name: string }>(
    "select table_name as name from information_schema.tables where table_schema = 'boxcar' and table_type = 'BASE TABLE' order by 1",
  );
  const found: string[] = [];
  for (const { name } of tables) {
    const rows = await h.rows<{ t: string }>(
      `select t::text as t from boxcar.${name} t where t::text like $1`,
      [`%${word}%`],
    );
    found.push(...rows.map(({ t }) => `${name}: ${t}`));
  }
  return found;
}

test('a merge during an erasure copies no erased line', async () => {
  const word = 'sesquipedalian';
  const tape = await h.runtime.tape(fresh());
  const fork = await tape.forkTape();
  await load({ box: fork.tape.boxId }, [message(word)], { append: true });
  const erasing = await h.database.pool.connect();
  await erasing.query('begin');
  await erasing.query(
    "select boxcar.erase_cards(array(select id from boxcar.cards where content::text like $1), 'asked for')",
    [`%${word}%`],
  );
  let isMerged = false;
  const merged = fork.merge().finally(() => {
    isMerged = true;
  });
  const waiting =
    "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
  await waitFor(async () => isMerged || (await h.rows(waiting)).length > 0, {
    message: 'the merge neither waits nor ends',
  });
  await erasing.query('commit');
  erasing.release();
  expect(await merged).toMatchObject({ merged: 1 });
  expect(await tablesWith(word)).toEqual([]);
});

test('no table contains erased words any more', async () => {
  const word = 'quixotry';
  const launched = (await h.runtime.submit('launch_principal', {
    profile_name: 'writer',
    instruction: `say ${word}`,
  })) as unknown as { turn_id: TurnId; agent_id: string };
  await h.runtime.waitForTurn(launched.turn_id);
  const tape = await h.runtime.tape({ agent: launched.agent_id });
  const state = { summary: word };
  await tape.append([{ kind: 'message', content: word }]);
  await tape.handoff('phase/1', { state });
  const fork = await tape.forkTape();
  await load(
    { box: fork.tape.boxId },
    [
      message(word),
      `{"id": 2, "kind": "anchor", "payload": {"name": "a", "state": {"s": "${word}"}}, "meta": {}}`,
      `{"id": 3, "kind": "event", "payload": {"name": "handoff", "data": {"name": "a", "state": {"s": "${word}"}}}, "meta": {}}`,
      `{"id": 4, "kind": "tool_call", "payload": {"calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}, {"id": "c2", "function": {"name": "f", "arguments": "{\\"a\\": \\"${word}\\"}"}}]}, "meta": {}}`,
      `{"id": 5, "kind": "tool_result", "payload": {"results": ["one", "${word}"]}, "meta": {}}`,
      `{"id": 6, "kind": "error", "payload": {"kind": "tool", "message": "${word}"}, "meta": {}}`,
    ],
    { append: true },
  );
  await fork.merge();
  await tape.forkSession(fresh(), {
    intention: { next_steps: word, context_summary: word },
    triggerOnComplete: 'notify_parent',
  });
  expect(await tape.search(word, { kinds: ['message', 'anchor', 'tool_result', 'tool_call'] })).not.toEqual(
    [],
  );
  await h.runtime.submit('delegate_async', {
    target_strategy: 'reuse',
    target_ref: launched.agent_id,
    instruction: `,handoff name=b summary=${word}`,
  });
  await h.runtime.submit('delegate_async', {
    target_strategy: 'reuse',
    target_ref: launched.agent_id,
    instruction: `,tape.search ${word}`,
  });
  await h.runtime.submit('delegate_async', {
    target_strategy: 'reuse',
    target_ref: launched.agent_id,
    instruction: `,anchors`,
  });
  const target = (await h.runtime.submit('context_handoff', {
    target_ref: 'writer',
    reason: word,
    summary: word,
    tape_ref: `tape://default/${launched.agent_id}/entry/5`,
    intention: { next_steps: word, context_summary: word },
    wait: true,
  })) as unknown as { turn_id: TurnId };
  expect(target).toBeDefined();
  const cards = await h.rows<{ id: CardId; project_id: never }>(
    'select id, project_id from boxcar.cards where content::text like $1',
    [`%${word}%`],
  );
  expect(cards.length).toBeGreaterThan(10);
  await eraseCards(
    h.database.pool,
    cards.map(({ id }) => id),
    { projectId: tape.projectId, reason: 'asked for' },
  );
  expect(await tablesWith(word)).toEqual([]);
});
