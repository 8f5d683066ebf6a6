/** The schemas of the kernel's own tools in the form that models see: every prompt pays for each byte of them. */
import { isJsonObject, type JsonObject, type JsonValue } from '../base/index.js';

/**
 * Keywords that are left out. They are checked when a call is dispatched, with a finding that states the allowed
 * values; few calls come near these bounds.
 */
const BOUNDS: ReadonlySet<string> = new Set([
  'minimum',
  'maximum',
  'exclusiveMinimum',
  'exclusiveMaximum',
  'minLength',
  'maxLength',
  'minItems',
  'maxItems',
  'additionalProperties',
]);

/**
 * Marks a form of an argument that is for programs. Models do not see it, since they have a shorter form, but it is
 * still accepted.
 */
export const FOR_PROGRAMS = 'x-for-programs';

/** A union without the forms for programs; if only one form remains, that form itself. */
function shownForms(schema: JsonObject): JsonObject {
  const { anyOf, ...rest } = schema;
  if (!Array.isArray(anyOf)) return schema;
  const shown = anyOf.filter((form) => !isJsonObject(form) || form[FOR_PROGRAMS] !== true);
  const [only] = shown;
  return shown.length === 1 && isJsonObject(only) ? { ...only, ...rest } : { ...rest, anyOf: shown };
}

const brief = (schema: JsonValue): JsonValue => {
  if (Array.isArray(schema)) return schema.map(brief);
  if (!isJsonObject(schema)) return schema;
  const kept = Object.entries(shownForms(schema)).filter(([key]) => !BOUNDS.has(key));
  return Object.fromEntries(
    kept.map(([key, value]) => {
      if (key !== 'properties' || !isJsonObject(value))
        return [key, key === 'items' || key === 'anyOf' ? brief(value) : value];
      return [key, Object.fromEntries(Object.entries(value).map(([name, part]) => [name, brief(part)]))];
    }),
  );
};

/**
 * A schema without bounds, and without the arguments that no turn can use.
 *
 * @param hidden - Names of optional arguments.
 */
export function briefSchema(schema: JsonObject, hidden: readonly string[] = []): JsonObject {
  const { properties } = schema;
  if (!isJsonObject(properties)) return schema;
  const shown = Object.fromEntries(Object.entries(properties).filter(([name]) => !hidden.includes(name)));
  return brief({ ...schema, properties: shown }) as JsonObject;
}
