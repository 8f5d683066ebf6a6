/** The results of a policy's rules for one call, as a table. */
import { formatTable } from './text.js';

/** A rule as evaluated; also the form of a stored trace. */
export interface ShownRule {
  readonly rule_id: string;
  readonly level: string;
  readonly keys: number;
  readonly matched: boolean;
  readonly failed_key?: string | undefined;
}

export const formatTrace = (rules: readonly ShownRule[], indent = 0): string =>
  formatTable(
    [
      { title: 'rule', max: 40 },
      { title: 'level' },
      { title: 'keys', align: 'right' },
      { title: 'of this call' },
    ],
    rules.map(({ rule_id, level, keys, matched, failed_key }) => [
      rule_id,
      level,
      String(keys),
      matched ? 'matches' : `not by ${failed_key}`,
    ]),
    { indent },
  );
