/**
 * A worker as a separate process. The parent forks a script that calls `serveWorker`. The two communicate over the IPC channel, and the
 * child ends with its parent, in whatever way the parent ends.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { Session } from 'node:inspector/promises';
import { extname } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Target } from './system.js';

type Order = 'start-profile' | 'stop-profile' | 'usage' | 'close';
interface Reply {
  readonly to: 'start' | Order;
  readonly profile?: string;
  readonly usage?: WorkerUsage;
  readonly error?: string;
}

/** The resources that the process has used since its start. */
export interface WorkerUsage {
  readonly cpuMs: number;
  readonly rssMiB: number;
  readonly peakRssMiB: number;
}

function readOwnUsage(): WorkerUsage {
  const { user, system } = process.cpuUsage();
  return {
    cpuMs: (user + system) / 1000,
    rssMiB: process.memoryUsage.rss() / 2 ** 20,
    // In KiB, on every system.
    peakRssMiB: process.resourceUsage().maxRSS / 2 ** 10,
  };
}

/** Runs in the child: starts the worker, and follows the parent's messages. */
export function serveWorker(start: (target: Target) => Promise<{ close(): Promise<void> }>): void {
  const send = (reply: Reply): void => void process.send?.(reply);
  // Ctrl-C reaches the whole process group; the parent decides when the child ends.
  process.on('SIGINT', () => undefined);
  process.once('disconnect', () => process.exit(0));
  const recorder = new Recorder();
  const started = start(JSON.parse(process.argv[2] ?? '{}') as Target);
  const obey = async (order: Order): Promise<void> => {
    const worker = await started;
    switch (order) {
      case 'start-profile':
        await recorder.start();
        return send({ to: order });
      case 'stop-profile':
        return send({ to: order, profile: await recorder.stop() });
      case 'usage':
        return send({ to: order, usage: readOwnUsage() });
      case 'close':
        await worker.close();
        send({ to: order });
        return process.disconnect();
      default:
        return order satisfies never;
    }
  };
  const fail = (to: Reply['to'], error: unknown): void =>
    send({ to, error: error instanceof Error ? (error.stack ?? error.message) : String(error) });
  process.on('message', (order: Order) => void obey(order).catch((error: unknown) => fail(order, error)));
  started.then(
    () => send({ to: 'start' }),
    (error: unknown) => fail('start', error),
  );
}

/** A CPU profile of this process. */
export class Recorder {
  #session: Session | undefined;

  async start(): Promise<void> {
    const session = new Session();
    session.connect();
    await session.post('Profiler.enable');
    await session.post('Profiler.setSamplingInterval', { interval: 500 });
    await session.post('Profiler.start');
    this.#session = session;
  }

  /** @returns The content of a `.cpuprofile` file. */
  async stop(): Promise<string> {
    const session = this.#session;
    if (session === undefined) throw new Error('no profile was started');
    const { profile } = await session.post('Profiler.stop');
    session.disconnect();
    this.#session = undefined;
    return JSON.stringify(profile);
  }
}

export interface WorkerProcess {
  readonly pid: number;
  startProfile(): Promise<void>;
  stopProfile(): Promise<string>;
  usage(): Promise<WorkerUsage>;
  close(): Promise<void>;
}

/**
 * Forks a worker and returns when the worker takes turns.
 *
 * @param module - URL of the script without its extension: the script runs from sources when the benchmark does.
 * @throws the child's own error when it cannot start.
 */
export async function forkWorker(module: URL, target: Target): Promise<WorkerProcess> {
  const script = fileURLToPath(`${module.href}${extname(import.meta.url)}`);
  const child = fork(script, [JSON.stringify(target)], { stdio: ['ignore', 2, 2, 'ipc'] });
  const kill = (): void => void child.kill('SIGKILL');
  process.once('exit', kill);
  const exited = new Promise<void>((settle) => child.once('exit', () => settle()));
  void exited.then(() => process.off('exit', kill));
  const ask = (order: Order): Promise<Reply> => {
    const reply = replyTo(child, order);
    child.send(order);
    return reply;
  };
  try {
    await replyTo(child, 'start');
  } catch (error) {
    kill();
    throw error;
  }
  return {
    pid: child.pid ?? -1,
    startProfile: async () => void (await ask('start-profile')),
    stopProfile: async () => (await ask('stop-profile')).profile ?? '{}',
    usage: async () => {
      const { usage } = await ask('usage');
      if (usage === undefined) throw new Error('the worker process told nothing of its usage');
      return usage;
    },
    close: async () => {
      await ask('close');
      await exited;
    },
  };
}

function replyTo(child: ChildProcess, order: Reply['to']): Promise<Reply> {
  return new Promise((settle, fail) => {
    const stop = (): void => {
      child.off('message', onMessage);
      child.off('exit', onExit);
    };
    const onMessage = (reply: Reply): void => {
      if (reply.to !== order) return;
      stop();
      if (reply.error === undefined) settle(reply);
      else fail(new Error(`the worker process failed at '${order}': ${reply.error}`));
    };
    const onExit = (code: number | null, signal: string | null): void => {
      stop();
      fail(new Error(`the worker process ended (${signal ?? code}) before it answered '${order}'`));
    };
    child.on('message', onMessage);
    child.on('exit', onExit);
  });
}
