import { describe, expect, test } from 'vitest';
import { canonicalJson, type JsonValue, sha256 } from '../base/json.js';
import { CARD_TYPES } from '../card/card.js';
import type { Message } from '../card/message.js';
import {
  argument,
  CardMaker,
  inherited,
  native,
  OTHER,
  parent,
  TestTape,
  testId,
} from '../testing/view-rows.js';
import { checkMessages } from './check-messages.js';
import { canSubmitResult, resultFieldsOf, type ViewRows } from './context.js';
import { promptHash } from './prompt-hash.js';
import { buildView, type View } from './view.js';

/** A message in one line: its role, its content, its calls. */
function line(message: Message): string {
  if (message.role === 'tool')
    return `tool ${message.toolCallId}${message.isError ? ' error' : ''}: ${message.content}`;
  const calls = message.role === 'assistant' ? (message.toolCalls ?? []) : [];
  return [`${message.role}: ${message.content}`, ...calls.map(({ id, name }) => `${name}(${id})`)].join(
    ' | ',
  );
}

/** The view without its system message, as lines, after a check that no provider refuses it. */
function linesOf(rows: ViewRows): readonly string[] {
  const { messages } = buildView(rows);
  expect(checkMessages(messages, [])).toEqual([]);
  return messages.filter(({ role }) => role !== 'system').map(line);
}

const reasonsOf = (view: View): readonly string[] => view.manifest.omitted.map(({ reason }) => reason);

function setup(): { readonly cards: CardMaker; readonly tape: TestTape } {
  return { cards: new CardMaker(), tape: new TestTape() };
}

const NOT_AVAILABLE =
  '{"error":{"code":"not_available","message":"The result of this call is not available."}}';

describe('the order of a prompt', () => {
  test('the part that siblings share ends after the inherited cards of the turn', () => {
    const { cards, tape } = setup();
    tape.begin(1, [
      argument(cards.instruction('Count.')),
      inherited(cards.text('user', 'from a box', { authorId: OTHER })),
      inherited(cards.text('user', 'and another', { authorId: OTHER })),
      parent(cards.parent(OTHER)),
    ]);
    const { messages, sharedMessages = 0 } = buildView(tape.rows());
    expect(messages[sharedMessages - 1]?.content).toBe('and another');
    const alone = setup();
    alone.tape.begin(1, [argument(alone.cards.instruction('Count.'))]);
    expect(buildView(alone.tape.rows()).sharedMessages).toBeUndefined();
  });

  test('the prompt is instructions, inherited cards, parent line, packed arguments, then the steps', () => {
    const { cards, tape } = setup();
    const turnId = tape.begin(1, [
      argument(cards.instruction('Count.')),
      argument(cards.text('user', 'input')),
      inherited(cards.text('user', 'from a box', { authorId: OTHER })),
      parent(cards.parent(OTHER)),
    ]);
    tape.add(cards.thought('I look.'), { turnId, step: 1 });
    tape.add(cards.call('k1', 'list', { path: '.' }), { turnId, step: 1 });
    tape.add(cards.result('k1', 'list', ['a', 'b']), { turnId, step: 1 });
    expect(buildView(tape.rows()).messages).toEqual([
      { role: 'system', content: 'You work.' },
      { role: 'user', content: 'from a box' },
      { role: 'user', content: `Parent agent: ${OTHER}` },
      { role: 'user', content: 'Count.' },
      { role: 'user', content: 'input' },
      {
        role: 'assistant',
        content: 'I look.',
        toolCalls: [{ id: 'k1', name: 'list', arguments: { path: '.' } }],
      },
      { role: 'tool', toolCallId: 'k1', name: 'list', content: '["a","b"]', isError: false },
    ]);
  });

  test('blank instructions of a profile make no system message', () => {
    const { cards, tape } = setup();
    tape.begin(1, [argument(cards.instruction('Count.'))]);
    expect(buildView(tape.rows({ instructions: ' \n' })).messages).toEqual([
      { role: 'user', content: 'Count.' },
    ]);
  });

  test('an agent that is used again sees its earlier turns in place, each with its instruction', () => {
    const { cards, tape } = setup();
    const first = tape.begin(1, [argument(cards.instruction('First.'))]);
    tape.add(cards.thought('One.'), { turnId: first, step: 1 });
    tape.add(cards.text('user', 'a note from outside'));
    tape.begin(2, [argument(cards.instruction('Second.'))]);
    const rows = tape.rows();
    expect(linesOf(rows)).toEqual([
      'user: First.',
      'assistant: One.',
      'user: a note from outside',
      'user: Second.',
    ]);
    const view = buildView(rows);
    expect(view.firstMessage).toBe(4);
    expect(view.instruction).toBe('Second.');
  });

  test('the state of the last anchor is first, then the context of a turn that began before it', () => {
    const { cards, tape } = setup();
    const turnId = tape.begin(1, [argument(cards.instruction('Count.'))]);
    tape.add(cards.thought(''), { turnId, step: 1 });
    tape.add(cards.call('k1', 'list', {}), { turnId, step: 1 });
    tape.add(cards.result('k1', 'list', 'old'), { turnId, step: 1 });
    tape.anchor('phase-1', cards.anchor({ done: 1 }));
    tape.anchor('phase-2', cards.anchor({ done: 2 }));
    tape.add(cards.text('user', 'news'));
    const rows = tape.rows();
    expect(linesOf(rows)).toEqual([
      'user: [context]',
      'assistant: [Anchor created: phase-2]: {"done": 2}',
      'user: Count.',
      'user: news',
    ]);
    expect(buildView(rows).firstMessage).toBe(3);
  });

  test('a turn that began after the anchor is expanded in place', () => {
    const { cards, tape } = setup();
    tape.anchor('phase-1', cards.card('tape.anchor', null, { kind: 'text', text: 'all read' }));
    tape.add(cards.text('user', 'before'));
    tape.begin(1, [argument(cards.instruction('Count.'))]);
    expect(linesOf(tape.rows())).toEqual([
      'user: [context]',
      'assistant: [Anchor created: phase-1]: "all read"',
      'user: before',
      'user: Count.',
    ]);
  });

  test('the bootstrap anchor is not shown, and an anchor without a state shows null', () => {
    const { cards, tape } = setup();
    tape.begin(1, [argument(cards.instruction('Count.'))]);
    const rows = tape.rows();
    const bootstrap = cards.anchor({ owner: 'human' });
    const entry = { position: 1, kind: 'anchor', card: bootstrap, payload: null } as const;
    const entries = [{ ...entry, anchorName: 'session/start', turnId: null, step: null }, ...rows.entries];
    expect(linesOf({ ...rows, entries })).toEqual(linesOf(rows));
    tape.anchor('empty', cards.anchor(null));
    expect(linesOf(tape.rows())).toEqual([
      'user: [context]',
      'assistant: [Anchor created: empty]: null',
      'user: Count.',
    ]);
  });

  test('rows that lack the last anchor or a context box are refused', () => {
    const { cards, tape } = setup();
    tape.begin(1, [argument(cards.instruction('Count.'))]);
    tape.anchor('phase-1', cards.anchor({}));
    const rows = tape.rows();
    expect(() => buildView({ ...rows, entries: [] })).toThrow(/lack the last anchor, at position 4/);
    expect(() => buildView({ ...rows, contexts: new Map() })).toThrow(/lack the context box/);
  });
});

