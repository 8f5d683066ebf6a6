export {
  ADDS,
  addTool,
  ENDS,
  hasTool,
  READS,
  type ToolAnswer,
  type ToolCall,
  type ToolDefinition,
} from './add-tool.js';
export { parseArguments, toJson } from './ask.js';
export { ToolFailure } from './failure.js';
export { inputOf, outputOf } from './schema.js';
