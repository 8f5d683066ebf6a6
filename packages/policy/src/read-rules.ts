/** Reads the parts of a policy from the nodes of its file. */
import { normalizePlatform, PLATFORM_NAMES, PLATFORMS, type Platform } from '@boxcar/kernel';
import { isMap, isScalar } from 'yaml';
import { isGlob, matchesGlob } from './glob.js';
import {
  type ConditionKey,
  type ConditionValue,
  canonicalTool,
  HANDOFF,
  HANDOFF_ALIAS,
  LEVELS,
  type PermissionLevel,
  type PolicyRule,
} from './policy.js';
import { meantWord, type NodeReader, type Place, quoted } from './yaml-nodes.js';

/** Conditions cannot refer to arguments that are nested more deeply. */
const MAX_DEPTH = 50;

function readText(reader: NodeReader, place: Place): string | undefined {
  const { node } = place;
  if (!isScalar(node) || typeof node.value !== 'string') return reader.refuseKind(place, 'a string');
  if (node.value.trim() !== '') return node.value;
  reader.refuse(place, 'must not be empty');
  return undefined;
}

const PERMISSIONS = LEVELS.map((level) => level.toUpperCase());

/** The permission of a tool or rule, in upper or lower case. */
function readPermission(
  reader: NodeReader,
  owner: Place,
  place: Place | undefined,
): PermissionLevel | undefined {
  if (place === undefined) {
    reader.refuse(owner, `has no permission; it must be ${PERMISSIONS.join(', ')}`);
    return undefined;
  }
  const word = readText(reader, place);
  if (word === undefined) return undefined;
  const level = LEVELS.find((known) => word === known || word === known.toUpperCase());
  if (level === undefined)
    reader.refuse(
      place,
      `must be one of ${PERMISSIONS.join(', ')}, not ${quoted(word)}${meantWord(word, PERMISSIONS)}`,
    );
  return level;
}

/** The entries of `tools`, by the canonical name of each tool. */
export function readTools(reader: NodeReader, place: Place): Record<string, { permission: PermissionLevel }> {
  const tools: Record<string, { permission: PermissionLevel }> = Object.create(null);
  const spelled = new Map<string, string>();
  for (const [name, tool] of reader.members(place) ?? []) {
    const own = canonicalTool(name);
    const before = spelled.get(own);
    spelled.set(own, before ?? name);
    if (name.trim() === '') reader.refuseAt(tool.offset, place.path, 'has an empty name');
    else if (isGlob(name))
      reader.refuseAt(tool.offset, tool.path, 'is a glob; write a rule with it as its tool_name');
    else if (before !== undefined)
      reader.refuseAt(tool.offset, tool.path, `is the same tool as ${quoted(before)}, which has an entry`);
    const members = reader.members(tool, ['permission']);
    const permission = members && readPermission(reader, tool, members.get('permission'));
    if (permission !== undefined) tools[own] = { permission };
  }
  return tools;
}

/** `tool_name`. A glob that matches only the alias of `handoff` counts for handoffs as well, unless the rule would allow them by it. */
function readToolNames(
  reader: NodeReader,
  place: Place,
  permission: PermissionLevel | undefined,
): readonly string[] {
  const names = new Set<string>();
  const spellings = new Set<string>();
  for (const item of reader.itemsOrOne(place)) {
    const name = readText(reader, item)?.normalize('NFC');
    if (name === undefined) continue;
    spellings.add(name);
    names.add(canonicalTool(name));
    if (permission !== 'always' && isGlob(name) && matchesGlob(name, HANDOFF_ALIAS)) names.add(HANDOFF);
  }
  if (spellings.has(HANDOFF) && spellings.has(HANDOFF_ALIAS))
    reader.refuse(place, `names one tool twice: ${HANDOFF_ALIAS} is ${HANDOFF}`);
  return [...names];
}

/**
 * The platforms that a name or glob means. In a rule that allows calls, a glob is matched only against first names; in other rules,
 * against all names.
 */
function platformsOf(word: string, permission: PermissionLevel | undefined): readonly Platform[] {
  const named = normalizePlatform(word);
  if (named !== undefined) return [named];
  const pattern = word.toLowerCase();
  return PLATFORMS.filter((platform) => {
    const names = permission === 'always' ? [platform] : PLATFORM_NAMES[platform];
    return names.some((name) => matchesGlob(pattern, name));
  });
}

function readPlatforms(
  reader: NodeReader,
  place: Place,
  permission: PermissionLevel | undefined,
): readonly Platform[] {
  const wanted = new Set<Platform>();
  for (const item of reader.itemsOrOne(place)) {
    const word = readText(reader, item);
    if (word === undefined) continue;
    const platforms = platformsOf(word, permission);
    const known = Object.values(PLATFORM_NAMES).flat();
    if (platforms.length === 0)
      reader.refuse(item, `${quoted(word)} is not a platform; known are ${known.join(', ')}`);
    for (const platform of platforms) wanted.add(platform);
  }
  return PLATFORMS.filter((platform) => wanted.has(platform));
}

