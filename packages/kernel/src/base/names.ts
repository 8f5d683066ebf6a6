/** Names are shown in tables, logs and prompts: they hold no character that moves, hides or turns what is around them. */
import { z } from 'zod';
import { type AgentId, tryParseId } from './ids.js';

/** Control characters, lone surrogates, separators of lines and paragraphs, and what sets the direction of writing. */
const UNSEEN = /[\p{Cc}\p{Cs}\p{Zl}\p{Zp}\p{Bidi_Control}]/u;

/** The same, and space. */
const ALL_UNSEEN = /[\p{Cc}\p{Cs}\p{Zl}\p{Zp}\p{Bidi_Control}\s]+/gu;

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

/** The name of an agent that nobody named: its profile, and the end of its id. */
export const freshAgentName = (profileName: string, agentId: string): string =>
  `${profileName}-${agentId.slice(-12)}`;

/** Whether the name was given, and not made by the kernel. Names of agents never change. */
const isGivenName = (name: string, agentId: string): boolean => !name.endsWith(freshAgentName('', agentId));

/** The given ones of agents' names, by id: the others say no more than the id. */
export const givenNames = (names: Iterable<readonly [string, string]>): ReadonlyMap<string, string> =>
  new Map([...names].filter(([id, name]) => isGivenName(name, id)));

const AGENT_PREFIX = 'agent:';

/** An agent as models and people see it: `agent:<name>`; undefined when nobody gave it a name. */
export const agentLabel = (id: string, names: ReadonlyMap<string, string>): string | undefined => {
  const name = names.get(id);
  return name === undefined ? undefined : `${AGENT_PREFIX}${name}`;
};

/** True for names that read as a reference to an agent or a profile. */
export const readsAsReference = (name: string): boolean => /^(agent|profile):/.test(name);

const bareRef = (ref: string): string =>
  ref.startsWith(AGENT_PREFIX) ? ref.slice(AGENT_PREFIX.length).trim() : ref;

/** The id in a reference to an agent: its id, with or without `agent:` before it. */
export const agentIdIn = (ref: string): AgentId | undefined => tryParseId<'agent'>(bareRef(ref));

/**
 * The names that a reference to an agent may mean, the preferred one first: what {@link agentLabel} shows means the agent of that name, even if
 * another agent is called so with its prefix.
 */
export const agentNamesOf = (ref: string): readonly string[] => [
  ...new Set([...spellingsOf(bareRef(ref)), ...spellingsOf(ref)]),
];

/** A name of 1 to 200 characters. */
export const nameSchema = z.string().normalize('NFC').trim().min(1).max(200).refine(isPlainName, PLAIN_NAME);

/** Names of selectors, and their versions. */
export const SELECTOR_NAME = /^[a-zA-Z0-9_.-]{1,64}$/;

/** The name of a selector. Not a pattern: models are shown the schema, and would pay for it. */
export const selectorNameSchema = z
  .string()
  .refine((name) => SELECTOR_NAME.test(name), 'must be letters, digits, _ . - only, 1 to 64 of them');
