/** The parts that handoffs add to a runtime: primitives, and the model that decides for chains. */
import type { Model } from '@boxcar/kernel';
import type pg from 'pg';
import { CHAIN_TOOL, type RuntimeCore } from '../core/index.js';
import type { Handler } from '../handler/index.js';
import { chainModel } from './chain-model.js';
import { chainPrimitive, hopPrimitive } from './chain-primitives.js';
import { handoffPrimitive } from './handoff-primitive.js';
import { CHAIN_MODEL } from './handoff-profile.js';
import type { HandoffParts } from './parts.js';

export function handoffHandlers(runtime: RuntimeCore, parts: HandoffParts): ReadonlyMap<string, Handler> {
  const rules = () => ({ isEnabled: parts.isEnabled, gate: runtime.gate });
  return new Map([
    ['handoff', handoffPrimitive(runtime, parts, rules) as Handler],
    ['handoff_chain', chainPrimitive(runtime, parts, rules) as Handler],
    [CHAIN_TOOL, hopPrimitive(runtime, parts) as Handler],
  ]);
}

export const handoffModels = (pool: pg.Pool): ReadonlyMap<string, Model> =>
  new Map([[CHAIN_MODEL, chainModel(pool)]]);