describe('the content of a prompt', () => {
  test('a card is shown once, at its first place', () => {
    const { cards, tape } = setup();
    const shared = cards.text('user', 'shared');
    tape.add(shared);
    tape.begin(1, [argument(cards.instruction('Count.')), inherited(shared)]);
    tape.add(shared);
    const view = buildView(tape.rows());
    expect(view.messages.map(line)).toEqual(['system: You work.', 'user: shared', 'user: Count.']);
    expect(reasonsOf(view)).toEqual(['duplicate', 'duplicate']);
  });

  test('a hidden card is left out, with its reason', () => {
    const { cards, tape } = setup();
    const metadata = { context: false };
    tape.begin(1, [
      argument(cards.instruction('Count.')),
      inherited(cards.text('user', 'secret', { metadata })),
    ]);
    tape.add(cards.text('user', 'secret', { metadata }));
    const view = buildView(tape.rows());
    expect(view.messages.map(line)).toEqual(['system: You work.', 'user: Count.']);
    expect(reasonsOf(view)).toEqual(['hidden', 'hidden']);
  });

  test('a hidden call is left out with its result, and a hidden result is replaced by a fixed text', () => {
    const { cards, tape } = setup();
    const metadata = { context: false };
    const turnId = tape.begin(1, [argument(cards.instruction('Count.'))]);
    const step = { turnId, step: 1 };
    tape.add(cards.thought('Two.'), step);
    tape.add(cards.call('k1', 'list', {}, { metadata }), step);
    tape.add(cards.call('k2', 'list', {}), step);
    tape.add(cards.result('k1', 'list', 'one'), step);
    tape.add(cards.result('k2', 'list', 'two', { metadata }), step);
    const view = buildView(tape.rows());
    expect(view.messages.slice(2).map(line)).toEqual([
      'assistant: Two. | list(k2)',
      `tool k2 error: ${NOT_AVAILABLE}`,
    ]);
    expect(reasonsOf(view)).toEqual(['hidden', 'call_hidden', 'hidden']);
  });

  test('a deliverable that repeats the preceding text is left out', () => {
    const { cards, tape } = setup();
    const turnId = tape.begin(1, [argument(cards.instruction('First.'))]);
    tape.add(cards.thought('One.'), { turnId, step: 1 });
    tape.add(cards.card('task.deliverable', 'assistant', { kind: 'text', text: 'One.' }), {
      turnId,
      step: 1,
    });
    tape.begin(2, [argument(cards.instruction('Second.'))]);
    tape.add(cards.card('task.deliverable', 'assistant', { kind: 'json', data: { n: 1 } }));
    const view = buildView(tape.rows());
    expect(view.messages.slice(1).map(line)).toEqual([
      'user: First.',
      'assistant: One.',
      'user: Second.',
      'assistant: {"n":1}',
      'user: [continue]',
    ]);
    expect(reasonsOf(view)).toEqual(['repeated']);
  });

  test('an event other than turn.started is not shown, and a turn begins once', () => {
    const { cards, tape } = setup();
    tape.begin(1, [argument(cards.instruction('Count.'))], 2);
    tape.event('cost', { usd: 1 });
    tape.begin(1, [argument(cards.instruction('Count.'))], 2);
    expect(linesOf(tape.rows())).toHaveLength(2);
  });
});

