/** The default settings of a program that passes none. A variable with an empty value counts as unset. */

export interface AdapterSettings {
  /** `BOXCAR_TARGETS_FILE`. */
  readonly targetsFile: string | undefined;
  /** `BOXCAR_TARGETS_ALLOW_PRIVATE`: hosts, addresses and networks that an A2A agent may have, separated by commas. */
  readonly allowPrivate: readonly string[];
}

/** Variables by name, as `process.env` has them. */
export type Environment = Readonly<Record<string, string | undefined>>;

const trimmed = (env: Environment, name: string): string | undefined => env[name]?.trim() || undefined;

export const readSettings = (env: Environment = process.env): AdapterSettings => ({
  targetsFile: trimmed(env, 'BOXCAR_TARGETS_FILE'),
  allowPrivate: (trimmed(env, 'BOXCAR_TARGETS_ALLOW_PRIVATE') ?? '')
    .split(',')
    .map((word) => word.trim())
    .filter((word) => word !== ''),
});

/**
 * The value of a variable named by an entry of `targets` or by a platform. It is read on use, so a new key needs no restart of the
 * adapter.
 */
export const readVariable = (name: string, env: Environment = process.env): string | undefined =>
  trimmed(env, name);
