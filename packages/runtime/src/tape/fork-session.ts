/**
 * A session that is forked from a tape: an agent of its own, whose views begin at a place on that tape.
 * Source: docs/reference/tape.md, "Sessions".
 */
import {
  type AgentId,
  formatTapeRef,
  INTENTION_ANCHOR,
  type Intention,
  isJsonObject,
  isPlainName,
  type JsonObject,
  KernelError,
  NOTIFY_PARENT,
  PLAIN_NAME,
  parseJsonValue,
  toName,
  tryParseId,
} from '@boxcar/kernel';
import { findNotifyRefusal, findProfiles, makeSession, type TapeActor } from '@boxcar/store';
import type pg from 'pg';
import { newId } from '../lib/index.js';
import { toAnchorCard } from './entry-input.js';
import type { ForkContext } from './fork.js';
import type { FoundAnchor } from './read-tape.js';
import type { Tape } from './tape.js';
import type { ForkPoint } from './tape-checks.js';

export interface ForkSessionOptions {
  /** The anchor with which its first views begin: the latest of this name. Default: the anchor with which views of the parent begin. */
  readonly fromAnchor?: string | undefined;
  /** The purpose of the session, written as the first entry of its tape, the anchor `intention`. */
  readonly intention?: Intention;
  /** `notify_parent`: the end of each of its turns is reported on the parent's tape. The intention may contain the same option. */
  readonly triggerOnComplete?: typeof NOTIFY_PARENT;
  /** The profile of its agent, by name. Default: the profile of the agent of this tape, in the same version. */
  readonly profile?: string | undefined;
  /**
   * The place where its views begin until the session writes an anchor itself: `fromAnchor` (`from_fork_point`, the default), the intention
   * (`last_anchor`), or the first entry of the tape (`full`).
   */
  readonly view?: (typeof SESSION_VIEWS)[number];
}

export interface ForkedSession {
  /** The name of the session, its tape and its agent. Run the agent with `delegate_async` and `target_strategy: reuse`. */
  readonly name: string;
  readonly agentId: AgentId;
  readonly tape: Tape;
}

const SESSION_VIEWS = ['from_fork_point', 'last_anchor', 'full'] as const;
const MAX_NAME = 200;

const refuse = (field: string, message: string): KernelError =>
  new KernelError('bad_request', { message: `${field}: ${message}`, details: { field } });

function checkName(given: string): string {
  const name = toName(given);
  if (name.trim() === '' || name.length > MAX_NAME || !name.isWellFormed() || !isPlainName(name))
    throw refuse('name', `must have 1 to ${MAX_NAME} characters, and ${PLAIN_NAME}.`);
  if (tryParseId(name) !== undefined)
    throw refuse('name', `'${name}' looks like an id, so it would be ambiguous.`);
  return name;
}

function checkTrigger({ triggerOnComplete, intention, view }: ForkSessionOptions): boolean {
  for (const trigger of [triggerOnComplete, intention?.trigger_on_complete])
    if (trigger !== undefined && trigger !== NOTIFY_PARENT)
      throw refuse('triggerOnComplete', `must be ${NOTIFY_PARENT}.`);
  if (view !== undefined && !SESSION_VIEWS.includes(view))
    throw refuse('view', 'must be from_fork_point, last_anchor or full.');
  return triggerOnComplete !== undefined || intention?.trigger_on_complete !== undefined;
}

/** The state of the anchor `intention`: the members of the original, and the origin of the session as a place on its own tape. */
function intentionState(
  intention: Intention,
  more: { readonly notifies: boolean; readonly from: JsonObject | null },
): JsonObject {
  if (!isJsonObject(intention as unknown)) throw refuse('intention', 'must be an object.');
  const { next_steps, context_summary, trigger_on_complete: _trigger, ...others } = intention;
  const [unknown] = Object.keys(others);
  if (unknown !== undefined)
    throw refuse(
      `intention.${unknown}`,
      'is unknown; an intention has next_steps, context_summary and trigger_on_complete.',
    );
  for (const [field, value] of Object.entries({ next_steps, context_summary })) {
    if (value === undefined) throw refuse(`intention.${field}`, 'is missing: a text is required.');
    if (typeof parseJsonValue(value, `intention.${field}`) !== 'string')
      throw refuse(`intention.${field}`, 'must be a text.');
  }
  return {
    next_steps,
    context_summary,
    ...(more.notifies ? { trigger_on_complete: NOTIFY_PARENT } : {}),
    created_at: new Date().toISOString(),
    ...(more.from === null ? {} : { from_anchor: more.from }),
  };
}

async function findProfileId(pool: pg.Pool, actor: TapeActor, name: string | undefined) {
  if (name === undefined) return null;
  const profile = (await findProfiles(pool, actor.projectId, [name])).get(name);
  if (profile !== undefined) return profile.profileId;
  throw new KernelError('not_found', {
    message: `No profile '${name}' in this project.`,
    details: { profile_name: name, project_id: actor.projectId },
  });
}

export async function forkSession(
  { pool, actor, open }: ForkContext,
  { row, upto }: ForkPoint,
  options: ForkSessionOptions & {
    readonly name: string;
    readonly from: FoundAnchor | null;
  },
): Promise<ForkedSession> {
  const { from, intention, view = 'from_fork_point' } = options;
  const name = checkName(options.name);
  const notifies = checkTrigger(options);
  if (notifies) {
    const refusal = await findNotifyRefusal(pool, { ...actor, boxId: row.boxId, makerId: actor.actorId });
    if (refusal !== undefined) throw refusal;
  }
  const boxId = newId<'box'>();
  const agentId = newId<'agent'>();
  const origin =
    from === null
      ? null
      : {
          name: from.name,
          state: from.state,
          ref: formatTapeRef({
            workspace: actor.projectId,
            tape: boxId,
            target: { kind: 'anchor', name: from.name },
            head: upto?.position ?? row.headPosition,
          }),
        };
  const state = intention === undefined ? null : intentionState(intention, { notifies, from: origin });
  const made = await makeSession(pool, {
    projectId: actor.projectId,
    name,
    boxId,
    agentId,
    profileId: await findProfileId(pool, actor, options.profile),
    parentBoxId: row.boxId,
    ownerAgentId: actor.actorId,
    from: from === null ? null : { anchor: from.name, position: from.position },
    upto,
    intention: state === null ? null : toAnchorCard(INTENTION_ANCHOR, state, actor),
    notifies,
    view,
  });
  switch (made.outcome) {
    case 'made':
      return { name, agentId, tape: open(boxId) };
    case 'name_taken':
      throw new KernelError('agent_exists', {
        message: `name: an agent, a tape or a session '${name}' exists already in this project.`,
        details: { field: 'name', agent: name, project_id: actor.projectId },
      });
    case 'name_of_profile':
      throw refuse('name', `'${name}' is the name of a profile, which only the operator gives to an agent.`);
    case 'no_profile':
      throw refuse('profile', 'must be given: this is the tape of no agent that has one.');
    case 'hidden':
      throw new KernelError('box_not_authorized', {
        message: `The views of the session would show context box ${made.contextBoxId}, which agent ${actor.actorId} may not read. Fork it from a later anchor, or with an intention and view last_anchor.`,
        details: {
          box_id: row.boxId,
          context_box_id: made.contextBoxId,
          source_agent_id: actor.actorId,
        },
      });
    case 'not_found':
      throw new KernelError('not_found', {
        message: `No tape ${row.boxId} in this project.`,
        details: { box_id: row.boxId },
      });
    default:
      return made satisfies never;
  }
}
