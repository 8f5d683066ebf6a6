import { instructionHandover, type JsonObject, KernelError } from '@boxcar/kernel';
import type { AgentRow } from '@boxcar/store';
import type { HandlerTools, SubmitTurnRequest } from '../handler/index.js';
import { type SnapshotWish, takeSnapshots } from '../handler/index.js';
import type { ContextSpec } from '../pack/index.js';
import { resolveSessions } from '../submit/index.js';
import { refuseCommand } from './comma.js';
import type { GivenTask } from './target-profiles.js';

/** A task with a named target: a session is replaced by the name of its agent. */
export type Task = Omit<GivenTask, 'target_ref'> & { readonly target_ref: string };
type Target = SubmitTurnRequest['target'];

/** The caller's names for the arguments of a delegation. */
export interface ArgumentNames {
  readonly target_ref: string;
  readonly instruction: string;
}

const OWN_NAMES: ArgumentNames = { target_ref: 'target_ref', instruction: 'instruction' };

/** Adds to an error about a target the argument and the task in which it arose. */
async function inTask<T>(argument: string, work: () => T | Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw error instanceof KernelError ? error.atField(`arguments.${argument}`) : error;
  }
}

async function resolveTarget(task: Task, agent: AgentRow | undefined, tools: HandlerTools): Promise<Target> {
  if (task.target_strategy === 'new') {
    const profile = await tools.findProfile(task.target_ref);
    tools.checkDelegation({ profileName: profile.name, tags: profile.tags });
    return { kind: 'new', profile };
  }
  if (agent === undefined)
    throw new KernelError('not_found', {
      message: `No agent '${task.target_ref}' in this project.`,
      details: { agent: task.target_ref, project_id: tools.ctx.projectId },
    });
  tools.checkDelegation({ profileName: agent.profile.name, tags: agent.profile.tags });
  if (task.target_strategy === 'reuse') {
    tools.checkReuse(agent);
    return { kind: 'reuse', agent };
  }
  return { kind: 'new', profile: agent.profile, derivedFrom: agent.agentId };
}

interface Resolved {
  readonly task: Task;
  readonly target: Target;
  readonly path: string;
}

function toSpec(
  { task, target, path }: Resolved,
  { tools, names }: { readonly tools: HandlerTools; readonly names: ArgumentNames },
): ContextSpec {
  const profile = target.kind === 'new' ? target.profile : target.agent.profile;
  const boxIds = task.context_box_id === undefined ? undefined : [task.context_box_id].flat();
  const args: JsonObject = {
    instruction: task.instruction,
    ...(task.result_fields === undefined
      ? {}
      : { result_fields: task.result_fields as unknown as JsonObject[] }),
    ...(boxIds === undefined ? {} : { input_box_ids: boxIds }),
  };
  return {
    projectId: tools.ctx.projectId,
    actorId: tools.ctx.source.agentId,
    toolSuffix: tools.ctx.primitive,
    arguments: args,
    handover: instructionHandover(profile.name, task),
    access: 'actor',
    path,
    names: { input_box_ids: 'context_box_id', instruction: names.instruction },
  };
}

/**
 * Turns tasks into turns that can be submitted: finds and checks their targets, and packs their contexts. The number of
 * statements does not depend on the number of tasks.
 *
 * @param options.pathOf - The path of the nth task in the arguments, with a dot at its end; empty for a single task.
 * @param options.names - The caller's names for the arguments.
 */
export async function prepareTasks(
  given: readonly (GivenTask | Task)[],
  tools: HandlerTools,
  {
    pathOf = () => '',
    names = OWN_NAMES,
  }: { readonly pathOf?: (index: number) => string; readonly names?: ArgumentNames } = {},
): Promise<readonly SubmitTurnRequest[]> {
  const tasks: readonly Task[] = await resolveSessions(given, tools, pathOf);
  for (const [index, task] of tasks.entries())
    refuseCommand(task.instruction, tools, `${pathOf(index)}${names.instruction}`);
  const refs = [
    ...new Set(tasks.flatMap((task) => (task.target_strategy === 'new' ? [] : [task.target_ref]))),
  ];
  const found = await tools.findAgents(refs);
  const agents = new Map(refs.map((ref, index) => [ref, found[index]]));
  const resolved: Resolved[] = [];
  for (const [index, task] of tasks.entries()) {
    const path = pathOf(index);
    const target = await inTask(`${path}${names.target_ref}`, () =>
      resolveTarget(task, agents.get(task.target_ref), tools),
    );
    resolved.push({ task, target, path });
  }
  const wishes = new Map<Resolved, SnapshotWish>();
  for (const item of resolved) {
    const { task, target, path } = item;
    if (target.kind !== 'new' || target.derivedFrom === undefined) continue;
    const isFull = task.history === 'full';
    wishes.set(item, {
      agentId: target.derivedFrom,
      isFull,
      argument: 'target_ref',
      field: `${path}target_ref`,
    });
  }
  const taken = wishes.size === 0 ? [] : await takeSnapshots(tools, [...wishes.values()]);
  const snapshots = new Map([...wishes.keys()].map((item, index) => [item, taken[index] ?? []]));
  const packed = await tools.packer.packResolved(
    resolved.map((item) => ({ ...toSpec(item, { tools, names }), extra: snapshots.get(item) ?? [] })),
  );
  return resolved.flatMap(({ task, target, path }, index): SubmitTurnRequest[] => {
    const contextBoxId = packed[index]?.contextBoxId;
    if (contextBoxId === undefined) return [];
    return [
      {
        target,
        contextBoxId,
        argument: `${path}${names.target_ref}`,
        budget: task.budget,
        priority: task.priority,
        view: task.view,
      },
    ];
  });
}
