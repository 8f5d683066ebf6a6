/** The turn that serves a handoff: a turn of the target's profile, or a turn for an adapter or a function. */
import { KernelError } from '@boxcar/kernel';
import type { AgentRow } from '@boxcar/store';
import { CHAIN_TARGET } from '../core/index.js';
import type { KernelTools, SubmitTurnRequest } from '../handler/index.js';
import { ensureHandoffProfile } from './handoff-profile.js';
import type { NativeTarget } from './native-target.js';

/** Extra time for queues before a handoff begins, when a call waits for the handoff. */
export const QUEUE_ROOM_MS = 3_600_000;

/** Either the worker target or the native target is set. */
export interface ServedBy {
  /** Null: workers of the target's profile. */
  readonly workerTarget: string | null;
  readonly native: NativeTarget | undefined;
}

/** The request for the turn that serves a handoff. */
export async function turnOf(
  tools: KernelTools,
  {
    route,
    contextBoxId,
    timeoutMs,
    wait,
    isTrusted = false,
    priority,
  }: {
    readonly route: ServedBy;
    readonly contextBoxId: SubmitTurnRequest['contextBoxId'];
    readonly timeoutMs: number;
    readonly wait: boolean;
    /** True for a chain, which acts for the caller that began it. */
    readonly isTrusted?: boolean | undefined;
    readonly priority?: number | undefined;
  },
): Promise<SubmitTurnRequest> {
  const { workerTarget, native } = route;
  if (native !== undefined)
    return {
      target: targetOf(native),
      contextBoxId,
      ...(isTrusted ? { access: 'trusted' as const } : {}),
      wait,
      deadlineMs: timeoutMs,
      argument: 'target_agent',
      serves: { workerTarget: null },
      ...(priority === undefined ? {} : { priority }),
    };
  return {
    target: {
      kind: 'new',
      profile: await ensureHandoffProfile(tools, workerTarget === CHAIN_TARGET ? 'handoff-chain' : 'handoff'),
    },
    contextBoxId,
    access: 'trusted',
    wait,
    // The time of the handoff starts with its first attempt, but a waiting call needs a limit.
    ...(wait ? { deadlineMs: timeoutMs + QUEUE_ROOM_MS } : {}),
    argument: 'target_agent',
    serves: { workerTarget },
    ...(priority === undefined ? {} : { priority }),
  };
}

const targetOf = ({ agent, profile, newAgentId }: NativeTarget): SubmitTurnRequest['target'] => {
  if (agent !== undefined) return { kind: 'reuse', agent: agent satisfies AgentRow };
  if (profile !== undefined) return { kind: 'new', profile, agentId: newAgentId };
  throw new KernelError('internal_error', { message: 'A native target is neither agent nor profile.' });
};
