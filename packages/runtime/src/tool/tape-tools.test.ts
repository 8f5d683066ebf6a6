import { type JsonValue, TAPE_HANDOFF } from '@boxcar/kernel';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { TurnResult } from '../queue/turn-result.js';
import { checkPrompts } from '../testing/check-prompts.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { type RecordingModel, recordingModel } from '../testing/recording-model.js';

let model: RecordingModel;
let h: Harness;
let n = 0;

beforeAll(async () => {
  model = recordingModel();
  h = await harness({ model });
  await h.worker();
});

afterAll(() => h[Symbol.asyncDispose]());

const TOOLS = ['tape.handoff', 'tape.anchors', 'tape.search', 'tape.info'];
const call = (tool: string, args: JsonValue = {}) => ({ tool, arguments: args });

/** The answer that the model got for each call, or the code of its error. */
async function answersOf(turnId: string) {
  const rows = await h.rows<{ content: { result?: JsonValue; error?: { code: string } } }>(
    `select c.content from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id
     where k.turn_id = $1 order by k.step, k.ordinal`,
    [turnId],
  );
  return rows.map(({ content }) => content.result ?? content.error?.code);
}

/** Runs a script to its end. Returns the name of each call with the answer that the model got, and the turn. */
async function run(script: readonly JsonValue[], rest: object = {}) {
  n += 1;
  const name = `taper-${n}`;
  await h.profile(name, [...script, { say: 'done' }], { tools: TOOLS, ...rest });
  const receipt = (await h.runtime.submit('launch_principal', {
    profile_name: name,
    instruction: 'Mend the tram.',
  })) as unknown as TurnResult;
  const turn = await h.runtime.waitForTurn(receipt.turn_id, { timeoutMs: 60_000 });
  const answers = await answersOf(receipt.turn_id);
  const tape = await h.runtime.tape({ agent: receipt.agent_id });
  return { turn, answers, tape, prompts: model.of(receipt.turn_id).map(({ messages }) => messages) };
}

test('tape.handoff is shown with the schema of the handoff architecture', async () => {
  await run([]);
  const shown = model.requests.at(-1)?.tools.find(({ name }) => name === 'tape.handoff');
  expect(shown).toEqual({ ...TAPE_HANDOFF });
});

test('the prompt after a handoff shows its step, then its state, and nothing from before', async () => {
  const { turn, answers, tape, prompts } = await run([
    { say: 'An early thought.', calls: [call('tape.info')] },
    { calls: [call('tape.handoff', { name: 'phase-1', summary: 'Wheels are off.', next_steps: 'Paint' })] },
  ]);
  expect(turn).toMatchObject({ status: 'success', result: 'done' });
  expect(answers[1]).toBe('anchor added: phase-1');
  expect(await tape.anchors()).toMatchObject([
    { name: 'session/start' },
    { name: 'phase-1', state: { summary: 'Wheels are off.', next_steps: 'Paint' } },
  ]);
  const contents = prompts[2]?.map(({ content }) => content) ?? [];
  expect(contents.join('\n')).not.toContain('An early thought.');
  const at = (text: string): number => contents.findIndex((content) => content.includes(text));
  expect(at('anchor added: phase-1')).toBeGreaterThan(0);
  expect(at('[Anchor created: phase-1]')).toBe(at('anchor added: phase-1') + 1);
  expect(at('Mend the tram.')).toBeGreaterThan(at('[Anchor created: phase-1]'));
  // The prompt, readers of the tape and explain show one format.
  const anchor = {
    role: 'assistant',
    content: '[Anchor created: phase-1]: {"summary": "Wheels are off.", "next_steps": "Paint"}',
  };
  expect(prompts[2]?.[at('[Anchor created: phase-1]')]).toEqual(anchor);
  expect((await tape.messages())[0]).toEqual(anchor);
  const explained = await h.runtime.explainStep(turn.turn_id, { step: 3 });
  expect(explained).toMatchObject({
    verified: true,
    messages: expect.arrayContaining([expect.objectContaining(anchor)]),
  });
});

test('an anchor names the turn that wrote it, and its event follows it directly', async () => {
  const { tape, turn } = await run([{ calls: [call('tape.handoff')] }]);
  const entries = await tape.query().betweenAnchors('session/start').all();
  const at = entries.findIndex(({ kind }) => kind === 'anchor');
  expect(entries[at]).toMatchObject({ payload: { name: 'handoff' }, meta: { run_id: turn.turn_id } });
  expect(entries[at + 1]).toMatchObject({ kind: 'event', payload: { name: 'handoff' } });
});

test('two handoffs in one step are both on the tape, one after the other', async () => {
  const { answers, tape } = await run([
    { calls: [call('tape.handoff', { name: 'a' }), call('tape.handoff', { name: 'b' })] },
  ]);
  expect(answers).toEqual(['anchor added: a', 'anchor added: b']);
  expect((await tape.anchors()).map(({ name }) => name).toSorted()).toEqual(['a', 'b', 'session/start']);
});

