/** Selectors that make the prompts of turns. Source: docs/reference/views.md, "Selectors". */
import type { Message, Select, SelectorEntry, TurnId } from '@boxcar/kernel';
import { openaiChatWire } from '@boxcar/llm/testing';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { TurnPrompts } from '../explain/turn-prompts.js';
import { checkInvariants } from '../testing/invariants.js';
import { LOOP, type ProviderStage, providerStage } from '../testing/provider-stage.js';
import { Selectors } from './selectors.js';

const MODEL = 'openai-chat:gpt-5';
let stage: ProviderStage;
/** Runs once, before the next answer. */
let onNext: (() => void) | undefined;

const whole: Select = (entries) => entries.flatMap(({ messages }) => messages);
const say = (content: string): Message => ({ role: 'user', content });
/** The instruction of the turn, and its newest step. */
const newest: Select = (entries) => [
  say('[only the newest]'),
  ...whole(entries.filter(({ place, isOwnTurn }) => place === 'context' && isOwnTurn)),
  ...whole(entries.filter(({ place, isOwnTurn }) => place === 'tape' && isOwnTurn).slice(-1)),
];
const cry: Select = () => {
  throw new Error('no entries today.');
};

beforeAll(async () => {
  stage = await providerStage(openaiChatWire, {
    // The prompt may not show the earlier steps, so the latest of the texts that it shows decides.
    behave: ({ body }) => {
      onNext?.();
      onNext = undefined;
      const text = JSON.stringify(body);
      const step = text.includes('seen bench') ? 2 : text.includes('seen docs') ? 1 : 0;
      return { answer: LOOP[step] ?? {} };
    },
  });
  const { runtime } = stage.h;
  runtime.registerSelector('newest', { version: 1, select: newest });
  runtime.registerSelector('whole', { version: 'v1', select: whole });
});

afterAll(async () => {
  await checkInvariants(stage.h.database.pool);
  await stage[Symbol.asyncDispose]();
});

let agents = 0;
async function agent(rest: object = {}): Promise<string> {
  const name = `agent-${++agents}`;
  await stage.profile(name, MODEL, { delegation_policy: { target_profiles: null }, ...rest });
  await stage.h.runtime.submit('provision_agent', { action: 'create', agent_id: name, profile_name: name });
  return name;
}

async function submit(target_ref: string, view?: object | string, strategy = 'reuse'): Promise<string> {
  const receipt = await stage.h.runtime.submit('delegate_async', {
    target_strategy: strategy,
    target_ref,
    instruction: 'Look around.',
    ...(view === undefined ? {} : { view }),
  });
  return (receipt as { turn_id: string }).turn_id;
}

async function run(...of: Parameters<typeof submit>) {
  const before = stage.server.requests.length;
  const turnId = await submit(...of);
  const result = await stage.h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
  return { turnId, result, requests: stage.server.requests.slice(before) };
}

const previewOf = (profile_name: string) =>
  stage.h.runtime.preview({
    projectId: 'default',
    sourceAgentId: 'operator',
    toolSuffix: 'test.preview',
    arguments: { instruction: 'Look.' },
    handover: {
      target_profile_config: { profile_name },
      context_packing_config: {
        pack_arguments: [{ arg_key: 'instruction', as_card_type: 'task.instruction' }],
        inherit_context: { include_parent: true },
      },
    },
  });

/** Role and text of each message, as the provider got them. */
const sentBy = ({ body }: ProviderStage['server']['requests'][number]) =>
  (body as { messages: { role: string; content: string | null }[] }).messages.map(({ role, content }) => [
    role,
    content ?? '',
  ]);

async function explained(turnId: string, step: number) {
  const prompt = await stage.h.runtime.explainStep(turnId, { step });
  expect(prompt).toMatchObject({ verified: true, findings: [] });
  return prompt;
}

const rowOf = async (turnId: string) =>
  (
    await stage.h.rows<{ selector: string; selector_version: string; format: number }>(
      'select selector, selector_version, format from boxcar.turns where id = $1',
      [turnId],
    )
  )[0];