describe('steps', () => {
  test('calls of a step share one message, and their results follow in the order of the calls', () => {
    const { cards, tape } = setup();
    const turnId = tape.begin(1, [argument(cards.instruction('Count.'))]);
    const step = { turnId, step: 1 };
    tape.add(cards.thought(' '), step);
    tape.add(cards.call('k1', 'list', {}), step);
    tape.add(cards.call('k2', 'read', {}), step);
    tape.add(cards.result('k2', 'read', 'two'), step);
    tape.add(cards.result('k1', 'list', 'one'), step);
    expect(linesOf(tape.rows()).slice(1)).toEqual([
      'assistant:  | list(k1) | read(k2)',
      'tool k1: one',
      'tool k2: two',
    ]);
  });

  test('the kernel’s own call id is shown, so a provider that repeats its ids causes no error', () => {
    const { cards, tape } = setup();
    const turnId = tape.begin(1, [argument(cards.instruction('Count.'))]);
    for (const step of [1, 2]) {
      tape.add(cards.call(`k${step}`, 'list', {}), { turnId, step });
      tape.add(cards.result(`k${step}`, 'list', step), { turnId, step });
    }
    expect(linesOf(tape.rows()).filter((text) => text.startsWith('tool'))).toEqual([
      'tool k1: 1',
      'tool k2: 2',
    ]);
  });

  test('an entry from outside between a call and its result is shown after the result', () => {
    const { cards, tape } = setup();
    const turnId = tape.begin(1, [argument(cards.instruction('Count.'))]);
    tape.add(cards.thought(''), { turnId, step: 1 });
    tape.add(cards.text('user', 'between thought and call'));
    tape.add(cards.call('k1', 'list', {}), { turnId, step: 1 });
    tape.add(cards.text('assistant', 'between call and result', { authorId: OTHER }));
    tape.add(cards.result('k1', 'list', 'one'), { turnId, step: 1 });
    expect(linesOf(tape.rows()).slice(1)).toEqual([
      'assistant:  | list(k1)',
      'tool k1: one',
      'user: between thought and call',
      'assistant: between call and result',
      'user: [continue]',
    ]);
  });

  test('an anchor that is written while calls are open is shown after the whole step', () => {
    const { cards, tape } = setup();
    const turnId = tape.begin(1, [argument(cards.instruction('Count.'))]);
    tape.add(cards.thought('Hidden.'), { turnId, step: 1 });
    tape.add(cards.call('k1', 'list', {}), { turnId, step: 1 });
    tape.add(cards.result('k1', 'list', 'hidden'), { turnId, step: 1 });
    tape.add(cards.thought('I hand off.'), { turnId, step: 2 });
    tape.add(cards.call('k2', 'tape.handoff', { name: 'phase-1' }), { turnId, step: 2 });
    tape.add(cards.call('k3', 'read', {}), { turnId, step: 2 });
    tape.add(cards.text('user', 'hidden: before the anchor'));
    tape.anchor('phase-1', cards.anchor({ summary: 's' }), { turnId, step: 2 });
    tape.add(cards.text('user', 'shown: after the anchor'));
    tape.add(cards.result('k2', 'tape.handoff', 'anchor added'), { turnId, step: 2 });
    tape.add(cards.result('k3', 'read', 'a file'), { turnId, step: 2 });
    const rows = tape.rows();
    expect(rows.entries[0]?.position).toBe(7);
    expect(linesOf(rows)).toEqual([
      'user: [context]',
      'assistant: I hand off. | tape.handoff(k2) | read(k3)',
      'tool k2: anchor added',
      'tool k3: a file',
      'assistant: [Anchor created: phase-1]: {"summary": "s"}',
      'user: Count.',
      'user: shown: after the anchor',
    ]);
    const view = buildView(rows);
    expect(reasonsOf(view)).toEqual(['before_anchor']);
    expect(view.firstMessage).toBe(1);
  });

  test('a step of an earlier turn that an anchor divided is also shown before the anchor', () => {
    const { cards, tape } = setup();
    const first = tape.begin(1, [argument(cards.instruction('First.'))]);
    tape.add(cards.call('k1', 'list', {}), { turnId: first, step: 1 });
    tape.anchor('phase-1', cards.anchor({}));
    tape.add(cards.result('k1', 'list', 'one'), { turnId: first, step: 1 });
    tape.begin(2, [argument(cards.instruction('Second.'))]);
    expect(linesOf(tape.rows()).slice(1)).toEqual([
      'assistant:  | list(k1)',
      'tool k1: one',
      'assistant: [Anchor created: phase-1]: {}',
      'user: Second.',
    ]);
  });

  test('a call that was never answered gets a fixed answer', () => {
    const { cards, tape } = setup();
    const first = tape.begin(1, [argument(cards.instruction('First.'))]);
    tape.add(cards.call('k1', 'list', {}), { turnId: first, step: 1 });
    tape.add(cards.call('k2', 'list', {}), { turnId: first, step: 1 });
    tape.add(cards.result('k2', 'list', 'two'), { turnId: first, step: 1 });
    tape.begin(2, [argument(cards.instruction('Second.'))]);
    expect(linesOf(tape.rows())).toEqual([
      'user: First.',
      'assistant:  | list(k1) | list(k2)',
      `tool k1 error: ${NOT_AVAILABLE}`,
      'tool k2: two',
      'user: Second.',
    ]);
  });

  test('a result that arrives after the next turn began is quoted there, so that no earlier prompt changes', () => {
    const { cards, tape } = setup();
    const first = tape.begin(1, [argument(cards.instruction('First.'))]);
    tape.add(cards.call('k1', 'list', {}), { turnId: first, step: 1 });
    tape.begin(2, [argument(cards.instruction('Second.'))]);
    const before = buildView(tape.rows()).messages;
    tape.add(cards.result('k1', 'list', 'late'), { turnId: first, step: 1 });
    const { messages } = buildView(tape.rows());
    expect(messages.slice(0, before.length)).toEqual(before);
    expect(messages.slice(before.length).map(line)).toEqual(['user: [result of list for you: success] late']);
  });

  test('only a result of the same step answers a call; any other result that names it is quoted', () => {
    const { cards, tape } = setup();
    const turnId = tape.begin(1, [argument(cards.instruction('Count.'))]);
    tape.add(cards.call('k1', 'list', {}), { turnId, step: 1 });
    tape.add(cards.result('k1', 'list', 'one'), { turnId, step: 1 });
    tape.add(cards.call('k2', 'list', {}), { turnId, step: 2 });
    tape.add(cards.result('k2', 'list', 'from outside', { authorId: OTHER }));
    tape.add(cards.result('k2', 'list', 'of another step'), { turnId, step: 1 });
    tape.add(cards.result('k2', 'list', 'two'), { turnId, step: 2 });
    expect(linesOf(tape.rows()).slice(3)).toEqual([
      'assistant:  | list(k2)',
      'tool k2: two',
      'user: [result of list for you: success] from outside',
      'user: [result of list for you: success] of another step',
    ]);
  });

  test('a result without a call is left out, with its reason', () => {
    const { cards, tape } = setup();
    tape.begin(1, [argument(cards.instruction('Count.'))]);
    tape.add(cards.result('k9', 'list', 'orphan'));
    const view = buildView(tape.rows());
    expect(view.messages.slice(1).map(line)).toEqual(['user: Count.']);
    expect(reasonsOf(view)).toEqual(['orphan_result']);
  });

  test('a failed call shows its status, its error and any result', () => {
    const { cards, tape } = setup();
    const turnId = tape.begin(1, [argument(cards.instruction('Count.'))]);
    const step = { turnId, step: 1 };
    const error = { code: 'tool_failed', message: 'One of two failed.' };
    for (const id of ['k1', 'k2', 'k3', 'k4', 'k5']) tape.add(cards.call(id, 'list', {}), step);
    const result = { results: ['done', null] };
    tape.add(cards.outcome({ tool_call_id: 'k1', name: 'list', status: 'failed', error, result }), step);
    tape.add(cards.outcome({ tool_call_id: 'k2', name: 'list', status: 'timeout', error }), step);
    tape.add(cards.outcome({ tool_call_id: 'k3', name: 'list', status: 'success' }), step);
    tape.add(cards.outcome({ tool_call_id: 'k4', name: 'list', status: 'success', result: '' }), step);
    tape.add(
      cards.outcome({ tool_call_id: 'k5', name: 'list', status: 'success', result: { b: 1, a: 2 } }),
      step,
    );
    const code = '"error":{"code":"tool_failed","message":"One of two failed."}';
    expect(linesOf(tape.rows()).slice(2)).toEqual([
      `tool k1 error: {"status":"failed",${code},"result":{"results":["done",null]}}`,
      `tool k2 error: {"status":"timeout",${code}}`,
      'tool k3: null',
      'tool k4: (empty)',
      'tool k5: {"b":1,"a":2}',
    ]);
  });

  test('arguments that are not an object stay readable inside an object', () => {
    const { cards, tape } = setup();
    const turnId = tape.begin(1, [argument(cards.instruction('Count.'))]);
    tape.add(cards.call('k1', 'list', '{broken'), { turnId, step: 1 });
    const call = { id: 'k1', name: 'list', arguments: { _raw: '{broken' } };
    expect(buildView(tape.rows()).messages[2]).toEqual({ role: 'assistant', content: '', toolCalls: [call] });
  });

  test('a call of this turn for an unknown tool keeps its form; a name that no provider accepts is quoted', () => {
    const { cards, tape } = setup();
    const turnId = tape.begin(1, [argument(cards.instruction('Count.'))]);
    const step = { turnId, step: 1 };
    tape.add(cards.thought('Try.'), step);
    tape.add(cards.call('k1', 'my tool!', { a: 1 }), step);
    tape.add(cards.call('k2', 'unknown', {}), step);
    const error = { code: 'tool_unknown', message: 'No such tool.' };
    tape.add(cards.outcome({ tool_call_id: 'k1', name: 'my tool!', status: 'failed', error }), step);
    tape.add(cards.outcome({ tool_call_id: 'k2', name: 'unknown', status: 'failed', error }), step);
    const body = '{"status":"failed","error":{"code":"tool_unknown","message":"No such tool."}}';
    expect(linesOf(tape.rows()).slice(1)).toEqual([
      'assistant: Try. | unknown(k2)',
      `tool k2 error: ${body}`,
      'user: [you called my tool!] {"a":1}',
      `user: [result of my tool! for you: failed] ${body}`,
    ]);
  });

  test('calls of earlier turns keep their form only for tools of the profile', () => {
    const { cards, tape } = setup();
    const first = tape.begin(1, [argument(cards.instruction('First.'))]);
    tape.add(cards.thought(''), { turnId: first, step: 1 });
    tape.add(cards.call('k1', 'gone', {}), { turnId: first, step: 1 });
    tape.add(cards.result('k1', 'gone', 'one'), { turnId: first, step: 1 });
    tape.add(cards.call('k2', 'submit_result', {}), { turnId: first, step: 2 });
    tape.add(cards.result('k2', 'submit_result', 'two'), { turnId: first, step: 2 });
    tape.begin(2, [argument(cards.instruction('Second.'))]);
    expect(linesOf(tape.rows())).toEqual([
      'user: First.',
      'user: [you called gone] {}',
      'user: [result of gone for you: success] one',
      'assistant:  | submit_result(k2)',
      'tool k2: two',
      'user: Second.',
    ]);
  });

  test('another agent’s calls on this tape are quoted at their place', () => {
    const { cards, tape } = setup();
    const turnId = tape.begin(1, [argument(cards.instruction('Count.'))]);
    const options = { turnId: testId('turn', 9), step: 1 };
    tape.add(cards.call('k9', 'list', { path: '/' }, { authorId: OTHER }), options);
    tape.add(cards.call('k1', 'list', {}), { turnId, step: 1 });
    tape.add(cards.result('k9', 'list', 'nine', { authorId: 'sys' }), options);
    tape.add(cards.result('k1', 'list', 'one'), { turnId, step: 1 });
    expect(linesOf(tape.rows()).slice(1)).toEqual([
      `user: [agent ${OTHER} called list] {"path":"/"}`,
      'assistant:  | list(k1)',
      'tool k1: one',
      `user: [result of list for agent ${OTHER}: success] nine`,
    ]);
  });

  test('a quoted result says first how the work that its call started has ended', () => {
    const shown = (name: string, result: JsonValue): string | undefined => {
      const { cards, tape } = setup();
      tape.begin(1, [argument(cards.instruction('Go.')), native(cards.result('k9', name, result))]);
      return linesOf(tape.rows()).find((text) => text.includes('[result of'));
    };
    const batch = { status: 'failed', batch_id: 'b', results: [{ task_index: 0, status: 'failed' }] };
    expect(shown('fork_join', batch)).toBe(`user: [result of fork_join: failed] ${JSON.stringify(batch)}`);
    const turn = { status: 'timeout', turn_id: 't', result: null };
    expect(shown('delegate_async', turn)).toContain('[result of delegate_async: timeout] {');
    expect(shown('fork_join', { ...batch, status: 'success' })).toContain('[result of fork_join: success] {');
    expect(shown('fork_join', { status: 'accepted', batch_id: 'b' })).toContain(
      '[result of fork_join: success] {',
    );
    // A tool's own status is not the status of a turn.
    expect(shown('deploy', { status: 'failed' })).toContain('[result of deploy: success] {');
  });

  test('another agent’s step is also quoted on a tape that this agent continues', () => {
    const { cards, tape } = setup();
    const first = tape.begin(1, [argument(cards.instruction('First.'))]);
    tape.add(cards.call('k1', 'list', {}, { authorId: OTHER }), { turnId: first, step: 1 });
    tape.add(cards.result('k1', 'list', 'one'), { turnId: first, step: 1 });
    tape.begin(2, [argument(cards.instruction('Second.'))]);
    expect(linesOf(tape.rows())).toEqual([
      'user: First.',
      `user: [agent ${OTHER} called list] {}`,
      `user: [result of list for agent ${OTHER}: success] one`,
      'user: Second.',
    ]);
  });

  test('outputs of earlier turns and of a clone’s source never follow each other directly', () => {
    const { cards, tape } = setup();
    const first = tape.begin(1, [
      argument(cards.instruction('First.')),
      native(cards.thought('One.')),
      native(cards.thought('Two.')),
      native(cards.thought('Three.')),
      native(cards.call('k0', 'list', {})),
    ]);
    tape.add(cards.thought('Four.'), { turnId: first, step: 1 });
    tape.add(cards.call('k1', 'list', {}), { turnId: first, step: 2 });
    tape.begin(2, [argument(cards.instruction('Second.'))]);
    const lines = linesOf(tape.rows()).filter((text) => !text.startsWith('tool'));
    expect(lines).toEqual([
      'user: [context]',
      'assistant: One.',
      'user: [continue]',
      'assistant: Two.',
      'user: [continue]',
      'assistant: Three. | list(k0)',
      'user: First.',
      'assistant: Four.',
      'user: [continue]',
      'assistant:  | list(k1)',
      'user: Second.',
    ]);
  });

  test('a prompt that ended with assistant text keeps its end when others write after it', () => {
    const { cards, tape } = setup();
    const metadata = { context: false };
    const turnId = tape.begin(1, [argument(cards.instruction('Count.'))]);
    const written: (() => void)[] = [
      () => tape.add(cards.text('assistant', 'said by others', { authorId: OTHER })),
      () => tape.add(cards.text('user', 'more')),
      () => {
        tape.add(cards.thought('All my calls are hidden.'), { turnId, step: 1 });
        tape.add(cards.call('k1', 'list', {}, { metadata }), { turnId, step: 1 });
        tape.add(cards.result('k1', 'list', 'one'), { turnId, step: 1 });
      },
      () => tape.add(cards.text('user', 'a notice'), { turnId, step: 1 }),
      () => tape.add(cards.text('assistant', 'again', { authorId: OTHER })),
      () => tape.begin(2, [argument(cards.instruction('of another turn on this tape'))]),
    ];
    let before = buildView(tape.rows());
    const { turn } = tape.rows();
    for (const write of written) {
      write();
      const view = buildView({ ...tape.rows(), turn });
      expect(view.messages.slice(0, before.messages.length)).toEqual(before.messages);
      expect(view.messages.length).toBeGreaterThan(before.messages.length);
      before = view;
    }
    expect(before.messages.filter(({ content }) => content === '[continue]')).toHaveLength(3);
  });

  test('a context that ends with assistant text keeps its end when an earlier turn writes after it', () => {
    const { cards, tape } = setup();
    const first = tape.begin(1, [argument(cards.instruction('First.'))]);
    tape.add(cards.thought('One.'), { turnId: first, step: 1 });
    tape.begin(2, [inherited(cards.text('assistant', 'said by others', { authorId: OTHER }))]);
    const before = buildView(tape.rows()).messages;
    tape.add(cards.text('user', 'late notice'), { turnId: first, step: 1 });
    const { messages } = buildView(tape.rows());
    expect(messages.slice(0, before.length)).toEqual(before);
  });

  test('[continue] separates two outputs, and does not separate an answer and its reminder', () => {
    const { cards, tape } = setup();
    const turnId = tape.begin(1, [argument(cards.instruction('Count.'))]);
    tape.add(cards.thought('Done.'), { turnId, step: 1 });
    tape.add(cards.text('user', 'Call submit_result.'), { turnId, step: 1 });
    tape.add(cards.thought('Again.'), { turnId, step: 2 });
    tape.add(cards.thought('And again.'), { turnId, step: 3 });
    expect(linesOf(tape.rows()).slice(1)).toEqual([
      'assistant: Done.',
      'user: Call submit_result.',
      'assistant: Again.',
      'user: [continue]',
      'assistant: And again.',
      'user: [continue]',
    ]);
  });

  test('a blank answer makes no message', () => {
    const { cards, tape } = setup();
    const turnId = tape.begin(1, [argument(cards.instruction('Count.'))]);
    tape.add(cards.thought(' \n'), { turnId, step: 1 });
    tape.add(cards.text('user', 'Your last answer was empty.'), { turnId, step: 1 });
    const view = buildView(tape.rows());
    expect(view.messages.slice(2).map(line)).toEqual(['user: Your last answer was empty.']);
    expect(reasonsOf(view)).toEqual(['blank']);
  });
});

