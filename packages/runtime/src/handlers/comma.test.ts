import type { JsonObject } from '@boxcar/kernel';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { SubmitOptions } from '../core/submit-options.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';

let h: Harness;
let n = 0;

beforeAll(async () => {
  h = await harness();
  await h.profile('writer', [{ say: 'written' }]);
});

afterAll(() => h[Symbol.asyncDispose]());

/** Makes a separate agent for a test. */
async function agent(): Promise<string> {
  n += 1;
  const agent_id = `writer-${n}`;
  await h.runtime.submit('provision_agent', {
    action: 'create',
    profile_name: 'writer',
    agent_id,
    shared: true,
  });
  return agent_id;
}

const send = (agentName: string, instruction: string, options: SubmitOptions = {}, rest: JsonObject = {}) =>
  h.runtime.submit(
    'delegate_async',
    { target_strategy: 'reuse', target_ref: agentName, instruction, ...rest },
    options,
  ) as Promise<{ output: string; result: JsonObject; output_box_id: string }>;

const countTurns = async (): Promise<number> =>
  (await h.rows<{ count: number }>('select count(*)::int as count from boxcar.turns'))[0]?.count ?? -1;

test('a command is answered at once, as text and as JSON, and makes no turn', async () => {
  const name = await agent();
  const before = await countTurns();
  const tape = await h.runtime.tape({ agent: name });
  expect(await send(name, ',handoff name=phase-1 summary="Setup done"')).toEqual({
    status: 'success',
    agent_id: expect.any(String),
    output_box_id: tape.boxId,
    command: 'handoff',
    output: 'anchor added: phase-1',
    result: { name: 'phase-1', anchor: 3, event: 4 },
  });
  await send(name, ',handoff name=project/start state={goal: "Build API"}', {}, { wait: true });
  const { output, result } = await send(name, ' ,anchors');
  expect(output).toBe('→ session/start\n→ phase-1\n→ project/start');
  expect(result).toMatchObject([{}, { state: { summary: 'Setup done' } }, { state: { goal: 'Build API' } }]);
  expect((await send(name, ',tape.info')).output).toContain('last_anchor: project/start');
  expect((await send(name, ',tape.search nothing')).output).toBe('[tape.search]: 0 matches (0 filtered)');
  expect((await send(name, ',help')).output).toContain(',tape.reset');
  expect(await countTurns()).toBe(before);
});

test('with a key a command has one effect, and every repetition gets the first answer, also at the same time', async () => {
  const name = await agent();
  const key = { idempotencyKey: 'handoff-once' };
  const answers = await Promise.all(Array.from({ length: 4 }, () => send(name, ',handoff name=once', key)));
  for (const answer of answers) expect(answer).toEqual(answers[0]);
  await expect(send(name, ',handoff name=twice', key)).rejects.toMatchObject({
    code: 'idempotency_conflict',
  });
  const resets = await Promise.all(
    Array.from({ length: 3 }, () => send(name, ',tape.reset', { idempotencyKey: 'reset-once' })),
  );
  for (const answer of resets) expect(answer).toEqual(resets[0]);
  const tape = await h.runtime.tape({ agent: name });
  expect(await tape.info()).toMatchObject({ incarnation: 2, anchors: 1 });
});

