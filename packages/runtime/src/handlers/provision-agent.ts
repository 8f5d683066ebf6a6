import {
  agentIdIn,
  isJsonObject,
  type JsonValue,
  KernelError,
  type ProvisionAgent,
  provisionAgentSchema,
  type SessionAddress,
} from '@boxcar/kernel';
import { type AgentRow, changeAgent, findAgent, type ProfileRow } from '@boxcar/store';
import type { Handler, HandlerTools } from '../handler/index.js';
import { nameOfSession, resolveSessions } from '../submit/index.js';

type Outcome = 'created' | 'updated' | 'unchanged';
/** The input with its agents named: a session is replaced by the name of its agent. */
type Named = Omit<ProvisionAgent, 'agent_id' | 'derived_from'> & {
  readonly agent_id?: string | undefined;
  readonly derived_from?: string | undefined;
};

const answer = (agent: AgentRow, outcome: Outcome): JsonValue => ({
  status: 'accepted',
  outcome,
  agent_id: agent.agentId,
  name: agent.name,
  profile_name: agent.profile.name,
  profile_version: agent.profile.version,
  output_box_id: agent.tapeBoxId,
  owner_agent_id: agent.ownerAgentId,
  shared: agent.isShared,
});

const checkReach = (tools: HandlerTools, { name, tags }: ProfileRow): void =>
  tools.checkDelegation({ profileName: name, tags });

const findVersion = (
  tools: HandlerTools,
  name: string,
  version: ProvisionAgent['profile_version'],
): Promise<ProfileRow> => tools.findProfile(name, typeof version === 'number' ? version : undefined);

const findExisting = (tools: HandlerTools, ref: string): Promise<AgentRow | undefined> =>
  findAgent(
    tools.db,
    { projectId: tools.ctx.projectId, actorId: tools.ctx.source.agentId },
    { id: agentIdIn(ref), name: ref },
  );

/** Handles an existing agent: checks that it has the requested profile, and moves it to another version if requested. */
async function keep(agent: AgentRow, input: Named, tools: HandlerTools): Promise<JsonValue> {
  checkReach(tools, agent.profile);
  if (input.profile_name !== undefined && input.profile_name !== agent.profile.name) {
    throw new KernelError('profile_mismatch', {
      message: `Agent '${agent.name}' is of profile '${agent.profile.name}', not '${input.profile_name}'.`,
      details: {
        agent_id: agent.agentId,
        profile_name: agent.profile.name,
        asked_profile_name: input.profile_name,
      },
    });
  }
  const profile =
    input.profile_version === undefined
      ? agent.profile
      : await findVersion(tools, agent.profile.name, input.profile_version);
  const isMoved = profile.profileId !== agent.profile.profileId;
  if (!isMoved && (input.shared ?? agent.isShared) === agent.isShared) return answer(agent, 'unchanged');
  const { source } = tools.ctx;
  if (!source.isOperator && agent.ownerAgentId !== source.agentId)
    throw new KernelError('delegation_denied', {
      message: `Agent ${source.agentId} did not make agent ${agent.agentId}, so it may not change it.`,
      details: { agent_id: agent.agentId, source_agent_id: source.agentId },
    });
  // The other version may have other tags.
  checkReach(tools, profile);
  await changeAgent(tools.tx, agent.agentId, {
    ...(isMoved ? { profileId: profile.profileId } : {}),
    isShared: input.shared,
  });
  return answer({ ...agent, profile, isShared: input.shared ?? agent.isShared }, 'updated');
}

/**
 * An agent can read the tasks of the agents that it made. With a name and `profile_name` the operator therefore does not mean an
 * agent that another agent made. With an id, or without `profile_name`, the operator means the existing agent.
 */
function checkMaker(
  { agentId, name, isOperatorMade, ownerAgentId }: AgentRow,
  input: Named,
  tools: HandlerTools,
): void {
  const isById = agentIdIn(input.agent_id ?? '') === agentId;
  if (isOperatorMade || isById || input.profile_name === undefined || !tools.ctx.source.isOperator) return;
  throw new KernelError('agent_exists', {
    message: `Agent '${name}' was made by agent ${ownerAgentId}, which can read everything that it is told.`,
    next: 'Choose another name, or name the agent by its id to use it all the same.',
    details: { agent: name, agent_id: agentId, owner_agent_id: ownerAgentId },
  });
}

