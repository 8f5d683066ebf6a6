/** Resolves the target that a handoff names. A request has only a name; addresses, models and keys come from the operator. */
import { KernelError } from '@boxcar/kernel';
import type { Targets } from './parse-targets.js';
import type { Target } from './target.js';

const MODEL_PREFIX = 'model:';

const ENTRIES: Readonly<Record<string, string>> = {
  openai: '{ platform: openai, model: <model> }',
  anthropic: '{ platform: anthropic, model: <model> }',
  adk: '{ platform: adk, card_url: <address of its card> }',
};

const PLAIN_KEY = /^[A-Za-z_][\w./-]*$/;

/** The configuration line that would make the name a target. */
const lineFor = (platform: string, name: string): string =>
  `${PLAIN_KEY.test(name) ? name : JSON.stringify(name)}: ${ENTRIES[platform] ?? `{ platform: ${platform} }`}`;

/**
 * @param platform - The first name of the platform.
 * @throws KernelError `bad_request` when the name is not a target of the platform, with the line to add.
 */
export function resolveTarget(targets: Targets, platform: string, name: string): Target {
  const entry = targets.get(name);
  if (entry?.platform === platform) return entry;
  const isModelPlatform = platform === 'openai' || platform === 'anthropic';
  const model = name.slice(MODEL_PREFIX.length).trim();
  if (entry === undefined && isModelPlatform && name.startsWith(MODEL_PREFIX) && model !== '')
    return { platform, model };
  const isElsewhere = entry === undefined ? '' : `, but on ${entry.platform}`;
  throw new KernelError('bad_request', {
    message: `target_agent: '${name}' is not a target on ${platform}${isElsewhere}.`,
    next:
      entry === undefined
        ? `Add this line to the targets (BOXCAR_TARGETS_FILE): ${lineFor(platform, name)}`
        : `Name its platform, or add another target: ${lineFor(platform, '<name>')}`,
    details: { field: 'target_agent', platform },
  });
}
