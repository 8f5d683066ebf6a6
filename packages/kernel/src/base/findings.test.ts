import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import { parseHandover } from '../packing/handover.js';
import {
  cancelSchema,
  collectSchema,
  createBoxSchema,
  delegateAsyncSchema,
  forkJoinSchema,
  provisionAgentSchema,
} from '../primitive/primitive.js';
import { parseProfile, profileSchema } from '../profile/profile.js';
import { findingsOf, findingWords, safeParse, toBadRequest } from './findings.js';
import { suggest } from './suggest.js';

function wordsOf(schema: z.ZodType, value: unknown): readonly string[] {
  const parsed = safeParse(schema, value);
  return parsed.success ? [] : findingsOf(parsed.error).map(({ path, message }) => `${path}: ${message}`);
}

const TASK = { target_strategy: 'new', target_ref: 'writer', instruction: 'Write.' };

describe('the findings of a large schema or a schema with alternatives', () => {
  const MANY = Array.from({ length: 5_000 }, (_, index) => `word${index}`);

  it('list 40 allowed words and count the others', () => {
    const one = z.object({ mode: z.enum(MANY as [string, ...string[]]) });
    const either = z.object({
      mode: z.union(MANY.map((word) => z.literal(word)) as [z.ZodLiteral, z.ZodLiteral]),
    });
    for (const [finding] of [wordsOf(one, { mode: 5 }), wordsOf(either, { mode: 5 })])
      expect(finding).toMatch(/^mode: must be (one of )?'word0', .*'word39'.* 4960 more, not a number$/);
    expect(wordsOf(one, { mode: 'wrod4999' })[0]).toMatch(
      /and 4960 more, not .*; did you mean 'word4999'\?$/,
    );
  });

  it('do not compare words whose lengths differ widely', () => {
    // A letter-by-letter comparison would take minutes.
    expect(suggest('x'.repeat(99), Array(200).fill('y'.repeat(200_000)))).toBeUndefined();
    expect(suggest('wrod', ['words', 'word', 'w-o_rd'])).toBe('word');
  });

  it('are those of the alternative that the input names, and list the allowed words when the input names none of them', () => {
    const either = z.union([
      z.strictObject({ kind: z.literal('file'), path: z.string() }),
      z.strictObject({ kind: z.literal('mail'), to: z.string(), subject: z.string(), text: z.string() }),
    ]);
    const schema = z.object({ of: either });
    expect(wordsOf(schema, { of: { kind: 'mail', path: 'x' } })).toEqual([
      'of.to: is missing; it must be a string',
      'of.subject: is missing; it must be a string',
      'of.text: is missing; it must be a string',
      expect.stringMatching(/^of: unknown key 'path'/),
    ]);
    expect(wordsOf(schema, { of: { kind: 'fax', to: 'x' } })).toEqual([
      "of.kind: must be one of 'file', 'mail'",
    ]);
  });
});

describe('the findings of an input', () => {
  it.each([
    ['a text that is missing', {}, ['text: is missing; it must be a string']],
    ['a value of another kind', { text: 5 }, ['text: must be a string, not a number']],
    ['null', { text: null }, ['text: must be a string, not null']],
    [
      'an unknown key near a known one',
      { text: '', texts: 1 },
      ["unknown key 'texts' (did you mean 'text'?)"],
    ],
    [
      'an unknown key',
      { text: '', colour: 1 },
      ["unknown key 'colour'; known here are text, count, mode, ids, when, ratio, names"],
    ],
    ['a number that is not whole', { text: '', count: 1.5 }, ['count: must be a whole number']],
    ['a number that is too small', { text: '', count: 0 }, ['count: must be at least 1']],
    ['a number that is too large', { text: '', count: 11 }, ['count: must be at most 10']],
    ['a limit that is not reached', { text: '', ratio: 0 }, ['ratio: must be more than 0']],
    [
      'a word from a list',
      { text: '', mode: 'clon' },
      ["mode: must be one of 'new', 'clone', not 'clon'; did you mean 'clone'?"],
    ],
    [
      'a word that is not in the list',
      { text: '', mode: 7 },
      ["mode: must be one of 'new', 'clone', not a number"],
    ],
    [
      'a value of neither of two kinds',
      { text: '', ids: 5 },
      ['ids: must be a string or a list, not a number'],
    ],
    ['a part of the second alternative', { text: '', ids: ['a', ''] }, ['ids.1: must not be empty']],
    [
      'a time without a zone',
      { text: '', when: 'now' },
      ['when: must be a date and time with its zone, such as 2026-01-31T12:00:00Z'],
    ],
    ['a list that is too long', { text: '', names: ['a', 'b', 'c'] }, ['names: must have at most 2 items']],
    [
      'several findings at once',
      { text: 1, count: 'x', mode: 'new' },
      ['text: must be a string, not a number', 'count: must be a number, not a string'],
    ],
  ])('%s', (_title, value, expected) => {
    const schema = z.strictObject({
      text: z.string(),
      count: z.int().min(1).max(10).optional(),
      mode: z.enum(['new', 'clone']).optional(),
      ids: z.union([z.string().min(1), z.array(z.string().min(1))]).optional(),
      when: z.iso.datetime({ offset: true }).optional(),
      ratio: z.number().positive().optional(),
      names: z.array(z.string()).max(2).optional(),
    });
    expect(wordsOf(schema, value).map((line) => line.replace(/^: /, ''))).toEqual(expected);
  });

  it('keep the custom messages of a schema', () => {
    expect(wordsOf(z.string({ error: 'give a name' }), 1)).toEqual([': give a name']);
  });

  it('name the words that a discriminated union takes', () => {
    const schema = z.discriminatedUnion('kind', [
      z.strictObject({ kind: z.literal('text') }),
      z.strictObject({ kind: z.literal('json') }),
    ]);
    expect(wordsOf(schema, { kind: 'texts' })).toEqual([
      "kind: must be one of 'text', 'json', not 'texts'; did you mean 'text'?",
    ]);
  });

  it('are all in the message and in the details', () => {
    const parsed = safeParse(delegateAsyncSchema, {
      target_strategy: 'cloned',
      target_ref: 'writer',
      instruction: ' ',
      context_box_id: 5,
      history: 'view',
      budget_strategy: 'newest',
      contextboxid: 'x',
    });
    if (parsed.success) throw new Error('the input was taken');
    const error = toBadRequest(parsed.error, 'arguments');
    const { issues } = error.details as { issues: { path: string }[] };
    expect(issues.map(({ path }) => path).toSorted()).toEqual([
      'arguments',
      'arguments.budget_strategy',
      'arguments.context_box_id',
      'arguments.history',
      'arguments.instruction',
      'arguments.target_strategy',
    ]);
    expect(error.message).toContain(
      "arguments.target_strategy: must be one of 'new', 'reuse', 'clone', not 'cloned'; did you mean 'clone'?",
    );
    expect(error.message).toContain('arguments.instruction: must not be blank.');
    expect(error.message).toContain('arguments.context_box_id: must be a string or a list, not a number.');
    expect(error.message).toContain("arguments: unknown key 'contextboxid' (did you mean 'context_box_id'?)");
  });

  it('count the findings that do not fit into a message', () => {
    const many = Array.from({ length: 30 }, (_, index) => ({ path: `a.${index}`, message: 'is missing' }));
    expect(findingWords(many)).toMatch(/a\.9: is missing\. And 20 more\.$/);
  });
});

