export { askModel } from './ask-model.js';
export {
  attachmentOf,
  describeModelFailure,
  parseUsage,
  reasoningMetadata,
  usageRow,
  warningsRow,
  withCommandCalls,
  withoutCutCall,
} from './reply.js';
export { ModelWaits } from './waits.js';
