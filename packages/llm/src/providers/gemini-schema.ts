/**
 * Rewrites tool schemas in the form that Gemini accepts: a part of OpenAPI 3.0, without references, with one type each. The SDK's
 * provider translates the keywords that it knows and throws for the rest, which would fail every call. So everything is written here in
 * the subset that both know. https://ai.google.dev/api/caching#Schema
 */
import { isJsonObject, type JsonObject, type JsonValue } from '@boxcar/kernel';
import type { FittedSchema } from './fit-schema.js';
import { toObjectSchema } from './tool-schema.js';

const MAX_DEPTH = 12;
/** This many levels are always sent, however large the schema becomes. */
const MIN_DEPTH = 3;
/** A schema that refers to itself in several places grows by a factor with each level. */
const MAX_PARTS = 1_000;
const MAX_FINDINGS = 20;
const FORMATS = new Set(['date-time', 'enum', 'float', 'double', 'int32', 'int64']);
/** The type of a value that may be anything: Gemini has no type for it. */
const TEXT: JsonObject = { type: 'string' };

const listOf = (value: JsonValue | undefined): readonly JsonValue[] => (Array.isArray(value) ? value : []);

class Translation {
  readonly findings: string[] = [];
  readonly #root: JsonObject;
  readonly #maxDepth: number;
  #parts = 0;

  constructor(root: JsonObject, maxDepth: number) {
    this.#root = root;
    this.#maxDepth = maxDepth;
  }

  get isTooLarge(): boolean {
    return this.#parts > MAX_PARTS;
  }

  translate(schema: JsonObject, place: string, depth = 0): JsonObject {
    this.#parts += 1;
    if (depth > this.#maxDepth || this.isTooLarge)
      return this.#asText(place, 'is nested too deeply or refers to itself');
    const referred = this.#resolve(schema);
    if (referred !== undefined)
      return this.translate({ ...referred, ...withoutReference(schema) }, place, depth + 1);
    const { description, format } = schema;
    const words = {
      ...(typeof description === 'string' && description !== '' ? { description } : {}),
      ...(typeof format === 'string' && FORMATS.has(format) ? { format } : {}),
    };
    const parts = [...listOf(schema.anyOf), ...listOf(schema.oneOf)].filter(isJsonObject);
    const types = typesOf(schema);
    if (listOf(schema.allOf).length > 0) return this.translate(mergeAll(schema), place, depth + 1);
    if (parts.length > 0) return this.#either(parts, words, { place, depth });
    const [type, ...others] = types.filter((one) => one !== 'null');
    const nullable = types.includes('null') ? { nullable: true } : {};
    if (others.length > 0) {
      const each = [type, ...others].map((one) => ({ ...schema, type: one ?? null, description: '' }));
      return { ...words, ...nullable, anyOf: each.map((one) => this.translate(one, place, depth + 1)) };
    }
    switch (type) {
      case 'object':
        return { ...words, ...nullable, ...this.#object(schema, place, depth) };
      case 'array': {
        const items = isJsonObject(schema.items) ? schema.items : {};
        return { ...words, ...nullable, type, items: this.translate(items, `${place}/items`, depth + 1) };
      }
      case undefined:
        return { ...words, ...this.#asText(place, 'has no type') };
      default:
        return { ...words, ...nullable, type, ...valuesOf(schema, type) };
    }
  }

  #asText(place: string, why: string): JsonObject {
    this.findings.push(`${place} ${why}: it is offered as text`);
    return TEXT;
  }

  #either(
    parts: readonly JsonObject[],
    words: JsonObject,
    { place, depth }: { readonly place: string; readonly depth: number },
  ): JsonObject {
    const some = parts.filter((part) => part.type !== 'null');
    const nullable = some.length < parts.length ? { nullable: true } : {};
    const [first, ...others] = some.map((part) => this.translate(part, place, depth + 1));
    if (first === undefined) return { ...words, ...TEXT, ...nullable };
    if (others.length === 0) return { ...first, ...words, ...nullable };
    return { ...words, ...nullable, anyOf: [first, ...others] };
  }

  #object(schema: JsonObject, place: string, depth: number): JsonObject {
    const members = Object.entries(isJsonObject(schema.properties) ? schema.properties : {}).flatMap(
      ([name, member]) =>
        isJsonObject(member) ? [[name, this.translate(member, `${place}/${name}`, depth + 1)] as const] : [],
    );
    if (members.length === 0) {
      if (depth > 0) this.findings.push(`${place} declares no members: Gemini gets none`);
      return { type: 'object' };
    }
    const properties = Object.fromEntries(members);
    const required = listOf(schema.required).filter(
      (name) => typeof name === 'string' && Object.hasOwn(properties, name),
    );
    return { type: 'object', properties, ...(required.length > 0 ? { required } : {}) };
  }

