/** Two operations on one tape at the same moment: both orders are correct, and no mixture of them occurs. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import type { Tape } from './tape.js';

let h: Harness;
let n = 0;
const fresh = (): string => `race-${++n}`;
const ROUNDS = [1, 2, 3, 4];

beforeAll(async () => {
  h = await harness();
  await h.profile(
    'taper',
    [1, 2, 3].map((step) => ({ calls: [{ tool: 'tape.handoff', arguments: { name: `step ${step}` } }] })),
    { tools: ['tape.handoff'] },
  );
  await h.profile('idle', [{ say: 'done' }], {
    worker_target: 'nowhere',
    delegation_policy: { target_profiles: null },
  });
  await h.worker();
});
afterAll(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await h[Symbol.asyncDispose]();
});

const says = (content: string) => ({ kind: 'message', content }) as const;
const wordsOf = async (tape: Tape): Promise<readonly string[]> =>
  (await tape.query().kinds('message').all()).map(({ payload }) => String(payload.content));

/** The error code of a refused operation. Undefined when the operation succeeded. */
async function codeOf(work: Promise<unknown>): Promise<string | undefined> {
  return work.then(
    () => undefined,
    (error: { readonly code?: string }) => error.code ?? String(error),
  );
}

test.each(ROUNDS)(
  'a handoff whose turn is canceled is on the tape together with its result, or not at all (%s)',
  async (round) => {
    const { turn_id, agent_id } = (await h.runtime.submit('launch_principal', {
      profile_name: 'taper',
      instruction: 'go',
    })) as { readonly turn_id: string; readonly agent_id: string };
    // At a different moment in each round.
    for (let rows = 0; rows < 2 * round; rows += 1) await h.rows('select 1');
    await codeOf(h.runtime.submit('cancel', { turn_id }));
    await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
    const settled = await h.rows<{ name: string }>(
      "select k.arguments->>'name' as name from boxcar.tool_calls k where k.turn_id = $1 and k.status = 'success' order by k.step",
      [turn_id],
    );
    const tape = await h.runtime.tape({ agent: agent_id });
    const [, ...anchors] = await tape.anchors();
    expect(anchors.map(({ name }) => name)).toEqual(settled.map(({ name }) => name));
    const told = await tape.query().afterAnchor('session/start').kinds('event').all();
    expect(told.filter(({ payload }) => payload.name === 'handoff')).toHaveLength(1 + anchors.length);
  },
);

test.each(ROUNDS)(
  'a reset, an append and a merge leave each entry once, and nothing on the archived tape (%s)',
  async () => {
    const name = fresh();
    const tape = await h.runtime.tape(name);
    const fork = await tape.forkTape();
    await fork.tape.append([says('forked 1'), says('forked 2')]);
    const writer = await h.runtime.tape(name);
    const ends = await Promise.all(
      [fork.merge(), tape.reset(), ...[1, 2, 3].map((i) => writer.append([says(`said ${i}`)]))].map(codeOf),
    );
    expect(ends).toEqual([undefined, undefined, undefined, undefined, undefined]);
    const [old] = await h.rows<{ id: string; head: number }>(
      'select id, head_position as head from boxcar.boxes where tape_name = $1 and archived_at is not null',
      [name],
    );
    const before = await h.runtime.tape({ box: old?.id ?? '' });
    const words = [...(await wordsOf(before)), ...(await wordsOf(await h.runtime.tape(name)))];
    expect(words.toSorted()).toEqual(['forked 1', 'forked 2', 'said 1', 'said 2', 'said 3']);
    expect(words[words.indexOf('forked 1') + 1]).toBe('forked 2');
    await expect(before.append([says('late')])).rejects.toMatchObject({ code: 'tape_conflict' });
  },
);

test('of two imports under one name one makes the tape; two imports that append follow one after the other', async () => {
  const name = fresh();
  // More lines than one append takes.
  const file = (who: string) => ({
    main: {
      lines: () =>
        Array.from({ length: 501 }, (_, i) =>
          JSON.stringify({
            id: i + 1,
            kind: 'message',
            payload: { role: 'user', content: `${who} ${i}` },
            meta: {},
          }),
        ),
    },
  });
  const ends = await Promise.all(['a', 'b', 'c'].map((who) => codeOf(h.runtime.importTape(name, file(who)))));
  expect(ends.toSorted()).toEqual(['bad_request', 'bad_request', undefined]);
  const first = 'abc'[ends.indexOf(undefined)] ?? '';
  await Promise.all(['d', 'e'].map((who) => h.runtime.importTape(name, file(who), { append: true })));
  const runs = (await wordsOf(await h.runtime.tape(name))).map((text) => text.split(' ')[0]);
  expect(runs).toHaveLength(3 * 501);
  expect([0, 501, 1_002].map((at) => new Set(runs.slice(at, at + 501)).size)).toEqual([1, 1, 1]);
  expect(runs[0]).toBe(first);
});

test.each(ROUNDS)(
  'a right to append that is handed over during its revocation goes to an agent that may have it, or to none (%s)',
  async () => {
    const [holder, heir, other] = await Promise.all(
      [1, 2, 3].map(
        async () =>
          (await h.runtime.submit('provision_agent', {
            action: 'create',
            agent_id: fresh(),
            profile_name: 'idle',
            shared: true,
          })) as { readonly agent_id: string },
      ),
    );
    const name = fresh();
    const { boxId } = await h.runtime.tape(name);
    const ids = [holder, heir, other].map((agent) => agent?.agent_id ?? '');
    const [from = '', ...to] = ids;
    const grant = (mode: string, until?: string) =>
      h.runtime.submit('grant_box', {
        box_id: boxId,
        grantee: from,
        mode,
        ...(until === undefined ? {} : { until }),
      });
    for (const mode of ['read', 'append']) await grant(mode);
    const transfer = (target_ref: string) =>
      h.runtime.submit(
        'context_handoff',
        {
          target_ref,
          reason: 'r',
          summary: 's',
          tape_ref: `tape://default/${name}/entry/1`,
          ownership: 'transfer',
        },
        { sourceAgentId: from },
      );
    const [first, second] = await Promise.all(
      [...to.map(transfer), grant('append', '2001-01-01T00:00:00Z')].map(codeOf),
    );
    const given = [first, second].filter((code) => code === undefined).length;
    expect(given).toBeLessThanOrEqual(1);
    for (const code of [first, second]) expect([undefined, 'box_not_authorized']).toContain(code);
    const may = await Promise.all(
      ids.map(
        async (as) =>
          (await codeOf(h.runtime.tape({ box: boxId }, { as }).then((tape) => tape.append([says(as)])))) ===
          undefined,
      ),
    );
    expect(may).toEqual([false, first === undefined, second === undefined]);
  },
);
