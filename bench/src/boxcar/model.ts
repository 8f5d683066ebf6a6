import { createModelRouter } from '@boxcar/llm';
import { now } from '../measure.js';

/** The model that answers with the moment at which it was called, as `scripted:<name>`. */
export const CLOCK = 'clock';

/** Of callers and workers alike: a caller checks the profiles that it applies. */
export const createBenchModel = () =>
  createModelRouter({ scripted: { functions: { [CLOCK]: () => ({ text: String(now()) }) } } });
