/** A profile as YAML that can be read, compared and applied again. */
import type { JsonObject } from '@boxcar/kernel';
import { createTwoFilesPatch } from 'diff';
import { Document, isScalar, Scalar, visit } from 'yaml';

/**
 * Characters that can control a terminal or are invisible: every unprintable character except line breaks. YAML escapes only some of
 * them.
 */
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is to be escaped.
const HIDDEN = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069\ufeff]/g;

const toEscape = (character: string): string =>
  character === '\t' ? '\\t' : `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`;

/** YAML that reads back as the same profile. Long lines are not wrapped, so that a diff shows the exact place of a change. */
export function toYaml(profile: JsonObject): string {
  const document = new Document(profile, { aliasDuplicateObjects: false });
  visit(document, {
    Scalar: (_key, node) => {
      // Only double quotes allow escapes for such characters, and keep the length of a text that consists of spaces.
      if (
        isScalar(node) &&
        typeof node.value === 'string' &&
        // Unquoted, `<<` would be a merge.
        (node.value.search(HIDDEN) !== -1 || node.value.trim() === '' || node.value === '<<')
      )
        node.type = Scalar.QUOTE_DOUBLE;
    },
  });
  return document.toString({ lineWidth: 0 }).replace(HIDDEN, toEscape);
}

export interface ProfileSide {
  /** The name of this side in the diff: `reviewer@3`, or a file. */
  readonly label: string;
  /** Null: the profile does not exist yet. */
  readonly profile: JsonObject | null;
}

/** The difference of two profiles as a unified diff of their YAML. */
export function diffProfiles(from: ProfileSide, to: ProfileSide): string {
  const textOf = ({ profile }: ProfileSide): string => (profile === null ? '' : toYaml(profile));
  const patch = createTwoFilesPatch(from.label, to.label, textOf(from), textOf(to), undefined, undefined, {
    context: 3,
  });
  // Without the line of equals signs, which patch programs ignore.
  return patch.replace(/^=+\n/, '').trimEnd();
}