describe('a turn with a selector', () => {
  test('is sent the prompt that the selector makes, and explain shows these bytes for every step', async () => {
    const { turnId, result, requests } = await run(await agent(), { selector: 'newest' });
    expect(result.status).toBe('success');
    expect(requests.length).toBe(3);
    for (const [index, request] of requests.entries()) {
      const { messages, omissions } = await explained(turnId, index + 1);
      const roles = messages.map(({ role, content }) => [
        role === 'system' ? sentBy(request)[0]?.[0] : role,
        content,
      ]);
      expect(roles).toEqual(sentBy(request));
      expect(messages[1]).toMatchObject({ content: '[only the newest]', source: 'selector', cards: [] });
      if (index === 2) expect(omissions.map(({ reason }) => reason)).toContain('not_selected');
    }
    // The first step is not in the third prompt, so no prompt begins with the text of the prompt before it.
    expect(JSON.stringify(requests[2]?.body)).not.toContain('seen docs');
    expect(JSON.stringify(requests[1]?.body)).toContain('seen docs');
    const steps = await stage.h.rows<{ selector: unknown }>(
      "select manifest->'selector' as selector from boxcar.steps where turn_id = $1",
      [turnId],
    );
    expect(steps).toEqual(Array(3).fill({ selector: { name: 'newest', version: '1' } }));
    expect(await rowOf(turnId)).toEqual({ selector: 'newest', selector_version: '1', format: 30 });
    const found = await stage.h.runtime.why(turnId, '[only the newest]');
    expect(found).toMatchObject({
      outcome: 'found',
      verified: true,
      places: [{ parts: [{ rule: 'selector' }] }],
    });
  });

  test('that returns the messages of all entries is sent the same prompt as a turn without a selector', async () => {
    const plain = await run(await agent());
    const selected = await run(await agent(), { selector: 'whole' });
    expect(selected.requests.map(sentBy)).toEqual(plain.requests.map(sentBy));
    for (const step of [1, 2, 3]) {
      const { omissions, messages } = await explained(selected.turnId, step);
      expect(omissions.filter(({ reason }) => reason === 'not_selected')).toEqual([]);
      expect(messages.filter(({ source }) => source === 'selector')).toEqual([]);
    }
  });

  test('keeps the version of its first step when a newer version is registered', async () => {
    const { runtime } = stage.h;
    runtime.registerSelector('moving', {
      version: '1',
      select: (all) => [say('first version'), ...whole(all)],
    });
    onNext = () =>
      runtime.registerSelector('moving', {
        version: '2',
        select: (all) => [say('second version'), ...whole(all)],
      });
    const first = await run(await agent(), { selector: 'moving' });
    expect(first.requests.map((request) => sentBy(request)[1]?.[1])).toEqual(Array(3).fill('first version'));
    const second = await run(await agent(), { selector: 'moving' });
    expect(second.requests.map((request) => sentBy(request)[1]?.[1])).toEqual(
      Array(3).fill('second version'),
    );
    expect((await explained(first.turnId, 3)).messages[1]?.content).toBe('first version');
    expect((await explained(second.turnId, 3)).messages[1]?.content).toBe('second version');
  });

  test('gets the entries from the beginning of its view: the last anchor, or the given position', async () => {
    const name = await agent();
    const seen: (readonly SelectorEntry[])[] = [];
    stage.h.runtime.registerSelector('seeing', {
      version: 1,
      select: (entries) => {
        seen.push(entries);
        return whole(entries);
      },
    });
    await run(name);
    await (await stage.h.runtime.tape({ agent: name })).handoff('phase', { state: { n: 1 } });
    await run(name, { selector: 'seeing' });
    const [short] = seen;
    expect(short?.map(({ place, rule, isOwnTurn }) => [place, rule, isOwnTurn])).toEqual([
      // The operator wrote the anchor. It is quoted as a user's text, and needs no notice before it.
      ['tape', null, false],
      ['context', 'parent', true],
      ['context', 'argument', true],
    ]);
    seen.length = 0;
    await run(name, { selector: 'seeing', from: 'full' });
    const steps = seen[0]?.filter(({ place, cards }) => place === 'tape' && cards.length > 1) ?? [];
    expect(steps[0]?.messages.map(({ role }) => role)).toEqual(['assistant', 'tool', 'tool']);
    expect(steps[0]?.cards.map(({ type }) => type)).toHaveLength(5);
    await expect(submit(name, { selector: 'seeing', from: { anchor: 'nowhere' } })).rejects.toMatchObject({
      code: 'not_found',
    });
  });
});

