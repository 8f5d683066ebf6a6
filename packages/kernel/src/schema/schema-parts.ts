/** The parts of a user's schema, and how much of it ajv would compile (S4 in `user-schema.ts`). */
import { isJsonObject, type JsonObject, type JsonValue } from '../base/index.js';

/** The most parts that ajv compiles (S4): about a quarter of a second. */
export const MAX_PARTS = 2_500;
/** The limit for all schemas of a profile together. */
const MAX_PROFILE_PARTS = 5_000;
/** The cost of the smallest schema, and of a pattern, in parts. */
const FIXED_PARTS = 10;
/** The cost of a Unicode property in a pattern. */
const PROPERTY_PARTS = 2;

/** The keywords that contain schemas. */
const NESTED: Readonly<Record<string, 'one' | 'list' | 'map'>> = {
  ...keys('one', 'additionalProperties propertyNames contains not if then else'),
  ...keys('one', 'additionalItems unevaluatedItems unevaluatedProperties contentSchema'),
  ...keys('list', 'allOf anyOf oneOf prefixItems items'),
  // Two of these can have a list of names in place of a schema.
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

/** The cost of a required name: its check is compiled into the check of the name before it. */
const NESTED_PARTS = 4;

/** The number of schemas and names for which ajv compiles separate code (S4); counting stops after `max`. */
export function countParts(schema: JsonValue, max: number): number {
  let parts = 0;
  const open: JsonValue[] = [schema];
  for (let next = open.pop(); next !== undefined && parts <= max; next = open.pop()) {
    parts += Array.isArray(next) ? NESTED_PARTS * next.length : 1;
    if (!isJsonObject(next)) continue;
    // Each alternative is compiled into the code of the alternative before it.
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

/** Why the schemas of one profile are together too much to compile (S4). Compiles none of them. */
export function findSchemasFault(schemas: readonly JsonObject[]): string | undefined {
  let parts = 0;
  for (const schema of schemas) {
    parts += FIXED_PARTS + countParts(schema, MAX_PROFILE_PARTS);
    if (parts > MAX_PROFILE_PARTS)
      return `the schemas of all tools together have too many parts (${MAX_PROFILE_PARTS} at most)`;
  }
  return undefined;
}
