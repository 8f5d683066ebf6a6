/** A profile as YAML that can be read, compared and applied again. */
import type { JsonObject } from '@boxcar/kernel';
import { createTwoFilesPatch } from 'diff';
import { Document, isScalar, Scalar, visit } from 'yaml';

/** What may steer a terminal or hide: everything unprintable but line breaks. YAML alone escapes only some of it. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is to be escaped.
const HIDDEN = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069\ufeff]/g;

const toEscape = (character: string): string =>
  character === '\t' ? '\\t' : `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`;

/** The same profile again when it is read; long lines stay whole, so that a change shows where it is. */
export function toYaml(profile: JsonObject): string {
  const document = new Document(profile, { aliasDuplicateObjects: false });
  visit(document, {
    Scalar: (_key, node) => {
      // Only inside double quotes can such a character be written down, and does a text of nothing but space keep its length.
      if (
        isScalar(node) &&
        typeof node.value === 'string' &&
        // Without quotes, `<<` would merge.
        (node.value.search(HIDDEN) !== -1 || node.value.trim() === '' || node.value === '<<')
      )
        node.type = Scalar.QUOTE_DOUBLE;
    },
  });
  return document.toString({ lineWidth: 0 }).replace(HIDDEN, toEscape);
}

export interface ProfileSide {
  /** What the diff calls it: `reviewer@3`, or a file. */
  readonly label: string;
  /** Null: there is none yet. */
  readonly profile: JsonObject | null;
}

/** The difference of two profiles as a unified diff of their YAML. */
export function diffProfiles(from: ProfileSide, to: ProfileSide): string {
  const textOf = ({ profile }: ProfileSide): string => (profile === null ? '' : toYaml(profile));
  const patch = createTwoFilesPatch(from.label, to.label, textOf(from), textOf(to), undefined, undefined, {
    context: 3,
  });
  // Without the line of equals signs that programs for patching skip.
  return patch.replace(/^=+\n/, '').trimEnd();
}
