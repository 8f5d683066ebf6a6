export type {
  BatchRef,
  CallerContext,
  Handler,
  HandlerTools,
  JoinRequest,
  KernelTools,
  NewAgentRequest,
  SubmitTurnRequest,
  TurnRef,
} from './handler.js';
export { assemble, type SnapshotWish, takeSnapshots } from './snapshot.js';
