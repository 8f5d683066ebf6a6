import type { AdapterUsage } from './adapter.js';

/** More than any answer has. An account that is charged with such a figure is of no use any more. */
const MOST = 1_000_000_000;

const isCount = (figure: number): boolean => figure >= 0 && figure <= MOST;

/** What a platform reported, in whole tokens; null for figures that no call can have. */
export const usageFrom = (input: number, output: number): AdapterUsage | null =>
  isCount(input) && isCount(output)
    ? { input_tokens: Math.ceil(input), output_tokens: Math.ceil(output) }
    : null;