test('a reset with archive says where the old tape is, and the agent continues on the new tape', async () => {
  const name = await agent();
  const old = await h.runtime.tape({ agent: name });
  await send(name, ',handoff name=before');
  const { output, output_box_id } = await send(name, ',tape.reset archive=true');
  expect(output).toMatch(/^Archived: tape:\/\//);
  expect(output).toContain(old.boxId);
  const fresh = await h.runtime.tape({ agent: name });
  expect(fresh.boxId).toBe(output_box_id);
  expect(await fresh.anchors()).toMatchObject([{ state: { owner: 'human', archived: output.slice(10) } }]);
  expect((await (await h.runtime.tape({ box: old.boxId })).anchors()).map((anchor) => anchor.name)).toEqual([
    'session/start',
    'before',
  ]);
});

test.each([
  [',ls -la', 'bad_request', "no command ',ls'"],
  [',', 'bad_request', 'a name is missing'],
  [',handoff summary="open', 'bad_request', 'a quote is not closed'],
  [',handoff state={', 'bad_request', 'a brace is not closed'],
  [',anchors limit=-1', 'bad_request', 'limit'],
  [',tape.search x start=2026-02-30', 'bad_request', "Invalid ISO date or datetime: '2026-02-30'."],
  [',tape.search x start=2026-02-02 end=2026-02-01', 'bad_request', 'Start date must be earlier'],
  [',quit', 'bad_request', 'nothing to leave'],
])('%s fails with the list of commands, and the tape stays unchanged', async (text, code, message) => {
  const name = await agent();
  const turns = await countTurns();
  const refused = send(name, text, { idempotencyKey: `bad-${name}` });
  await expect(refused).rejects.toMatchObject({
    code,
    message: expect.stringMatching(/Commands: ,handoff, ,anchors, /),
    details: { commands: expect.arrayContaining([',help']) },
  });
  await expect(refused).rejects.toThrow(message);
  const tape = await h.runtime.tape({ agent: name });
  expect(await tape.info()).toMatchObject({ entries: 2, incarnation: 1 });
  expect(await countTurns()).toBe(turns);
});

test('a tape with a queued turn is not reset, and the command gives the turn as the reason', async () => {
  const name = await agent();
  await send(name, 'Write.');
  await expect(send(name, ',tape.reset')).rejects.toMatchObject({
    code: 'tape_busy',
    message: expect.stringContaining('Commands: '),
  });
  // Commands that only append or read are accepted.
  expect(await send(name, ',handoff name=meanwhile')).toMatchObject({ output: 'anchor added: meanwhile' });
});

test('new and clone refuse a command, and so do primitives that start agents', async () => {
  const name = await agent();
  const refused = { code: 'bad_request', message: expect.stringContaining('target_strategy reuse') };
  const { runtime } = h;
  const instruction = ',anchors';
  const clone = { target_strategy: 'clone', target_ref: name, instruction };
  await expect(
    runtime.submit('delegate_async', { target_strategy: 'new', target_ref: 'writer', instruction }),
  ).rejects.toMatchObject(refused);
  await expect(runtime.submit('delegate_async', clone)).rejects.toMatchObject(refused);
  await expect(
    runtime.submit('launch_principal', { profile_name: 'writer', instruction }),
  ).rejects.toMatchObject(refused);
  await expect(
    runtime.submit('ask_expert', { expert_profile: 'writer', question: instruction }),
  ).rejects.toMatchObject({ ...refused, details: { field: 'arguments.question' } });
  await expect(
    runtime.submit('fork_join', { tasks: [{ ...clone, target_strategy: 'reuse' }] }),
  ).rejects.toMatchObject({ code: 'bad_request', details: { field: 'arguments.tasks.0.instruction' } });
  for (const surplus of [{ result_fields: [{ name: 'a' }] }, { budget: { tokens: 5 } }])
    await expect(send(name, instruction, {}, surplus)).rejects.toMatchObject({
      code: 'bad_request',
      details: { field: `arguments.${Object.keys(surplus)[0]}` },
    });
});

test('a command from an agent is ordinary text that its model gets', async () => {
  const name = await agent();
  await h.profile('boss', [{ say: 'x' }], { delegation_policy: { target_profiles: null } });
  await h.runtime.submit('provision_agent', { action: 'create', profile_name: 'boss', agent_id: 'boss-1' });
  expect(await send(name, ',anchors', { sourceAgentId: 'boss-1' })).toMatchObject({
    status: 'accepted',
    turn_id: expect.any(String),
  });
  const instructions = await h.rows(
    "select content->>'text' as text from boxcar.cards where type = 'task.instruction' and content->>'text' like ',%'",
  );
  expect(instructions).toEqual([{ text: ',anchors' }]);
});

test('an agent that does not exist is not found by commands either', async () => {
  await expect(send('nobody', ',anchors')).rejects.toMatchObject({ code: 'not_found' });
  await checkInvariants(h.database.pool, { isSettled: false });
});
