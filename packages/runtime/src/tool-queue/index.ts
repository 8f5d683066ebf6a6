export { OutsideCalls } from './queue-tool-calls.js';
export { type NewToolJob, type QueuedCall, TOOL_RESULTS_QUEUE, ToolQueue } from './tool-queue.js';
