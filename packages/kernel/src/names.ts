/** Names are shown in tables, logs and prompts: they hold no character that moves, hides or turns what is around them. */
import { z } from 'zod';

/** Control characters, separators of lines and paragraphs, and what sets the direction of writing. */
const UNSEEN = /[\p{Cc}\p{Zl}\p{Zp}\p{Bidi_Control}]/u;

export const isPlainName = (name: string): boolean => !UNSEEN.test(name);

/** Ends the sentence "a name …". */
export const PLAIN_NAME = 'must not contain control characters or marks of direction';

/** A name of 1 to 200 characters. */
export const nameSchema = z.string().trim().min(1).max(200).refine(isPlainName, PLAIN_NAME);
