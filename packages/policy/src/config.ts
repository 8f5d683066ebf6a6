/** The settings of a program that names none itself. A variable that is set to nothing counts as unset. */

/** Where nothing says otherwise, the strictest place that policies commonly name. */
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
