import { type JsonValue, TAPE_HANDOFF } from '@boxcar/kernel';
import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import { ask } from '../fixtures/requests.js';
import { askFor, routerTo } from '../testing/ask-provider.js';
import { inOrder, openProviderServer } from '../testing/provider-server.js';
import { WIRES } from '../testing/wires.js';
import { toObjectSchema } from './tool-schema.js';

const text = { type: 'string' };

describe('tool parameters', () => {
  it('with recursive alternatives are read completely', () => {
    const own = { type: 'object', properties: { a: text } };
    const schema = { anyOf: [own, ...Array.from({ length: 8 }, () => ({ $ref: '#' }))] };
    expect(toObjectSchema(schema)).toEqual({ type: 'object', properties: { a: text } });
  });

  it('that fit stay the same object', () => {
    const schema = { type: 'object', properties: { a: text }, required: ['a'], additionalProperties: false };
    expect(toObjectSchema(schema)).toBe(schema);
  });

  const cases: readonly (readonly [string, JsonValue, JsonValue])[] = [
    ['without properties', { type: 'object' }, { type: 'object', properties: {} }],
    [
      'closed without properties',
      { type: 'object', additionalProperties: false },
      { type: 'object', properties: {}, additionalProperties: false },
    ],
    ['that are not a schema', 'x', { type: 'object', properties: {} }],
    ['of a text', { type: 'string' }, { type: 'object', properties: {} }],
    [
      'of a union: all members, only common ones required',
      {
        description: 'Either.',
        anyOf: [
          { type: 'object', properties: { kind: { const: 'a' }, a: text }, required: ['kind', 'a'] },
          { type: 'object', properties: { kind: { const: 'b' }, a: text }, required: ['kind'] },
          { type: 'null' },
        ],
      },
      {
        description: 'Either.',
        type: 'object',
        properties: { kind: { anyOf: [{ const: 'a' }, { const: 'b' }] }, a: text },
        required: ['kind'],
      },
    ],
    [
      'of an intersection: all members, all required ones',
      {
        allOf: [
          { type: 'object', properties: { a: text }, required: ['a'] },
          { type: 'object', properties: { b: text }, required: ['b'] },
        ],
      },
      { type: 'object', properties: { a: text, b: text }, required: ['a', 'b'] },
    ],
    [
      'of an object with additional alternatives',
      {
        type: 'object',
        properties: { a: text },
        required: ['a'],
        oneOf: [{ required: ['b'], properties: { b: text } }],
      },
      { type: 'object', properties: { a: text, b: text }, required: ['a', 'b'] },
    ],
    [
      'below a reference keep their definitions',
      {
        $schema: 'x',
        $ref: '#/$defs/node',
        $defs: { node: { type: 'object', properties: { next: { $ref: '#/$defs/node' } } } },
      },
      {
        type: 'object',
        properties: { next: { $ref: '#/$defs/node' } },
        $defs: { node: { type: 'object', properties: { next: { $ref: '#/$defs/node' } } } },
      },
    ],
    ['that refer only to themselves', { $ref: '#' }, { type: 'object', properties: {} }],
  ];
  it.each(cases)('are changed: %s', (_name, schema, expected) => {
    expect(toObjectSchema(schema)).toEqual(expected);
  });

  it('of zod unions and recursive objects', () => {
    const union = z.discriminatedUnion('kind', [
      z.strictObject({ kind: z.literal('name'), name: z.string() }),
      z.strictObject({ kind: z.literal('id'), id: z.number() }),
    ]);
    expect(toObjectSchema(z.json().parse(z.toJSONSchema(union)))).toMatchObject({
      type: 'object',
      properties: { name: { type: 'string' }, id: { type: 'number' } },
      required: ['kind'],
    });
  });
});

it.each(WIRES.map((wire) => [wire.provider, wire] as const))(
  'tape.handoff reaches %s with the exact schema of the handoff architecture',
  async (name, wire) => {
    await using server = await openProviderServer(wire, inOrder({ answer: { text: 'Well.' } }));
    await ask(routerTo(wire, server.baseUrl), askFor(wire, { tools: [TAPE_HANDOFF] }));
    expect(server.requests[0]?.prompt?.tools).toMatchObject([
      { name: 'tape__handoff', parameters: TAPE_HANDOFF.parameters },
    ]);
    if (name !== 'google')
      expect(JSON.stringify(server.requests[0]?.body)).toContain(JSON.stringify(TAPE_HANDOFF.parameters));
    expect(TAPE_HANDOFF.parameters).toEqual({
      type: 'object',
      properties: {
        name: { type: 'string', description: "Anchor name (e.g., 'phase-1')" },
        summary: { type: 'string', description: 'Progress summary' },
        next_steps: { type: 'string', description: 'Next steps to take' },
      },
      required: ['name'],
    });
  },
);
