export { type Activity, ActivityFeed } from './activity.js';
export { listRegistered, type RegisteredName } from './registered.js';
export { type ListedAgent, type ListedBox, listAgents, listBoxes } from './things.js';
export { writeTurnWords } from './turn-words.js';
export { type ListedRun, type ListedTurn, listRuns, listTurns, type TurnFilters } from './turns.js';
