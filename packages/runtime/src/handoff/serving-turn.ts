/** The turn that serves a handoff: of the target's profile, or one that an adapter or a function takes. */
import { KernelError } from '@boxcar/kernel';
import type { AgentRow } from '@boxcar/store';
import { CHAIN_TARGET } from '../core/index.js';
import type { KernelTools, SubmitTurnRequest } from '../handler/index.js';
import { ensureHandoffProfile } from './handoff-profile.js';
import type { NativeTarget } from './native-target.js';

/** Room for what stands in queues before a handoff begins, where a call waits for it. */
export const QUEUE_ROOM_MS = 3_600_000;

/** One of both. */
export interface ServedBy {
  /** Null: workers of the target's profile. */
  readonly workerTarget: string | null;
  readonly native: NativeTarget | undefined;
}

/** The turn that serves a handoff. */
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
    /** For a chain, which acts for whoever has begun it. */
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
    // Its time begins with its first attempt; a call does not wait for ever.
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
