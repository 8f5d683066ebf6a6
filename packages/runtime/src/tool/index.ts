export { expandTool } from './expand.js';
export { type IsolatedTool, toTool } from './isolated-tool.js';
export { listProfilesTool } from './list-profiles.js';
export { type CommandAnswer, runTapeCommand } from './run-command.js';
export { tapeTools } from './tape-tools.js';
export {
  checkRegistered,
  hasArgument,
  parseGiven,
  retryOf,
  type Tool,
  type ToolContext,
  toParameters,
} from './tool.js';
export {
  findUnknownServer,
  isServed,
  missingServed,
  type ToolServers,
  unknownServers,
} from './tool-servers.js';