describe('the choice of a selector', () => {
  test('can be made by a profile unless the submission has a view of its own, by a task of a batch, and by a session', async () => {
    const name = await agent({ view: { selector: 'newest' } });
    expect(await rowOf((await run(name)).turnId)).toMatchObject({ selector: 'newest' });
    expect(await rowOf((await run(name, 'last_anchor')).turnId)).toMatchObject({ selector: null });
    expect(await rowOf((await run(name, { selector: 'whole' })).turnId)).toMatchObject({ selector: 'whole' });
    // A fresh agent of the profile also has the profile's selector.
    expect(await rowOf((await run(name, undefined, 'new')).turnId)).toMatchObject({ selector: 'newest' });
    const tape = await stage.h.runtime.tape({ agent: name });
    const session = await tape.forkSession(`${name}-fork`);
    const { turnId, requests } = await run(session.name);
    expect(await rowOf(turnId)).toMatchObject({ selector: 'newest', selector_version: '1' });
    expect(sentBy(requests[0] as never)[1]?.[1]).toBe('[only the newest]');
    const tasks = [
      { target_strategy: 'new', target_ref: await agent(), instruction: 'go', view: { selector: 'whole' } },
    ];
    const { results } = (await stage.h.runtime.submit('fork_join', { tasks, wait: true })) as {
      results: { turn_id: string }[];
    };
    expect(await rowOf(results[0]?.turn_id ?? '')).toMatchObject({
      selector: 'whole',
      selector_version: 'v1',
    });
  });

  test('does not affect a clone, which is packed from the view of its source without the selector', async () => {
    const source = await agent();
    await run(source, { selector: 'newest' });
    const { turnId, requests } = await run(source, undefined, 'clone');
    expect(await rowOf(turnId)).toMatchObject({ selector: null });
    expect(JSON.stringify(requests[0]?.body)).toContain('seen docs');
    expect(JSON.stringify(requests[0]?.body)).not.toContain('[only the newest]');
  });

  test('of an unknown selector by a profile is a finding; preview shows the prompt of a known selector', async () => {
    const apply = (selector: string) =>
      stage.h.runtime.applyProfile({ name: 'finds', instructions: '', model: MODEL, view: { selector } });
    expect((await apply('newset')).findings).toEqual([
      {
        selector: 'newset',
        message: expect.stringMatching(/registered in this process; did you mean 'newest'\?$/),
      },
    ]);
    expect((await previewOf('finds')).prompt).toMatchObject({
      messages: [],
      unmade: expect.stringContaining("Selector 'newset'"),
    });
    expect((await apply('newest')).findings).toBeUndefined();
    const { prompt } = await previewOf('finds');
    expect(prompt.unmade).toBeUndefined();
    expect(prompt.messages[0]).toMatchObject({ message: say('[only the newest]'), card_ids: [] });
    await expect(apply('no name')).rejects.toMatchObject({ code: 'profile_invalid' });
  });
});

describe('a selector that cannot be used fails the turn, and says why', () => {
  const ids = (prompt: readonly SelectorEntry[]) => prompt.flatMap(({ messages }) => messages);
  const faults: readonly [string, Select, RegExp][] = [
    [
      'throws',
      cry,
      /^Selector 'throws' version '1': it threw: no entries today\. Correct the registered function[^.]*\.$/,
    ],
    [
      'hangs',
      () => {
        for (;;);
      },
      /it took longer than 50 ms/,
    ],
    ['later', (async () => []) as never, /it returned a promise; a selector must be synchronous/],
    [
      'odder',
      () => {
        throw Object.create(null);
      },
      /it threw a value without words\./,
    ],
    [
      'thenable',
      (() => ({
        // biome-ignore lint/suspicious/noThenProperty: that is what is tested
        then: () => {
          throw new Error('no');
        },
      })) as never,
      /it returned a promise/,
    ],
    ['nothing', () => [], /cannot be a prompt: the prompt holds no user message/],
    ['odd', () => [{ role: 'usr', content: 'x' }] as never, /cannot be a prompt: messages.*role/],
    [
      'cyclic',
      (() => {
        const a: unknown[] = [];
        a.push(a);
        return a;
      }) as never,
      /cannot be a prompt: messages.*nested/,
    ],
    [
      'system',
      (all) => [{ role: 'system', content: 'x' }, ...whole(all)],
      /messages\[1\]: a system message that is not the first/,
    ],
    [
      'open',
      (all) => ids(all).filter(({ role }) => role !== 'tool'),
      /stands before the answers|ends before the answers/,
    ],
    ['blank', (all) => [...whole(all), say(' ')], /the text is blank/],
  ];

  test.each(faults)('%s', async (name, select, message) => {
    stage.h.runtime.registerSelector(name, {
      version: 1,
      select,
      ...(name === 'hangs' ? { timeoutMs: 50 } : {}),
    });
    const { result, turnId, requests } = await run(await agent(), { selector: name });
    expect(result.status).toBe('failed');
    expect(result.error).toMatchObject({
      code: 'selector_failed',
      message: expect.stringMatching(message),
      details: { selector: name, selector_version: '1', turn_id: turnId },
    });
    expect(requests.length).toBe(name === 'open' ? 1 : 0);
  });

  test('it keeps attached data of an answer that it changes', async () => {
    const { selectView } = await import('@boxcar/kernel');
    const provider = { model: MODEL, parts: [] } as never;
    const message: Message = { role: 'assistant', content: 'said', provider };
    const origin = { source: { kind: 'tape', from: 2, to: 2 }, cardIds: [] } as const;
    const view = {
      messages: [say('go'), message, say('on')],
      origins: [origin, origin, origin],
      manifest: { v: 1, anchor: 0, head: 2, messages: [], omitted: [] },
    } as never;
    const ref = { name: 'n', version: '1' };
    expect(selectView(view, ref, [say('go'), message, say('on')]).messages).toHaveLength(3);
    expect(() => selectView(view, ref, [say('go'), { ...message, content: 'else' }, say('on')])).toThrow(
      "leave out 'provider'",
    );
  });

  test('a selector cannot change the input of the next step: it gets copies', async () => {
    const seen: string[] = [];
    const wild: Select = (entries) => {
      const own = entries.filter(({ place }) => place === 'context');
      seen.push(JSON.stringify(own));
      const messages = structuredClone(whole(entries));
      for (const { cards } of own)
        for (const { content } of cards) Object.assign(content, { kind: 'text', text: 'changed' });
      return messages;
    };
    stage.h.runtime.registerSelector('wild', { version: 1, select: wild });
    const { requests, turnId } = await run(await agent(), { selector: 'wild' });
    expect(requests).toHaveLength(3);
    expect(new Set(seen).size).toBe(1);
    expect(seen[0]).toContain('Look around.');
    await explained(turnId, 3);
  });

  test('and a prompt of a selector that does not fit is not compacted', async () => {
    stage.h.runtime.registerSelector('long', {
      version: 1,
      select: () => [say('x '.repeat(40_000))],
    });
    const name = await agent({ limits: { context_tokens: 10_000 }, view: { selector: 'long' } });
    const { prompt, notices } = await previewOf(name);
    expect(prompt.messages).toHaveLength(2);
    expect(notices.map(({ message }) => message)).toEqual([
      expect.stringMatching(/and the turn ends as failed: the prompts of selectors are not made shorter$/),
    ]);
    const { result, turnId, requests } = await run(name);
    expect(result).toMatchObject({ status: 'failed', error: { code: 'context_overflow' } });
    expect(result.error?.message).toMatch(/^Selector 'long' version '1' made a prompt that is too long/);
    expect(requests).toEqual([]);
    const anchors = await stage.h.rows(
      "select from boxcar.tape_entries where turn_id = $1 and kind = 'anchor'",
      [turnId],
    );
    expect(anchors).toEqual([]);
  });
});

