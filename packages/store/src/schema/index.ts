export type { CallRouteKind, OfferedTool, SweepKind, WaitKind, WorkerInfo } from './row-kinds.js';
export { tables } from './schema.js';
