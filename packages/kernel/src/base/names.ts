/**
 * Names appear in tables, logs and prompts, so they contain no character that moves, hides or reverses the text around
 * it.
 */
import { z } from 'zod';
import { type AgentId, tryParseId } from './ids.js';

/**
 * Control characters, lone surrogates, separators of lines and paragraphs, and marks that set the direction of writing.
 */
const UNSEEN = /[\p{Cc}\p{Cs}\p{Zl}\p{Zp}\p{Bidi_Control}]/u;

/** The same characters, and white space. */
const ALL_UNSEEN = /[\p{Cc}\p{Cs}\p{Zl}\p{Zp}\p{Bidi_Control}\s]+/gu;

/** A text in one line, without the characters that names must not contain. */
export const toPlainLine = (text: string): string => text.replaceAll(ALL_UNSEEN, ' ').trim();

export const isPlainName = (name: string): boolean => !UNSEEN.test(name);

/** The most characters in the name of a tape or session. */
export const MAX_TAPE_NAME = 512;
/** The most characters in the name of an anchor. */
export const MAX_ANCHOR_NAME = 4_096;

/** Ends the sentence "a name …". */
export const PLAIN_NAME = 'must not contain control characters or marks of direction';

/** The form in which names are stored and looked up: NFC. Two encodings of the same characters are one name. */
export const toName = (name: string): string => name.normalize('NFC');

/**
 * The forms in which a name may be stored, the preferred form first: as given, in NFC, and in NFD. Builds that did not
 * yet convert names to NFC stored them as given.
 */
export const spellingsOf = (name: string): readonly string[] => [
  ...new Set([name, toName(name), name.normalize('NFD')]),
];

/** The default name of an agent: its profile's name, and the end of its id. */
export const freshAgentName = (profileName: string, agentId: string): string =>
  `${profileName}-${agentId.slice(-12)}`;

/** True when a caller gave the name, false when the kernel generated it. Names of agents never change. */
const isGivenName = (name: string, agentId: string): boolean => !name.endsWith(freshAgentName('', agentId));

/** The given names of agents, by id. Generated names are left out, because they say no more than the id. */
export const givenNames = (names: Iterable<readonly [string, string]>): ReadonlyMap<string, string> =>
  new Map([...names].filter(([id, name]) => isGivenName(name, id)));

const AGENT_PREFIX = 'agent:';

/** The label of an agent for models and people: `agent:<name>`; undefined when the agent has no given name. */
export const agentLabel = (id: string, names: ReadonlyMap<string, string>): string | undefined => {
  const name = names.get(id);
  return name === undefined ? undefined : `${AGENT_PREFIX}${name}`;
};

/** True for names that look like a reference to an agent or a profile. */
export const readsAsReference = (name: string): boolean => /^(agent|profile):/.test(name);

const bareRef = (ref: string): string =>
  ref.startsWith(AGENT_PREFIX) ? ref.slice(AGENT_PREFIX.length).trim() : ref;

/** The id in a reference to an agent, with or without the prefix `agent:`. */
export const agentIdIn = (ref: string): AgentId | undefined => tryParseId<'agent'>(bareRef(ref));

/**
 * The names that a reference to an agent may mean, the preferred name first. The output of `agentLabel` means the
 * agent of that name, even if another agent's name includes the prefix.
 */
export const agentNamesOf = (ref: string): readonly string[] => [
  ...new Set([...spellingsOf(bareRef(ref)), ...spellingsOf(ref)]),
];

/** A name of 1 to 200 characters. */
export const nameSchema = z.string().normalize('NFC').trim().min(1).max(200).refine(isPlainName, PLAIN_NAME);

/** Names of selectors, and their versions. */
export const SELECTOR_NAME = /^[a-zA-Z0-9_.-]{1,64}$/;

/**
 * The name of a selector. It is not a `pattern`: models see the schema, and every prompt would pay for the pattern's
 * tokens.
 */
export const selectorNameSchema = z
  .string()
  .refine((name) => SELECTOR_NAME.test(name), 'must be letters, digits, _ . - only, 1 to 64 of them');
