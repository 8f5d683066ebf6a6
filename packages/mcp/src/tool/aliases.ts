/** Converts arguments in camelCase, which some clients send, to the names of the schema. */
import { isJsonObject, type JsonObject, type JsonValue, KernelError } from '@boxcar/kernel';

const toCamelCase = (name: string): string =>
  name.replace(/_([a-z0-9])/g, (_match, letter: string) => letter.toUpperCase());

const canonical = (value: JsonValue | undefined): string =>
  JSON.stringify(value, (_key, inner: unknown) =>
    isJsonObject(inner)
      ? Object.fromEntries(Object.entries(inner).sort(([a], [b]) => (a < b ? -1 : 1)))
      : inner,
  );

function refuse(field: string, alias: string): never {
  throw new KernelError('bad_request', {
    message: `${field}: is given as ${alias} too, with another value.`,
    next: `Send ${field} alone.`,
    details: { field },
  });
}

/** The members of an object under their schema names, each once. The schema's own names take precedence: they are never aliases. */
function renameMembers(value: JsonObject, properties: JsonObject, path: string): JsonObject {
  const aliases = new Map(
    Object.keys(properties)
      .map((name) => [toCamelCase(name), name] as const)
      .filter(([alias, name]) => alias !== name && !Object.hasOwn(properties, alias)),
  );
  const members = new Map<string, JsonValue>();
  for (const [given, member] of Object.entries(value)) {
    const name = aliases.get(given) ?? given;
    if (members.has(name) && canonical(members.get(name)) !== canonical(member))
      refuse(`${path}${name}`, toCamelCase(name));
    members.set(name, member);
  }
  return Object.fromEntries(members);
}

/**
 * A value with the member names of its JSON schema. Parts that the schema leaves open, such as metadata, stay unchanged.
 *
 * @throws KernelError `bad_request` for a name that is given in both spellings with different values.
 */
export function toSchemaNames(value: JsonValue, schema: JsonValue | undefined, path = ''): JsonValue {
  if (!isJsonObject(schema)) return value;
  if (Array.isArray(value))
    return value.map((item, index) => toSchemaNames(item, schema.items, `${path}${index}.`));
  const { properties } = schema;
  if (!isJsonObject(value) || !isJsonObject(properties)) return value;
  const members = Object.entries(renameMembers(value, properties, path));
  return Object.fromEntries(
    members.map(([name, member]) => [
      name,
      Object.hasOwn(properties, name) ? toSchemaNames(member, properties[name], `${path}${name}.`) : member,
    ]),
  );
}
