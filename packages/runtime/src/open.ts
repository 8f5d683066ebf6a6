import type { Model, PriceTable } from '@boxcar/kernel';
import type { PermissionEvaluator } from '@boxcar/policy';
import { type Build, createPool, endPool, ReadReplica } from '@boxcar/store';
import type { QueueDoor } from './door/index.js';
import { createQueueDoor, createToolResultsDoor, type QueueDoorOptions } from './door/index.js';
import type { HandoffSettings } from './handoff/index.js';
import { type Log, silentLog, withinTime, withoutSecrets } from './lib/index.js';
import type { PackLimits } from './pack/index.js';
import { BullMqDoorbell, openQueues, type QueueConnection } from './queue/index.js';
import { Runtime } from './runtime.js';
import type { ToolServers } from './tool/index.js';
import { ToolQueue } from './tool-queue/index.js';

const DOOR_CLOSE_MS = 5_000;
const POOL_END_MS = 2_000;

export interface OpenRuntimeOptions {
  readonly databaseUrl: string;
  /** A connection that does not go through a transaction pooler. Default: `databaseUrl`. */
  readonly directUrl?: string | undefined;
  /**
   * A standby of the database, for lists and explanations. Reads that it lacks the rows for or cannot answer go to the database.
   * Default: no standby.
   */
  readonly readUrl?: string | undefined;
  /** Without it, the queues are in the database. */
  readonly redisUrl?: string | undefined;
  readonly model: Model;
  readonly limits?: PackLimits;
  /** Prices by model. They take precedence over the built-in prices. */
  readonly prices?: PriceTable | undefined;
  readonly log?: Log;
  /** Maximum connections of the pool. Default 5: with the worker's two and the watcher's own, eight in all. */
  readonly maxConnections?: number;
  /** How long the handler of a primitive may take when no turn calls it, at most 30 days. Default 60,000. */
  readonly handlerTimeoutMs?: number;
  /** The policy that is asked before calls of tools and primitives. Default: no policy. */
  readonly permissionEvaluator?: PermissionEvaluator | undefined;
  /**
   * How long a request waits for its approval, in milliseconds. Default half an hour. With null, calls that need approval are
   * refused.
   */
  readonly approvalMs?: number | null | undefined;
  /** Whether models and doors may hand off, and the agents of other platforms. Default: handoffs are off. */
  readonly handoffs?: HandoffSettings | undefined;
  /**
   * The model that summarizes a client's session when the session is handed off. Without a model, the summary consists of counts.
   */
  readonly summaryModel?: string | undefined;
  /** The servers whose tools a profile can name in `mcp`. The caller closes them. Default: no servers. */
  readonly toolServers?: ToolServers | undefined;
}

/** A runtime with the pool and the queues that were opened for it. */
export interface OpenRuntime extends AsyncDisposable {
  readonly runtime: Runtime;
  /** Serves `boxcar-primitives` in this process. */
  serveQueueDoor(options?: QueueDoorOptions): QueueDoor;
  /** Serves `boxcar-tool-results` in this process: the answers of tool workers. */
  serveToolResultsDoor(options?: QueueDoorOptions): QueueDoor;
  /**
   * Closes the doors that were opened here and are still open, then the runtime and the pool. A part that cannot be closed within
   * a few seconds is logged as `runtime.not_closed`; a door hands a job that takes longer to another process. During the close no
   * door and no worker can be opened. Later calls wait for the same end.
   */
  close(): Promise<void>;
}

/**
 * Opens pool, queues and runtime from URLs. Nothing connects yet; the first use connects.
 *
 * @param build - Tests pass another build here.
 */
export function openRuntime(options: OpenRuntimeOptions, build?: Build): OpenRuntime {
  const log = withoutSecrets(options.log ?? silentLog);
  const connection: QueueConnection =
    options.redisUrl === undefined
      ? { kind: 'postgres', url: options.databaseUrl }
      : { kind: 'redis', url: options.redisUrl };
  const queues = openQueues(connection);
  const pool = createPool({
    connectionString: options.databaseUrl,
    max: options.maxConnections ?? 5,
    isPooled: options.directUrl !== undefined && options.directUrl !== options.databaseUrl,
  });
  const replica =
    options.readUrl === undefined
      ? undefined
      : new ReadReplica({
          primary: pool,
          url: options.readUrl,
          maxConnections: options.maxConnections ?? 5,
          onPrimary: (facts) => log('warn', 'replica.not_read', { ...facts }),
        });
  const runtime = new Runtime(
    {
      pool,
      replica,
      directUrl: options.directUrl ?? options.databaseUrl,
      doorbell: new BullMqDoorbell(queues, log),
      toolQueue: new ToolQueue(queues, log),
      model: options.model,
      log,
      ...(options.limits === undefined ? {} : { limits: options.limits }),
      ...(options.prices === undefined ? {} : { prices: options.prices }),
      ...(options.handlerTimeoutMs === undefined ? {} : { handlerTimeoutMs: options.handlerTimeoutMs }),
      permissionEvaluator: options.permissionEvaluator,
      approvalMs: options.approvalMs,
      handoffs: options.handoffs,
      summaryModel: options.summaryModel,
      toolServers: options.toolServers,
    },
    build,
  );
  /** Doors that are still open. A caller that closes a door itself decides how long to wait for it. */
  const doors = new Set<QueueDoor>();
  const keep = (door: QueueDoor): QueueDoor => {
    const closeDoor = (): Promise<void> => {
      doors.delete(kept);
      return door.close();
    };
    const kept: QueueDoor = { close: closeDoor, [Symbol.asyncDispose]: closeDoor };
    doors.add(kept);
    return kept;
  };
  const closeInTime = async (part: string, work: Promise<unknown>, limitMs: number): Promise<void> => {
    try {
      await withinTime(work, limitMs, part);
    } catch (error) {
      log('warn', 'runtime.not_closed', { part, error });
    }
  };
  const end = async (): Promise<void> => {
    runtime.beginClose();
    await Promise.all([...doors].map((door) => closeInTime('a queue door', door.close(), DOOR_CLOSE_MS)));
    await runtime.close();
    // The pool would stay open for as long as a silent server does not answer a statement.
    await closeInTime('the pool of connections', endPool(pool), POOL_END_MS);
    if (replica !== undefined) await closeInTime('the read replica', replica.close(), POOL_END_MS);
  };
  let closing: Promise<void> | undefined;
  const close = (): Promise<void> => {
    closing ??= end();
    return closing;
  };
  return {
    runtime,
    serveQueueDoor: (doorOptions) => keep(createQueueDoor(runtime, queues, doorOptions)),
    serveToolResultsDoor: (doorOptions) => keep(createToolResultsDoor(runtime, queues, doorOptions)),
    close,
    [Symbol.asyncDispose]: close,
  };
}
