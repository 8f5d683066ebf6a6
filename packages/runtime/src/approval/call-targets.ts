/**
 * The agents and profiles to which a call gives work, in the form in which a policy compares them. Rule:
 * docs/reference/policy.md, "Targets".
 */
import {
  isJsonObject,
  type JsonObject,
  type JsonValue,
  readHandoffTarget,
  sessionTapeName,
  tryParseId,
} from '@boxcar/kernel';

/** The arguments of primitives that name a target. */
const FIELDS = ['target_ref', 'profile_name', 'expert_profile', 'target_agent'] as const;

/**
 * The agent of a session is named after its tape. An address that cannot be read gives no name here: the primitive
 * refuses it.
 */
function sessionNames({ workspace, session, profile_name }: JsonObject): readonly JsonValue[] {
  if (typeof workspace !== 'string' || typeof session !== 'string') return [];
  try {
    return [sessionTapeName({ workspace, session }), ...(profile_name === undefined ? [] : [profile_name])];
  } catch {
    return [];
  }
}

const namesIn = (args: JsonObject): readonly JsonValue[] =>
  FIELDS.flatMap((field): readonly JsonValue[] => {
    const target = args[field];
    if (target === undefined) return [];
    return isJsonObject(target) ? sessionNames(target) : [target];
  });

/**
 * The targets of a call without duplicates: agents by id or name, and profiles. Names are trimmed, as in the schemas of
 * primitives. Empty when the call names no target.
 */
export function targetsOf(tool: string, args: JsonObject): readonly string[] {
  const tasks = Array.isArray(args.tasks) ? args.tasks.filter(isJsonObject) : [];
  const names = [args, ...tasks]
    .flatMap(namesIn)
    .filter((name) => typeof name === 'string')
    .map((name) => name.trim())
    .map((name) => (tool === 'context_handoff' ? readHandoffTarget(name).name : name));
  return [...new Set(names.map((name) => tryParseId(name) ?? name))];
}