test('anchors and info describe the current tape, and may be asked again', async () => {
  const { answers, tape, turn } = await run([
    { calls: [call('tape.info')] },
    { calls: [call('tape.handoff', { name: 'mid', summary: 's' })] },
    { calls: [call('tape.anchors', { limit: 1 }), call('tape.info')] },
    { calls: [call('tape.info')] },
  ]);
  expect(answers[0]).toMatchObject({ last_anchor: 'session/start', anchors: 1 });
  expect(answers[2]).toMatchObject([{ name: 'mid', state: { summary: 's' } }]);
  expect(answers[3]).toMatchObject({ last_anchor: 'mid', anchors: 2 });
  expect(answers[4]).toMatchObject({ last_anchor: 'mid' });
  const [last] = await h.rows<{ used: number }>(
    `select (usage->>'input_tokens')::int + (usage->>'output_tokens')::int as used
     from boxcar.steps where turn_id = $1 order by step desc limit 1`,
    [turn.turn_id],
  );
  expect(last?.used).toBeGreaterThan(0);
  expect((await tape.info()).last_token_usage).toBe(last?.used);
  const line =
    '{"id":1,"kind":"event","payload":{"name":"run","data":{"usage":{"total_tokens":98765}}},"meta":{}}';
  await h.runtime.importTape({ agent: turn.agent_id }, { main: { lines: () => [line] } }, { append: true });
  expect((await tape.info()).last_token_usage).toBe(98_765);
});

test('a search finds entries before the last anchor, and not its own answers', async () => {
  const { answers } = await run([
    { say: 'The pantograph is bent.', calls: [call('tape.handoff', { name: 'h' })] },
    { calls: [call('tape.search', { query: 'pantograf' })] },
    { calls: [call('tape.search', { query: 'pantograph' })] },
  ]);
  for (const answer of answers.slice(1)) expect(answer).toContain('The pantograph is bent.');
  expect(String(answers[1]).split('\n')[0]).toBe('[tape.search]: 1 matches (0 filtered)');
  expect(String(answers[2]).split('\n')[0]).toBe('[tape.search]: 1 matches (1 filtered)');
});

test('arguments that do not fit are answered with errors, and the tape stays unchanged', async () => {
  const { answers, tape } = await run([
    {
      calls: [
        call('tape.handoff', { name: 'x', who: 'me' }),
        call('tape.handoff', { name: 5 }),
        call('tape.search', { query: 'x', start: '2026-13-01' }),
        call('tape.search', { query: 'x', start: '2026-02-01', end: '2026-01-01' }),
        call('tape.anchors', { limit: -1 }),
      ],
    },
  ]);
  expect(answers).toEqual([
    'bad_request',
    'bad_request',
    'bad_request',
    'bad_request',
    'tool_arguments_invalid',
  ]);
  expect((await tape.info()).anchors).toBe(1);
});

test('a tool that the profile does not list is refused', async () => {
  const { answers, tape } = await run([{ calls: [call('tape.handoff', { name: 'x' })] }], { tools: [] });
  expect(answers).toEqual(['tool_not_allowed']);
  expect((await tape.info()).anchors).toBe(1);
});

test('another tape can be used by agents with a grant, and reading and appending each need a grant', async () => {
  const other = await h.runtime.tape('shared-tape');
  await other.append([{ kind: 'message', content: 'Buy paint.' }]);
  await h.profile(
    'painter',
    [
      {
        calls: [
          call('tape.info', { tape: 'shared-tape' }),
          call('tape.anchors', { tape: other.boxId }),
          call('tape.search', { tape: 'shared-tape', query: 'paint' }),
          call('tape.handoff', { tape: other.boxId, name: '{{instruction}}' }),
        ],
      },
      { say: 'done' },
    ],
    { tools: TOOLS },
  );
  const refused = 'box_not_authorized';
  const found = expect.stringContaining('Buy paint.');
  const begun = [expect.objectContaining({ name: 'session/start' })];
  const cases: readonly (readonly [readonly ('read' | 'append')[], readonly unknown[]])[] = [
    [[], [refused, refused, refused, refused]],
    [['read'], [expect.objectContaining({ entries: 3 }), begun, found, refused]],
    [['append'], [refused, refused, refused, 'anchor added: painter-append']],
  ];
  for (const [modes, expected] of cases) {
    const name = `painter-${modes[0] ?? 'none'}`;
    await h.runtime.submit('provision_agent', { action: 'create', profile_name: 'painter', agent_id: name });
    for (const mode of modes)
      await h.runtime.submit('grant_box', { box_id: other.boxId, grantee: name, mode });
    const { turn_id } = (await h.runtime.submit('delegate_async', {
      target_strategy: 'reuse',
      target_ref: name,
      instruction: name,
    })) as unknown as TurnResult;
    await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
    expect(await answersOf(turn_id)).toEqual(expected);
  }
  expect((await other.anchors()).map(({ name }) => name)).toEqual(['session/start', 'painter-append']);
});

