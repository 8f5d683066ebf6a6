export {
  ADDS,
  addTool,
  ENDS,
  READS,
  type ToolAnswer,
  type ToolCall,
  type ToolDefinition,
} from './add-tool.js';
export { type Failure, ToolFailure } from './failure.js';
export { inputOf, outputOf } from './schema.js';
