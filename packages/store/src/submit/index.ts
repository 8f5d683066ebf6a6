export { changeAgent, loadAgentNames, mayBeAgent, takeAgentName, takeAgentNames } from './agents.js';
export { type CallerFacts, type CallerRequest, type ChainLink, loadCallers } from './callers.js';
export { type AgentRow, findActor, findAgent, findAgents, lockAgents } from './find-agents.js';
export {
  byGivenName,
  findProfileHashes,
  findProfiles,
  findProfileVersion,
  hasProfile,
  insertProfiles,
  lockProfileNames,
  PROFILE_COLUMNS,
  type ProfileDbRow,
  type ProfileRow,
  toProfileRow,
} from './profile-versions.js';
export {
  findVersionIds,
  listProfiles,
  loadStoredProfiles,
  type ProfileLine,
  type StoredProfile,
} from './profiles.js';
export {
  archiveProject,
  createProject,
  findProjectByRef,
  listProjects,
  listUsedModels,
  loadProject,
  type ProjectLine,
  type ProjectReport,
  setPrice,
  setProjectLimits,
  type UsedModel,
} from './projects.js';
export { ringPriority } from './ring-priority.js';
export {
  findSubmitted,
  ringsOf,
  type SubmissionItem,
  type SubmissionResult,
  type SubmittedTurn,
  writeSubmission,
  writeSubmissions,
} from './submission.js';
export {
  type CallWait,
  emptySubmission,
  type Fence,
  type NewBatch,
  type NewBudget,
  type NewGrant,
  type NewHandoff,
  type NewOperation,
  type NewTurn,
  type SeenCaller,
  type Submission,
} from './submission-rows.js';
export { findIdsNextTo, findNamed, findTree, type TreeOf } from './tree-ref.js';
export {
  findBoxId,
  findBoxIdsNextTo,
  findDeliveryId,
  findHandoffId,
  findKeyId,
  findTicketId,
  findTurnId,
  findTurnOrRun,
} from './turn-ref.js';
