/** A parsed policy: plain frozen data, in one form for all spellings of the same file. */

export const LEVELS = ['always', 'require_approval', 'never'] as const;
/** The decision about a call: it runs, it waits for an approval, or it is refused. From the mildest to the strictest. */
export type PermissionLevel = (typeof LEVELS)[number];

/** The tool that hands work to another agent. */
export const HANDOFF = 'handoff';
/** Another name of the same tool. */
export const HANDOFF_ALIAS = 'agent.handoff';

/** The canonical name of a tool, in the Unicode form NFC: `agent.handoff` becomes `handoff`. */
export function canonicalTool(name: string): string {
  const normal = name.normalize('NFC');
  return normal === HANDOFF_ALIAS ? HANDOFF : normal;
}

/** A value in a condition. A string is a glob. */
export type ConditionValue = string | number | boolean | null;

/** One key of a condition, with the test of its value. */
export type ConditionKey =
  | { readonly path: readonly string[]; readonly anyOf: readonly ConditionValue[] }
  | {
      readonly path: readonly string[];
      /** The value must be a number less than this one. */
      readonly lessThan?: number;
      readonly greaterThan?: number;
    };

/** The name of a key as findings and traces show it, such as `context.args.amount`. */
export const keyName = ({ path }: Pick<ConditionKey, 'path'>): string => path.join('.');

export interface PolicyRule {
  /** In canonical order, independent of the file. Empty: the rule applies to every handoff, and to nothing else. */
  readonly condition: readonly ConditionKey[];
  readonly permission: PermissionLevel;
}

export interface Policy {
  /**
   * sha256 of `tools` and `rules` in canonical form. Comments, layout, the order of keys and other spellings of names do not change it.
   */
  readonly version: string;
  /** The text that was read. */
  readonly text: string;
  /** By name; the object has no prototype. */
  readonly tools: Readonly<Record<string, { readonly permission: PermissionLevel }>>;
  /** In the order of the file. */
  readonly rules: readonly PolicyRule[];
}
