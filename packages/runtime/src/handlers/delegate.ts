import {
  type AskExpert,
  askExpertSchema,
  type DelegateAsync,
  delegateAsyncSchema,
  type InheritedBox,
  instructionHandover,
  type JsonObject,
  type JsonValue,
  KernelError,
  type LaunchPrincipal,
  launchPrincipalSchema,
} from '@boxcar/kernel';
import type { Handler, HandlerTools, SubmitTurnRequest } from '../handler.js';
import { takeSnapshot } from '../snapshot.js';

async function resolveTarget(
  input: DelegateAsync,
  tools: HandlerTools,
): Promise<SubmitTurnRequest['target'] & { kind: 'new' | 'reuse' }> {
  if (input.target_strategy === 'new') {
    const profile = await tools.findProfile(input.target_ref);
    tools.checkDelegation({ profileName: profile.name, tags: profile.tags });
    return { kind: 'new', profile };
  }
  const agent = await tools.findAgent(input.target_ref);
  tools.checkDelegation({ profileName: agent.profile.name, tags: agent.profile.tags });
  if (input.target_strategy === 'reuse') return { kind: 'reuse', agent };
  return { kind: 'new', profile: agent.profile, derivedFrom: agent.agentId };
}

/** Delegates an instruction to a new, an existing or a cloned agent. The other delegations build its arguments. */
async function delegate(input: DelegateAsync, tools: HandlerTools): Promise<JsonValue> {
  const target = await resolveTarget(input, tools);
  const profile = target.kind === 'new' ? target.profile : target.agent.profile;
  const extra: InheritedBox[] = [];
  if (target.kind === 'new' && target.derivedFrom !== undefined) {
    extra.push(
      ...(await takeSnapshot(tools, target.derivedFrom, {
        argument: 'target_ref',
        isFull: input.history === 'full',
      })),
    );
  }
  const boxIds = input.context_box_id === undefined ? undefined : [input.context_box_id].flat();
  const args: JsonObject = {
    instruction: input.instruction,
    ...(input.result_fields === undefined
      ? {}
      : { result_fields: input.result_fields as unknown as JsonObject[] }),
    ...(boxIds === undefined ? {} : { input_box_ids: boxIds }),
  };
  const [packed] = await tools.packer.packResolved([
    {
      projectId: tools.ctx.projectId,
      actorId: tools.ctx.source.agentId,
      toolSuffix: tools.ctx.primitive,
      arguments: args,
      handover: instructionHandover(profile.name, input),
      profile,
      access: 'actor',
      extra,
    },
  ]);
  if (packed === undefined) throw new KernelError('internal_error');
  const turn = await tools.submitTurn({
    target,
    contextBoxId: packed.contextBoxId,
    wait: input.wait ?? false,
    ...(input.deadline_seconds === undefined ? {} : { deadlineMs: input.deadline_seconds * 1000 }),
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
    'Hand a task to another agent. With wait, the result comes back as the answer; without, a receipt comes at once and the agent works on its own.',
  input: delegateAsyncSchema,
  profileNames: (input) => (input.target_strategy === 'new' ? [input.target_ref] : []),
  handle: delegate,
};

export const launchPrincipal: Handler<LaunchPrincipal> = {
  description: 'Start a fresh agent of a profile on a task.',
  input: launchPrincipalSchema,
  profileNames: (input) => [input.profile_name],
  handle: ({ profile_name, ...rest }, tools) =>
    delegate({ ...rest, target_strategy: 'new', target_ref: profile_name }, tools),
};

export const askExpert: Handler<AskExpert> = {
  description: 'Ask a fresh agent of an expert profile a question and get its answer.',
  input: askExpertSchema,
  profileNames: (input) => [input.expert_profile],
  handle: async ({ expert_profile, question, include_history, ...rest }, tools) => {
    const args = {
      ...rest,
      wait: rest.wait ?? true,
      target_strategy: 'new' as const,
      target_ref: expert_profile,
      instruction: question,
    };
    if (include_history !== true) return delegate(args, tools);
    if (tools.ctx.parent?.agentId !== tools.ctx.source.agentId) {
      throw new KernelError('bad_request', {
        message: 'ask_expert: include_history needs a calling turn with an output box.',
        details: { field: 'arguments.include_history' },
      });
    }
    const inherited = await takeSnapshot(tools, tools.ctx.source.agentId, {
      argument: 'include_history',
      isFull: false,
    });
    const snapshotBoxId = await tools.packer.sealSnapshot(tools.ctx, inherited);
    return delegate(
      { ...args, context_box_id: [...[rest.context_box_id ?? []].flat(), snapshotBoxId] },
      tools,
    );
  },
};
