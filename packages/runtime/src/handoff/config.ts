/** What the environment says of handoffs, for a program that says nothing itself. A variable that is set to nothing counts as unset. */

export interface HandoffEnvironment {
  /** `BOXCAR_HANDOFF_ENABLED`, else its alias `AGDD_HANDOFF_ENABLED`. */
  readonly isEnabled: boolean | undefined;
  /** `BOXCAR_TARGETS_FILE`. */
  readonly targetsFile: string | undefined;
  /** `BOXCAR_POLICY_FILE`. */
  readonly policyFile: string | undefined;
}

type Environment = Readonly<Record<string, string | undefined>>;

const FLAGS: Readonly<Record<string, boolean>> = { true: true, false: false };

export function readHandoffEnvironment(env: Environment = process.env): HandoffEnvironment {
  const given = (name: string): string | undefined => env[name]?.trim() || undefined;
  const flag = given('BOXCAR_HANDOFF_ENABLED') ?? given('AGDD_HANDOFF_ENABLED');
  return {
    isEnabled: flag === undefined ? undefined : FLAGS[flag.toLowerCase()],
    targetsFile: given('BOXCAR_TARGETS_FILE'),
    policyFile: given('BOXCAR_POLICY_FILE'),
  };
}
