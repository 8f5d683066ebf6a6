/**
 * JSON Schemas of foreign programs, such as MCP servers. Such a schema is not refused. The enforceable part is
 * enforced, and the rest is left to the program, which checks its arguments itself.
 *
 * Removing a keyword from a schema lets more values pass, except inside keywords that depend on values that do not fit
 * (`not`, `oneOf`, `if` and similar). A schema that needs such a removal and has such a keyword is not enforced at all.
 */
import { isJsonObject, type JsonObject, type JsonValue } from '../base/index.js';
import { kindOf } from './schema-parts.js';
import { findSchemaFault } from './user-schema.js';

/** Under these keywords, a looser part can make the whole schema stricter. */
const TURNING = new Set(['not', 'oneOf', 'if', 'contains', 'unevaluatedProperties', 'unevaluatedItems']);

/** Keywords that have no meaning alone, and can always be enforced. */
const BESIDE = new Set(['type', 'description', 'then', 'else', 'minContains', 'maxContains']);

/** The most keywords that are checked one by one, about a millisecond each. Later keywords are left out. */
const MAX_CHECKS = 300;

class Loosening {
  readonly #dialect: JsonObject;
  isChanged = false;
  isTurned = false;
  #checks = 0;

  constructor(dialect: JsonObject) {
    this.#dialect = dialect;
  }

  /** Whether a keyword with this value could be enforced alone. */
  #isEnforced(key: string, value: JsonValue): boolean {
    if (BESIDE.has(key)) return true;
    this.#checks += 1;
    return this.#checks <= MAX_CHECKS && findSchemaFault({ ...this.#dialect, [key]: value }) === undefined;
  }

  part(schema: JsonValue): JsonValue {
    if (!isJsonObject(schema)) return schema;
    const members = Object.entries(schema).flatMap(([key, value]): [string, JsonValue][] => {
      this.isTurned ||= TURNING.has(key);
      const kept = this.#member(key, value);
      this.isChanged ||= kept === undefined;
      return kept === undefined ? [] : [[key, kept]];
    });
    const loose = Object.fromEntries(members);
    // Without the patterns, the names that they described would count as unknown names.
    if ('patternProperties' in schema && !('patternProperties' in loose)) delete loose.additionalProperties;
    return loose;
  }

  #member(key: string, value: JsonValue): JsonValue | undefined {
    if (key === '$schema' || key === '$id') return key === '$id' ? undefined : value;
    if (key === '$ref') return typeof value === 'string' && value.startsWith('#') ? value : undefined;
    const kind = kindOf(key);
    if (key === 'patternProperties' && isJsonObject(value)) {
      const patterns = Object.fromEntries(Object.keys(value).map((pattern) => [pattern, true]));
      if (!this.#isEnforced(key, patterns)) return undefined;
    }
    if (kind === undefined) return this.#isEnforced(key, value) ? value : undefined;
    if (Array.isArray(value)) return value.map((item) => this.part(item));
    if (kind === 'map' && isJsonObject(value))
      return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, this.part(item)]));
    return this.part(value);
  }
}

/** Larger schemas are not analyzed. */
const MAX_BYTES = 64 * 1024;

/**
 * The enforceable form of the schema, for `checkBySchema`: the same object, or a copy that lets more values pass.
 * Undefined when no part of it can be enforced.
 */
export function loosenSchema(schema: JsonObject): JsonObject | undefined {
  if (findSchemaFault(schema) === undefined) return schema;
  if (JSON.stringify(schema).length > MAX_BYTES) return undefined;
  const { $schema } = schema;
  const loosening = new Loosening($schema === undefined ? {} : { $schema });
  const loose = loosening.part(schema);
  if (!isJsonObject(loose) || loosening.isTurned) return undefined;
  return findSchemaFault(loose) === undefined ? loose : undefined;
}
