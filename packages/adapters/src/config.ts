/** The settings of a program that names none itself. A variable that is set to nothing counts as unset. */

export interface AdapterSettings {
  /** `BOXCAR_TARGETS_FILE`. */
  readonly targetsFile: string | undefined;
  /** `BOXCAR_TARGETS_ALLOW_PRIVATE`: hosts, addresses and networks that an A2A agent may have, divided by commas. */
  readonly allowPrivate: readonly string[];
}

type Environment = Readonly<Record<string, string | undefined>>;

const trimmed = (env: Environment, name: string): string | undefined => env[name]?.trim() || undefined;

export const readSettings = (env: Environment = process.env): AdapterSettings => ({
  targetsFile: trimmed(env, 'BOXCAR_TARGETS_FILE'),
  allowPrivate: (trimmed(env, 'BOXCAR_TARGETS_ALLOW_PRIVATE') ?? '')
    .split(',')
    .map((word) => word.trim())
    .filter((word) => word !== ''),
});

/** A variable that an entry of `targets` or a platform names: read when it is used, so that a new key needs no restart of the adapter. */
export const readVariable = (name: string, env: Environment = process.env): string | undefined =>
  trimmed(env, name);
