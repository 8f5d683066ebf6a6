import type { ToldProfiles, ToolSchema } from '@boxcar/kernel';

/** The part of the sweep that failed on a row: the name of its finding. */
export type SweepKind =
  | 'dead_leases'
  | 'overdue_turns'
  | 'overdue_calls'
  | 'due_waits'
  /** The turns that wait for an account could not be woken. The row is the account. */
  | 'left_budgets'
  | 'due_batches'
  | 'lost_rings'
  | 'wait_cycles'
  | 'notices'
  /** The end of a handoff could not be reported to the agent that asked. The row is the handoff. */
  | 'handoff_notices'
  | 'left_forks'
  /** A turn could not be claimed, loaded or run. */
  | 'turn_runs'
  /** A turn that was given up could not be ended. */
  | 'turn_ends'
  /** A job of the queue door has blocked the event loop of a worker. The row is the note id of the job. */
  | 'blocked_jobs';

/** How a call is answered: by a function of the worker, by a primitive, by an outside worker, or by a refusal. */
export type CallRouteKind = 'function' | 'primitive' | 'queue' | 'none';

/**
 * A tool as a step offered it. `source` names the origin of the schema: a registered function, a primitive, the profile, an MCP server.
 */
export interface OfferedTool extends ToolSchema {
  readonly source: 'tool' | 'primitive' | 'profile' | 'mcp';
  /** The profiles that the agent may reach, as the description lists them. Set only for the one tool that lists them. */
  readonly profiles?: ToldProfiles | undefined;
}

export type WaitKind = 'retry' | 'limit' | 'budget' | 'selector';

/** The information that a worker publishes about itself. */
export interface WorkerInfo {
  readonly hostname?: string;
  readonly pid?: number;
  /**
   * The primitives that the worker knows, each with a hash of the arguments that it takes; '' = not known. Older builds wrote a list of
   * names, or nothing.
   */
  readonly primitives?: Readonly<Record<string, string>>;
  /** The tools that the worker has registered, in the form of `primitives`. Only workers publish them, and older builds do not. */
  readonly tools?: Readonly<Record<string, string>>;
  /** The selectors that the worker has: the versions by name. */
  readonly selectors?: Readonly<Record<string, readonly string[]>>;
}
