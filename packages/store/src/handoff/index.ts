export { type Flight, findCached, findFlight, lead, takeCached } from './cache.js';
export {
  type ChainHopRow,
  type ChainMatter,
  type ChainMoveRow,
  type ChainRow,
  type ChainStep,
  findChain,
  findChainMatter,
  findChainOfTurn,
  markRolledBack,
} from './chains.js';
export {
  type BeginningHandoff,
  beginAttempt,
  closeOfTurn,
  findLeftTickets,
  findParked,
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
  loadChain,
  loadHandoffEvents,
  lockHandoffKey,
  type ServedHandoff,
  type WaitedHandoff,
} from './handoffs.js';
export {
  type AskedQuestion,
  askQuestion,
  expireQuestion,
  findKeyedReply,
  findQuestion,
  loadHandoffMessages,
  type ReplyPlace,
  writeReply,
} from './messages.js';
export {
  countPublicTasks,
  findPublicAgent,
  findPublicTask,
  listPublicAgents,
  listPublicTasks,
  lockConversation,
  type PublicAgent,
  type PublicTask,
  type TaskQuestion,
  type TaskScope,
} from './public-tasks.js';
export {
  deletePushConfig,
  listPushConfigs,
  loadPushes,
  MAX_PUSH_CONFIGS,
  type Push,
  type PushConfig,
  setPushConfig,
} from './push-configs.js';
export { addPart, loadSaid, loadTurnParts, PARTS_CHANNEL, type Said, type TurnPart } from './turn-parts.js';
