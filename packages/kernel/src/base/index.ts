export { checkDuration, checkWait, checkWholeNumber, MAX_DURATION_MS } from './check-number.js';
export { ERROR_CATALOGUE, type ErrorCode } from './error-catalogue.js';
export { cutEcho, type ErrorDetails } from './error-limits.js';
export { type ErrorBody, errorText, KernelError, toErrorBody, toText } from './errors.js';
export { type TextMatch, type TextRange, WantedText } from './find-text.js';
export {
  FORMATS,
  findingsOf,
  findingWords,
  kindWords,
  meant,
  mustBe,
  orList,
  parseInput,
  plainWords,
  safeParse,
  toBadRequest,
  unknownKeys,
  whenObject,
} from './findings.js';
export {
  type AgentId,
  type BatchId,
  type BoxId,
  type CardId,
  type DeliveryId,
  type HandoffId,
  type Id,
  type KeyId,
  type NewId,
  type ProfileId,
  type ProjectId,
  parseId,
  type RunId,
  type TicketId,
  type ToolCallId,
  type TurnId,
  tryParseId,
  type WorkerId,
} from './ids.js';
export {
  canonicalJson,
  isCleanText,
  isJsonObject,
  type JsonObject,
  type JsonValue,
  jsonObjectSchema,
  parseJsonValue,
  sanitizeJson,
  sanitizeText,
  sha256,
} from './json.js';
export { copyKeyOrder, jsonText, parseJson, setKeyOrder } from './key-order.js';
export { MaskedText } from './masked-text.js';
export {
  agentIdIn,
  agentLabel,
  agentNamesOf,
  freshAgentName,
  givenNames,
  isPlainName,
  MAX_ANCHOR_NAME,
  MAX_TAPE_NAME,
  nameSchema,
  PLAIN_NAME,
  readsAsReference,
  SELECTOR_NAME,
  selectorNameSchema,
  spellingsOf,
  toName,
  toPlainLine,
} from './names.js';
export { pythonJson, pythonJsonAt, pythonJsonItems, pythonJsonText, readPythonJson } from './python-json.js';
export {
  type RedisAddress,
  type RedisClusterAddress,
  readRedisUrl,
  redisHosts,
  withClusterPassword,
} from './redis-url.js';
export { parseRelaxedJson } from './relaxed-json.js';
export { decideRetry, type RetryLimits } from './retry.js';
export { SCOPES, type Scope } from './scopes.js';
export { declareSecrets, maskSecrets, warnOfSecrets } from './secrets.js';
export { suggest } from './suggest.js';
export { LONGEST_TIMER_MS, startTimer, type Timer } from './timer.js';
