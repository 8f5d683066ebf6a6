/** Every prompt pays for the schemas of its tools. */
import { estimatePrompt, isJsonObject } from '@boxcar/kernel';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { z } from 'zod';
import { type Harness, harness } from '../testing/harness.js';
import { buildToolbox } from './toolbox.js';

const MAX_TOKENS = 580;

let h: Harness;
beforeAll(async () => {
  h = await harness({ handoffs: { enabled: true } });
});
afterAll(() => h[Symbol.asyncDispose]());

const schemasOf = (names: readonly string[]) =>
  buildToolbox(h.runtime, { tools: [...names], must_end_with: [] }, { hasResultFields: false }).schemas;

test('no schema of the kernel’s own tools has more than 580 tokens', () => {
  const names = [...h.runtime.handlers.keys(), ...h.runtime.tools.keys()];
  const sizes = schemasOf(names).map((schema) => ({
    name: schema.name,
    tokens: estimatePrompt(0, [schema]),
  }));
  expect(sizes.map(({ name }) => name)).toEqual(names);
  expect(names).toEqual(expect.arrayContaining(['fork_join', 'delegate_async', 'tape.search', 'expand']));
  expect(sizes.filter(({ tokens }) => tokens > MAX_TOKENS)).toEqual([]);
});

test('every argument of a primitive is shown, except arguments that no turn can use', () => {
  for (const [name, handler] of h.runtime.handlers) {
    // This primitive shows its given schema unchanged.
    if (handler.parameters !== undefined) continue;
    const [schema] = schemasOf([name]);
    const { properties } = (schema?.parameters ?? {}) as { properties?: object };
    const whole = z.toJSONSchema(handler.input, { io: 'input', unrepresentable: 'any' });
    const expected = Object.keys(whole.properties ?? {}).filter(
      (argument) => name !== 'fork_join' || argument !== 'budget',
    );
    expect(Object.keys(properties ?? {}), name).toEqual(expected);
  }
  const [forkJoin] = schemasOf(['fork_join']);
  expect(JSON.stringify(forkJoin?.parameters)).toContain('"cost_usd"');
});

test('tools of a plugin are shown as they were registered', () => {
  h.runtime.registerHandler('measure', {
    description: 'Measures.',
    input: z.strictObject({ size: z.int().min(1).max(9) }),
    handle: () => 1,
  });
  const { parameters } = schemasOf(['measure'])[0] ?? {};
  expect(isJsonObject(parameters) && parameters.properties).toEqual({
    size: { type: 'integer', minimum: 1, maximum: 9 },
  });
});
