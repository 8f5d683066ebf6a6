/** The operator's configuration of an agent or a model of another platform. Format: README.md, "Targets". */
import { normalizePlatform, PLATFORMS } from '@boxcar/kernel';
import { z } from 'zod';

const filled = z.string().refine((value) => value.trim() !== '', 'must not be blank');
const count = z.int().min(1);

function findUrlFault(text: string): string | undefined {
  if (!URL.canParse(text)) return 'must be an http:// or https:// URL';
  const { protocol, username, password } = new URL(text);
  if (protocol !== 'http:' && protocol !== 'https:') return 'must be an http:// or https:// URL';
  return username === '' && password === '' ? undefined : 'must hold no user and no password';
}

/** The findings do not repeat the address: its path may contain a secret. */
const address = z.string().superRefine((text, context) => {
  const message = findUrlFault(text.trim());
  if (message !== undefined) context.addIssue({ code: 'custom', message });
});

/** An address without trailing slashes. A regular expression would rescan a run of slashes from each of them. */
export function withoutSlashes(text: string): string {
  let end = text.length;
  while (text[end - 1] === '/') end -= 1;
  return text.slice(0, end);
}

const baseUrl = address
  .refine((text) => !/[?#]/.test(text), 'must have no ? and no #')
  .transform((text) => withoutSlashes(text.trim()));
const cardUrl = address.transform((text) => text.trim());

const keyVariable = z
  .string()
  .regex(/^[A-Za-z_][A-Za-z0-9_]*$/, 'must be the name of an environment variable, not a key');

const shared = {
  /** Instructions that the target receives before the task. */
  instructions: filled.optional(),
  /** The name of the variable that holds the key. */
  api_key_env: keyVariable.optional(),
  max_output_tokens: count.optional(),
  max_context_tokens: count.optional(),
} as const;

const modelMembers = {
  ...shared,
  model: filled,
  base_url: baseUrl.optional(),
  temperature: z.number().min(0).max(2).optional(),
} as const;

const adkMembers = z
  .strictObject({
    ...shared,
    platform: z.literal('adk'),
    /** The name of an agent on an ADK API server, whose address is `base_url`. */
    app: filled.optional(),
    base_url: baseUrl.optional(),
    user_id: filled.optional(),
    /** The address of an A2A agent's card. */
    card_url: cardUrl.optional(),
  })
  .superRefine(({ app, base_url, card_url }, context) => {
    const refuse = (message: string): void => context.addIssue({ code: 'custom', message });
    if ((app === undefined) === (card_url === undefined)) refuse('must have app or card_url, one of the two');
    else if (app !== undefined && base_url === undefined)
      refuse('must have base_url, the address of the ADK API server of its app');
    else if (card_url !== undefined && base_url !== undefined)
      refuse('must not have base_url: the card names the address');
  });

const custom = z.looseObject({ ...shared, platform: filled });

const schemas = {
  openai: z.strictObject({ ...modelMembers, platform: z.literal('openai') }),
  anthropic: z.strictObject({ ...modelMembers, platform: z.literal('anthropic') }),
  adk: adkMembers,
} as const;

export type ModelTarget = z.output<typeof schemas.openai> | z.output<typeof schemas.anthropic>;
export type AdkTarget = z.output<typeof schemas.adk>;
/** An entry for a platform that a program has registered: the shared members, and the members that its adapter reads. */
export type CustomTarget = z.output<typeof custom>;
export type Target = ModelTarget | AdkTarget | CustomTarget;

export const isModelTarget = (target: Target): target is ModelTarget =>
  target.platform === 'openai' || target.platform === 'anthropic';

export const isAdkTarget = (target: Target): target is AdkTarget => target.platform === 'adk';

/** The schema of an entry of that platform; undefined when the platform cannot have entries. */
export function schemaOf(
  platform: string,
  customPlatforms: readonly string[],
): z.ZodType<Target> | undefined {
  const known = normalizePlatform(platform);
  if (known !== undefined) return known === 'agdd' ? undefined : schemas[known];
  const isCustom = customPlatforms.includes(platform.toLowerCase());
  return isCustom ? custom : undefined;
}

/** The platforms that an entry may name. */
export const namedPlatforms = (customPlatforms: readonly string[]): readonly string[] => [
  ...PLATFORMS.filter((platform) => platform !== 'agdd'),
  ...customPlatforms,
];
