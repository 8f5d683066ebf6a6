/** The handoff settings of the environment, for a program that gives none itself. An empty variable counts as unset. */
import { KernelError } from '@boxcar/kernel';
import { readWebhookEnvironment, type WebhookSettings } from '../webhook/index.js';

export interface HandoffEnvironment {
  /** `BOXCAR_HANDOFF_ENABLED`, else its alias `AGDD_HANDOFF_ENABLED`. */
  readonly isEnabled: boolean | undefined;
  /** `BOXCAR_TARGETS_FILE`. */
  readonly targetsFile: string | undefined;
  /** `BOXCAR_POLICY_FILE`. */
  readonly policyFile: string | undefined;
  /** `BOXCAR_WEBHOOK_SECRET` and the related variables. */
  readonly webhooks: WebhookSettings | undefined;
}

type Environment = Readonly<Record<string, string | undefined>>;

/** @throws KernelError `bad_config` for a value that is neither `true` nor `false`. */
function readFlag(name: string, word: string | undefined): boolean | undefined {
  if (word === undefined) return undefined;
  if (word === 'true' || word === 'false') return word === 'true';
  throw new KernelError('bad_config', {
    message: `${name}: must be true or false.`,
    details: { variable: name },
  });
}

/** @throws KernelError `bad_config` for a switch that is neither `true` nor `false`. */
export function readHandoffEnvironment(env: Environment = process.env): HandoffEnvironment {
  const given = (name: string): string | undefined => env[name]?.trim() || undefined;
  const flagOf = (name: string): boolean | undefined => readFlag(name, given(name));
  return {
    isEnabled: flagOf('BOXCAR_HANDOFF_ENABLED') ?? flagOf('AGDD_HANDOFF_ENABLED'),
    targetsFile: given('BOXCAR_TARGETS_FILE'),
    policyFile: given('BOXCAR_POLICY_FILE'),
    webhooks: readWebhookEnvironment(env),
  };
}
