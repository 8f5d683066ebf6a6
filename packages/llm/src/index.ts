export { type ModelSettings, modelEnvironment, toModelSettings } from './providers/settings.js';
export { createModelRouter, type ModelRouterOptions } from './router.js';
export { type ScriptStep, scriptSchema } from './script.js';
export {
  createScriptedModel,
  type ScriptedFunction,
  type ScriptedHelpers,
  type ScriptedModelOptions,
  type ScriptedReply,
} from './scripted.js';
export { countTokens, type Tokenizer, tokenizerOf } from './tokenizer.js';
