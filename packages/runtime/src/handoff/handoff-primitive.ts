/**
 * `handoff`: the door to every platform, for models, programs and queues alike.
 *
 * P1  Every request that fits the schema leaves a row. A refusal is first recorded and then returned to the caller as an error.
 * P2  Platform and target are found before the policy is asked about each of their names. A given name that the policy forbids is refused
 *     even when there is no such target.
 * P3  A handoff makes its turn in its own transaction, on every platform.
 * Rule: docs/reference/handoff.md, "A request".
 */
import {
  type ErrorBody,
  type HandoffArguments,
  handoffArgumentsSchema,
  handoffToolSchema,
  isJsonObject,
  type JsonValue,
  KernelError,
} from '@boxcar/kernel';
import type { RuntimeCore } from '../core/index.js';
import type { Handler, KernelTools } from '../handler/index.js';
import type { TaskOrigin } from './conversation-agent.js';
import { decideHandoff } from './decide-handoff.js';
import { findFirst, findPlace, type MadeAs, type RequestScope, readRequest } from './handoff-request.js';
import type { HandoffParts, HandoffRules } from './parts.js';
import { findWantedEnds } from './wanted-ends.js';
import { writeHandoff } from './write-handoff.js';

export const featureDisabled = (): KernelError =>
  new KernelError('feature_disabled', {
    message: 'Handoff feature is disabled',
    next: '',
    details: { variable: 'BOXCAR_HANDOFF_ENABLED' },
  });

/** The parts of the primitive that need no runtime. */
export const handoffForm = {
  description: 'Delegate work to another agent or system',
  input: handoffArgumentsSchema,
} as const;

export function handoffPrimitive(
  runtime: RuntimeCore,
  parts: HandoffParts,
  rules: () => HandoffRules,
  origin?: TaskOrigin,
): Handler<HandoffArguments> {
  return {
    ...handoffForm,
    parameters: handoffToolSchema('agdd').parameters as JsonValue,
    isOff: () => !rules().isEnabled,
    failureOf,
    profileNames: ({ target_agent, platform }) =>
      platform === undefined || platform.toLowerCase() === 'agdd' ? [target_agent] : [],
    handle: async (input, tools) => {
      const { isEnabled, gate } = rules();
      if (!isEnabled) throw featureDisabled();
      return makeHandoff({ runtime, parts, gate, tools: tools as KernelTools, origin }, input);
    },
  };
}

/** A refusal that has a row is an answer that contains an error. */
export const failureOf = (answer: JsonValue): ErrorBody | undefined =>
  isJsonObject(answer) && isJsonObject(answer.error) ? (answer.error as unknown as ErrorBody) : undefined;

const ORDINARY: MadeAs = { mode: 'handoff', hop: null, compensates: null };

/** Makes every handoff, including those of chains and compensations. @throws KernelError for a request that leaves no row. */
export async function makeHandoff(
  scope: RequestScope,
  input: HandoffArguments,
  as: MadeAs = ORDINARY,
): Promise<JsonValue> {
  const asked = readRequest(scope, input, as);
  const known = await findFirst(scope, asked);
  if (known !== undefined) return known;
  const wanted = await findWantedEnds(scope.runtime, input, scope.tools);
  const place = await findPlace(scope, input);
  const { callbackUrl } = wanted;
  const seen = callbackUrl === null ? input : { ...input, callback: { url: callbackUrl } };
  const decided = await decideHandoff(scope, { ...asked, input: seen }, place);
  return writeHandoff(scope, { asked, place, decided, wanted });
}