/** Words of the validation library, which no finding may contain. */
const RAW = /Invalid|Unrecognized|Too (small|big)|expected|received/;
const JUNK: readonly unknown[] = [
  undefined,
  null,
  5,
  -1,
  1.5,
  'x',
  '',
  true,
  [],
  [5],
  [''],
  [{}],
  {},
  { x: 1 },
  1e300,
];

describe('a finding about several members is reported together with the findings of each member', () => {
  it.each<[string, z.ZodType, unknown, readonly string[]]>([
    [
      'provision_agent',
      provisionAgentSchema,
      { action: 'create', agent_id: 5, derived_from: 'x', shared: 'yes' },
      [
        'agent_id: must be a string or an object, not a number',
        'shared: must be true or false, not a string',
        'profile_name: is required with action create',
        'derived_from: is for action derive only',
      ],
    ],
    [
      'provision_agent with an action that is not valid: no rule of an action is applied',
      provisionAgentSchema,
      { action: 'make', derived_from: 'x' },
      ["action: must be one of 'ensure', 'create', 'derive', not 'make'"],
    ],
    [
      'fork_join',
      forkJoinSchema,
      { tasks: [{ ...TASK, instruction: 5 }], min_success: 2 },
      [
        'tasks.0.instruction: must be a string, not a number',
        'min_success: is more than the number of tasks (1)',
      ],
    ],
    [
      'fork_join with tasks that are not a list',
      forkJoinSchema,
      { tasks: 5, min_success: 2 },
      ['tasks: must be a list, not a number'],
    ],
    [
      'create_box',
      createBoxSchema,
      { cards: [], colour: 'red' },
      [": unknown key 'colour'; known here are cards, card_ids", ': give cards or card_ids'],
    ],
    [
      'create_box with cards that are not a list',
      createBoxSchema,
      { cards: 5 },
      ['cards: must be a list, not a number'],
    ],
  ])('%s', (_name, schema, input, expected) => {
    expect(wordsOf(schema, input)).toEqual(expected);
  });
});

describe('no finding uses the words of the schema library', () => {
  it.each([
    ['delegate_async', delegateAsyncSchema, TASK],
    ['fork_join', forkJoinSchema, { tasks: [TASK] }],
    ['provision_agent', provisionAgentSchema, { action: 'create' }],
    ['create_box', createBoxSchema, { card_ids: ['x'] }],
    ['collect', collectSchema, { batch_id: 'x' }],
    ['cancel', cancelSchema, { run_id: 'x' }],
    ['a profile', profileSchema, { name: 'a', instructions: '', model: 'scripted' }],
  ])('%s', (_name, schema, valid) => {
    const seen = new Set<string>();
    const keys = Object.keys((schema as unknown as z.ZodObject).shape);
    for (const key of [...keys, 'colour'])
      for (const junk of JUNK)
        for (const line of wordsOf(schema as z.ZodType, { ...valid, [key]: junk })) seen.add(line);
    for (const junk of JUNK) for (const line of wordsOf(schema as z.ZodType, junk)) seen.add(line);
    expect(seen.size).toBeGreaterThan(10);
    expect([...seen].filter((line) => RAW.test(line))).toEqual([]);
  });

  it('a handover and a profile also report all their findings at once', () => {
    expect(() =>
      parseHandover({ target_profile_config: 5, context_packing_config: { budget_tokens: 'x' } }),
    ).toThrow(
      'handover.target_profile_config: must be an object, not a number. handover.context_packing_config.budget_tokens: must be a number, not a string.',
    );
    expect(() => parseProfile({ name: 'a', instructions: 1, model: 2 })).toThrow(
      'instructions: must be a string, not a number. model: must be a string, not a number.',
    );
  });
});
