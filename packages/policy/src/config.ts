/** The default settings of a program that passes none. A variable with an empty value counts as unset. */

/** The default is the strictest environment that policies commonly name. */
const DEFAULT_ENVIRONMENT = 'production';

export interface PolicySettings {
  /** `BOXCAR_POLICY_FILE`. */
  readonly file: string | undefined;
  /** `BOXCAR_ENVIRONMENT`, else `production`. */
  readonly environment: string;
}

export function readSettings(
  env: Readonly<Record<string, string | undefined>> = process.env,
): PolicySettings {
  return {
    file: env.BOXCAR_POLICY_FILE?.trim() || undefined,
    environment: env.BOXCAR_ENVIRONMENT?.trim() || DEFAULT_ENVIRONMENT,
  };
}
