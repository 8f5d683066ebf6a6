/** What a schema of a user holds, and how much of it ajv would compile (S4 in `user-schema.ts`). */
import { isJsonObject, type JsonObject, type JsonValue } from '../base/index.js';

/** Parts that ajv compiles (S4): about a quarter of a second. */
export const MAX_PARTS = 2_500;
/** For all schemas of a profile. */
const MAX_PROFILE_PARTS = 5_000;
/** What the smallest schema, and a pattern, cost in parts. */
const FIXED_PARTS = 10;
/** For a property of Unicode in a pattern. */
const PROPERTY_PARTS = 2;

/** Where a schema holds schemas. */
const NESTED: Readonly<Record<string, 'one' | 'list' | 'map'>> = {
  ...keys('one', 'additionalProperties propertyNames contains not if then else'),
  ...keys('one', 'additionalItems unevaluatedItems unevaluatedProperties contentSchema'),
  ...keys('list', 'allOf anyOf oneOf prefixItems items'),
  // In two of them a list of names can be in place of a schema.
  ...keys(
    'map',
    'properties patternProperties dependentSchemas dependentRequired dependencies $defs definitions',
  ),
};

function keys<T>(kind: T, names: string): Record<string, T> {
  return Object.fromEntries(names.split(' ').map((name) => [name, kind]));
}

export const kindOf = (key: string): 'one' | 'list' | 'map' | undefined =>
  Object.hasOwn(NESTED, key) ? NESTED[key] : undefined;

const patternParts = (pattern: string): number =>
  FIXED_PARTS + Math.ceil(pattern.length / 16) + PROPERTY_PARTS * (pattern.split(/\\p/i).length - 1);

/** For a required name: its check is compiled into the check of the name before it. */
const NESTED_PARTS = 4;

/** The schemas and names that ajv compiles to code of their own (S4); stops after `max`. */
export function countParts(schema: JsonValue, max: number): number {
  let parts = 0;
  const open: JsonValue[] = [schema];
  for (let next = open.pop(); next !== undefined && parts <= max; next = open.pop()) {
    parts += Array.isArray(next) ? NESTED_PARTS * next.length : 1;
    if (!isJsonObject(next)) continue;
    // Each alternative is compiled into the code of the one before it.
    if (Array.isArray(next.oneOf)) parts += next.oneOf.length;
    if (typeof next.pattern === 'string') parts += patternParts(next.pattern);
    for (const [key, value] of Object.entries(next)) {
      const kind = kindOf(key);
      if (kind === undefined) continue;
      if (Array.isArray(value)) for (const item of value) open.push(item);
      else if (kind === 'map' && isJsonObject(value))
        for (const item of Object.values(value)) open.push(item);
      else open.push(value);
      if (key === 'patternProperties' && isJsonObject(value))
        for (const pattern of Object.keys(value)) parts += patternParts(pattern);
    }
  }
  return parts;
}

/** Why the schemas of one profile are too much to compile together (S4). Compiles none of them. */
export function findSchemasFault(schemas: readonly JsonObject[]): string | undefined {
  let parts = 0;
  for (const schema of schemas) {
    parts += FIXED_PARTS + countParts(schema, MAX_PROFILE_PARTS);
    if (parts > MAX_PROFILE_PARTS)
      return `the schemas of all tools together have too many parts (${MAX_PROFILE_PARTS} at most)`;
  }
  return undefined;
}
