import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import type { z } from 'zod';
import { tapeHandoffSchema } from '../tape/tools.js';
import {
  askExpertSchema,
  cancelSchema,
  collectSchema,
  contextHandoffSchema,
  createBoxSchema,
  delegateAsyncSchema,
  forkJoinSchema,
  grantBoxSchema,
  launchPrincipalSchema,
  provisionAgentSchema,
  raiseBudgetSchema,
  submitResultSchema,
} from './primitive.js';

const page = readFileSync(new URL('../../../../docs/primitives.md', import.meta.url), 'utf8');

/** The names in the second cell of a primitive's row, `?` left out. */
function argumentsOf(primitive: string): readonly string[] {
  const row = page.split('\n').find((line) => line.startsWith(`| \`${primitive}\` |`)) ?? '';
  const cell = row.split(' | ')[1] ?? '';
  return [...cell.matchAll(/`(\w+)\??`/g)].map(([, name = '']) => name);
}

const keysOf = (schema: z.ZodObject): readonly string[] => Object.keys(schema.shape).sort();

test.each([
  ['delegate_async', delegateAsyncSchema],
  ['collect', collectSchema],
  ['provision_agent', provisionAgentSchema],
  ['cancel', cancelSchema],
  ['raise_budget', raiseBudgetSchema],
  ['submit_result', submitResultSchema],
  ['create_box', createBoxSchema],
  ['grant_box', grantBoxSchema],
  ['tape.handoff', tapeHandoffSchema],
] as const)('docs/primitives.md lists the arguments of %s', (primitive, schema) => {
  expect([...argumentsOf(primitive)].sort()).toEqual(keysOf(schema));
});

test.each([
  ['launch_principal', launchPrincipalSchema],
  ['ask_expert', askExpertSchema],
] as const)(
  'docs/primitives.md lists the arguments of %s, by those of delegate_async',
  (primitive, schema) => {
    const optional = argumentsOf('delegate_async').filter(
      (name) => !['target_strategy', 'target_ref', 'instruction', 'history', 'view'].includes(name),
    );
    const own = argumentsOf(primitive).filter((name) => keysOf(schema).includes(name));
    expect([...new Set([...own, ...optional])].sort()).toEqual(keysOf(schema));
  },
);

test('docs/primitives.md lists the arguments of fork_join and of its tasks', () => {
  const task = forkJoinSchema.shape.tasks.element;
  expect([...new Set(argumentsOf('fork_join'))].sort()).toEqual(
    [...new Set([...keysOf(forkJoinSchema), ...keysOf(task)])].sort(),
  );
});

test('docs/primitives.md lists the arguments of context_handoff and of its intention', () => {
  const intention = contextHandoffSchema.shape.intention.unwrap();
  expect([...argumentsOf('context_handoff')].sort()).toEqual(
    [...keysOf(contextHandoffSchema), ...keysOf(intention)].sort(),
  );
});
