import type { Doorbell, JsonValue, Model, PriceTable } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import type { PermissionEvaluator } from '@boxcar/policy';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import type { HandoffSettings } from '../handoff/index.js';
import type { Log } from '../lib/log.js';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { Runtime } from '../runtime.js';
import type { ToolServers } from '../tool/index.js';
import { createWorker, type Worker, type WorkerOptions } from '../worker/worker.js';
import { keptInFolder } from './kept-prompts.js';

export interface Harness extends AsyncDisposable {
  readonly database: TestDatabase;
  readonly runtime: Runtime;
  readonly log: { readonly event: string; readonly fields: Readonly<Record<string, unknown>> }[];
  worker(options?: WorkerOptions): Promise<Worker>;
  /** Applies a scripted profile. */
  profile(
    name: string,
    script: readonly JsonValue[],
    rest?: Readonly<Record<string, unknown>>,
  ): Promise<void>;
  rows<R extends Record<string, unknown>>(text: string, values?: unknown[]): Promise<R[]>;
}

/** A runtime on a database of its own, by default with an in-process doorbell. */
export async function harness(
  options: {
    readonly doorbell?: Doorbell;
    readonly model?: Model;
    readonly prices?: PriceTable;
    readonly permissionEvaluator?: PermissionEvaluator;
    readonly approvalMs?: number | null;
    readonly handoffs?: HandoffSettings;
    readonly toolServers?: ToolServers;
    /** The size of the pool that the runtime, its workers and `rows` share. Default 4. */
    readonly connections?: number;
  } = {},
): Promise<Harness> {
  const database = await testDatabase(options.connections === undefined ? {} : { max: options.connections });
  const log: Harness['log'] = [];
  const write: Log = (_level, event, fields = {}) => void log.push({ event, fields });
  const runtime = new Runtime({
    pool: database.pool,
    directUrl: database.url,
    doorbell: options.doorbell ?? new InProcessDoorbell(),
    model: keptInFolder(options.model ?? createModelRouter({})),
    log: write,
    ...(options.prices === undefined ? {} : { prices: options.prices }),
    permissionEvaluator: options.permissionEvaluator,
    approvalMs: options.approvalMs,
    handoffs: options.handoffs,
    toolServers: options.toolServers,
  });
  const workers: Worker[] = [];
  const close = async (): Promise<void> => {
    for (const worker of workers) await worker.close({ graceMs: 1_000 });
    await runtime.close();
    await database.close();
  };
  return {
    database,
    runtime,
    log,
    worker: async (workerOptions = {}) => {
      const worker = await createWorker(runtime, { sweepMs: 200, ...workerOptions });
      workers.push(worker);
      return worker;
    },
    profile: async (name, script, rest = {}) => {
      await runtime.applyProfile({
        name,
        instructions: `You are ${name}.`,
        model: 'scripted',
        script,
        ...rest,
      });
    },
    rows: async <R extends Record<string, unknown>>(text: string, values: unknown[] = []) =>
      (await database.pool.query<R>(text, values)).rows,
    [Symbol.asyncDispose]: close,
  };
}