const readTexts = (reader: NodeReader, place: Place): readonly string[] =>
  reader.itemsOrOne(place).flatMap((item) => readText(reader, item) ?? []);

function readNumber(reader: NodeReader, place: Place): number | undefined {
  const { node } = place;
  if (isScalar(node) && typeof node.value === 'number' && Number.isFinite(node.value)) return node.value;
  return reader.refuseKind(place, 'a finite number');
}

const LIMITS = ['less_than', 'greater_than'];

/** `{less_than}`, `{greater_than}` or both. */
function readLimits(
  reader: NodeReader,
  members: ReadonlyMap<string, Place>,
  path: readonly string[],
): ConditionKey {
  const [less, greater] = LIMITS.map((name) => {
    const limit = members.get(name);
    return limit && readNumber(reader, limit);
  });
  return {
    path,
    ...(less === undefined ? {} : { lessThan: less }),
    ...(greater === undefined ? {} : { greaterThan: greater }),
  };
}

function readValues(reader: NodeReader, place: Place): readonly ConditionValue[] {
  return reader.itemsOrOne(place).flatMap((item): readonly ConditionValue[] => {
    const value = isScalar(item.node) ? item.node.value : undefined;
    if (value === null || typeof value === 'boolean' || typeof value === 'string') return [value];
    if (typeof value === 'number' && Number.isFinite(value)) return [value];
    reader.refuseKind(item, 'a string, a finite number, true, false or null');
    return [];
  });
}

/** The condition on one argument: more than one key when the argument has members. */
function readArgument(reader: NodeReader, place: Place, path: readonly string[]): readonly ConditionKey[] {
  if (!isMap(place.node)) return [{ path, anyOf: readValues(reader, place) }];
  const members = reader.members(place) ?? new Map<string, Place>();
  const limits = LIMITS.filter((name) => members.has(name));
  if (limits.length > 0 && limits.length < members.size)
    reader.refuse(place, `must have ${LIMITS.join(' and ')} only, or names of arguments only`);
  if (limits.length > 0) return [readLimits(reader, members, path)];
  if (members.size === 0) reader.refuse(place, 'must not be empty');
  return readArguments(reader, members, path);
}

function readArguments(
  reader: NodeReader,
  members: ReadonlyMap<string, Place>,
  path: readonly string[],
): readonly ConditionKey[] {
  return [...members.keys()].sort().flatMap((name) => {
    const member = members.get(name);
    if (member === undefined) return [];
    if (path.length < MAX_DEPTH) return readArgument(reader, member, [...path, name]);
    reader.refuse(member, `is nested deeper than ${MAX_DEPTH} levels`);
    return [];
  });
}

const CONTEXT_TEXTS = ['target_agent', 'source_agent', 'request_type'];

function readCondition(
  reader: NodeReader,
  place: Place,
  permission: PermissionLevel | undefined,
): readonly ConditionKey[] {
  const keys: ConditionKey[] = [];
  const add = (
    path: readonly string[],
    from: Place | undefined,
    read: (from: Place) => readonly string[],
  ) => {
    if (from !== undefined) keys.push({ path, anyOf: read(from) });
  };
  const members = reader.members(place, ['environment', 'tool_name', 'context']);
  add(['environment'], members?.get('environment'), (from) => readTexts(reader, from));
  add(['tool_name'], members?.get('tool_name'), (from) => readToolNames(reader, from, permission));
  const inContext = members?.get('context');
  const context = inContext && reader.members(inContext, ['platform', ...CONTEXT_TEXTS, 'args']);
  add(['context', 'platform'], context?.get('platform'), (from) => readPlatforms(reader, from, permission));
  for (const name of CONTEXT_TEXTS)
    add(['context', name], context?.get(name), (from) => readTexts(reader, from));
  const args = context?.get('args');
  const given = args && reader.members(args);
  return given === undefined ? keys : [...keys, ...readArguments(reader, given, ['context', 'args'])];
}

/** One item of `rules`; undefined when it is not valid, which adds a finding. */
export function readRule(reader: NodeReader, place: Place): PolicyRule | undefined {
  const members = reader.members(place, ['condition', 'permission']);
  if (members === undefined) return undefined;
  const permission = readPermission(reader, place, members.get('permission'));
  const given = members.get('condition');
  if (given === undefined) reader.refuse(place, 'has no condition; {} means every handoff');
  const condition = given && readCondition(reader, given, permission);
  return permission && condition && { condition, permission };
}