  #resolve({ $ref: reference }: JsonObject): JsonObject | undefined {
    if (reference === '#') return this.#root;
    if (typeof reference !== 'string') return undefined;
    const [, keyword = '', name = ''] = reference.split('/');
    const definitions = this.#root[keyword];
    const found = isJsonObject(definitions)
      ? definitions[name.replaceAll('~1', '/').replaceAll('~0', '~')]
      : undefined;
    return isJsonObject(found) ? found : undefined;
  }
}

const withoutReference = ({ $ref: _reference, ...rest }: JsonObject): JsonObject => rest;

/** An intersection of objects becomes one object; for other values the first part counts. */
function mergeAll({ allOf, ...rest }: JsonObject): JsonObject {
  const merged = toObjectSchema({ ...rest, allOf: allOf ?? [] });
  const [first] = listOf(allOf).filter(isJsonObject);
  const isObject = isJsonObject(merged.properties) && Object.keys(merged.properties).length > 0;
  return isObject ? merged : { ...first, ...rest };
}

/** The declared types, or the types that the other keywords imply. */
function typesOf(schema: JsonObject): readonly string[] {
  const { type } = schema;
  const named = (Array.isArray(type) ? type : [type]).filter((one) => typeof one === 'string');
  if (named.length > 0) return named;
  if (schema.properties !== undefined) return ['object'];
  if (schema.items !== undefined) return ['array'];
  const values = schema.const === undefined ? listOf(schema.enum) : [schema.const];
  return [...new Set(values.map((value) => (value === null ? 'null' : typeof value)))];
}

/** The allowed values as `enum` for strings; for other types they are listed in the description. */
function valuesOf({ enum: given, const: only, description }: JsonObject, type: string): JsonObject {
  const values = (only === undefined ? listOf(given) : [only]).filter(
    (value) => value !== null && value !== '',
  );
  if (values.length === 0) return {};
  if (type === 'string') return { enum: values.filter((value) => typeof value === 'string') };
  const choice = `One of ${values.map((value) => JSON.stringify(value)).join(', ')}.`;
  return {
    description: typeof description === 'string' && description !== '' ? `${description} ${choice}` : choice,
  };
}

/**
 * Translates to the greatest depth at which the result stays small. All branches are cut at the same depth, so no branch takes the room
 * of another.
 */
function translateSchema(schema: JsonObject): { schema: JsonObject; findings: readonly string[] } {
  for (let maxDepth = MAX_DEPTH; ; maxDepth -= 1) {
    const translation = new Translation(schema, maxDepth);
    const translated = translation.translate(schema, '#');
    if (translation.isTooLarge && maxDepth > MIN_DEPTH) continue;
    const shown = translation.findings.slice(0, MAX_FINDINGS);
    const more = translation.findings.length - shown.length;
    if (more > 0) shown.push(`${more} more places are offered in part`);
    return { schema: translated, findings: shown };
  }
}

export function toGeminiSchema({ schema, renamed, findings }: FittedSchema): FittedSchema {
  const { schema: translated, findings: more } = translateSchema(schema);
  return {
    schema: translated.properties === undefined ? { type: 'object', properties: {} } : translated,
    renamed,
    findings: [...findings, ...more],
  };
}
