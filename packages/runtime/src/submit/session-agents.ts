/** Sessions by name among the targets of a primitive. Source: docs/tape.md, "Sessions by name". */
import { KernelError, type SessionRef, sessionTapeName } from '@boxcar/kernel';
import { type AgentRow, createTape, findTape, giveTape, takeAgentName } from '@boxcar/store';
import type { HandlerTools } from '../handler.js';
import { newId } from '../packer.js';

interface Named {
  readonly name: string;
  readonly ref: SessionRef;
  /** What errors call it. */
  readonly field: string;
}

const nameOf = (ref: SessionRef, field: string): string => {
  try {
    return sessionTapeName(ref);
  } catch (error) {
    if (!(error instanceof KernelError)) throw error;
    throw new KernelError(error.code, {
      message: `${field}.${error.message.replace(` ${error.entry.next}`, '')}`,
      details: { ...error.details, field: `${field}.${String(error.details.field)}` },
      cause: error,
    });
  }
};

/**
 * A session keeps the profile of its first use; later versions of it come by `provision_agent`. An agent can read everything that the
 * agents it made are told: as in `provision_agent`, the operator does not mean one of these when it says which profile the agent is to have.
 */
function checkAgent({ ref, field }: Named, agent: AgentRow, { ctx }: HandlerTools): void {
  const { profile_name: asked } = ref;
  if (asked === undefined) return;
  const { agentId, ownerAgentId, isOperatorMade } = agent;
  if (ctx.source.isOperator && !isOperatorMade)
    throw new KernelError('agent_exists', {
      message: `${field}: the agent of session '${ref.session}' was made by agent ${ownerAgentId}, which can read everything that it is told.`,
      next: 'Leave profile_name out to use it all the same, or choose another session.',
      details: { field, agent_id: agentId, owner_agent_id: ownerAgentId },
    });
  if (asked === agent.profile.name) return;
  throw new KernelError('conflict', {
    message: `${field}.profile_name: session '${ref.session}' has an agent of profile '${agent.profile.name}', not '${asked}'.`,
    next: 'Leave profile_name out, or choose another session.',
    details: {
      field: `${field}.profile_name`,
      agent_id: agent.agentId,
      profile_name: agent.profile.name,
      asked_profile_name: asked,
    },
  });
}

/** Makes the agent, under the lock of its name: of two first uses at once, the other one finds it. */
async function makeAgent(named: Named, tools: HandlerTools): Promise<void> {
  const { name, ref, field } = named;
  const { projectId, source } = tools.ctx;
  if (ref.profile_name === undefined)
    throw new KernelError('not_found', {
      message: `${field}: no session '${ref.session}' of workspace '${ref.workspace}'; give profile_name to have its agent made.`,
      details: { field, agent: name, workspace: ref.workspace, session: ref.session, project_id: projectId },
    });
  const profile = await tools.findProfile(ref.profile_name);
  tools.checkDelegation({ profileName: profile.name, tags: profile.tags });
  const taking = await takeAgentName(tools.tx, { projectId, makerId: source.agentId }, name);
  if (taking === 'taken') {
    const [made] = await tools.findAgents([name]);
    if (made !== undefined) checkAgent(named, made, tools);
    return;
  }
  // No agent can hold a tape before it exists, so the tape begins as the caller's.
  const actor = { projectId, actorId: source.agentId };
  const address = { kind: 'name', name } as const;
  const known = taking === 'free' ? await findTape(tools.tx, address, actor) : undefined;
  if (taking === 'free' && known === undefined)
    await createTape(tools.tx, { ...actor, boxId: newId<'box'>(), name });
  const tape = known ?? (await findTape(tools.tx, address, actor));
  const agent = {
    agentId: newId<'agent'>(),
    projectId,
    name,
    profileId: profile.profileId,
    makerId: source.agentId,
    isFresh: known === undefined,
  };
  if (taking === 'free' && tape !== undefined && (await giveTape(tools.tx, tape.boxId, agent))) return;
  throw new KernelError('conflict', {
    message: `${field}: the tape of session '${ref.session}' is not free: somebody else holds it.`,
    next: 'Choose another session.',
    details: { field, workspace: ref.workspace, session: ref.session, box_id: tape?.boxId ?? null },
  });
}

/**
 * Puts the name of the agent in place of each session, and makes the agents that are missing, in the primitive's transaction.
 *
 * @param pathOf - The path of the nth target in the arguments, with a dot at its end; empty when there is but one.
 * @throws KernelError `bad_request` for a relative workspace; `not_found` for a session without an agent where no profile is given; `conflict`
 * for another profile than the agent has; `agent_exists` for one that the operator did not make.
 */
export async function resolveSessions<T extends { readonly target_ref: string | SessionRef }>(
  items: readonly T[],
  tools: HandlerTools,
  pathOf: (index: number) => string = () => '',
): Promise<readonly (Omit<T, 'target_ref'> & { readonly target_ref: string })[]> {
  const named = items.map(({ target_ref: ref }, index): Named | undefined => {
    if (typeof ref === 'string') return undefined;
    const field = `arguments.${pathOf(index)}target_ref`;
    return { ref, field, name: nameOf(ref, field) };
  });
  const sessions = named.filter((one) => one !== undefined);
  if (sessions.length > 0) {
    const found = await tools.findAgents(sessions.map(({ name }) => name));
    const missing: Named[] = [];
    for (const [index, session] of sessions.entries()) {
      const agent = found[index];
      if (agent === undefined) missing.push(session);
      else checkAgent(session, agent, tools);
    }
    // In the order of their names, in which every other primitive takes these locks.
    for (const session of missing.toSorted((a, b) => (a.name < b.name ? -1 : 1)))
      await makeAgent(session, tools);
  }
  return items.map((item, index) => ({ ...item, target_ref: named[index]?.name ?? String(item.target_ref) }));
}
