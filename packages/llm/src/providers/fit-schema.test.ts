import type { JsonObject, JsonValue } from '@boxcar/kernel';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ask, userMessage } from '../fixtures/requests.js';
import { askFor, routerTo } from '../testing/ask-provider.js';
import { inOrder, openProviderServer } from '../testing/provider-server.js';
import { WIRES } from '../testing/wires.js';
import { fitSchema } from './fit-schema.js';
import { toGeminiSchema } from './gemini-schema.js';

const object = (properties: JsonObject, rest: JsonObject = {}): JsonObject => ({
  type: 'object',
  properties,
  ...rest,
});
const text = { type: 'string' };

describe('a schema for a provider', () => {
  it('that fits stays the same object', () => {
    const schema = object({ a: text, b: { type: 'array', items: text } }, { required: ['a'] });
    expect(fitSchema(schema)).toMatchObject({ findings: [] });
    expect(fitSchema(schema).schema).toBe(schema);
  });

  const cases: readonly (readonly [string, JsonValue, JsonValue, RegExp | undefined])[] = [
    ['an array without items', { type: 'array' }, { type: 'array', items: {} }, undefined],
    [
      'a tuple',
      { type: 'array', prefixItems: [text, { type: 'number' }] },
      { type: 'array', items: { anyOf: [text, { type: 'number' }] } },
      undefined,
    ],
    [
      'items that are a list',
      { type: 'array', items: [text] },
      { type: 'array', items: { anyOf: [text] } },
      undefined,
    ],
    ['an array or null', { type: ['array', 'null'] }, { type: ['array', 'null'], items: {} }, undefined],
    ['a schema that is the value true', true, {}, undefined],
    ['a limit of an old draft', { type: 'number', exclusiveMinimum: true }, { type: 'number' }, undefined],
    ['an unknown type', { type: 'date' }, {}, /#\/properties\/a has the unknown type "date"/],
    [
      'a reference to another document',
      { $ref: 'https://x.example/y' },
      {},
      /refers to "https:\/\/x.example\/y"/,
    ],
    ['a reference to a missing part', { $ref: '#/$defs/none' }, {}, /not among its definitions/],
    [
      'properties that are a list',
      { type: 'object', properties: [] },
      {},
      /properties that are not an object/,
    ],
    ['a value that is not a schema', 7, {}, /is not a schema/],
  ];
  it.each(cases)('is changed when it has %s', (_name, member, expected, finding) => {
    const fitted = fitSchema(object({ a: member, b: text }));
    expect(fitted.schema).toEqual(object({ a: expected, b: text }));
    expect(fitted.findings).toHaveLength(finding === undefined ? 0 : 1);
    if (finding !== undefined) expect(fitted.findings[0]).toMatch(finding);
  });

  it('whose members have names that Anthropic refuses gets other names, at any depth, the same each time', () => {
    const long = 'n'.repeat(70);
    const schema = object(
      { $top: text, 'filter[id]': object({ '@type': text }, { required: ['@type'] }), [long]: text },
      { required: ['$top', 'filter[id]'] },
    );
    const { schema: fitted, renamed, findings } = fitSchema(schema);
    expect(findings).toEqual([]);
    expect([...renamed.keys()]).toEqual(['$top', 'filter[id]', '@type', long]);
    for (const name of renamed.values()) expect(name).toMatch(/^[a-zA-Z0-9_.-]{1,64}$/);
    expect(fitted.required).toEqual([renamed.get('$top'), renamed.get('filter[id]')]);
    expect(fitSchema(schema)).toEqual({ schema: fitted, renamed, findings });
  });
});

/** Schemas that tools have, and schemas that no tool should have. */
const anySchema: fc.Arbitrary<JsonValue> = fc.letrec<{ schema: JsonValue }>((tie) => ({
  schema: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    fc.constantFrom<JsonValue>(
      {},
      true,
      text,
      { type: 'array' },
      { type: 'nope' },
      { enum: [1, 'a', null] },
      { const: false },
      { type: 'integer', enum: [1, 2] },
      { type: ['string', 'array', 'null'] },
      { $ref: '#' },
      { $ref: '#/$defs/node' },
      { $ref: 'x' },
      { type: 'string', format: 'email', enum: ['', 'a'] },
      null,
    ),
    fc.record({ type: fc.constant('array'), items: tie('schema') }),
    fc.record({
      type: fc.constant('object'),
      properties: fc.dictionary(fc.constantFrom('a', 'b', '$x', 'a b', 'ä'), tie('schema'), { maxKeys: 3 }),
      required: fc.constantFrom<JsonValue>(['a'], ['$x'], 'a'),
      additionalProperties: fc.oneof(fc.boolean(), tie('schema')),
    }),
    fc.record({ anyOf: fc.array(tie('schema'), { maxLength: 3 }) }),
    fc.record({
      oneOf: fc.array(tie('schema'), { minLength: 1, maxLength: 2 }),
      description: fc.constant('Or.'),
    }),
    fc.record({ allOf: fc.array(tie('schema'), { minLength: 1, maxLength: 2 }) }),
  ),
})).schema;

const parameters = fc
  .tuple(fc.dictionary(fc.constantFrom('a', 'b', '$x', 'list of'), anySchema, { maxKeys: 4 }), anySchema)
  .map(([properties, node]) => object(properties, { $defs: { node }, required: Object.keys(properties) }));

