export {
  AgentDoor,
  type ListTasksOptions,
  openAgentDoor,
  type PublicMessage,
  type PublicReply,
  type TaskPage,
} from './agent-door.js';
export { PushReceivers, type PushRequest } from './push-receivers.js';
