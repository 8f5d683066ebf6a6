import { KernelError, type TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import { z as z3 } from 'zod/v3';
import type { Handler } from '../handler/handler.js';
import { harness } from '../testing/harness.js';
import { buildToolbox } from '../toolbox/toolbox.js';
import { checkRegistered, parseArguments, type Tool, toParameters } from './tool.js';

describe('the schema of a tool that models get', () => {
  test('is the schema of the object, without its dialect', () => {
    expect(toParameters(z.strictObject({ id: z.string() }))).toEqual({
      type: 'object',
      properties: { id: { type: 'string' } },
      required: ['id'],
      additionalProperties: false,
    });
  });

  test('declares a union of objects as an object', () => {
    const union = z.discriminatedUnion('kind', [
      z.strictObject({ kind: z.literal('a') }),
      z.strictObject({ kind: z.literal('b'), n: z.number() }),
    ]);
    expect(toParameters(union)).toMatchObject({
      type: 'object',
      oneOf: [{ type: 'object' }, { type: 'object' }],
    });
    expect(toParameters(z.union([z.object({ a: z.string() }), z.object({ b: z.string() })]))).toMatchObject({
      type: 'object',
      anyOf: [{ type: 'object' }, { type: 'object' }],
    });
  });

  test('is refused when it is not for an object: no model could use it', async () => {
    expect(() => toParameters(z.string())).toThrow(expect.objectContaining({ code: 'bad_request' }));
    await using place = await harness();
    const tool = { name: 'shout', description: 'Shouts.', input: z.string(), run: (text: string) => text };
    expect(() => place.runtime.registerTool(tool)).toThrow(expect.objectContaining({ code: 'bad_request' }));
    expect(place.runtime.tools.has('shout')).toBe(false);
  });
});

describe('a registration by a plugin', () => {
  const good = { description: 'Works.', input: z.object({ n: z.number() }) };
  const work = () => null;

  test.each<[string, Record<string, unknown>, RegExp]>([
    ['a schema of a list', { input: z.array(z.string()) }, /^odd: input: is a schema of type "array"/],
    ['an invalid schema', { input: { n: 'number' } }, /^odd: input: is not a schema of zod 4/],
    [
      'a schema of zod 3',
      { input: z3.object({ n: z3.number() }) },
      /^odd: input: is a schema of zod 3; a schema of zod 4 is needed/,
    ],
    [
      'a schema of zod 3 inside one of zod 4',
      { input: z.object({ a: z.object({ n: z3.number() as never }) }) },
      /^odd: input: a\.n is a schema of zod 3; a schema of zod 4 is needed/,
    ],
    ['no schema', { input: undefined }, /^odd: input: is not a schema of zod 4/],
    ['no description', { description: undefined }, /^odd: description: is not a text/],
    ['a description that no column can store', { description: 'a\u0000' }, /^odd: description: /],
    ['no function', { handle: undefined, run: undefined }, /^odd: (handle|run): is not a function/],
    ['a function of another kind', { handle: 'run', run: {} }, /^odd: (handle|run): is not a function/],
  ])('is refused with %s, and nothing is registered', async (_title, rest, message) => {
    await using place = await harness();
    const { runtime } = place;
    const refused = expect.objectContaining({
      code: 'bad_request',
      message: expect.stringMatching(message),
    });
    expect(() => runtime.registerHandler('odd', { ...good, handle: work, ...rest } as Handler)).toThrow(
      refused,
    );
    expect(() => runtime.registerTool({ ...good, name: 'odd', run: work, ...rest } as Tool)).toThrow(refused);
    expect([runtime.handlers.has('odd'), runtime.tools.has('odd')]).toEqual([false, false]);
  });

  test('is refused with parameters that are not an object schema', async () => {
    await using place = await harness();
    for (const parameters of ['text', [], { type: 'array' }])
      expect(() => place.runtime.registerHandler('odd', { ...good, parameters, handle: work })).toThrow(
        expect.objectContaining({ code: 'bad_request' }),
      );
  });

  test('may have a synchronous function, from outside and in a turn, and when it throws', async () => {
    await using place = await harness();
    const { runtime } = place;
    const fail = (): never => {
      throw new KernelError('not_found', { message: 'No such color.' });
    };
    runtime.registerHandler('add', { ...good, handle: ({ n }) => n + 1 });
    runtime.registerHandler('lose', { ...good, handle: fail });
    runtime.registerTool({ ...good, name: 'double', run: ({ n }) => n * 2 });
    runtime.registerTool({ ...good, name: 'drop', run: fail });
    expect(await runtime.submit('add', { n: 1 })).toBe(2);
    await expect(runtime.submit('lose', { n: 1 })).rejects.toMatchObject({ code: 'not_found' });
    const names = ['add', 'lose', 'double', 'drop'];
    const calls = names.map((tool) => ({ tool, arguments: { n: 20 } }));
    await place.profile('worker', [{ calls }, { say: 'done' }], { tools: names });
    await place.worker();
    const { turn_id: turnId } = (await runtime.submit('launch_principal', {
      profile_name: 'worker',
      instruction: 'go',
    })) as { turn_id: TurnId };
    expect(await runtime.waitForTurn(turnId, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
    const results = await place.rows<{ content: unknown }>(
      'select c.content from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id where k.turn_id = $1 order by k.ordinal',
      [turnId],
    );
    expect(results.map(({ content }) => content)).toMatchObject([
      { status: 'success', result: 21 },
      { status: 'failed', error: { code: 'not_found' } },
      { status: 'success', result: 40 },
      { status: 'failed', error: { code: 'not_found' } },
    ]);
  });
});

const queueTool = (name: string) => ({
  name,
  description: 'Looks up.',
  parameters: { $schema: 'https://json-schema.org/draft/2020-12/schema', type: 'object', properties: {} },
  target: 'crm',
});

describe('a tool that a profile declares', () => {
  test('must not have the name of a registered tool or of a primitive', async () => {
    await using place = await harness();
    place.runtime.registerTool({
      name: 'taken',
      description: 'Is taken.',
      input: z.object({}),
      run: () => null,
    });
    for (const name of ['taken', 'ask_expert', 'submit_result']) {
      await expect(
        place.profile('p', [{ say: 'x' }], { tools: ['taken', queueTool(name)] }),
      ).rejects.toMatchObject({
        code: 'profile_invalid',
        details: { issues: [{ path: name === 'taken' ? 'tools.1' : 'tools.1.name' }] },
      });
    }
  });

  test('is offered with its own schema, whatever a worker has registered with its name', async () => {
    await using place = await harness();
    place.runtime.registerTool({
      name: 'crm',
      description: 'Another one.',
      input: z.object({ x: z.string() }),
      run: () => null,
    });
    const toolbox = buildToolbox(
      place.runtime,
      { tools: [{ ...queueTool('crm'), retry: 'never' }], must_end_with: [] },
      { hasResultFields: false },
    );
    expect(toolbox.schemas).toEqual([
      { name: 'crm', description: 'Looks up.', parameters: { type: 'object', properties: {} } },
    ]);
  });

  test('is refused with a readable error by a worker that has no queue for it', async () => {
    await using place = await harness({
      model: createModelRouter({
        scripted: {
          functions: {
            caller: ({ turn, messages }, { call }) =>
              turn.step === 1
                ? { toolCalls: [call('crm', {})] }
                : { text: messages.flatMap((m) => (m.role === 'tool' ? [m.content] : [])).join() },
          },
        },
      }),
    });
    await place.profile('p', [], { model: 'scripted:caller', script: undefined, tools: [queueTool('crm')] });
    await place.worker();
    const result = await place.runtime.submit('launch_principal', {
      profile_name: 'p',
      instruction: 'go',
      wait: true,
    });
    expect(result).toMatchObject({ status: 'success', result: expect.stringContaining('tool_unknown') });
  });
});

describe('names that every object inherits', () => {
  test('are refused in a schema that declares __proto__, at registration', () => {
    const shape = Object.fromEntries([['__proto__', z.string()]]);
    for (const input of [z.object(shape), z.object({ a: z.array(z.object(shape)).optional() })])
      expect(() =>
        checkRegistered('t', { description: 'd', input }, { field: 'run', value: () => null }),
      ).toThrow("input: '__proto__' cannot be the name of an argument");
  });

  const named = z.looseObject({
    constructor: z.string().optional(),
    toString: z.string().default('none'),
    deep: z.object({ valueOf: z.int().optional() }).optional(),
  });

  test('are ordinary names of arguments', () => {
    const none = parseArguments(named, { deep: {}, more: { a: [{}] } });
    expect(none).toEqual({ success: true, data: { toString: 'none', deep: {}, more: { a: [{}] } } });
    const { more } = (none as unknown as { data: { more: object } }).data;
    expect(Object.getPrototypeOf(more)).toBe(Object.prototype);
    const all = { constructor: 'c', toString: 't', deep: { valueOf: 1 } };
    expect(parseArguments(named, all)).toEqual({ success: true, data: all });
    expect(parseArguments(named, { constructor: 1 }).success).toBe(false);
  });

  test('and __proto__ are never dropped silently', () => {
    const args = JSON.parse('{"__proto__":{"a":1},"id":"x"}');
    for (const input of [
      named,
      z.looseObject({}),
      z.object({ id: z.string() }),
      z.record(z.string(), z.json()),
    ])
      expect(parseArguments<unknown>(input, args)).toMatchObject({
        success: false,
        error: { issues: [{ path: ['__proto__'] }] },
      });
    const kept = z.custom<object>(() => true);
    expect(JSON.stringify(parseArguments(kept, args))).toContain('"__proto__":{"a":1}');
    const nested = { id: 'x', list: [{}, args], json: args };
    const inside = { list: z.array(z.looseObject({})), json: kept };
    expect(parseArguments<unknown>(z.object(inside), nested)).toMatchObject({
      success: false,
      error: { issues: [{ path: ['list', '1', '__proto__'] }] },
    });
    const all = parseArguments(z.object({ json: kept }), { json: args });
    expect(JSON.stringify(all)).toBe('{"success":true,"data":{"json":{"__proto__":{"a":1},"id":"x"}}}');
  });
});
