export {
  type KeptTape,
  type PurgeReport,
  purgeRuns,
  purgeTapes,
  readClock,
  type TapePurgeReport,
} from './purge.js';
export type { KeptByPurge } from './purge-plan.js';
