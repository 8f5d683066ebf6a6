/** Finds the project and the agent in whose name a request is made, by id or name. */
import {
  type AgentId,
  agentIdIn,
  KernelError,
  type ProjectId,
  parseJsonValue,
  tryParseId,
} from '@boxcar/kernel';
import { findActor as findRow, type Queryable } from '@boxcar/store';

export interface Actor {
  readonly projectId: ProjectId;
  readonly operatorId: AgentId;
  readonly agentId: AgentId;
  readonly agentName: string;
  /** The project takes no submissions. */
  readonly isArchived: boolean;
}

/** @throws KernelError `not_found` for project or agent, `bad_request` for a text that cannot be a name. */
export async function findActor(db: Queryable, project: string, agent: string): Promise<Actor> {
  for (const [field, name] of Object.entries({ project, agent })) parseJsonValue(name, field);
  const found = await findRow(db, {
    project,
    projectId: tryParseId(project),
    agent,
    agentId: agentIdIn(agent),
  });
  if (found === undefined)
    throw new KernelError('not_found', {
      message: `No project '${project}'.`,
      details: { project_id: project },
    });
  const { projectId, operatorId, agentId, agentName, isArchived } = found;
  if (agentId === null || agentName === null)
    throw new KernelError('not_found', {
      message: `No agent '${agent}' in project '${project}'.`,
      details: { agent_id: agent, project_id: projectId },
    });
  return { projectId, operatorId, agentId, agentName, isArchived };
}
