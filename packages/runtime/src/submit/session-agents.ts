/** Resolves sessions by name among the targets of a primitive. Source: docs/reference/tape.md, "Sessions by name". */
import { type AgentId, type BoxId, KernelError, type SessionRef } from '@boxcar/kernel';
import {
  type AgentRow,
  makeSessionAgents,
  type ProfileRow,
  type SessionAgent,
  takeAgentNames,
} from '@boxcar/store';
import type { HandlerTools } from '../handler/index.js';
import { newId } from '../lib/index.js';
import { nameOfSession } from './session-name.js';

interface Named {
  readonly name: string;
  readonly ref: SessionRef;
  /** How errors name the target. */
  readonly field: string;
}

/**
 * A session keeps the profile of its first use; `provision_agent` moves it to later versions. An agent can read the tasks of the
 * agents that it made. As in `provision_agent`, an operator that names the profile therefore does not mean an agent that another
 * agent made.
 */
function checkAgent(named: Named, agent: AgentRow, { ctx }: HandlerTools): void {
  const { agentId, ownerAgentId, isOperatorMade, profile } = agent;
  const { ref, field } = named;
  if (ref.profile_name !== undefined && ctx.source.isOperator && !isOperatorMade)
    throw new KernelError('agent_exists', {
      message: `${field}: the agent of session '${ref.session}' was made by agent ${ownerAgentId}, which can read everything that it is told.`,
      next: 'Leave profile_name out to use it all the same, or choose another session.',
      details: { field, agent_id: agentId, owner_agent_id: ownerAgentId },
    });
  checkSameProfile(named, profile, agentId);
}

function checkSameProfile({ ref, field }: Named, has: Pick<ProfileRow, 'name'>, agentId?: AgentId): void {
  const { profile_name: asked } = ref;
  if (asked === undefined || asked === has.name) return;
  throw new KernelError('conflict', {
    message: `${field}.profile_name: session '${ref.session}' has an agent of profile '${has.name}', not '${asked}'.`,
    next: 'Leave profile_name out, or choose another session.',
    details: {
      field: `${field}.profile_name`,
      ...(agentId === undefined ? {} : { agent_id: agentId }),
      profile_name: has.name,
      asked_profile_name: asked,
    },
  });
}

/** The profile of an agent that must be made. */
async function findProfileFor({ ref, field, name }: Named, tools: HandlerTools): Promise<ProfileRow> {
  if (ref.profile_name === undefined)
    throw new KernelError('not_found', {
      message: `${field}: no session '${ref.session}' of workspace '${ref.workspace}'; give profile_name to have its agent made.`,
      details: {
        field,
        agent: name,
        workspace: ref.workspace,
        session: ref.session,
        project_id: tools.ctx.projectId,
      },
    });
  const profile = await tools.findProfile(ref.profile_name);
  tools.checkDelegation({ profileName: profile.name, tags: profile.tags });
  return profile;
}

const tapeTaken = ({ ref, field }: Named, boxId: BoxId | null): KernelError =>
  new KernelError('conflict', {
    message: `${field}: the tape of session '${ref.session}' is not free: another agent holds it.`,
    next: 'Choose another session.',
    details: { field, workspace: ref.workspace, session: ref.session, box_id: boxId },
  });

/**
 * Makes the agents under the locks of their names, so that the later of two concurrent first uses finds them. A constant number
 * of statements.
 */
async function makeAgents(missing: readonly Named[], tools: HandlerTools): Promise<void> {
  const { projectId, source } = tools.ctx;
  const scope = { projectId, makerId: source.agentId };
  const profiles = new Map<Named, ProfileRow>();
  for (const named of missing) profiles.set(named, await findProfileFor(named, tools));
  // The locks are taken in the order of the names, as in every other primitive. Each name is used once: sort keeps the given
  // order of equal names.
  const sorted = missing.toSorted((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0));
  const firsts = new Map(sorted.toReversed().map((named) => [named.name, named]));
  const names = [...new Set(sorted.map(({ name }) => name))];
  const takings = await takeAgentNames(tools.tx, scope, names);
  const taken = names.filter((name) => takings.get(name) === 'taken');
  const found = new Map((await tools.findAgents(taken)).map((agent, index) => [taken[index], agent]));
  const drafts: SessionAgent[] = [];
  for (const named of sorted) {
    const { name } = named;
    const known = found.get(name);
    const profile = profiles.get(firsts.get(name) ?? named);
    if (known !== undefined) checkAgent(named, known, tools);
    else if (takings.get(name) !== 'free' || profile === undefined) throw tapeTaken(named, null);
    else if (firsts.get(name) !== named) checkSameProfile(named, profile);
    else
      drafts.push({ agentId: newId<'agent'>(), name, profileId: profile.profileId, boxId: newId<'box'>() });
  }
  if (drafts.length === 0) return;
  const [lost] = await makeSessionAgents(tools.tx, scope, drafts);
  const named = lost && firsts.get(lost[0]);
  if (named !== undefined) throw tapeTaken(named, lost?.[1] ?? null);
}

/**
 * Replaces each session with the name of its agent, and makes missing agents, in the primitive's transaction.
 *
 * @param pathOf - The path of the nth target in the arguments, with a dot at its end; empty for a single target.
 * @param argument - The caller's name for a target.
 * @throws KernelError `bad_request` for a relative workspace; `not_found` for a session without an agent when no profile is
 * given; `conflict` for a profile other than the agent's; `agent_exists` for an agent that the operator did not make.
 */
export async function resolveSessions<T extends { readonly target_ref: string | SessionRef }>(
  items: readonly T[],
  tools: HandlerTools,
  pathOf: (index: number) => string = () => '',
  argument = 'target_ref',
): Promise<readonly (Omit<T, 'target_ref'> & { readonly target_ref: string })[]> {
  const named = items.map(({ target_ref: ref }, index): Named | undefined => {
    if (typeof ref === 'string') return undefined;
    const field = `arguments.${pathOf(index)}${argument}`;
    return { ref, field, name: nameOfSession(ref, field) };
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
    if (missing.length > 0) await makeAgents(missing, tools);
  }
  return items.map((item, index) => ({ ...item, target_ref: named[index]?.name ?? String(item.target_ref) }));
}
