/**
 * Rewrites tool schemas so that providers accept them, at any depth: arrays have `items`, member names have the form that Anthropic
 * accepts, references lead to definitions, and everything is valid JSON schema. A single tool that a provider refuses fails every call
 * that offers the tool. So a part that cannot be written is offered as any value, and reported. Arguments are still checked against the
 * whole schema when the call is dispatched.
 */
import { isJsonObject, type JsonObject, type JsonValue, sha256 } from '@boxcar/kernel';

const LEGAL_NAME = /^[a-zA-Z0-9_.-]{1,64}$/;
const TYPES = new Set(['string', 'number', 'integer', 'boolean', 'object', 'array', 'null']);
const DEFINITIONS = /^#(\/(\$defs|definitions)\/[^/]+)?$/;

/** Keywords whose values are members by name, a single schema, or a list of schemas; all other keywords hold plain values. */
const MEMBERS = new Set(['properties', 'patternProperties', '$defs', 'definitions', 'dependentSchemas']);
const SCHEMAS = new Set([
  'additionalProperties',
  'contains',
  'else',
  'if',
  'items',
  'not',
  'propertyNames',
  'then',
]);
const LISTS = new Set(['allOf', 'anyOf', 'oneOf']);

export interface FittedSchema {
  readonly schema: JsonObject;
  /** Member names that differ on the wire: ours → on the wire. */
  readonly renamed: ReadonlyMap<string, string>;
  /** Descriptions of the parts that the provider does not see. */
  readonly findings: readonly string[];
}

const wireNameOf = (name: string): string =>
  LEGAL_NAME.test(name)
    ? name
    : `${name.replaceAll(/[^a-zA-Z0-9_.-]/g, '_').slice(0, 51)}_${sha256(name).slice(0, 12)}`;

const sameOr = <T extends JsonValue>(before: T, after: T): T =>
  JSON.stringify(before) === JSON.stringify(after) ? before : after;

class Fitting {
  readonly renamed = new Map<string, string>();
  readonly findings: string[] = [];
  readonly #root: JsonObject;

  constructor(root: JsonObject) {
    this.#root = root;
  }

  fit(schema: JsonValue, place: string): JsonObject {
    if (schema === true) return {};
    if (schema === false) return { not: {} };
    if (!isJsonObject(schema)) return this.#anything(place, 'is not a schema');
    const fault = this.#findFault(schema);
    if (fault !== undefined) return this.#anything(place, fault);
    const fitted: Record<string, JsonValue> = {};
    for (const [keyword, value] of Object.entries(schema)) {
      if (value === undefined) continue;
      const at = `${place}/${keyword}`;
      if (keyword === 'required' && Array.isArray(value))
        fitted.required = value.map((name) => this.#name(name));
      else if (keyword === 'items' && Array.isArray(value)) fitted.items = this.#tuple(value, at);
      else if (keyword === 'prefixItems') fitted.items ??= this.#tuple(Array.isArray(value) ? value : [], at);
      else if (MEMBERS.has(keyword) && isJsonObject(value))
        fitted[keyword] = this.#members(keyword, value, at);
      else if (SCHEMAS.has(keyword) && typeof value !== 'boolean') fitted[keyword] = this.fit(value, at);
      else if (LISTS.has(keyword) && Array.isArray(value))
        fitted[keyword] = value.map((part) => this.fit(part, at));
      // In an older draft, `exclusive…` was a boolean that modified `minimum` or `maximum`.
      else if (!(keyword.startsWith('exclusive') && typeof value === 'boolean')) fitted[keyword] = value;
    }
    const types = Array.isArray(schema.type) ? schema.type : [schema.type];
    if (types.includes('array') && !isJsonObject(fitted.items)) fitted.items = {};
    return fitted;
  }

  #anything(place: string, why: string): JsonObject {
    this.findings.push(`${place} ${why}: it is offered as any value`);
    return {};
  }

  #findFault({ type, $ref: reference, properties, required, enum: values }: JsonObject): string | undefined {
    const types = type === undefined ? [] : Array.isArray(type) ? type : [type];
    const unknown = types.find((one) => typeof one !== 'string' || !TYPES.has(one));
    if (unknown !== undefined) return `has the unknown type ${JSON.stringify(unknown)}`;
    if (reference !== undefined && !this.#leadsSomewhere(reference))
      return `refers to ${JSON.stringify(reference)}, which is not among its definitions`;
    if (properties !== undefined && !isJsonObject(properties)) return 'has properties that are not an object';
    if (required !== undefined && !Array.isArray(required)) return 'has a `required` that is not a list';
    return values !== undefined && !Array.isArray(values) ? 'has an enum that is not a list' : undefined;
  }

  #leadsSomewhere(reference: JsonValue): boolean {
    if (typeof reference !== 'string' || !DEFINITIONS.test(reference)) return false;
    const [, keyword, name] = reference.split('/');
    if (keyword === undefined || name === undefined) return true;
    const definitions = this.#root[keyword];
    return (
      isJsonObject(definitions) &&
      Object.hasOwn(definitions, name.replaceAll('~1', '/').replaceAll('~0', '~'))
    );
  }

  /** A tuple becomes a list whose elements may match the schema of any position. */
  #tuple(parts: readonly JsonValue[], place: string): JsonObject {
    const fitted = parts.map((part) => this.fit(part, place));
    return fitted.length === 0 ? {} : { anyOf: fitted };
  }

  #members(keyword: string, members: JsonObject, place: string): JsonObject {
    return Object.fromEntries(
      Object.entries(members).map(([name, schema]) => [
        keyword === 'properties' ? this.#name(name) : name,
        this.fit(schema ?? null, `${place}/${name}`),
      ]),
    );
  }

  #name<T extends JsonValue>(name: T): T | string {
    if (typeof name !== 'string') return name;
    const wireName = wireNameOf(name);
    if (wireName !== name) this.renamed.set(name, wireName);
    return wireName;
  }
}

/** The same object when it already fits. A pure function of the schema's value, so that prompts stay byte-equal. */
export function fitSchema(schema: JsonObject): FittedSchema {
  const fitting = new Fitting(schema);
  const fitted = fitting.fit(schema, '#');
  const { renamed, findings } = fitting;
  // The arguments of a tool are an object, whatever is wrong with its schema.
  const root = findings.some((finding) => finding.startsWith('# '))
    ? { type: 'object', properties: {} }
    : fitted;
  return { schema: sameOr(schema, root), renamed, findings };
}

/** Arguments with member names replaced, at any depth. */
export function renameMembers(value: JsonValue, names: ReadonlyMap<string, string>): JsonValue {
  if (names.size === 0 || typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) return value.map((part) => renameMembers(part, names));
  return Object.fromEntries(
    Object.entries(value).map(([name, member]) => [
      names.get(name) ?? name,
      renameMembers(member ?? null, names),
    ]),
  );
}

/**
 * The arguments that a model wrote, with the original member names. Text that is not JSON, or has no renamed member, is returned
 * unchanged.
 */
export function renameWritten(text: string, renamed: ReadonlyMap<string, string>): string {
  const back = new Map([...renamed].map(([name, wireName]) => [wireName, name]));
  if (![...back.keys()].some((wireName) => text.includes(wireName))) return text;
  try {
    return JSON.stringify(renameMembers(JSON.parse(text) as JsonValue, back));
  } catch {
    return text;
  }
}
