/** `@boxcar/adapters/targets`: the operator's targets, without loading the adapters and their dependencies. */
export {
  checkTargets,
  type ParseTargetsOptions,
  parseTargets,
  readTargetsFile,
  type Targets,
} from './parse-targets.js';
export { resolveTarget } from './resolve-target.js';
export {
  checkSettings,
  parseSettings,
  readSettingsText,
  type SettingsFinding,
  type SettingsFormat,
} from './settings-document.js';
export type { AdkTarget, CustomTarget, ModelTarget, Target } from './target.js';