describe('context boxes', () => {
  test('another agent’s calls and results are quoted with the name of their author', () => {
    const { cards, tape } = setup();
    const by = { authorId: OTHER };
    tape.begin(1, [
      argument(cards.instruction('Count.')),
      inherited(cards.thought('I look.', by)),
      inherited(cards.call('k1', 'list', { path: '.' }, by)),
      inherited(cards.result('k1', 'list', 'one', { authorId: 'sys' })),
      inherited(cards.result('k0', 'read', 'zero', { authorId: 'sys' })),
      inherited(cards.thought('', by)),
    ]);
    expect(linesOf(tape.rows())).toEqual([
      'user: [context]',
      'assistant: I look.',
      `user: [agent ${OTHER} called list] {"path":"."}`,
      `user: [result of list for agent ${OTHER}: success] one`,
      'user: [result of read: success] zero',
      'user: Count.',
    ]);
  });

  test('a clone sees the steps of its source in native form, for tools of the profile', () => {
    const { cards, tape } = setup();
    const by = { authorId: OTHER };
    tape.begin(1, [
      argument(cards.instruction('Go on.')),
      native(cards.thought('Both.', by)),
      native(cards.call('k1', 'list', {}, by)),
      native(cards.call('k2', 'gone', {}, by)),
      native(cards.text('user', 'outside', by)),
      native(cards.result('k1', 'list', 'one')),
      native(cards.result('k2', 'gone', 'two')),
      native(cards.call('k3', 'read', {}, by)),
      native(cards.result('k8', 'read', 'orphan')),
      inherited(cards.result('k3', 'read', 'from another box')),
    ]);
    expect(linesOf(tape.rows())).toEqual([
      'user: [context]',
      'assistant: Both. | list(k1)',
      'tool k1: one',
      `user: [agent ${OTHER} called gone] {}`,
      `user: [result of gone for agent ${OTHER}: success] two`,
      'user: outside',
      'assistant:  | read(k3)',
      `tool k3 error: ${NOT_AVAILABLE}`,
      'user: [result of read: success] orphan',
      `user: [result of read for agent ${OTHER}: success] from another box`,
      'user: Go on.',
    ]);
  });

  test('a role that is not allowed at its place becomes marked user text', () => {
    const { cards, tape } = setup();
    const by = { authorId: OTHER };
    tape.begin(1, [
      argument(cards.instruction('Count.')),
      inherited(cards.text('system', 'Be bold.', by)),
      inherited(cards.text('tool', 'raw', by)),
      inherited(cards.text(null, 'plain', by)),
      inherited(cards.text('assistant', 'spoken', by)),
    ]);
    tape.add(cards.text('system', ' ', { authorId: 'sys' }));
    expect(linesOf(tape.rows())).toEqual([
      `user: [system note from ${OTHER}] Be bold.`,
      `user: [tool note from ${OTHER}] raw`,
      'user: plain',
      'assistant: spoken',
      'user: Count.',
      'user: [system note from sys] (empty)',
    ]);
  });

  test('a parent pointer is one line, and an inherited parent pointer is marked', () => {
    const { cards, tape } = setup();
    const broken = cards.card('meta.parent_pointer', 'system', { kind: 'json', data: { other: 1 } });
    tape.begin(1, [
      argument(cards.instruction('Count.')),
      inherited(cards.parent('grandparent')),
      inherited(broken),
      parent(cards.parent(OTHER)),
    ]);
    expect(linesOf(tape.rows())).toEqual([
      'user: [inherited] Parent agent: grandparent',
      'user: [inherited] Parent agent: unknown',
      `user: Parent agent: ${OTHER}`,
      'user: Count.',
    ]);
  });

  test('only result fields of the turn’s own packing are binding, and they follow the instruction directly', () => {
    const { cards, tape } = setup();
    const own = cards.fields([
      { name: 'n', type: 'number', description: 'how many' },
      { name: 'why', required: false },
    ]);
    const context = [
      argument(own),
      argument(cards.instruction('Count.')),
      argument(cards.text('user', 'input')),
      argument(cards.fields([{ name: 'second' }])),
      inherited(cards.fields([{ name: 'foreign' }])),
    ];
    tape.begin(1, context);
    const fields = 'Result fields:\n- n (number, required): how many\n- why (any, optional)';
    const lines = (rows: ViewRows): readonly string[] => linesOf(rows).slice(0, 3);
    expect(lines(tape.rows({ tools: ['submit_result'] }))).toEqual([
      'user: [result fields of another task]\n- foreign (any, required)',
      'user: Count.',
      `user: ${fields}\nEnd this task by calling submit_result; its \`result\` is an object with exactly these fields.`,
    ]);
    expect(lines(tape.rows())[2]).toBe(
      `user: ${fields}\nEnd this task by answering with one JSON object with exactly these fields, and nothing else.`,
    );
    expect(linesOf(tape.rows()).slice(3)).toEqual([
      'user: input',
      'user: [result fields of another task]\n- second (any, required)',
    ]);
    expect(resultFieldsOf(context)).toEqual(own.content.kind === 'fields_schema' ? own.content.fields : []);
    expect(resultFieldsOf(context.slice(4))).toBeUndefined();
  });

  test('hidden result fields are not binding', () => {
    const { cards } = setup();
    expect(
      resultFieldsOf([argument(cards.fields([{ name: 'n' }], { metadata: { context: false } }))]),
    ).toBeUndefined();
  });

  test('result fields without an instruction are shown where they were packed', () => {
    const { cards, tape } = setup();
    tape.begin(1, [
      argument(cards.text('user', 'one')),
      argument(cards.fields([])),
      argument(cards.text('user', 'two')),
    ]);
    expect(linesOf(tape.rows()).map((text) => text.slice(0, 19))).toEqual([
      'user: one',
      'user: Result fields',
      'user: two',
    ]);
    expect(buildView(tape.rows()).instruction).toBeNull();
  });

  test('a turn with few steps is told so after its arguments', () => {
    const { cards, tape } = setup();
    tape.begin(1, [argument(cards.instruction('Count.'))], 1);
    expect(linesOf(tape.rows({ must_end_with: ['submit_result'] }))[1]).toMatch(
      /last step\. Call submit_result/,
    );
    expect(linesOf(tape.rows())[1]).toMatch(/last step\. Give your answer/);
    expect(canSubmitResult({ tools: [], must_end_with: ['submit_result'] })).toBe(true);
    expect(canSubmitResult({ tools: ['list'], must_end_with: [] })).toBe(false);
  });

  test('an inherited anchor of another agent is quoted user text; an anchor of the same agent is not quoted', () => {
    const { cards, tape } = setup();
    const metadata = { name: 'phase-1' };
    tape.begin(1, [
      argument(cards.instruction('Count.')),
      inherited(cards.anchor({ a: 1 }, { metadata, authorId: OTHER })),
      inherited(cards.anchor({ b: 2 }, { metadata, authorId: 'kernel' })),
      inherited(cards.anchor({ c: [3, 'ü'] }, { metadata })),
    ]);
    expect(linesOf(tape.rows())).toEqual([
      `user: [anchor of agent ${OTHER}] [Anchor created: phase-1]: {"a": 1}`,
      'user: [anchor of the kernel] [Anchor created: phase-1]: {"b": 2}',
      'assistant: [Anchor created: phase-1]: {"c": [3, "ü"]}',
      'user: Count.',
    ]);
  });

  test('a clone sees the anchors of its source as its own, and quotes the anchors of others on the source’s tape', () => {
    const { cards, tape } = setup();
    const source = { authorId: OTHER };
    const metadata = { name: 'phase' };
    tape.begin(1, [
      argument(cards.instruction('Count.')),
      native(cards.anchor({ by: 'source' }, { ...source, metadata })),
      native(cards.anchor({ by: 'kernel' }, { authorId: 'kernel', metadata })),
      native(cards.anchor({ by: 'somebody' }, { authorId: 'somebody', metadata })),
      native(cards.thought('Seen.', source)),
    ]);
    expect(linesOf(tape.rows())).toEqual([
      'user: [context]',
      'assistant: [Anchor created: phase]: {"by": "source"}',
      'assistant: [Anchor created: phase]: {"by": "kernel"}',
      'user: [anchor of agent somebody] [Anchor created: phase]: {"by": "somebody"}',
      'assistant: Seen.',
      'user: Count.',
    ]);
  });

  test('an anchor on the tape is user text, with the name of its author when another agent wrote it', () => {
    const { cards, tape } = setup();
    tape.begin(1, [argument(cards.instruction('Count.'))]);
    const prompts = [
      { authorId: OTHER, lines: [`user: [anchor of agent ${OTHER}] [Anchor created: phase]: {"n": 1}`] },
      {
        authorId: 'kernel',
        lines: ['user: [context]', 'assistant: [Anchor created: phase]: {"n": 1}'],
      },
    ];
    for (const { authorId, lines } of prompts) {
      tape.anchor('phase', cards.anchor({ n: 1 }, { authorId }));
      expect(linesOf(tape.rows())).toEqual([...lines, 'user: Count.']);
    }
  });

  test('every kind of content is readable and none is blank', () => {
    const { cards, tape } = setup();
    const file = { kind: 'file', uri: 's3://b/k', checksum: 'sha256:0' } as const;
    tape.begin(1, [
      argument(cards.instruction('\t')),
      argument(cards.card('task.input', 'user', { kind: 'json', data: { z: 1, a: [true] } })),
      argument(cards.card('doc', 'user', file)),
      argument(
        cards.card('doc', 'user', {
          ...file,
          content_type: 'text/plain',
          size_bytes: 12,
          preview: 'one\ntwo',
        }),
      ),
      argument(cards.card('form', 'user', { kind: 'fields_schema', fields: [{ name: 'n' }] })),
      argument(cards.card('form', 'user', { kind: 'fields_schema', fields: [] })),
    ]);
    expect(linesOf(tape.rows())).toEqual([
      'user: (empty)',
      'user: {"z":1,"a":[true]}',
      'user: [file s3://b/k]',
      'user: [file s3://b/k (text/plain, 12 bytes)] "one\\ntwo"',
      'user: - n (any, required)',
      'user: (empty)',
    ]);
  });

  test('an instruction that is given as JSON is shown as JSON', () => {
    const { cards, tape } = setup();
    tape.begin(1, [argument(cards.card('task.instruction', 'user', { kind: 'json', data: { path: '/x' } }))]);
    expect(buildView(tape.rows()).instruction).toEqual({ path: '/x' });
  });

  test('a context without content still makes a prompt', () => {
    const { tape } = setup();
    tape.begin(1, []);
    const view = buildView(tape.rows());
    expect(view.messages.slice(1).map(line)).toEqual(['user: [context]']);
    expect(view).toMatchObject({ firstMessage: 1, instruction: null });
  });
});

