import type { AdapterUsage } from './adapter.js';

/** More than any real answer has. A charge of such a figure would make an account unusable. */
const MOST = 1_000_000_000;

const isCount = (figure: number): boolean => figure >= 0 && figure <= MOST;

/** The usage that a platform reported, in whole tokens; null for impossible figures. */
export const usageFrom = (input: number, output: number): AdapterUsage | null =>
  isCount(input) && isCount(output)
    ? { input_tokens: Math.ceil(input), output_tokens: Math.ceil(output) }
    : null;
