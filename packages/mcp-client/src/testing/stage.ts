/** A runtime with MCP servers on a database of its own, for tests. */
import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';
import { createWorker, type OpenRuntime, openRuntime, type Worker } from '@boxcar/runtime';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { McpServers } from '../servers/mcp-servers.js';
import { checkServers } from '../servers/parse-servers.js';

export interface CallRow {
  readonly name: string;
  readonly status: string;
  readonly route: string;
  readonly content: {
    readonly status: string;
    readonly result?: unknown;
    readonly error?: { readonly code: string; readonly message: string };
  };
}

export interface Stage extends AsyncDisposable {
  readonly database: TestDatabase;
  readonly opened: OpenRuntime;
  readonly servers: McpServers;
  /** The log events of the servers. */
  readonly events: string[];
  worker(): Promise<Worker>;
  /** An agent that makes these calls, one per step, and then says `done`. */
  agent(
    calls: readonly { readonly tool: string; readonly arguments?: unknown }[],
    rest?: object,
  ): Promise<void>;
  launch(): Promise<string>;
  callsOf(turnId: string): Promise<readonly CallRow[]>;
}

export async function openStage(
  entries: unknown,
  functions: Record<string, ScriptedFunction> = {},
): Promise<Stage> {
  const database = await testDatabase();
  const events: string[] = [];
  const log = (_level: unknown, event: string): void => void events.push(event);
  const servers = new McpServers(checkServers(entries), { env: {}, log });
  const opened = openRuntime({
    databaseUrl: database.url,
    directUrl: database.url,
    model: createModelRouter({ scripted: { functions } }),
    toolServers: servers,
  });
  const { runtime } = opened;
  const workers: Worker[] = [];
  return {
    database,
    opened,
    servers,
    events,
    worker: async () => {
      const worker = await createWorker(runtime, { sweepMs: 200 });
      workers.push(worker);
      return worker;
    },
    agent: async (calls, rest = {}) => {
      const steps = calls.map(({ tool, arguments: args = {} }) => ({ calls: [{ tool, arguments: args }] }));
      await runtime.applyProfile({
        name: 'agent',
        instructions: 'Work.',
        model: 'scripted',
        script: [...steps, { say: 'done' }],
        mcp: Object.keys(entries as object),
        ...rest,
      });
    },
    launch: async () => {
      const answer = await runtime.submit('launch_principal', { profile_name: 'agent', instruction: 'go' });
      return (answer as { turn_id: string }).turn_id;
    },
    callsOf: async (turnId) =>
      (
        await database.pool.query<CallRow>(
          `
            select k.name, k.status, k.route, c.content
            from boxcar.tool_calls k
            left join boxcar.cards c on c.id = k.result_card_id
            where k.turn_id = $1
            order by k.step, k.ordinal`,
          [turnId],
        )
      ).rows,
    [Symbol.asyncDispose]: async () => {
      for (const worker of workers) await worker.close({ graceMs: 1_000 });
      await opened.close();
      await servers.close();
      await database.close();
    },
  };
}
