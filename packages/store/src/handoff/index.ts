export {
  type BeginningHandoff,
  beginAttempt,
  closeOfTurn,
  findLeftTickets,
  findParked,
  isCallOpen,
  type LoggedEvent,
  lockParked,
  moveHandoffs,
  type NewHandoffEvent,
  type ParkedHandoff,
  retryAttempt,
} from './handoff-changes.js';
export { findHandoffProfile, insertHandoffProfile, lockHandoffProfile } from './handoff-profile.js';
export {
  findHandoff,
  findHandoffPlace,
  findKeyedHandoff,
  findServedHandoff,
  findWaitedHandoffs,
  type HandoffPlace,
  listHandoffs,
  loadHandoffEvents,
  lockHandoffKey,
  type ServedHandoff,
  type WaitedHandoff,
} from './handoffs.js';
export {
  countPublicTasks,
  findPublicAgent,
  findPublicTask,
  listPublicAgents,
  listPublicTasks,
  lockConversation,
  type PublicAgent,
  type PublicTask,
  type TaskScope,
} from './public-tasks.js';
export { addPart, loadSaid, loadTurnParts, PARTS_CHANNEL, type TurnPart } from './turn-parts.js';