async function ensure(input: Named, tools: HandlerTools): Promise<JsonValue> {
  const ref = input.agent_id ?? '';
  const known = await findExisting(tools, ref);
  if (known !== undefined) {
    checkMaker(known, input, tools);
    return keep(known, input, tools);
  }
  if (agentIdIn(ref) !== undefined || input.profile_name === undefined) {
    const hint =
      input.profile_name === undefined
        ? 'give profile_name to have it made'
        : 'ids of new agents are made by the kernel, give a name to have one made';
    throw new KernelError('not_found', {
      message: `No agent '${ref}' in this project; ${hint}.`,
      details: { agent: ref, project_id: tools.ctx.projectId },
    });
  }
  const profile = await findVersion(tools, input.profile_name, input.profile_version);
  checkReach(tools, profile);
  try {
    return answer(await tools.createAgent({ profile, name: ref, isShared: input.shared }), 'created');
  } catch (error) {
    if (!(error instanceof KernelError) || error.code !== 'agent_exists') throw error;
  }
  // Another process made the agent between the look-up and the lock of the name.
  const made = await findExisting(tools, ref);
  if (made !== undefined) {
    checkMaker(made, input, tools);
    return keep(made, input, tools);
  }
  throw new KernelError('bad_request', {
    message: `agent_id: '${ref}' is the operator of the project, which has no profile.`,
    details: { field: 'arguments.agent_id', agent: ref },
  });
}

async function derive(input: Named, tools: HandlerTools): Promise<JsonValue> {
  const source = await tools.findAgent(input.derived_from ?? '');
  checkReach(tools, source.profile);
  const profile =
    input.profile_name === undefined && input.profile_version === undefined
      ? source.profile
      : await findVersion(tools, input.profile_name ?? source.profile.name, input.profile_version);
  checkReach(tools, profile);
  return answer(
    await tools.createAgent({
      profile,
      derivedFrom: source.agentId,
      isShared: input.shared,
      name: input.agent_id,
    }),
    'created',
  );
}

async function create(input: Named, tools: HandlerTools): Promise<JsonValue> {
  const profile = await findVersion(tools, input.profile_name ?? '', input.profile_version);
  checkReach(tools, profile);
  return answer(
    await tools.createAgent({
      profile,
      isShared: input.shared,
      name: input.agent_id,
    }),
    'created',
  );
}

/**
 * Ensures the agent of a session. The agent is made with its tape as by its first task; after that it is treated like any other
 * agent.
 */
async function ensureSession(session: SessionAddress, given: Named, tools: HandlerTools): Promise<JsonValue> {
  const ref = nameOfSession(session, 'arguments.agent_id');
  const input = { ...given, agent_id: ref };
  const known = await findExisting(tools, ref);
  if (known !== undefined) checkMaker(known, input, tools);
  const { profile_name } = given;
  await resolveSessions([{ target_ref: { ...session, profile_name } }], tools, undefined, 'agent_id');
  const kept = await keep(await tools.findAgent(ref), input, tools);
  return known === undefined && isJsonObject(kept) ? { ...kept, outcome: 'created' } : kept;
}

const ACTIONS = { ensure, create, derive } as const;

/** Makes agents, and moves them between versions of their profile. No turn starts. Rule: docs/reference/primitives.md. */
export const provisionAgent: Handler<ProvisionAgent> = {
  description:
    'Make an agent without a task, or make sure that an agent exists. Later tasks reach it with delegate_async and target_strategy reuse.',
  input: provisionAgentSchema,
  namesProfiles: true,
  handle: ({ agent_id: agent, derived_from: origin, ...rest }, tools) => {
    const input: Named = {
      ...rest,
      derived_from: typeof origin === 'object' ? nameOfSession(origin, 'arguments.derived_from') : origin,
    };
    // For other actions the schema refuses a session.
    if (typeof agent === 'object') return ensureSession(agent, input, tools);
    return ACTIONS[input.action]({ ...input, agent_id: agent }, tools);
  },
};
