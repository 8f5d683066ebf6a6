import type { Doorbell, JsonValue, Model } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { createPool } from '@boxcar/store';
import type pg from 'pg';
import type { Log } from '../../lib/log.js';
import { InProcessDoorbell } from '../../queue/doorbell-in-process.js';
import { Runtime } from '../../runtime.js';
import { Sweeper } from '../../sweep/sweeper.js';
import type { Tool, ToolContext } from '../../tool/tool.js';
import type { ToolServers } from '../../tool/tool-servers.js';
import type { ToolQueue } from '../../tool-queue/tool-queue.js';
import { createWorker, type Worker } from '../../worker/worker.js';
import { keptInFolder } from '../kept-prompts.js';
import { WEBHOOK_SECRET } from '../receiver.js';
import type { Cast, ScenarioTool } from './scenario.js';

/** Timers that never fire in a test: the driver decides when a process sweeps. */
const NEVER_MS = 3_600_000;
const LOST_RING_MS = 2_000;

export interface StageOptions {
  readonly databaseUrl: string;
  readonly cast: Cast;
  /** The database to which the tools write, without faults. */
  readonly effects: pg.Pool;
  readonly leaseMs: number;
  readonly doorbell?: Doorbell;
  readonly toolQueue?: ToolQueue;
  readonly log?: Log;
  /** Wraps the scripted model. */
  readonly model?: (model: Model) => Model;
  /** Runs in each tool before its effect. */
  readonly beforeTool?: (tool: ScenarioTool, call: ToolContext) => Promise<void>;
  /** How often it sweeps by itself. Default: never. */
  readonly sweepMs?: number;
  /** How often the worker renews its lease. Default: never. */
  readonly heartbeatMs?: number;
  readonly lostRingMs?: number;
  /** False: every ring goes through the doorbell. */
  readonly takesOwnRings?: boolean;
}

/** A process of the pool, simulated in this process: it submits and works. `work` starts its worker. */
export interface Stage {
  readonly runtime: Runtime;
  work(): Promise<Worker>;
  /** Ends its worker. `work` starts another worker in the same process. */
  rest(): Promise<void>;
  /** One pass of the sweep, with the clock moved forward. */
  sweep(aheadMs: number): Promise<void>;
  close(): Promise<void>;
}

/** The tool as the runtime runs it. Each run is recorded on a connection without faults. */
const countedTool = (
  tool: ScenarioTool,
  { effects, beforeTool }: Pick<StageOptions, 'effects' | 'beforeTool'>,
): Tool => ({
  ...tool,
  run: async (input, context): Promise<JsonValue> => {
    await beforeTool?.(tool, context);
    await effects.query('insert into public.effects (tool_call_id, name) values ($1, $2)', [
      context.toolCallId,
      tool.name,
    ]);
    return tool.answer(input);
  },
});

/** The servers of the cast, in the form in which a process is connected to them. */
function serversOf(options: StageOptions): ToolServers {
  const tools = (options.cast.served ?? []).map((tool) => countedTool(tool, options));
  const serverOf = ({ name }: Tool): string => name.slice(0, name.indexOf('.'));
  return {
    names: new Set(tools.map(serverOf)),
    toolsOf: async (names) => tools.filter((tool) => names.includes(serverOf(tool))),
    whyUnseen: () => undefined,
  };
}

export function openStage(options: StageOptions): Stage {
  const { cast, effects } = options;
  const pool = createPool({ connectionString: options.databaseUrl });
  const model = keptInFolder(createModelRouter({ scripted: { functions: cast.models ?? {} } }));
  const runtime = new Runtime({
    pool,
    directUrl: options.databaseUrl,
    doorbell: options.doorbell ?? new InProcessDoorbell(),
    model: options.model?.(model) ?? model,
    permissionEvaluator: cast.policy,
    toolServers: serversOf(options),
    handoffs: {
      enabled: (cast.agents ?? []).length > 0,
      webhooks: { secret: WEBHOOK_SECRET, allowPrivate: ['127.0.0.1'], retrySeconds: 0.05 },
    },
    ...(options.toolQueue === undefined ? {} : { toolQueue: options.toolQueue }),
    ...(options.log === undefined ? {} : { log: options.log }),
  });
  // Other processes soon send the deliveries of a dead process.
  runtime.webhooks.limits = { attemptMs: 2_000, recordMs: 0 };
  for (const tool of cast.tools ?? []) runtime.registerTool(countedTool(tool, options));
  for (const { name, retry, says = [], asks = [], answer } of cast.agents ?? []) {
    runtime.handoffs.agents.set(name, {
      retry,
      run: async (input, { handoff_id, write, ask }) => {
        await effects.query('insert into public.effects (tool_call_id, name) values ($1, $2)', [
          handoff_id,
          name,
        ]);
        for (const text of says) {
          write(text);
          // Long enough that each text becomes a part of its own.
          await new Promise((settle) => setTimeout(settle, 60));
        }
        const replies: string[] = [];
        for (const question of asks) replies.push(await ask(question));
        return asks.length > 0 ? replies : answer(input);
      },
    });
  }
  const sweeper = new Sweeper(runtime, {
    lostRingMs: LOST_RING_MS,
    claimFromRows: () => Promise.resolve(),
    wakeProvider: () => Promise.resolve(),
  });
  let worker: Worker | undefined;
  let closing: Promise<void> | undefined;
  const rest = async (): Promise<void> => {
    const ending = worker;
    worker = undefined;
    // A process that a fault has cut off cannot deregister. The rows are checked afterwards.
    await ending?.close({ graceMs: 0 }).catch(() => undefined);
  };
  const close = async (): Promise<void> => {
    await rest();
    await runtime.close();
    await pool.end();
  };
  return {
    runtime,
    work: async () => {
      worker ??= await createWorker(runtime, {
        leaseMs: options.leaseMs,
        heartbeatMs: options.heartbeatMs ?? NEVER_MS,
        sweepMs: options.sweepMs ?? NEVER_MS,
        lostRingMs: options.lostRingMs ?? LOST_RING_MS,
        takesOwnRings: options.takesOwnRings ?? true,
      });
      return worker;
    },
    rest,
    sweep: (aheadMs) => sweeper.sweep({ now: new Date(Date.now() + aheadMs) }),
    close: () => {
      closing ??= close();
      return closing;
    },
  };
}