test('a process without the selector, or without its version, reports that the prompt cannot be rebuilt', async () => {
  const { turnId } = await run(await agent(), { selector: 'newest' });
  const others = new Selectors();
  const look = async () =>
    TurnPrompts.load(stage.h.database.pool, turnId as TurnId, {
      project: 'default',
      allSteps: true,
      selectors: others,
    });
  const missing = {
    verified: false,
    rebuilt_hash: null,
    messages: [],
    findings: [{ code: 'selector_unknown', message: expect.stringContaining('cannot be rebuilt') }],
  };
  expect((await look()).explain({ step: 2 })).toMatchObject(missing);
  others.add('newest', { version: 2, select: newest });
  expect((await look()).explain({ step: 2 })).toMatchObject(missing);
  expect((await look()).explain({ step: 2 }).tools?.map(({ name }) => name)).toEqual(['look']);
  const prompts = await look();
  await expect(prompts.why('[only the newest]')).rejects.toThrow(
    "Selector 'newest' version '1' made this prompt",
  );
  others.add('newest', { version: 1, select: (entries) => newest(entries).slice(0, 1) });
  expect((await look()).explain({ step: 2 })).toMatchObject({
    verified: false,
    findings: [{ code: 'manifest_differs' }],
  });
  const plain = await TurnPrompts.load(stage.h.database.pool, turnId, { project: 'default' });
  expect(plain.explain()).toMatchObject({ findings: [{ code: 'selector_unknown' }] });
});

test('names, versions and functions of selectors are checked, and a version has only one function', () => {
  const selectors = new Selectors();
  selectors.add('a', { version: 1, select: whole });
  selectors.add('a', { version: '1', select: whole });
  selectors.add('a', { version: '2', select: newest });
  expect(selectors.announced).toEqual({ a: ['1', '2'] });
  expect(selectors.find({ name: 'a', version: null })?.version).toBe('2');
  expect(() => selectors.add('a', { version: 1, select: newest })).toThrow(
    "Selector 'a' is registered already in version '1' with another function",
  );
  expect(() => selectors.add('a b', { version: 1, select: whole })).toThrow('is not a name of a selector');
  expect(() => selectors.add('a', { version: '', select: whole })).toThrow(
    'version: must be a text or a number',
  );
  expect(() => selectors.add('a', { version: 3, select: 1 as never })).toThrow('select: must be a function');
  expect(() => selectors.add('a', { version: 3, select: whole, timeoutMs: 60_000 })).toThrow('at most 5000');
});
