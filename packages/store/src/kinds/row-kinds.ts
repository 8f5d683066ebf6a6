import type { ToldProfiles, ToolSchema } from '@boxcar/kernel';

/** Which part of the sweep failed on a row: the name of its finding. */
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
  /** The end of a handoff could not be told to the agent that asked. The row is the handoff. */
  | 'handoff_notices'
  | 'left_forks'
  /** A turn could not be claimed, loaded or run. */
  | 'turn_runs'
  /** A turn that was given up could not be ended. */
  | 'turn_ends'
  /** A job of the queue door has held the event loop of a worker. The row is the note id of the job. */
  | 'blocked_jobs';

/** How a call is answered: by a function of the worker, by a primitive, by a worker outside, or by a refusal. */
export type CallRouteKind = 'function' | 'primitive' | 'queue' | 'none';

/** A tool as a step offered it; `source` is who brought the schema: a registered function, a primitive, the profile, an MCP server. */
export interface OfferedTool extends ToolSchema {
  readonly source: 'tool' | 'primitive' | 'profile' | 'mcp';
  /** What the description says of the profiles that the agent may reach; of the one tool that tells them. */
  readonly profiles?: ToldProfiles | undefined;
}

export type WaitKind = 'retry' | 'limit' | 'budget' | 'selector';

/** What a worker says of itself. */
export interface WorkerInfo {
  readonly hostname?: string;
  readonly pid?: number;
  /**
   * The primitives that it knows: for each name a hash of the arguments that it takes, '' = not known. Older builds wrote a list of
   * names, or nothing.
   */
  readonly primitives?: Readonly<Record<string, string>>;
  /** The tools that it has registered, as `primitives`. Of a worker alone; older builds do not say it. */
  readonly tools?: Readonly<Record<string, string>>;
  /** The selectors that it has: the versions of each name. */
  readonly selectors?: Readonly<Record<string, readonly string[]>>;
}
