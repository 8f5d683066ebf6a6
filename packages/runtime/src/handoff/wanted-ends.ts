/**
 * The notifications that a request wants at the end of its handoff.
 * Rule: docs/reference/handoff.md, "Callbacks" and "Telling the source agent".
 */
import { type AgentId, type HandoffArguments, KernelError } from '@boxcar/kernel';
import { findNotifyRefusal } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import type { KernelTools } from '../handler/index.js';

export interface WantedEnds {
  /** Null: no callback is sent. */
  readonly callbackUrl: string | null;
  /** Null: no agent is notified. */
  readonly toldAgentId: AgentId | null;
}

const refuse = (field: string, problem: string, next: string): KernelError =>
  new KernelError('bad_request', {
    message: `arguments.${field}: ${problem}.`,
    next,
    details: { field: `arguments.${field}` },
  });

/** @throws KernelError for a callback or a source agent that is not allowed; nothing has been written in that case. */
export async function findWantedEnds(
  runtime: Pick<RuntimeCore, 'webhooks'>,
  input: HandoffArguments,
  tools: KernelTools,
): Promise<WantedEnds> {
  return {
    callbackUrl: await findCallback(runtime, input, tools),
    toldAgentId: input.notify === true ? await findTold(input, tools) : null,
  };
}

async function findCallback(
  { webhooks }: Pick<RuntimeCore, 'webhooks'>,
  { callback }: HandoffArguments,
  { ctx }: KernelTools,
): Promise<string | null> {
  if (callback === undefined) return null;
  // A model may get an address from any text that it has read, so a model may not name a receiver.
  if (ctx.parent !== undefined)
    throw refuse(
      'callback',
      'only programs may name a receiver',
      'Leave it out; notify tells the calling agent.',
    );
  return webhooks.check(callback.url, 'arguments.callback.url');
}

/** The calling agent; for a request from outside, the agent that it names. */
async function findTold(
  { source_agent }: HandoffArguments,
  { ctx, tx, findAgents }: KernelTools,
): Promise<AgentId> {
  const { projectId, source, parent } = ctx;
  if (parent !== undefined) return source.agentId;
  const [agent] = await findAgents([source_agent ?? '']);
  if (agent === undefined)
    throw refuse(
      'source_agent',
      `notify needs an agent of this project, and '${source_agent ?? ''}' is not one`,
      'Name an agent, or leave notify out.',
    );
  const refusal = await findNotifyRefusal(tx, { projectId, boxId: agent.tapeBoxId, makerId: source.agentId });
  if (refusal !== undefined) throw refusal;
  return agent.agentId;
}
