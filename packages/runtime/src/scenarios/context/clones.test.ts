/** A clone has the same view as its source now: in the same order and form, including compaction. */
import type { JsonValue, Message, Segment, TurnId } from '@boxcar/kernel';
import type { ScriptedFunction } from '@boxcar/llm';
import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { checkPrompts } from '../../testing/check-prompts.js';
import { type Harness, harness } from '../../testing/harness.js';
import { checkInvariants } from '../../testing/invariants.js';
import { type RecordingModel, recordingModel } from '../../testing/recording-model.js';

let h: Harness;
let model: RecordingModel;
/** The cards that the clone expands, step by step. */
let expands: readonly string[];
const functions: Record<string, ScriptedFunction> = {
  clone: ({ turn }, { call }) => {
    const wanted = expands[turn.step - 1];
    if (!String(turn.instruction).startsWith('clone') || wanted === undefined) return { text: 'cloned' };
    return { toolCalls: [call('expand', { card_id: wanted })] };
  },
};

beforeAll(async () => {
  model = recordingModel(functions);
  h = await harness({ model });
  h.runtime.registerTool({
    name: 'read',
    description: 'Reads a file.',
    input: z.strictObject({ file: z.string(), length: z.number() }),
    isReadOnly: true,
    run: ({ file, length }) => `${file} `.repeat(length / (file.length + 1)),
  });
  await h.worker();
});

beforeEach(() => {
  expands = [];
});

afterAll(async () => {
  expect(model.findings()).toEqual([]);
  await checkInvariants(h.database.pool);
  await checkPrompts(h.database.pool, model.requests);
  await h[Symbol.asyncDispose]();
});

interface Receipt {
  readonly turn_id: TurnId;
  readonly agent_id: string;
  readonly output_box_id: string;
  readonly context_box_id: string;
}
const submit = async (primitive: string, args: object, as?: string): Promise<Receipt> =>
  (await h.runtime.submit(
    primitive,
    args,
    as === undefined ? {} : { sourceAgentId: as },
  )) as unknown as Receipt;
const end = ({ turn_id: id }: Receipt) => h.runtime.waitForTurn(id, { timeoutMs: 60_000 });
const launch = async (profile_name: string, rest: object = {}): Promise<Receipt> => {
  const receipt = await submit('launch_principal', { profile_name, instruction: 'Read all files.', ...rest });
  await end(receipt);
  return receipt;
};
const clone = async (target_ref: string, rest: object = {}, as?: string): Promise<Receipt> => {
  const args = { target_strategy: 'clone', target_ref, instruction: 'clone it', ...rest };
  const receipt = await submit('delegate_async', args, as);
  await end(receipt);
  return receipt;
};
const messagesOf = ({ turn_id }: Receipt, at = -1): readonly Message[] =>
  model.of(turn_id).at(at)?.messages ?? [];
const line = ({ role, content, ...rest }: Message): string =>
  `${role}: ${'toolCalls' in rest ? JSON.stringify(rest.toolCalls?.map(({ name }) => name)) : ''}${content}`;
const linesOf = (receipt: Receipt, at = -1): readonly string[] => messagesOf(receipt, at).map(line);
const read = (file: string, length: number) => ({ calls: [{ tool: 'read', arguments: { file, length } }] });
const statusOf = async (receipt: Receipt) => (await h.runtime.waitForTurn(receipt.turn_id)).status;
/** Equal packed content has equal text, except for the line that names the parent. */
const historyOf = (lines: readonly string[]): readonly string[] =>
  lines.slice(1).map((text) => text.replace('[inherited] Parent', 'Parent'));

const overflowing: readonly JsonValue[] = [
  read('alpha', 2_000),
  read('beta', 60_000),
  { overflow: true, calls: [{ tool: 'read', arguments: { file: 'c', length: 40 } }] },
  { say: 'all read' },
];
/** A profile in whose only turn a large result becomes a reference. Its clones, by the same profile, run a script of their own. */
async function compacted(name: string, rest: object = {}): Promise<Receipt> {
  await h.profile(name, overflowing, { tools: ['read'], ...rest });
  const source = await launch(name);
  expect(await statusOf(source)).toBe('success');
  // From here on, the agent has a version of the profile whose model is the scripted function.
  await h.runtime.applyProfile({
    name,
    instructions: `You are ${name}.`,
    model: 'scripted:clone',
    tools: ['read'],
  });
  await h.runtime.submit('provision_agent', {
    action: 'ensure',
    agent_id: source.agent_id,
    profile_version: 'current',
  });
  return source;
}

