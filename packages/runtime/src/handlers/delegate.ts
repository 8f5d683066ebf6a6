import {
  type AskExpert,
  askExpertSchema,
  type DelegateAsync,
  delegateAsyncSchema,
  type JsonValue,
  KernelError,
  type LaunchPrincipal,
  launchPrincipalSchema,
} from '@boxcar/kernel';
import type { Handler, HandlerTools } from '../handler/index.js';
import { takeSnapshots } from '../handler/index.js';
import { resolveSessions } from '../submit/index.js';
import { handleCommand, isCommand, refuseCommand } from './comma.js';
import { inMs } from './in-ms.js';
import { targetProfiles } from './target-profiles.js';
import { type ArgumentNames, prepareTasks } from './tasks.js';

/** Delegates an instruction to a new, an existing or a cloned agent. The other delegations build the arguments for it. */
async function delegate(
  input: DelegateAsync,
  tools: HandlerTools,
  names?: ArgumentNames,
): Promise<JsonValue> {
  if (input.target_strategy === 'reuse' && isCommand(input.instruction, tools)) {
    const [named] = await resolveSessions([input], tools);
    if (named === undefined) throw new KernelError('internal_error');
    return handleCommand(named, tools);
  }
  const [request] = await prepareTasks([input], tools, names === undefined ? {} : { names });
  if (request === undefined) throw new KernelError('internal_error');
  const turn = await tools.submitTurn({
    ...request,
    wait: input.wait ?? false,
    deadlineMs: inMs(input.deadline_seconds),
  });
  return {
    status: 'accepted',
    agent_id: turn.agentId,
    turn_id: turn.turnId,
    context_box_id: turn.contextBoxId,
    output_box_id: turn.outputBoxId,
  };
}

export const delegateAsync: Handler<DelegateAsync> = {
  description:
    'Give a task to another agent. With wait, the answer is the result. Without wait, the answer is a receipt and comes at once.',
  input: delegateAsyncSchema,
  namesProfiles: true,
  profileNames: targetProfiles,
  handle: delegate,
};

export const launchPrincipal: Handler<LaunchPrincipal> = {
  description: 'Start a new agent of a profile on a task.',
  input: launchPrincipalSchema,
  namesProfiles: true,
  profileNames: (input) => [input.profile_name],
  handle: ({ profile_name, ...rest }, tools) =>
    delegate({ ...rest, target_strategy: 'new', target_ref: profile_name }, tools, {
      target_ref: 'profile_name',
      instruction: 'instruction',
    }),
};

export const askExpert: Handler<AskExpert> = {
  description: 'Ask a new agent of an expert profile a question and get its answer.',
  input: askExpertSchema,
  namesProfiles: true,
  profileNames: (input) => [input.expert_profile],
  handle: async ({ expert_profile, question, include_history, ...rest }, tools) => {
    refuseCommand(question, tools, 'question');
    const args = {
      ...rest,
      wait: rest.wait ?? true,
      target_strategy: 'new' as const,
      target_ref: expert_profile,
      instruction: question,
    };
    const names = { target_ref: 'expert_profile', instruction: 'question' };
    if (include_history !== true) return delegate(args, tools, names);
    if (tools.ctx.parent?.agentId !== tools.ctx.source.agentId) {
      throw new KernelError('bad_request', {
        message: 'ask_expert: include_history needs a calling turn with an output box.',
        details: { field: 'arguments.include_history' },
      });
    }
    const [inherited = []] = await takeSnapshots(tools, [
      { agentId: tools.ctx.source.agentId, argument: 'include_history', isFull: false },
    ]);
    const snapshotBoxId = tools.packer.sealSnapshot(tools.ctx, inherited);
    return delegate(
      { ...args, context_box_id: [...[rest.context_box_id ?? []].flat(), snapshotBoxId] },
      tools,
      names,
    );
  },
};