describe.each(WIRES.map((wire) => [wire.provider, wire] as const))('%s', (provider, wire) => {
  it('accepts every tool, together with others and with any schema', async () => {
    await using server = await openProviderServer(wire, inOrder({ answer: { text: 'Well.' } }));
    const router = routerTo(wire, server.baseUrl);
    await fc.assert(
      fc.asyncProperty(fc.array(parameters, { minLength: 1, maxLength: 3 }), async (schemas) => {
        const tools = schemas.map((schema, index) => ({
          name: `${index}.tool`,
          description: 'A tool.',
          parameters: schema,
        }));
        await ask(router, askFor(wire, { tools }));
        expect(server.refusals).toEqual([]);
      }),
      { numRuns: 150 },
    );
  });

  it('accepts a tool with a long description; when it is cut, the finding says so', async () => {
    await using server = await openProviderServer(wire, inOrder({ answer: { text: 'Well.' } }));
    const router = routerTo(wire, server.baseUrl);
    const tools = [{ name: 'long', description: `It ${'really '.repeat(200)}does.`, parameters: object({}) }];
    const request = askFor(wire, { tools });
    await ask(router, request);
    expect(server.refusals).toEqual([]);
    const isWhole = JSON.stringify(server.requests[0]?.body).includes('really does.');
    const findings = (router.checkTools?.(request.model, tools) ?? []).filter(({ message }) =>
      message.includes('description'),
    );
    expect(findings).toEqual(
      isWhole
        ? []
        : [{ tool: 'long', message: 'its description has 1408 characters: the first 1024 are sent' }],
    );
    expect(isWhole).toBe(provider !== 'openai-chat');
  });

  it('gets and returns arguments with our names, in answers and in the history', async () => {
    const tools = [
      { name: 'list', description: 'Lists.', parameters: object({ $top: { type: 'integer' }, 'a b': text }) },
    ];
    const renamed = fitSchema(tools[0]?.parameters ?? {}).renamed;
    const written = JSON.stringify({ [renamed.get('$top') ?? '']: 3, [renamed.get('a b') ?? '']: 'x' });
    await using server = await openProviderServer(
      wire,
      inOrder({ answer: { calls: [{ id: 'abcdefgh1', name: 'list', arguments: written }] } }),
    );
    const router = routerTo(wire, server.baseUrl);
    const { toolCalls } = await ask(router, askFor(wire, { tools }));
    expect(JSON.parse(toolCalls[0]?.arguments ?? '')).toEqual({ $top: 3, 'a b': 'x' });
    const history = [
      userMessage('go'),
      {
        role: 'assistant' as const,
        content: '',
        toolCalls: [{ id: 'abcdefgh1', name: 'list', arguments: { $top: 3, 'a b': 'x' } }],
      },
      { role: 'tool' as const, toolCallId: 'abcdefgh1', name: 'list', content: 'ok', isError: false },
    ];
    await ask(router, askFor(wire, { tools, messages: history }));
    expect(server.refusals).toEqual([]);
    const [call] = (server.requests[1]?.prompt?.messages ?? []).flatMap((message) =>
      message.role === 'assistant' ? (message.toolCalls ?? []) : [],
    );
    expect(call?.arguments).toEqual(JSON.parse(written));
  });
});

describe('Gemini gets', () => {
  const told = (schema: JsonObject) => toGeminiSchema(fitSchema(schema));
  it('a single type each, a choice of texts, and nested schemas', () => {
    const { schema, findings } = told(
      object({
        kind: { const: 'a' },
        size: { type: 'integer', enum: [1, 2] },
        when: { type: ['string', 'null'], format: 'date-time' },
        mail: { type: 'string', format: 'email' },
        list: { type: 'array' },
        both: { allOf: [object({ a: text }), object({ b: text })] },
        either: { oneOf: [text, { type: 'number' }, { type: 'null' }] },
      }),
    );
    expect(schema).toEqual(
      object({
        kind: { type: 'string', enum: ['a'] },
        size: { type: 'integer', description: 'One of 1, 2.' },
        when: { type: 'string', format: 'date-time', nullable: true },
        mail: text,
        list: { type: 'array', items: text },
        both: object({ a: text, b: text }),
        either: { anyOf: [text, { type: 'number' }], nullable: true },
      }),
    );
    expect(findings).toEqual(['#/list/items has no type: it is offered as text']);
  });

  it('a recursive schema up to twelve levels, and the finding says so', () => {
    const node = object({ next: { $ref: '#/$defs/node' }, name: text });
    const { schema, findings } = told({ ...node, $defs: { node } });
    expect(JSON.stringify(schema)).not.toContain('$ref');
    expect(findings.join()).toMatch(/nested too deeply or refers to itself: it is offered as text/);
  });

  it('a schema with many recursive places as far as it stays small, and not all of the places', () => {
    const names = ['and', 'or', 'not', 'left', 'right', 'else'];
    const node = object(Object.fromEntries(names.map((name) => [name, { $ref: '#/$defs/node' }])));
    const { schema, findings } = told({ ...node, $defs: { node } });
    expect(JSON.stringify(schema).length).toBeLessThan(100_000);
    expect(findings).toHaveLength(21);
    expect(findings.at(-1)).toMatch(/^\d+ more places are offered in part$/);
    // Every member is described to the same depth.
    const nested = object(Object.fromEntries(names.map((name) => [name, text])));
    const inner = (schema.properties as Record<string, JsonObject>).else?.properties as JsonObject;
    expect(JSON.stringify(inner)).toContain(JSON.stringify(nested));
  });
});
