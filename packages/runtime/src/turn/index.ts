export { handBackFailed, noteFailedClaim, releaseEach } from './failed-runs.js';
export { type HeldTurn, MAX_ATTEMPTS, type StepResults, type TurnHost } from './held-turn.js';
export { LeftTurns, recordLeft } from './left-turns.js';
export { runTurn } from './run-turn.js';
export { CONTEXT_REMINDER } from './step-cards.js';
