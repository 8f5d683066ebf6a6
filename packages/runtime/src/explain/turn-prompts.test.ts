import type { AgentId, BoxId, JsonValue, Model, ModelRequest, TurnId } from '@boxcar/kernel';
import { waitFor } from '@boxcar/testkit';
import { beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { newId } from '../lib/new-id.js';
import { checkPrompts } from '../testing/check-prompts.js';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import { type RecordingModel, recordingModel } from '../testing/recording-model.js';
import type { CardOrigin, CardPlace } from './card-origin.js';
import type { StepExplanation } from './explain-step.js';
import type { WhyAnswer, WhyPart } from './why.js';

interface Receipt {
  readonly turn_id: TurnId;
  readonly agent_id: AgentId;
  readonly context_box_id: BoxId;
  readonly output_box_id: BoxId;
}

let h: Harness;
let model: RecordingModel;
/** Delays every model call while it is set. */
let gate: { readonly arrived: (request: ModelRequest) => void } | undefined;

beforeEach(async () => {
  gate = undefined;
  model = recordingModel();
  const generate: Model['generate'] = async (request, options) => {
    if (gate === undefined) return model.generate(request, options);
    gate.arrived(request);
    return new Promise(() => undefined);
  };
  h = await harness({ model: { ...model, generate } });
  h.runtime.registerTool({
    name: 'look',
    description: 'Looks at "everything".',
    input: z.strictObject({ at: z.string().optional() }),
    isReadOnly: true,
    run: ({ at }) =>
      at === 'nothing' ? Promise.reject(new Error('nothing there')) : { seen: 'a "cat"\non a mat' },
  });
  return () => h[Symbol.asyncDispose]();
});

const ANYONE = { delegation_policy: { target_profiles: null } };
const receipt = async (primitive: string, args: unknown, options = {}): Promise<Receipt> =>
  (await h.runtime.submit(primitive, args, options)) as unknown as Receipt;
const launch = (profile_name: string, rest: Readonly<Record<string, JsonValue>> = {}, options = {}) =>
  receipt('launch_principal', { profile_name, instruction: 'Count the cats.', ...rest }, options);
const ended = async (turn: Receipt): Promise<Receipt> => {
  await h.runtime.waitForTurn(turn.turn_id, { timeoutMs: 60_000 });
  return turn;
};
const box = async (text: string, rest: object = {}, options = {}): Promise<BoxId> =>
  (
    (await h.runtime.submit(
      'create_box',
      { cards: [{ type: 'note', content: { kind: 'text', text }, ...rest }] },
      options,
    )) as { box_id: BoxId }
  ).box_id;

const messageWith = (explained: StepExplanation, words: string) => {
  const message = explained.messages.find(({ content }) => content.includes(words));
  if (message === undefined) throw new Error(`no message says '${words}'`);
  return message;
};
const cardWith = (explained: StepExplanation, words: string): CardOrigin => {
  const [card] = messageWith(explained, words).cards;
  if (card === undefined) throw new Error(`no card behind '${words}'`);
  return card;
};
const inContext = (card: CardOrigin): Extract<CardPlace, { kind: 'context' }> => {
  if (card.place.kind !== 'context') throw new Error(`the card is in the ${card.place.kind}`);
  return card.place;
};
/** Acts as the owner of the database, with rights that the runtime's role does not have. */
const tamper = async (sql: string, values: unknown[] = []): Promise<void> => {
  await h.rows(
    `begin; set local session_replication_role = replica; ${sql.replace('$1', `'${String(values[0])}'`)}; commit`,
  );
};

describe('explain', () => {
  test('names the profile, packing rules, tape entries, notices and tools that produced each message', async () => {
    await h.profile(
      'expert',
      [
        { say: 'I look.', calls: [{ tool: 'look' }, { tool: 'look', arguments: { at: 'nothing' } }] },
        { say: 'One cat.' },
      ],
      { tools: ['look', 'ask_expert'], limits: { max_steps: 3 } },
    );
    await h.worker();
    const turn = await ended(await launch('expert'));
    const explained = await h.runtime.explainStep(turn.turn_id);
    expect(explained).toMatchObject({
      turn_id: turn.turn_id,
      turn_status: 'success',
      profile: { name: 'expert', version: 1 },
      step: 2,
      attempt: 1,
      verified: true,
      findings: [],
      model: 'scripted',
    });
    expect(explained.rebuilt_hash).toBe(explained.prompt_hash);
    const sent = model.of(turn.turn_id)[1];
    expect(explained.messages.map(({ role, content }) => ({ role, content }))).toEqual(
      sent?.messages.map(({ role, content }) => ({ role, content })),
    );
    const places = explained.messages.map(({ source, cards }) => [
      source,
      ...cards.map(({ type, place }) =>
        place.kind === 'context'
          ? `${type} ${place.rule} ${place.argument}`
          : place.kind === 'tape'
            ? `${type} ${place.entry} step ${place.step}`
            : `${type} ${place.name}@${place.version}`,
      ),
    ]);
    expect(places).toEqual([
      ['profile', 'sys.profile expert@1'],
      ['context', 'meta.parent_pointer parent null'],
      ['context', 'task.instruction pack_arguments instruction'],
      ['tape', 'agent.thought message step 1', 'tool.call tool_call step 1', 'tool.call tool_call step 1'],
      ['tape', 'tool.result tool_result step 1'],
      ['tape', 'tool.result tool_result step 1'],
      ['tape', 'sys.notice message step 1'],
    ]);
    expect(cardWith(explained, 'Two steps are left')).toMatchObject({
      notice: 'steps_left',
      author: { id: 'kernel', name: null },
    });
    expect(cardWith(explained, 'Count the cats.')).toMatchObject({
      author: { id: 'launch_principal', name: null },
      hash: expect.stringMatching(/^[0-9a-f]{64}$/),
      tokens: expect.any(Number),
    });
    expect(messageWith(explained, 'I look.').cards[0]?.author).toEqual({
      id: turn.agent_id,
      name: explained.agent.name,
    });
    expect(explained.tools).toMatchObject([
      { name: 'look', source: 'tool', offered_by: 'tools' },
      { name: 'ask_expert', source: 'primitive', offered_by: 'tools' },
    ]);
    expect((await h.runtime.explainStep(turn.turn_id, { step: 1 })).messages).toHaveLength(3);
  });

  test('names the profile as the source of a tool that it declares itself', async () => {
    const parameters = { type: 'object', properties: { ticket: { type: 'string' } } };
    await h.profile('expert', [{ say: 'ok' }], {
      tools: ['look', { name: 'read_ticket', description: 'Reads it.', parameters, target: 'tickets' }],
    });
    await h.worker();
    const turn = await ended(await launch('expert'));
    expect(await h.runtime.explainStep(turn.turn_id)).toMatchObject({
      verified: true,
      tools: [
        { name: 'look', source: 'tool' },
        { name: 'read_ticket', source: 'profile', offered_by: 'tools', parameters },
      ],
    });
    expect(await h.runtime.why(turn.turn_id, '"ticket"')).toMatchObject({
      outcome: 'found',
      places: [{ parts: [{ rule: 'tool_parameters', tool: { name: 'read_ticket', source: 'profile' } }] }],
    });
  });

  test('says which tools the last step had, and why', async () => {
    await h.profile('expert', [{ calls: [{ tool: 'submit_result', arguments: { result: { n: 1 } } }] }], {
      tools: ['look'],
      limits: { max_steps: 1 },
    });
    await h.worker();
    const turn = await ended(await launch('expert', { result_fields: [{ name: 'n' }] }));
    const explained = await h.runtime.explainStep(turn.turn_id);
    expect(explained).toMatchObject({
      verified: true,
      tools: [{ name: 'submit_result', source: 'primitive', offered_by: 'result_fields' }],
    });
    expect(explained.messages.at(-1)).toMatchObject({ source: 'notice', notice: 'steps_left', cards: [] });
  });

  test('follows an inherited card through the boxes that passed it on to the box that holds it', async () => {
    await h.profile('first', [{ say: 'noted' }]);
    await h.profile('second', [{ say: 'noted' }]);
    await h.worker();
    const source = await box('Cats have four legs.');
    const first = await ended(await launch('first', { context_box_id: source }));
    const second = await ended(await launch('second', { context_box_id: first.context_box_id }));
    const place = inContext(cardWith(await h.runtime.explainStep(second.turn_id), 'four legs'));
    expect(place).toMatchObject({
      box_id: second.context_box_id,
      rule: 'inherit',
      argument: 'input_box_ids',
      packed_by: { name: 'operator' },
      first: { box_id: source, kind: 'context', position: 1, rule: 'create_box' },
      path: [
        {
          into: second.context_box_id,
          rule: 'inherit',
          from: first.context_box_id,
          right: { kind: 'operator' },
        },
        { into: first.context_box_id, rule: 'inherit', from: source, right: { kind: 'operator' } },
      ],
    });
    // The instruction of the first turn was packed there; the second inherited it.
    const instruction = (await h.runtime.explainStep(second.turn_id)).messages
      .flatMap(({ cards }) => cards)
      .filter(({ type }) => type === 'task.instruction')
      .map(({ place: at }) => (at.kind === 'context' ? at.first : undefined));
    expect(instruction).toMatchObject([
      { box_id: first.context_box_id, rule: 'pack_arguments', argument: 'instruction' },
      { box_id: second.context_box_id, rule: 'pack_arguments', argument: 'instruction' },
    ]);
  });

  test('names the grant by which a box was read, or the owner of the box', async () => {
    await h.profile('writer', [{ say: 'My cat is grey.' }]);
    await h.profile('boss', [{ say: 'ok' }], { tools: ['launch_principal', 'create_box'], ...ANYONE });
    await h.profile('reader', [{ say: 'ok' }]);
    await h.worker();
    const boss = await ended(await launch('boss'));
    const as = { sourceAgentId: boss.agent_id };
    const granted = await box('Given by hand.');
    await h.runtime.submit('grant_box', {
      box_id: granted,
      grantee: boss.agent_id,
      until: '2999-01-01T00:00:00.000Z',
    });
    const own = await box('Made by the boss.', {}, as);
    const reader = await ended(
      await launch('reader', { context_box_id: [granted, own, boss.output_box_id, boss.context_box_id] }, as),
    );
    const explained = await h.runtime.explainStep(reader.turn_id);
    const right = (words: string) => inContext(cardWith(explained, words)).path.map((hop) => hop.right);
    expect(right('Given by hand.')).toEqual([
      {
        kind: 'grant',
        source: { id: expect.any(String), name: 'operator' },
        upto_position: null,
        until: new Date('2999-01-01T00:00:00.000Z'),
        given_at: expect.any(Date),
      },
    ]);
    expect(right('Made by the boss.')).toEqual([{ kind: 'owner' }]);
    expect(right('[inherited] Parent agent')).toEqual([{ kind: 'owner' }]);
    expect(inContext(cardWith(explained, 'ok'))).toMatchObject({
      first: { kind: 'tape', box_id: boss.output_box_id, entry: 'message', turn_id: boss.turn_id, step: 1 },
      path: [{ right: { kind: 'owner' } }],
    });
  });

  test('names the turns of the agent as its right to read the output of its child', async () => {
    await h.profile('child', [{ say: 'Seven cats.' }]);
    await h.profile(
      'boss',
      [
        { calls: [{ tool: 'ask_expert', arguments: { expert_profile: 'child', question: 'How many?' } }] },
        {
          calls: [
            {
              tool: 'ask_expert',
              arguments: {
                expert_profile: 'child',
                question: 'Again?',
                context_box_id: '{{results/ask_expert/output_box_id}}',
              },
            },
          ],
        },
        { say: 'ok' },
      ],
      { tools: ['ask_expert'], ...ANYONE },
    );
    await h.worker();
    const boss = await ended(await launch('boss'));
    const children = await h.rows<{ id: TurnId }>(
      'select id from boxcar.turns where parent_turn_id = $1 order by id',
      [boss.turn_id],
    );
    const explained = await h.runtime.explainStep(children[1]?.id ?? '');
    expect(inContext(cardWith(explained, 'Seven cats.')).path).toMatchObject([
      { read_by: { id: boss.agent_id }, right: { kind: 'parent' } },
    ]);
    // And the parent's own prompt holds the child's answer as the result of its call.
    const answer = cardWith(await h.runtime.explainStep(boss.turn_id, { step: 2 }), 'Seven cats.');
    expect(answer).toMatchObject({
      type: 'tool.result',
      place: { kind: 'tape', entry: 'tool_result', step: 1 },
    });
    await checkPrompts(h.database.pool, model.requests);
  });

  test('distinguishes a clone’s history from its own context, and names the right to see it', async () => {
    await h.profile('expert', [{ calls: [{ tool: 'look' }] }, { say: 'One cat.' }], { tools: ['look'] });
    await h.worker();
    const source = await ended(await launch('expert'));
    const clone = await ended(
      await receipt('delegate_async', {
        target_strategy: 'clone',
        target_ref: source.agent_id,
        instruction: 'Now the dogs.',
      }),
    );
    const explained = await h.runtime.explainStep(clone.turn_id, { step: 1 });
    expect(explained.verified).toBe(true);
    const places = explained.messages.flatMap(({ cards }) =>
      cards.map(({ type, place }) =>
        place.kind === 'context'
          ? `${type} ${place.rule} from ${place.first.kind} ${place.first.entry}`
          : type,
      ),
    );
    expect(places).toEqual([
      'sys.profile',
      'meta.parent_pointer snapshot from context null',
      'task.instruction snapshot from context null',
      'tool.call snapshot from tape tool_call',
      'tool.result snapshot from tape tool_result',
      'task.deliverable snapshot from tape message',
      'meta.parent_pointer parent from context null',
      'task.instruction pack_arguments from context null',
    ]);
    const rights = explained.messages.flatMap(({ cards }) =>
      cards.flatMap(({ place }) =>
        place.kind === 'context' ? place.path.map(({ right }) => right.kind) : [],
      ),
    );
    expect(new Set(rights)).toEqual(new Set(['operator']));
  });

  test('distinguishes an agent’s own anchor from an anchor from outside', async () => {
    const handoff = { tool: 'tape.handoff', arguments: { name: 'mine', summary: 'It is done.' } };
    await h.profile('expert', [{ calls: [handoff] }, { say: 'ok' }], { tools: ['tape.handoff'] });
    await h.profile('reader', [{ say: 'ok' }]);
    await h.worker();
    const own = await ended(await launch('expert'));
    const { place } = cardWith(await h.runtime.explainStep(own.turn_id), 'It is done.');
    expect(place).toMatchObject({ entry: 'anchor', anchor: 'mine', step: null, written_by: 'agent' });
    const reader = await ended(await launch('reader'));
    const tape = await h.runtime.tape({ box: reader.output_box_id });
    await tape.handoff('theirs', { state: { summary: 'Begin here.' } });
    const later = await receipt('delegate_async', {
      target_strategy: 'reuse',
      target_ref: reader.agent_id,
      instruction: 'Go on.',
    });
    const card = cardWith(await h.runtime.explainStep((await ended(later)).turn_id), 'Begin here.');
    expect(card.author.name).toBe('operator');
    expect(card.place).toMatchObject({ entry: 'anchor', anchor: 'theirs', written_by: 'outside' });
  });

  test('says which entries of a rolling tape belong to earlier turns, and what an anchor and metadata leave out', async () => {
    await h.profile('expert', [{ say: 'Noted: {{instruction}}' }]);
    await h.worker();
    const hidden = await box('Nobody reads this.', { metadata: { context: false } });
    const first = await ended(await launch('expert', { context_box_id: hidden }));
    const second = await ended(
      await receipt('delegate_async', {
        target_strategy: 'reuse',
        target_ref: first.agent_id,
        instruction: 'More.',
        context_box_id: hidden,
      }),
    );
    const explained = await h.runtime.explainStep(second.turn_id);
    expect(explained.verified).toBe(true);
    expect(cardWith(explained, 'Noted: Count')).toMatchObject({
      place: { kind: 'tape', is_own_turn: false, turn_id: first.turn_id },
    });
    expect(explained.omissions.map(({ reason, card }) => [reason, card.type])).toEqual([
      ['bootstrap', 'tape.anchor'],
      ['hidden', 'note'],
      ['hidden', 'note'],
    ]);
  });

  test('stays correct when an anchor is written during a step: before it, after it, and for the part that it left out', async () => {
    // Written as the tape's own code writes it: the view continues from the step that was open.
    h.runtime.registerTool({
      name: 'mark',
      description: 'Writes an anchor.',
      input: z.strictObject({}),
      run: async (_input, { turnId }) => {
        const id = newId<'card'>();
        await h.rows(
          `insert into boxcar.cards (id, project_id, type, role, content, content_hash, size_bytes, token_estimate, author_id)
           select $1, project_id, 'tape.anchor', 'assistant', $3::json, sha256('x'), 1, 1, 'test' from boxcar.turns where id = $2`,
          [id, turnId, JSON.stringify({ kind: 'json', data: { counted: 'so far' } })],
        );
        await h.rows(
          `with t as (select * from boxcar.turns where id = $2),
             head as (update boxcar.boxes b set head_position = b.head_position + 1, last_anchor_position = b.head_position + 1,
               view_position = (select min(e.position) from boxcar.tape_entries e where e.box_id = b.id and e.turn_id = t.id and e.step = t.step_count)
               from t where b.id = t.output_box_id returning b.id, b.head_position)
           insert into boxcar.tape_entries (box_id, position, kind, card_id, tokens, anchor_name, author_id)
           select id, head_position, 'anchor', $1, 1, 'phase', 'test' from head`,
          [id, turnId],
        );
        return 'marked';
      },
    });
    await h.profile(
      'expert',
      [
        { say: 'First I look.', calls: [{ tool: 'look' }] },
        { say: 'Then I mark.', calls: [{ tool: 'mark' }, { tool: 'look' }] },
        { calls: [{ tool: 'look' }] },
        { say: 'done' },
      ],
      { tools: ['look', 'mark'] },
    );
    await h.worker();
    const turn = await ended(await launch('expert'));
    await checkPrompts(h.database.pool, model.requests);
    const [before, behind] = [2, 3].map((step) => h.runtime.explainStep(turn.turn_id, { step }));
    expect(messageWith((await before) as StepExplanation, 'First I look.').cards).toHaveLength(2);
    const explained = (await behind) as StepExplanation;
    expect(explained.messages.map(({ content }) => content)).not.toContain('First I look.');
    expect(messageWith(explained, '[Anchor created: phase]').cards).toMatchObject([
      { type: 'tape.anchor', place: { kind: 'tape', entry: 'anchor', anchor: 'phase', turn_id: null } },
    ]);
    expect(messageWith(explained, 'Then I mark.').cards[0]?.place).toMatchObject({ kind: 'tape', step: 2 });
    expect(await h.runtime.why(turn.turn_id, 'First I look.')).toMatchObject({ step: 2, steps: [2] });
  });
});

describe('an attempt', () => {
  const holdUp = (): Promise<ModelRequest> =>
    new Promise((resolve) => {
      gate = { arrived: resolve };
    });

  test('that is under way is explained as far as its rows allow, and is marked as such', async () => {
    await h.profile('expert', [{ say: 'ok' }], { tools: ['look'] });
    const arrived = holdUp();
    await h.worker();
    const turn = await launch('expert');
    const request = await arrived;
    const explained = await h.runtime.explainStep(turn.turn_id);
    expect(explained).toMatchObject({
      turn_status: 'running',
      step: 1,
      attempt: 1,
      committed_at: null,
      verified: false,
      findings: [{ code: 'not_committed' }],
      tools: null,
    });
    expect(explained.messages.map(({ content }) => content)).toEqual(
      request.messages.map(({ content }) => content),
    );
    expect(await h.runtime.why(turn.turn_id, 'the cats')).toMatchObject({
      outcome: 'found',
      step: 1,
      verified: false,
    });
  });

  test('that was lost is shown next to the committed attempt', async () => {
    await h.profile('expert', [{ say: 'ok' }], { tools: ['look'] });
    const arrived = holdUp();
    const worker = await h.worker();
    const turn = await launch('expert');
    await arrived;
    await worker.close({ graceMs: 0 });
    gate = undefined;
    await h.worker();
    await ended(turn);
    const [committed, lost] = await Promise.all([
      h.runtime.explainStep(turn.turn_id),
      h.runtime.explainStep(turn.turn_id, { step: 1, attempt: 1 }),
    ]);
    expect(committed).toMatchObject({ step: 1, attempt: 2, verified: true });
    expect(lost).toMatchObject({ attempt: 1, verified: false, findings: [{ code: 'not_committed' }] });
    expect(lost.messages).toEqual(committed.messages);
    await checkPrompts(h.database.pool, model.requests);
  });
});

describe('explain on a prompt that cannot be verified', () => {
  let turn: Receipt;

  beforeEach(async () => {
    await h.profile('expert', [{ calls: [{ tool: 'look' }] }, { say: 'ok' }], { tools: ['look'] });
    const worker = await h.worker();
    turn = await ended(await launch('expert'));
    await worker.close();
  });

  const explain = (step: number) => h.runtime.explainStep(turn.turn_id, { step });

  test('names the card whose content was changed', async () => {
    await tamper(
      "update boxcar.cards set content = json_build_object('kind', 'text', 'text', 'Count the dogs.') where type = 'task.instruction'",
    );
    const explained = await explain(1);
    const card = cardWith(explained, 'Count the dogs.');
    expect(explained).toMatchObject({
      verified: false,
      findings: [{ code: 'card_altered', card_ids: [card.card_id] }],
    });
  });

  test('names the card that was erased', async () => {
    await tamper(
      "update boxcar.cards set content = null, erased_at = now(), erased_reason = 'asked for' where type = 'tool.result'",
    );
    expect(await explain(1)).toMatchObject({ verified: true });
    const explained = await explain(2);
    expect(explained).toMatchObject({ verified: false });
    expect(explained.findings[0]).toMatchObject({ code: 'card_erased', card_ids: [expect.any(String)] });
    expect(explained.messages.flatMap(({ cards }) => cards).filter((card) => card.is_erased)).toHaveLength(1);
  });

  test('names the first message in which the sources differ', async () => {
    await tamper("delete from boxcar.tape_entries where kind = 'tool_result'");
    const explained = await explain(2);
    expect(explained.verified).toBe(false);
    expect(explained.findings).toMatchObject([
      { code: 'manifest_differs', message: expect.stringContaining('from message 4 on') },
    ]);
  });

  test('reports another hash when nothing is missing', async () => {
    await tamper("update boxcar.steps set prompt_hash = sha256('x')");
    expect(await explain(1)).toMatchObject({ verified: false, findings: [{ code: 'prompt_differs' }] });
  });

  test('checks a step from before tools were stored by its manifest, and a step without tools by its hash', async () => {
    await tamper('update boxcar.steps set toolset_hash = null');
    const explained = await explain(1);
    expect(explained).toMatchObject({ verified: false, tools: null, findings: [{ code: 'tools_unknown' }] });
    expect(explained.findings[0]?.message).toContain('manifest');
    await h.profile('plain', [{ say: 'ok' }]);
    await h.worker();
    const plain = await ended(await launch('plain'));
    await tamper('update boxcar.steps set toolset_hash = null');
    expect(await h.runtime.explainStep(plain.turn_id)).toMatchObject({ verified: true, tools: [] });
  });
});

describe('the step that is requested', () => {
  test('is found by a prefix of its id, only within its project', async () => {
    await h.profile('expert', [{ say: 'ok' }]);
    await h.worker();
    const turn = await ended(await launch('expert'));
    // Ids that were made at the same moment begin alike.
    expect(await h.runtime.explainStep(turn.turn_id.slice(0, 30))).toMatchObject({ turn_id: turn.turn_id });
    await h.rows(
      `insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id)
       values (gen_random_uuid(), 'other', gen_random_uuid(), gen_random_uuid())`,
    );
    const options = { projectId: 'other' };
    await expect(h.runtime.explainStep(turn.turn_id, options)).rejects.toMatchObject({ code: 'not_found' });
    await expect(h.runtime.why(turn.turn_id, 'cats', options)).rejects.toMatchObject({ code: 'not_found' });
  });

  test.each([
    ['not an id', 'nonsense', {}, 'bad_request', 'is not a turn id'],
    ['not a turn', '00000000-0000-7000-8000-00000000dead', {}, 'not_found', 'No turn'],
    [
      'not a project',
      '00000000-0000-7000-8000-00000000dead',
      { projectId: 'nowhere' },
      'not_found',
      'No project',
    ],
  ])('is refused when it is %s', async (_what, ref, options, code, words) => {
    await expect(h.runtime.explainStep(ref, options)).rejects.toMatchObject({
      code,
      message: expect.stringContaining(words),
    });
  });

  test('is refused with the list of steps and attempts when it does not exist', async () => {
    await h.profile('expert', [{ calls: [{ tool: 'look' }] }, { say: 'ok' }], { tools: ['look'] });
    const waiting = await launch('expert');
    const explain = (choice = {}) => h.runtime.explainStep(waiting.turn_id, choice);
    await expect(explain()).rejects.toMatchObject({
      code: 'not_found',
      message: expect.stringMatching(/no step yet: it is (queued|dispatched)/),
    });
    await h.worker();
    await ended(waiting);
    await expect(explain({ step: 9 })).rejects.toMatchObject({
      code: 'not_found',
      message: expect.stringContaining('steps 1–2'),
    });
    await expect(explain({ step: 1, attempt: 3 })).rejects.toMatchObject({
      code: 'not_found',
      message: expect.stringContaining('it has 1'),
    });
    for (const text of ['', ' \n', 'x'.repeat(100_001)])
      await expect(h.runtime.why(waiting.turn_id, text)).rejects.toMatchObject({ code: 'bad_request' });
  });
});

describe('why', () => {
  const part = (answer: WhyAnswer, at = 0): WhyPart => {
    if (answer.outcome !== 'found') throw new Error(`not found: ${JSON.stringify(answer)}`);
    const found = answer.places[0]?.parts[at];
    if (found === undefined) throw new Error(`no part ${at}`);
    return found;
  };
  let turn: Receipt;
  const ask = (text: string, options = {}) => h.runtime.why(turn.turn_id, text, options);

  beforeEach(async () => {
    await h.profile(
      'expert',
      [
        { say: 'I look at it.', calls: [{ tool: 'look', arguments: { at: 'the "mat"\nthere' } }] },
        { say: 'One cat, I say.' },
      ],
      { instructions: 'You count animals, and nothing else.', tools: ['look'] },
    );
    await h.worker();
    turn = await ended(
      await launch('expert', {
        context_box_id: await box('A rule from the system.', { role: 'system' }),
        result_fields: undefined as unknown as JsonValue,
      }),
    );
  });

  test('attributes a card’s own words to the card, wherever they occur', async () => {
    expect(part(await ask('Count the cats'))).toMatchObject({
      rule: 'text',
      is_own: true,
      role: 'user',
      card: {
        type: 'task.instruction',
        place: { kind: 'context', rule: 'pack_arguments', argument: 'instruction' },
      },
    });
    expect(part(await ask('count animals'))).toMatchObject({
      rule: 'instructions',
      role: 'system',
      card: { type: 'sys.profile', place: { kind: 'profile', name: 'expert', version: 1 } },
    });
    expect(part(await ask('I look at it'))).toMatchObject({ rule: 'text', card: { type: 'agent.thought' } });
    expect(part(await ask('"at":"the'))).toMatchObject({ rule: 'arguments', card: { type: 'tool.call' } });
    expect(part(await ask('"seen":"a'))).toMatchObject({ rule: 'result', card: { type: 'tool.result' } });
  });

  test('attributes the words of a rule to the rule and its card', async () => {
    expect(part(await ask('Parent agent: '))).toMatchObject({
      rule: 'parent',
      is_own: false,
      card: { type: 'meta.parent_pointer', place: { rule: 'parent' } },
    });
    expect(part(await ask('[system note from'))).toMatchObject({
      rule: 'note',
      is_own: false,
      card: { type: 'note' },
    });
    expect(part(await ask('Looks at "everything"'))).toMatchObject({
      rule: 'tool_description',
      field: 'tool_schema',
      message: null,
      card: null,
      tool: { name: 'look', source: 'tool', offered_by: 'tools' },
    });
    expect(part(await ask('additionalProperties'))).toMatchObject({ rule: 'tool_parameters' });
  });

  test('splits a text with several sources into its parts, also across two messages', async () => {
    const framed = await ask('] A rule from');
    expect([part(framed, 0), part(framed, 1)]).toMatchObject([
      { text: '] ', rule: 'note', is_own: false },
      { text: 'A rule from', rule: 'text', is_own: true },
    ]);
    const spanning = await ask('nothing else. [system note');
    expect(spanning).toMatchObject({ outcome: 'found', match: 'whitespace' });
    expect([part(spanning, 0), part(spanning, 1)]).toMatchObject([
      { message: 1, rule: 'instructions', text: 'nothing else.' },
      { message: 2, rule: 'note', text: '[system note' },
    ]);
  });

  test('finds a text that was copied from a terminal', async () => {
    expect(await ask('You count\n    animals,  and')).toMatchObject({
      outcome: 'found',
      match: 'whitespace',
    });
    const cat = await ask('a "cat"\non a mat');
    expect(cat).toMatchObject({ outcome: 'found', match: 'unescaped' });
    expect(part(cat)).toMatchObject({ rule: 'result', text: 'a \\"cat\\"\\non a mat' });
  });

  test('lists all places, places in a card’s own words first, and all steps', async () => {
    const answer = await ask('look', { step: 2 });
    if (answer.outcome !== 'found') throw new Error('not found');
    expect(answer).toMatchObject({ step: 2, steps: [2], match: 'exact' });
    expect(answer.places[0]?.parts[0]).toMatchObject({ field: 'content', rule: 'text' });
    expect(answer.places.map(({ parts }) => parts[0]?.rule)).toContain('call_name');
    expect(answer.place_count).toBe(answer.places.length);
    expect(await ask('Count the cats.')).toMatchObject({ step: 1, steps: [1, 2] });
    expect(await ask('Count the cats.', { step: 2 })).toMatchObject({ step: 2, steps: [2] });
    const letters = await ask('e', { step: 2 });
    if (letters.outcome !== 'found') throw new Error('not found');
    expect(letters.places).toHaveLength(20);
    expect(letters.place_count).toBeGreaterThan(20);
  });

  test('says where a text is that no prompt shows', async () => {
    expect(await ask('One cat, I say.')).toMatchObject({
      outcome: 'not_found',
      searched_steps: [1, 2],
      hints: [{ kind: 'output', is_deliverable: true, card: { type: 'task.deliverable' } }],
    });
    expect(await ask('I look at it', { step: 1 })).toMatchObject({
      outcome: 'not_found',
      hints: [{ kind: 'other_steps', steps: [2] }],
    });
    expect(await ask('Count the cats and the dogs')).toMatchObject({
      outcome: 'not_found',
      hints: [{ kind: 'nearest', step: 1, text: 'Count the cats' }],
    });
    expect(await ask('zebra')).toEqual({
      turn_id: turn.turn_id,
      text: 'zebra',
      outcome: 'not_found',
      searched_steps: [1, 2],
      hints: [],
    });
  });

  test('says when the text is in a card that was left out', async () => {
    const hidden = await box('Nobody reads this.', { metadata: { context: false } });
    turn = await ended(await launch('expert', { context_box_id: hidden }));
    expect(await ask('Nobody reads this')).toMatchObject({
      outcome: 'not_found',
      hints: [{ kind: 'omitted', step: 1, reason: 'hidden', card: { type: 'note' } }],
    });
  });

  test.each(['newest', 'summary'])(
    'says when the budget of the context left the card out, by %s',
    async (strategy) => {
      const boxes = [];
      for (const words of ['The oldest card.', 'The second card.', 'The newest card.'])
        boxes.push(await box(`${words} ${words.toUpperCase().repeat(30)}`));
      turn = await ended(
        await launch('expert', { context_box_id: boxes, budget_tokens: 250, budget_strategy: strategy }),
      );
      await checkPrompts(h.database.pool, model.requests);
      const answer = await ask('THE OLDEST CARD.'.repeat(14));
      expect(answer).toMatchObject({
        outcome: 'not_found',
        hints: expect.arrayContaining([
          expect.objectContaining({
            kind: 'omitted',
            reason: 'budget',
            cut: { strategy, reason: expect.any(String) },
            card: expect.objectContaining({
              type: 'note',
              place: expect.objectContaining({
                position: null,
                rule: 'inherit',
                first: expect.objectContaining({ box_id: boxes[0], position: 1, rule: 'create_box' }),
              }),
            }),
          }),
        ]),
      });
    },
  );

  test('names the rule that produced notices, reminders, quoted calls and results, anchors and result fields', async () => {
    await h.profile(
      'heir',
      [{ say: 'done?' }, { calls: [{ tool: 'submit_result', arguments: { result: { n: 1 } } }] }],
      {
        tools: ['submit_result'],
        limits: { max_steps: 3 },
      },
    );
    const anchor = await box('the state', { type: 'tape.anchor', metadata: { name: 'phase' } });
    turn = await ended(
      await launch('heir', {
        context_box_id: [turn.output_box_id, anchor],
        result_fields: [{ name: 'n', description: 'how many' }],
      }),
    );
    const rules = async (text: string) => part(await ask(text)).rule;
    expect(await rules('called look]')).toBe('quoted_call');
    expect(await rules('[result of look for')).toBe('quoted_result');
    expect(await rules('[Anchor created: phase]')).toBe('anchor');
    expect(await rules('Result fields:')).toBe('result_fields');
    expect(await rules('how many')).toBe('fields');
    expect(await rules('End this task by calling submit_result')).toBe('result_fields');
    const reminder = part(await ask('This task ends only with a call of'));
    expect(reminder).toMatchObject({ rule: 'text', card: { notice: 'reminder', author: { id: 'kernel' } } });
    expect(part(await ask('Two steps are left'))).toMatchObject({ card: { notice: 'steps_left' } });
    await checkPrompts(h.database.pool, model.requests);
  });
});

test('explains and searches a turn of many steps like any other turn', async () => {
  const steps = Array.from({ length: 50 }, (_none, index) => ({
    say: `Look ${index + 1}.`,
    calls: [{ tool: 'look' }],
  }));
  await h.profile('expert', [...steps, { say: 'ok' }], { tools: ['look'], limits: { max_steps: 60 } });
  await h.worker();
  const turn = await ended(await launch('expert'));
  expect(await h.runtime.explainStep(turn.turn_id)).toMatchObject({ step: 51, verified: true });
  expect(await h.runtime.why(turn.turn_id, 'Look 49.')).toMatchObject({
    step: 50,
    steps: [50, 51],
    verified: true,
  });
  expect(await h.runtime.why(turn.turn_id, 'Look 49 times.')).toMatchObject({
    outcome: 'not_found',
    searched_steps: { length: 51 },
    hints: [{ kind: 'nearest', step: 50, text: 'Look 49' }],
  });
});

describe('the number of statements', () => {
  const cost = async (work: () => Promise<unknown>): Promise<number> =>
    (await statementsOf(h.database, work)).length;

  test('is the same for one card and for forty cards in forty boxes', async () => {
    await h.profile('expert', [{ calls: [{ tool: 'look' }] }, { say: 'ok' }], { tools: ['look'] });
    const worker = await h.worker();
    const boxes: BoxId[] = [];
    for (let i = 0; i < 40; i++) boxes.push(await box(`card ${i}`));
    const [few, many] = [
      await ended(await launch('expert')),
      await ended(await launch('expert', { context_box_id: boxes })),
    ];
    await worker.close();
    const explain = (turn: Receipt) => () => h.runtime.explainStep(turn.turn_id);
    const why = (turn: Receipt) => () => h.runtime.why(turn.turn_id, 'Count');
    const statements = await cost(explain(few));
    expect(statements).toBe(12);
    expect(await cost(explain(many))).toBe(statements);
    expect(await cost(why(few))).toBe(statements);
    expect(await cost(why(many))).toBe(statements);
  });

  test('of a step does not grow with its tools: a process writes a list of tools once', async () => {
    await h.profile('expert', [{ say: 'ok' }], { tools: ['look'] });
    await h.worker();
    const writes = (statements: readonly string[]) =>
      statements.filter((statement) => /^\s*insert .*into boxcar\.toolsets/.test(statement)).length;
    const play = async () => void (await ended(await launch('expert')));
    expect(writes(await statementsOf(h.database, play))).toBe(1);
    expect(writes(await statementsOf(h.database, play))).toBe(0);
    const [kept] = await h.rows('select count(*)::int as n from boxcar.toolsets');
    expect(kept).toEqual({ n: 1 });
    await waitFor(
      async () => (await h.rows('select 1 from boxcar.steps where toolset_hash is not null')).length === 2,
      {
        message: 'both steps name their tools',
      },
    );
  });
});
