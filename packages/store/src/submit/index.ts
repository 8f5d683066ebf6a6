export { changeAgent, loadAgentNames, mayBeAgent, takeAgentName, takeAgentNames } from './agents.js';
export {
  type AgentRow,
  byGivenName,
  type ChainLink,
  findActor,
  findAgent,
  findAgents,
  findProfileHashes,
  findProfiles,
  findProfileVersion,
  hasProfile,
  insertProfiles,
  loadOpenings,
  lockAgents,
  lockProfileNames,
  type Opening,
  type OpeningRequest,
  type ProfileRow,
} from './callers.js';
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
  type CallWait,
  emptySubmission,
  type Fence,
  findSubmitted,
  type NewBatch,
  type NewBudget,
  type NewContextBox,
  type NewGrant,
  type NewOperation,
  type NewTurn,
  ringsOf,
  type Submission,
  type SubmissionItem,
  type SubmissionResult,
  type SubmittedTurn,
  writeSubmission,
  writeSubmissions,
} from './submission.js';
export { WINDOW_FACTOR } from './submission-sql.js';
export { findIdsNextTo, findNamed, findTree, type TreeOf } from './tree-ref.js';
export { findBoxId, findNeighbors, findTurnId, findTurnOrRun } from './turn-ref.js';
