export {
  checkDelegation,
  checkReuse,
  type DelegationTarget,
  mayDelegate,
  type ReuseTarget,
} from './policy.js';
export {
  type DelegationPolicy,
  type Profile,
  type ProfileInput,
  parseProfile,
  profileSchema,
  WORKER_TARGET,
} from './profile.js';
export {
  type CallDecision,
  checkArguments,
  decideQueueCall,
  type JobLook,
  type QueueTool,
  TOOL_NAME,
  toolNameOf,
  toolNames,
} from './queue-tool.js';
