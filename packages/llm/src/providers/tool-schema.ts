/**
 * Tool parameters in the form that every provider accepts: an object at the root, with `properties`, and without the keywords that OpenAI
 * and Anthropic refuse there. The flattening loses which members belong together; that is still checked when the call is dispatched.
 */
import { canonicalJson, isJsonObject, type JsonObject, type JsonValue } from '@boxcar/kernel';

const REFUSED_AT_ROOT = new Set(['$schema', '$ref', 'allOf', 'anyOf', 'enum', 'not', 'oneOf']);
const MAX_DEPTH = 16;
/** The limit of schemas that are read for one root: a schema that refers to itself in several places has no end. */
const MAX_READ = 1_000;

interface Shape {
  /** The schemas of each member, one for each alternative that has the member. */
  readonly properties: ReadonlyMap<string, readonly JsonValue[]>;
  readonly required: ReadonlySet<string>;
}

const EMPTY: Shape = { properties: new Map(), required: new Set() };

function mergeProperties(shapes: readonly Shape[]): Map<string, readonly JsonValue[]> {
  const merged = new Map<string, readonly JsonValue[]>();
  for (const { properties } of shapes) {
    for (const [name, schemas] of properties) merged.set(name, [...(merged.get(name) ?? []), ...schemas]);
  }
  return merged;
}

/** One alternative holds, so only members that every alternative requires are required. */
function mergeAlternatives(shapes: readonly Shape[]): Shape {
  const [first, ...others] = shapes;
  if (first === undefined) return EMPTY;
  const required = [...first.required].filter((name) => others.every((shape) => shape.required.has(name)));
  return { properties: mergeProperties(shapes), required: new Set(required) };
}

const mergeAll = (shapes: readonly Shape[]): Shape => ({
  properties: mergeProperties(shapes),
  required: new Set(shapes.flatMap((shape) => [...shape.required])),
});

const listOf = (value: JsonValue | undefined): readonly JsonValue[] => (Array.isArray(value) ? value : []);

function resolveReference(reference: JsonValue | undefined, root: JsonObject): JsonValue | undefined {
  if (reference === '#') return root;
  const match = typeof reference === 'string' ? /^#\/(\$defs|definitions)\/([^/]+)$/.exec(reference) : null;
  const definitions = match === null ? undefined : root[match[1] ?? ''];
  const name = match?.[2]?.replaceAll('~1', '/').replaceAll('~0', '~') ?? '';
  return isJsonObject(definitions) && Object.hasOwn(definitions, name) ? definitions[name] : undefined;
}

interface Reading {
  readonly root: JsonObject;
  left: number;
}

function shapeOf(schema: JsonValue | undefined, reading: Reading, depth: number): Shape | undefined {
  reading.left -= 1;
  if (!isJsonObject(schema) || depth > MAX_DEPTH || reading.left < 0) return undefined;
  const read = (part: JsonValue): Shape | undefined => shapeOf(part, reading, depth + 1);
  const isDefined = (shape: Shape | undefined): shape is Shape => shape !== undefined;
  const parts: Shape[] = [];
  if (isJsonObject(schema.properties)) {
    const properties = Object.entries(schema.properties).map(([name, member]) => [name, [member]] as const);
    const required = listOf(schema.required).filter((name) => typeof name === 'string');
    parts.push({ properties: new Map(properties), required: new Set(required) });
  }
  const referred = resolveReference(schema.$ref, reading.root);
  if (referred !== undefined) parts.push(read(referred) ?? EMPTY);
  for (const keyword of ['anyOf', 'oneOf'] as const) {
    const shapes = listOf(schema[keyword]).map(read).filter(isDefined);
    if (shapes.length > 0) parts.push(mergeAlternatives(shapes));
  }
  parts.push(...listOf(schema.allOf).map(read).filter(isDefined));
  return parts.length > 0 ? mergeAll(parts) : undefined;
}

const isPlainObject = (schema: JsonObject): boolean =>
  schema.type === 'object' &&
  isJsonObject(schema.properties) &&
  Object.keys(schema).every((keyword) => !REFUSED_AT_ROOT.has(keyword));

function alternatives(schemas: readonly JsonValue[]): JsonValue {
  const distinct = [...new Map(schemas.map((schema) => [canonicalJson(schema), schema])).values()];
  return distinct.length === 1 ? (distinct[0] ?? {}) : { anyOf: distinct };
}

/** The same object when it already fits. A pure function of the schema's value, so that prompts stay byte-equal. */
export function toObjectSchema(schema: JsonValue): JsonObject {
  if (isJsonObject(schema) && isPlainObject(schema)) return schema;
  const root = isJsonObject(schema) ? schema : {};
  const { properties, required } = shapeOf(root, { root, left: MAX_READ }, 0) ?? EMPTY;
  const kept = Object.entries(root).filter(
    ([keyword]) =>
      !REFUSED_AT_ROOT.has(keyword) && keyword !== 'required' && keyword !== 'additionalProperties',
  );
  const isClosed = root.additionalProperties === false && properties.size === 0 && root.type === 'object';
  return {
    ...Object.fromEntries(kept),
    type: 'object',
    properties: Object.fromEntries(
      [...properties].map(([name, schemas]) => [name, alternatives(schemas)] as const),
    ),
    ...(required.size > 0 ? { required: [...required] } : {}),
    ...(isClosed ? { additionalProperties: false } : {}),
  };
}
