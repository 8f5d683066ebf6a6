export { OutsideCalls } from './queue-tool-calls.js';
export { TOOL_RESULTS_QUEUE, ToolQueue } from './tool-queue.js';
