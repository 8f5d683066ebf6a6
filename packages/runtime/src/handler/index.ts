export type {
  BatchRef,
  CallerContext,
  Handler,
  HandlerTools,
  JoinRequest,
  NewAgentRequest,
  SubmitTurnRequest,
  TurnRef,
} from './handler.js';
export { assemble, type SnapshotWish, takeSnapshots } from './snapshot.js';