describe('a clone of an agent whose view begins with a compaction', () => {
  test('sees its source’s references in their order, fits, and may expand them', async () => {
    const source = await compacted('reader');
    // The current view of the source itself.
    const next = await submit('delegate_async', {
      target_strategy: 'reuse',
      target_ref: source.agent_id,
      instruction: 'go on',
    });
    await end(next);
    const shown = linesOf(next, 0);
    const at = shown.findIndex((text) => text.startsWith('user: Parent agent'));
    const seen = shown.slice(0, at);
    expect(seen.join('\n')).toMatch(/\[tool\.result, about 15000 tokens/);

    const [reference] =
      /[0-9a-f-]{36}/.exec(seen.find((text) => text.includes('about 15000 tokens')) ?? '') ?? [];
    const [summary] =
      /[0-9a-f-]{36}/.exec(seen.find((text) => text.startsWith('user: [The conversation')) ?? '') ?? [];
    expands = [String(reference), String(summary), '00000000-0000-7000-8000-000000000001'];
    const made = await clone(source.agent_id);
    expect(await statusOf(made)).toBe('success');
    expect(linesOf(made, 0).slice(0, seen.length)).toEqual(seen);
    expect(model.of(made.turn_id)[0]?.tools.map(({ name }) => name)).toContain('expand');
    const answers = messagesOf(made)
      .filter(({ role }) => role === 'tool')
      .slice(-3);
    expect(answers[0]?.content).toMatch(/"text":"beta beta .*"next_from":/);
    expect(answers[1]?.content).toMatch(/"cards":\[\{.*Read all files\./);
    expect(answers[2]?.content).toMatch(/not_found/);

    // A clone of the clone, and a later turn of that clone, have the same view.
    const second = await clone(made.agent_id, { instruction: 'once more' });
    expect(linesOf(second, 0).slice(0, seen.length)).toEqual(seen);
    expands = [String(reference)];
    const later = await submit('delegate_async', {
      target_strategy: 'reuse',
      target_ref: second.agent_id,
      instruction: 'clone again',
    });
    await end(later);
    expect(linesOf(later, 0).slice(0, seen.length)).toEqual(seen);
    expect(messagesOf(later).findLast(({ role }) => role === 'tool')?.content).toMatch(/"text":"beta beta/);
    // The whole history differs from the current view.
    const full = await clone(source.agent_id, { history: 'full', instruction: 'whole' });
    expect(linesOf(full, 0).join('\n')).toContain('beta '.repeat(5_000));
  });

  test('sees its source’s context as the compacted turn shows it', async () => {
    const text = (id: string, words: number) => ({
      type: 'note',
      content: { kind: 'text', text: `${id} ${'word '.repeat(words)}` },
    });
    const { box_id } = (await h.runtime.submit('create_box', {
      cards: [text('small', 10), text('large', 120_000)],
    })) as { box_id: string };
    let open = (): void => undefined;
    const gate = new Promise<void>((resolve) => {
      open = resolve;
    });
    functions.holds = async ({ turn }) => {
      if (turn.instruction === 'Read all files.') await gate;
      return { text: 'held' };
    };
    await h.runtime.applyProfile({
      name: 'holder',
      instructions: 'You hold.',
      model: 'scripted:holds',
      limits: { context_tokens: 40_000 },
    });
    const source = await submit('launch_principal', {
      profile_name: 'holder',
      instruction: 'Read all files.',
      context_box_id: box_id,
    });
    await waitFor(() => model.of(source.turn_id).length > 0, { message: 'the source asks its model' });
    const seen = linesOf(source, -1);
    expect(seen.join('\n')).toMatch(/\[note, about \d+ tokens, left out/);
    const made = await clone(source.agent_id);
    open();
    await end(source);
    const shown = linesOf(made, 0);
    expect(historyOf(shown).slice(0, seen.length - 1)).toEqual(historyOf(seen));
    expect(await statusOf(made)).toBe('success');
  });

  test('may not expand the cards of a summary when its maker has only a grant for the tape', async () => {
    const source = await compacted('lent');
    await h.profile('guest', [{ say: 'x' }], { delegation_policy: { target_profiles: null } });
    const guest = (
      await submit('provision_agent', { action: 'create', agent_id: 'guest-1', profile_name: 'guest' })
    ).agent_id;
    await h.runtime.submit('grant_box', { box_id: source.output_box_id, grantee: guest });
    const made = await clone(source.agent_id, { instruction: 'look' }, guest);
    const lines = linesOf(made, 0);
    const idIn = (start: RegExp): string =>
      /[0-9a-f-]{36}/.exec(lines.find((text) => start.test(text)) ?? '')?.[0] ?? '';
    expands = [idIn(/about 15000 tokens/), idIn(/^user: \[The conversation/)];
    const again = await clone(source.agent_id, {}, guest);
    const answers = messagesOf(again)
      .filter(({ role }) => role === 'tool')
      .slice(-2);
    expect(answers[0]?.content).toMatch(/"text":"beta beta/);
    expect(answers[1]?.content).toMatch(/not_found/);
  });

  test('gives the same limits to a session that such an agent forks from it, and to a clone of that session', async () => {
    const source = await compacted('forked');
    await h.profile('keeper', [{ say: 'x' }], { delegation_policy: { target_profiles: null } });
    const args = { action: 'create', agent_id: 'guest-2', profile_name: 'keeper' };
    const guest = (await submit('provision_agent', args)).agent_id;
    await h.runtime.submit('grant_box', { box_id: source.output_box_id, grantee: guest });
    let forks = 0;
    const fork = async (as: string) =>
      (await h.runtime.tape({ agent: source.agent_id }, { as })).forkSession(`fork-${++forks}`);
    const answersOf = async (target_ref: string, strategy: 'reuse' | 'clone', as: string) => {
      const args = { target_strategy: strategy, target_ref, instruction: 'clone it' };
      const made = await submit('delegate_async', args, as);
      await end(made);
      return messagesOf(made)
        .filter(({ role }) => role === 'tool')
        .slice(-2)
        .map(({ content }) => content);
    };
    const [anchor] = await h.rows<{ summary: string; references: readonly string[] }>(
      `select c.metadata->'compaction'->>'summary' as summary, c.metadata->'compaction'->'references' as references from boxcar.tape_entries e
        join boxcar.cards c on c.id = e.card_id where e.box_id = $1 and c.metadata ? 'compaction'`,
      [source.output_box_id],
    );
    expands = [anchor?.references[0] ?? '', anchor?.summary ?? ''];
    const foreign = await fork(guest);
    for (const strategy of ['reuse', 'clone'] as const) {
      const answers = await answersOf(foreign.name, strategy, guest);
      expect(answers[0]).toMatch(/"text":"beta beta/);
      // The text of the summary is on the tape.
      expect(answers[1]).toMatch(strategy === 'reuse' ? /"text":"\[The conversation/ : /not_found/);
      expect(answers[1]).not.toContain('task.instruction');
    }
    const own = await fork('operator');
    const [reference, summary] = await answersOf(own.name, 'reuse', 'operator');
    expect(reference).toMatch(/"text":"beta beta/);
    expect(summary).toMatch(/"type":"task.instruction".*Read all files\./);

    // An agent that may read the context of a clone does not get the rights of the clone.
    expands = [];
    const copy = await clone(source.agent_id);
    for (const box_id of [copy.output_box_id, copy.context_box_id])
      await h.runtime.submit('grant_box', { box_id, grantee: guest });
    expands = [anchor?.references[0] ?? '', anchor?.summary ?? ''];
    for (const as of [guest, 'operator']) {
      const tape = await h.runtime.tape({ agent: copy.agent_id }, { as });
      const session = await tape.forkSession(`fork-${++forks}`, { view: 'full' });
      for (const strategy of ['reuse', 'clone'] as const) {
        const answers = await answersOf(session.name, strategy, as);
        expect(answers[0]).toMatch(/"text":"beta beta/);
        if (as === guest) expect(answers[1]).not.toContain('task.instruction');
        else expect(answers[1]).toContain('task.instruction');
      }
    }
  });
});

describe('a clone whose boxes name cards of its history', () => {
  test('still sees its history whole and in order', async () => {
    await h.profile('doer', [{ ...read('alpha', 20), say: 'reading' }, { say: 'done' }], { tools: ['read'] });
    const source = await launch('doer', { instruction: 'the first task' });
    const { box_id } = (await h.runtime.submit('create_box', {
      cards: [{ type: 'note', content: { kind: 'text', text: 'a note' } }],
    })) as { box_id: string };
    const plain = await clone(source.agent_id);
    const named = await clone(source.agent_id, {
      context_box_id: [box_id, source.context_box_id, source.output_box_id],
    });
    const [system, ...history] = linesOf(plain, 0);
    expect(history.slice(0, 5)).toEqual([
      'user: [inherited] Parent agent: agent:operator',
      'user: the first task',
      'assistant: ["read"]reading',
      expect.stringMatching(/^tool: alpha/),
      'assistant: done',
    ]);
    expect(linesOf(named, 0)).toEqual([system, 'user: a note', ...history]);
    // The box still stores each card at its first place: the list of cards does not change.
    const [box] = await h.rows<{ segments: Segment[] }>('select segments from boxcar.boxes where id = $1', [
      named.context_box_id,
    ]);
    const repeated = box?.segments.filter(({ repeats }) => repeats !== undefined) ?? [];
    expect(repeated.map(({ rule, count }) => ({ rule, count }))).toEqual([
      { rule: 'snapshot', count: 0 },
      { rule: 'snapshot', count: 0 },
      { rule: 'snapshot', count: 0 },
    ]);
    for (const { skip, repeats } of repeated) expect(skip).toEqual(repeats);
    // With only a tape as context, the question is not moved out of the history.
    const byTape = await clone(source.agent_id, { context_box_id: source.output_box_id });
    expect(linesOf(byTape, 0)).toEqual([system, ...history]);
    // A clone of the agent has the view that the agent had.
    const second = await clone(named.agent_id);
    expect(linesOf(second, 0).slice(0, history.length + 1)).toEqual([
      system,
      'user: a note',
      ...history.slice(0, -2),
      expect.stringMatching(/^user: \[inherited\] Parent agent/),
    ]);
  });
});
