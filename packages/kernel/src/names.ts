/** Names are shown in tables, logs and prompts: they hold no character that moves, hides or turns what is around them. */
import { z } from 'zod';

/** Control characters, separators of lines and paragraphs, and what sets the direction of writing. */
const UNSEEN = /[\p{Cc}\p{Zl}\p{Zp}\p{Bidi_Control}]/u;

const ALL_UNSEEN = new RegExp(`(?:${UNSEEN.source}|\\s)+`, 'gu');

/** A text in one line, without what names may not hold. */
export const toPlainLine = (text: string): string => text.replaceAll(ALL_UNSEEN, ' ').trim();

export const isPlainName = (name: string): boolean => !UNSEEN.test(name);

/** Characters in the name of a tape or session at most. */
export const MAX_TAPE_NAME = 512;
/** Characters in the name of an anchor at most. */
export const MAX_ANCHOR_NAME = 4_096;

/** Ends the sentence "a name …". */
export const PLAIN_NAME = 'must not contain control characters or marks of direction';

/** The one form in which names are stored and looked up: NFC. Two spellings of the same characters are one name. */
export const toName = (name: string): string => name.normalize('NFC');

/**
 * The forms in which a name may be stored, the preferred one first: as it was given, in NFC, and in NFD, which builds before NFC have
 * stored as they were given it.
 */
export const spellingsOf = (name: string): readonly string[] => [
  ...new Set([name, toName(name), name.normalize('NFD')]),
];

/** A name of 1 to 200 characters. */
export const nameSchema = z.string().normalize('NFC').trim().min(1).max(200).refine(isPlainName, PLAIN_NAME);

/** Names of selectors, and their versions. */
export const SELECTOR_NAME = /^[a-zA-Z0-9_.-]{1,64}$/;

/** The name of a selector. Not a pattern: models are shown the schema, and would pay for it. */
export const selectorNameSchema = z
  .string()
  .refine((name) => SELECTOR_NAME.test(name), 'must be letters, digits, _ . - only, 1 to 64 of them');
