import { readFileSync } from 'node:fs';
import { contextHandoffSchema, forkJoinSchema } from '@boxcar/kernel';
import { expect, test } from 'vitest';
import type { z } from 'zod';
import { BUILT_IN } from './built-in.js';

const page = readFileSync(new URL('../../../../docs/reference/primitives.md', import.meta.url), 'utf8');

/** The names in the list below a primitive's own line, without `?`. */
function argumentsOf(primitive: string): readonly string[] {
  const [, rest = ''] = page.split(`\n**\`${primitive}\`**`);
  const [list = ''] = /(?<=^[^\n]*\n\n)(?:- .*\n(?: {2}.*\n)*)+/.exec(rest) ?? [];
  return [...list.matchAll(/`(\w+)\??`/g)].map(([, name = '']) => name);
}

const keysOf = (schema: z.ZodType): readonly string[] => Object.keys((schema as z.ZodObject).shape);

/** Arguments that are objects; the list also has their keys. */
const INNER: Readonly<Record<string, z.ZodObject>> = {
  fork_join: forkJoinSchema.shape.tasks.element,
  context_handoff: contextHandoffSchema.shape.intention.unwrap(),
};

/** Lists that have only their own arguments and refer to `delegate_async` for the others. */
const SHORT = new Set(['launch_principal', 'ask_expert']);

const listed = (primitive: string, known: ReadonlySet<string>): readonly string[] => {
  const own = argumentsOf(primitive);
  if (!SHORT.has(primitive)) return own;
  const others = argumentsOf('delegate_async').filter(
    (name) => !['target_strategy', 'target_ref', 'instruction', 'history', 'view'].includes(name),
  );
  return [...own.filter((name) => known.has(name)), ...others];
};

test.each([...BUILT_IN])('docs/reference/primitives.md lists the arguments of %s', (primitive, { input }) => {
  const inner = INNER[primitive];
  const known = new Set([...keysOf(input), ...(inner === undefined ? [] : keysOf(inner))]);
  expect(known.size).toBeGreaterThan(0);
  expect([...new Set(listed(primitive, known))].sort()).toEqual([...known].sort());
});
