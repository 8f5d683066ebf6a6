/** The version of the schema that a database has. */
import { KernelError } from '@boxcar/kernel/base';
import { toDatabaseError } from './errors.js';
import { type SchemaRange, shippedSchema } from './migrations.js';
import type { Queryable } from './statement.js';

/**
 * Compares the database with the schemas that this program supports. Each program that works on the database calls this at its start.
 *
 * @param options.supported - Default: the newest migration shipped with this package, as both bounds.
 * @returns The version of the database.
 * @throws KernelError `schema_outdated` or `schema_too_new`.
 */
export async function checkSchemaVersion(
  client: Queryable,
  options: { readonly supported?: SchemaRange } = {},
): Promise<number> {
  const supported = options.supported ?? (await shippedSchema());
  const { version, minCompatible } = await readVersion(client);
  if (version < supported.min) {
    throw new KernelError('schema_outdated', {
      message:
        version === 0
          ? 'The database has no Boxcar schema yet.'
          : `The database schema is at version ${version}; this program needs ${supported.min}.`,
      details: { version, supported },
    });
  }
  if (minCompatible > supported.max) throw tooNew(version, minCompatible, supported.max);
  return version;
}

export async function readVersion(client: Queryable): Promise<{ version: number; minCompatible: number }> {
  try {
    const { rows } = await client.query<{ version: number | null; min_compatible: number | null }>({
      text: 'select max(version) as version, max(min_compatible) as min_compatible from boxcar.schema_version',
    });
    return { version: rows[0]?.version ?? 0, minCompatible: rows[0]?.min_compatible ?? 0 };
  } catch (error) {
    const known = toDatabaseError(error);
    // The table does not exist: no migration has run here.
    if (known instanceof KernelError && known.code === 'schema_outdated')
      return { version: 0, minCompatible: 0 };
    throw known;
  }
}

export function tooNew(version: number, minCompatible: number, newest: number): KernelError {
  return new KernelError('schema_too_new', {
    message: `The database schema is at version ${version} and needs programs that know version ${minCompatible}; this one knows ${newest}.`,
    details: { version, minCompatible, newest },
  });
}
