export {
  checkDelegation,
  checkReuse,
  type DelegationTarget,
} from './policy.js';
export {
  type DelegationPolicy,
  type Profile,
  parseProfile,
  profileSchema,
  SERVER_NAME,
  WORKER_TARGET,
} from './profile.js';
export {
  type CallDecision,
  checkArguments,
  decideQueueCall,
  type JobState,
  type QueueTool,
  TOOL_NAME,
  toolNames,
} from './queue-tool.js';