test('a tape of another project, an archived tape and an unknown tape are refused, and stay unchanged', async () => {
  const worn = await h.runtime.tape('worn-tape');
  const archived = worn.boxId;
  await worn.reset();
  await h.rows(
    `insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id)
     values (gen_random_uuid(), 'elsewhere', gen_random_uuid(), '00000000-0000-7000-8000-000000000003')`,
  );
  await h.rows(
    `insert into boxcar.agents (id, project_id, name) select operator_agent_id, id, 'operator' from boxcar.projects where name = 'elsewhere'`,
  );
  const foreign = await h.runtime.tape('foreign-tape', { projectId: 'elsewhere' });
  const handoff = (tape: string): Promise<unknown> => h.runtime.submit('tape.handoff', { name: 'x', tape });
  for (const [tape, code] of [
    [archived, 'tape_conflict'],
    [foreign.boxId, 'not_found'],
    ['foreign-tape', 'not_found'],
    ['no-such-tape', 'not_found'],
  ] as const)
    await expect(handoff(tape)).rejects.toMatchObject({ code });
  expect((await foreign.info()).entries).toBe(2);
  expect((await h.runtime.tape({ box: archived }).then((tape) => tape.info())).entries).toBe(2);
});

test('a handoff may be submitted in the name of an agent, to its own tape or a named tape', async () => {
  const submit = (args: JsonValue, sourceAgentId?: string) =>
    h.runtime.submit('tape.handoff', args, { sourceAgentId, idempotencyKey: JSON.stringify(args) });
  await h.profile('poster', [{ say: 'x' }]);
  await h.runtime.submit('provision_agent', {
    action: 'create',
    profile_name: 'poster',
    agent_id: 'poster-1',
  });
  for (let times = 0; times < 2; times += 1)
    expect(await submit({ name: 'posted' }, 'poster-1')).toBe('anchor added: posted');
  const own = await h.runtime.tape({ agent: 'poster-1' });
  expect((await own.anchors()).map(({ name }) => name)).toEqual(['session/start', 'posted']);
  const named = await h.runtime.tape('posted-to');
  await submit({ name: 'from outside', tape: 'posted-to' });
  expect((await named.info()).last_anchor).toBe('from outside');
  await expect(submit({ name: 'x' })).rejects.toMatchObject({
    code: 'bad_request',
    details: { field: 'arguments.tape' },
  });
  await expect(submit({ name: 'x', tape: 'no-such-tape' })).rejects.toMatchObject({ code: 'not_found' });
});

test('comma lines of an agent that may use them are its calls, and are not shown', async () => {
  const { turn, answers, tape, prompts } = await run(
    [
      { say: 'Found it.\n,handoff name=found summary="Line 45"\n,tape.info' },
      { say: 'See:\n```\n,handoff name=fenced\n```\n> ,anchors' },
    ],
    { comma_commands: true },
  );
  expect(answers).toEqual(['anchor added: found', expect.objectContaining({ name: null })]);
  expect((await tape.anchors()).map(({ name }) => name)).toEqual(['session/start', 'found']);
  const said = prompts.flat().map(({ content }) => content);
  expect(said).toContain('Found it.');
  expect(said.join('\n')).not.toContain(',handoff name=found');
  // A command in a fence or a quotation remains text, and the text ends the turn as an answer does.
  expect(turn.result).toBe('See:\n```\n,handoff name=fenced\n```\n> ,anchors');
});

test('comma lines in the arguments and results of its calls are not its own commands', async () => {
  const name = ',handoff name=foreign';
  const { answers, tape } = await run(
    [{ calls: [call('tape.handoff', { name, summary: `x\n${name}` })] }, { calls: [call('tape.anchors')] }],
    { comma_commands: true },
  );
  expect(answers).toEqual([`anchor added: ${name}`, expect.any(Array)]);
  expect((await tape.anchors()).map((anchor) => anchor.name)).toEqual(['session/start', name]);
});

test('a comma line that is not a command, or not allowed, is an error that the agent reads', async () => {
  const { answers, tape } = await run(
    [{ say: ',rm path=/\n,tape.reset archive=true\n,handoff name=x state={' }, { say: ',anchors' }],
    { comma_commands: true, tools: ['tape.handoff'] },
  );
  expect(answers).toEqual(['tool_unknown', 'tool_unknown', 'tool_arguments_invalid', 'tool_not_allowed']);
  expect((await tape.info()).incarnation).toBe(1);
});

test('comma lines are text unless the profile allows commands, and in an answer that was cut off', async () => {
  const text = 'So:\n,handoff name=x';
  expect((await run([{ say: text }])).turn.result).toBe(text);
  const { turn } = await run([{ say: text, finishReason: 'length' }], { comma_commands: true });
  expect(turn).toMatchObject({ status: 'partial', result: text });
});

test('every prompt of these turns is valid, is explained from its rows, and violates no invariant', async () => {
  expect(model.findings()).toEqual([]);
  await checkPrompts(h.database.pool, model.requests);
  await checkInvariants(h.database.pool);
});