describe('the description of a view', () => {
  test('has a manifest that covers every message by ranges and gives the reason for each omitted card', () => {
    const { cards, tape } = setup();
    const turnId = tape.begin(1, [
      argument(cards.instruction('Count.')),
      inherited(cards.text('user', 'a')),
      inherited(cards.text('user', 'b')),
      inherited(cards.text('user', 'c', { metadata: { context: false } })),
      inherited(cards.text('user', 'd')),
    ]);
    tape.add(cards.thought('Look.'), { turnId, step: 1 });
    tape.add(cards.call('k1', 'list', {}), { turnId, step: 1 });
    tape.add(cards.result('k1', 'list', 'one'), { turnId, step: 1 });
    tape.add(cards.text('user', 'more'));
    const { manifest } = buildView(tape.rows());
    const box = { kind: 'context', boxId: testId('box', 1) };
    expect(manifest).toEqual({
      v: 1,
      anchor: 1,
      head: 7,
      messages: [
        { kind: 'profile', first: 0, count: 1 },
        { ...box, rule: 'inherited', from: 2, to: 3, first: 1, count: 2 },
        { ...box, rule: 'inherited', from: 5, to: 5, first: 3, count: 1 },
        { ...box, rule: 'argument', from: 1, to: 1, first: 4, count: 1 },
        { kind: 'tape', from: 4, to: 7, first: 5, count: 3 },
      ],
      omitted: [{ ...box, rule: 'inherited', from: 4, to: 4, reason: 'hidden' }],
    });
    const json: JsonValue = manifest;
    expect(JSON.parse(JSON.stringify(json))).toEqual(manifest);
  });

  test('names the cards of each message', () => {
    const { cards, tape } = setup();
    const instruction = cards.instruction('Count.');
    const turnId = tape.begin(1, [argument(instruction)]);
    const [thought, call] = [cards.thought('Look.'), cards.call('k1', 'list', {})];
    tape.add(thought, { turnId, step: 1 });
    tape.add(call, { turnId, step: 1 });
    const { origins } = buildView(tape.rows());
    expect(origins.map(({ cardIds }) => cardIds)).toEqual([[], [instruction.id], [thought.id, call.id], []]);
    expect(origins[3]?.source).toEqual({ kind: 'notice', notice: 'not_available' });
  });

  test('has a prompt hash that is the sha256 of the canonical JSON of messages and tools', () => {
    const messages = [
      { role: 'system', content: 's"\u{1F600}' },
      { role: 'user', content: 'u\n' },
      { role: 'assistant', content: 'a' },
      {
        role: 'assistant',
        content: '',
        toolCalls: [{ id: 'k', name: 'n', arguments: { z: [1.0, null], a: '\u2028' } }],
      },
      { role: 'tool', toolCallId: 'k', name: 'n', content: 'r', isError: false },
    ] as const;
    const tools = [{ name: 'n', description: 'd', parameters: { type: 'object', properties: {} } }] as const;
    expect(promptHash(messages, tools)).toBe(sha256(canonicalJson({ messages, tools })));
    expect(promptHash([], [])).toBe(sha256(canonicalJson({ messages: [], tools: [] })));
  });

  test('has an estimate that follows the bytes of the messages', () => {
    const { cards, tape } = setup();
    const turnId = tape.begin(1, [argument(cards.instruction('x'.repeat(4000)))]);
    const before = buildView(tape.rows()).estimateTokens;
    tape.add(cards.call('k1', 'list', { text: 'y'.repeat(4000) }), { turnId, step: 1 });
    tape.add(cards.result('k1', 'list', '\u{1F600}'.repeat(1000)), { turnId, step: 1 });
    const after = buildView(tape.rows()).estimateTokens;
    expect(before).toBeGreaterThanOrEqual(1000);
    expect(after - before).toBeGreaterThanOrEqual(2000);
    expect(after - before).toBeLessThan(2100);
  });
});

