/** Agents and sessions that tests of the server read. */
import { type HandoffSessions, openHandoffSessions } from '@boxcar/runtime';
import type { Stage } from './http-stage.js';

/** A profile whose turns no worker runs, and agents of it. */
export async function makeAgents({ opened }: Stage, names: readonly string[]): Promise<void> {
  const { runtime } = opened;
  await runtime.applyProfile({
    name: 'idle',
    instructions: 'You wait.',
    model: 'scripted',
    script: [{ say: 'done' }],
    worker_target: 'nowhere',
  });
  for (const name of names)
    await runtime.submit('provision_agent', { action: 'create', profile_name: 'idle', agent_id: name });
}

export const sessionsOf = ({ opened }: Stage, as?: string): Promise<HandoffSessions> =>
  openHandoffSessions(opened.runtime, as === undefined ? {} : { as });

/** Creates a session with messages; returns its tape. */
export async function makeSession(
  sessions: HandoffSessions,
  sessionKey: string,
  messages: readonly string[],
  agentFrom?: string,
): Promise<string> {
  const made = await sessions.register({
    session_key: sessionKey,
    ...(agentFrom === undefined ? {} : { agent_from: agentFrom }),
  });
  if (made.outcome !== 'registered') throw new Error(`the session is ${made.outcome}`);
  for (const content of messages) await say(sessions, sessionKey, content);
  return made.session.tape_box_id;
}

export async function say(sessions: HandoffSessions, sessionKey: string, content: string): Promise<void> {
  const { outcome } = await sessions.update({
    session_key: sessionKey,
    context_type: 'message',
    content,
  });
  if (outcome !== 'updated') throw new Error(`the update is ${outcome}`);
}

/** Grants access up to a position, as a handoff does. */
export async function grantUpto(
  { database }: Stage,
  { boxId, agent, upto }: { readonly boxId: string; readonly agent: string; readonly upto: number },
): Promise<void> {
  await database.pool.query(
    `
      insert into boxcar.grants (project_id, agent_id, box_id, mode, upto_position, source)
      select a.project_id, a.id, $1, 'read', $3, a.id::text
      from boxcar.agents a
      where a.name = $2`,
    [boxId, agent, upto],
  );
}
