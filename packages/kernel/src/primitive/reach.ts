/** The text for a model about the profiles that its agent may reach. Source: docs/reference/primitives.md. */
import { toPlainLine } from '../base/index.js';

/** The tool that lists the profiles when they are too many for the text. */
export const LIST_PROFILES = 'list_profiles';

/** The most profiles in the text; the model must ask for a longer list. */
export const MAX_TOLD_PROFILES = 30;
const MAX_DESCRIPTION = 120;

/** Fixed at the first step of a turn and kept with the tools of that step. */
export interface ToldProfiles {
  readonly text: string;
  /** True when the profiles are too many: {@link LIST_PROFILES} lists them. */
  readonly isCut: boolean;
}

/** A description in one line, because it is an item of a list. */
export const shortDescription = (description: string | null, maxLength = MAX_DESCRIPTION): string =>
  toPlainLine(description ?? '')
    .slice(0, maxLength)
    .toWellFormed();

/** @param profiles - In a stable order; any 31 of them when there are more than 30. */
export function tellProfiles(
  profiles: readonly { readonly name: string; readonly description: string | null }[],
): ToldProfiles {
  if (profiles.length === 0) return { text: 'You can reach no profile.', isCut: false };
  if (profiles.length > MAX_TOLD_PROFILES)
    return {
      text: `You can reach more than ${MAX_TOLD_PROFILES} profiles; ${LIST_PROFILES} lists them.`,
      isCut: true,
    };
  const lines = profiles.map(({ name, description }) => {
    const words = shortDescription(description);
    return words === '' ? `- ${name}` : `- ${name}: ${words}`;
  });
  return { text: ['Profiles you can reach:', ...lines].join('\n'), isCut: false };
}

/** The text in other tools that refers to the tool with the list of profiles. */
export const referToProfiles = (tool: string): string => `Profiles: see ${tool}.`;