describe('a turn that ended before it began', () => {
  const deliverable = (cards: CardMaker, steps: number) =>
    cards.card(
      CARD_TYPES.deliverable,
      'assistant',
      { kind: 'json', data: { error: { code: 'canceled' }, steps, last_text: null } },
      { metadata: { role: 'assistant', status: 'canceled' } },
    );

  test('leaves nothing in the prompts after it', () => {
    const [cards, tape] = [new CardMaker(), new TestTape()];
    const ended = deliverable(cards, 0);
    tape.add(ended, { turnId: testId('turn', 1) });
    tape.begin(2, [argument(cards.instruction('Go on.'))]);
    const { messages, manifest } = buildView(tape.rows());
    expect(messages.map(line)).toEqual(['system: You work.', 'user: Go on.']);
    expect(manifest.omitted).toContainEqual(expect.objectContaining({ reason: 'turn_not_begun' }));
  });

  test('differs from a turn that failed at its first step, which shows its instruction and its end', () => {
    const [cards, tape] = [new CardMaker(), new TestTape()];
    const turnId = tape.begin(1, [argument(cards.instruction('First.'))]);
    tape.add(deliverable(cards, 0), { turnId });
    tape.begin(2, [argument(cards.instruction('Go on.'))]);
    expect(buildView(tape.rows()).messages.map(({ role }) => role)).toEqual([
      'system',
      'user',
      'assistant',
      'user',
    ]);
  });
});
