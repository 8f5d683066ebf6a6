/** Reads the targets of handoffs, from a file or from code: the result is either all errors at once or the frozen entries. */
import { findingsOf, isJsonObject, meant, normalizePlatform, safeParse } from '@boxcar/kernel';
import {
  checkSettings,
  parseSettings,
  readSettingsText,
  type SettingsFinding,
  type SettingsFormat,
} from './settings-document.js';
import { namedPlatforms, schemaOf, type Target } from './target.js';

/** The entries by the name of the target agent. */
export type Targets = ReadonlyMap<string, Target>;

export interface ParseTargetsOptions {
  /** The first names of the platforms that the program has registered. */
  readonly customPlatforms?: readonly string[] | undefined;
}

function platformFinding(platform: unknown, customPlatforms: readonly string[]): string {
  const known = namedPlatforms(customPlatforms);
  if (typeof platform !== 'string') return `must be one of ${known.join(', ')}`;
  if (normalizePlatform(platform) === 'agdd')
    return 'an agent of this installation needs no entry; remove it';
  return `must be one of ${known.join(', ')}${meant(platform.toLowerCase(), known)}`;
}

/** An entry, or its errors. */
function readTarget(
  name: string,
  input: unknown,
  customPlatforms: readonly string[],
): Target | readonly SettingsFinding[] {
  if (name.trim() === '') return [{ path: [name], message: 'the name of a target must not be blank' }];
  if (!isJsonObject(input)) return [{ path: [name], message: 'must be an object' }];
  const { platform } = input;
  const schema = typeof platform === 'string' ? schemaOf(platform, customPlatforms) : undefined;
  if (schema === undefined || typeof platform !== 'string')
    return [{ path: [name, 'platform'], message: platformFinding(platform, customPlatforms) }];
  const first = normalizePlatform(platform) ?? platform.toLowerCase();
  const parsed = safeParse(schema, { ...input, platform: first });
  if (parsed.success) return Object.freeze(parsed.data);
  return findingsOf(parsed.error).map(({ path, message }) => ({
    path: [name, ...(path === '' ? [] : path.split('.'))],
    message,
  }));
}

function readTargets(
  input: unknown,
  { customPlatforms = [] }: ParseTargetsOptions,
  refuse: (finding: SettingsFinding) => void,
): Targets {
  const targets = new Map<string, Target>();
  if (!isJsonObject(input)) {
    refuse({ path: [], message: 'must be an object: the name of each target, and its entry' });
    return targets;
  }
  for (const [name, entry] of Object.entries(input)) {
    const read = readTarget(name, entry, customPlatforms);
    if (Array.isArray(read)) read.forEach(refuse);
    else targets.set(name, read as Target);
  }
  return targets;
}

const formatOf = (options: ParseTargetsOptions): SettingsFormat<Targets> => ({
  root: 'targets',
  read: (input, refuse) => readTargets(input, options, refuse),
});

/**
 * Checks targets that a program gives in code.
 *
 * @throws KernelError `bad_config` with all findings.
 */
export const checkTargets = (input: unknown, options: ParseTargetsOptions = {}): Targets =>
  checkSettings(input, formatOf(options));

/**
 * Reads targets from YAML or JSON.
 *
 * @param file - The name of the text in findings.
 * @throws KernelError `bad_config` with all findings, each `file:line:column path: what`.
 */
export const parseTargets = (text: string, file: string, options: ParseTargetsOptions = {}): Targets =>
  parseSettings(text, file, formatOf(options));

/**
 * Reads the targets of a file.
 *
 * @throws KernelError `bad_config` when it cannot be read or is not valid.
 */
export const readTargetsFile = (file: string, options: ParseTargetsOptions = {}): Targets =>
  parseTargets(readSettingsText(file, { what: 'targets', variable: 'BOXCAR_TARGETS_FILE' }), file, options);
