export {
  AgentDoor,
  type ListTasksOptions,
  openAgentDoor,
  type PublicMessage,
  type TaskPage,
} from './agent-door.js';
