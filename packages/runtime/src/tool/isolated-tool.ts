/** Tools whose code runs in its own process. A deadline, too much memory or too much output ends that process. */
import { type ChildProcess, type StdioOptions, spawn } from 'node:child_process';
import { availableParallelism } from 'node:os';
import type { Readable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { checkWholeNumber, KernelError, MAX_CARD_BYTES } from '@boxcar/kernel';
import { unlessAborted } from '../lib/index.js';
import type { Tool } from './tool.js';

const DEFAULT_MEMORY_MB = 128;
/** Maximum processes at the same time. Further calls wait in order, within their deadlines. */
export const MAX_ISOLATED = Math.max(4, 2 * availableParallelism());
/** Maximum output of a call. Each of the two streams may use half of it, and the process drops the rest of a stream. */
const MAX_OUTPUT_BYTES = 131_072;
/** Room for the other fields of the line with the result, and for a message of an error. */
const ANSWER_MARGIN_BYTES = 16_384;
const PROGRAM = fileURLToPath(new URL('../../isolated-tool.js', import.meta.url));

/**
 * A tool that is isolated from its worker: arguments and result pass as JSON, and the two share nothing else. Each call starts a
 * process.
 */
export interface IsolatedTool<I = unknown> extends Omit<Tool<I>, 'run'> {
  readonly isolate: true;
  /**
   * A file whose default export is `(input, { toolCallId, turnId, agentId, projectId }) => result`. The parsed input and the result
   * pass as JSON.
   */
  readonly module: URL;
  /** Limit of the JavaScript heap of a call, in MB; a call that needs more fails. Default 128. */
  readonly memoryMb?: number;
}

/** A tool as a JavaScript program declares it: its fields may have any type. */
type Declared = Omit<IsolatedTool, 'isolate' | 'module' | 'memoryMb'> & {
  readonly [key in 'isolate' | 'module' | 'memoryMb' | 'run']?: unknown;
};

interface Answer {
  readonly result?: unknown;
  /** The messages of failures. */
  readonly error?: string;
  readonly crash?: string;
}

/** @throws KernelError `bad_request` for a tool that cannot be isolated. */
function checkIsolated(tool: Declared): asserts tool is IsolatedTool {
  const refuse = (field: string, why: string): never => {
    throw new KernelError('bad_request', {
      message: `${tool.name}: ${field}: ${why}.`,
      details: { name: tool.name, field },
    });
  };
  if (tool.isolate !== true) refuse('module', 'is for tools with isolate: true');
  if (tool.run !== undefined)
    refuse(
      'run',
      'a closure cannot be isolated, since a process shares no variables with it. Make it the default export of a file, and name that file by `module`',
    );
  if (!(tool.module instanceof URL) || tool.module.protocol !== 'file:')
    refuse('module', "must be a file URL, such as new URL('./my-tool.js', import.meta.url)");
  if (tool.memoryMb !== undefined)
    checkWholeNumber(tool.memoryMb, `${tool.name}: memoryMb`, { min: 16, max: 65_536 });
}

/**
 * @param maxBytes - The limit of a call's result, as JSON.
 * @throws KernelError `bad_request` for a tool that cannot be isolated.
 */
export function toTool(tool: Tool | IsolatedTool, maxBytes = MAX_CARD_BYTES): Tool {
  if (!('isolate' in tool || 'module' in tool)) return tool;
  checkIsolated(tool);
  const { isolate: _isolate, module, memoryMb = DEFAULT_MEMORY_MB, ...rest } = tool;
  const { name } = tool;
  return {
    ...rest,
    run: async (input, { signal, tape: _tape, ...call }) => {
      const request = JSON.stringify({ module: module.href, input, call });
      return inSlot(signal, (leave) => runIsolated({ name, memoryMb, maxBytes, signal, leave }, request));
    },
  };
}

let running = 0;
const waiting = new Set<() => void>();

function leaveSlot(): void {
  const [next] = waiting;
  if (next === undefined) running -= 1;
  else next();
}

/** @param work - Must call `leave` when its process has ended. */
async function inSlot<T>(signal: AbortSignal, work: (leave: () => void) => Promise<T>): Promise<T> {
  signal.throwIfAborted();
  if (running < MAX_ISOLATED) running += 1;
  else {
    let grant = (): void => undefined;
    const granted = new Promise<void>((resolve) => {
      grant = () => {
        waiting.delete(grant);
        resolve();
      };
    });
    waiting.add(grant);
    await unlessAborted(granted, signal).catch((error: unknown) => {
      // The slot was granted at the moment of the abort, so the next call gets it.
      if (!waiting.delete(grant)) leaveSlot();
      throw error;
    });
  }
  return work(leaveSlot);
}

/**
 * The options of this process that control how modules are loaded. Options of a debugger or of an evaluated text are not passed
 * on.
 */
function loaderOptions(): readonly string[] {
  const given = process.execArgv;
  return given.some((option) => /^(-[ep]+$|--eval|--print|--input-type)/.test(option))
    ? []
    : given.filter((option) => !option.startsWith('--inspect'));
}

interface Limits {
  readonly name: string;
  readonly memoryMb: number;
  readonly maxBytes: number;
  readonly signal: AbortSignal;
  readonly leave: () => void;
}

/** Kills the process and its process group, whatever they are doing. Does not wait for their end. */
function endGroup({ pid }: ChildProcess): void {
  try {
    if (pid !== undefined) process.kill(-pid, 'SIGKILL');
  } catch {
    // The group has already ended.
  }
}

function runIsolated({ name, memoryMb, maxBytes, signal, leave }: Limits, request: string): Promise<unknown> {
  const stdio: StdioOptions = ['pipe', 'pipe', 'pipe', 'pipe', 'pipe'];
  const child = spawn(
    process.execPath,
    [...loaderOptions(), `--max-old-space-size=${memoryMb}`, PROGRAM],
    // The process has its own group, so that `endGroup` reaches the processes that the tool started, and Ctrl-C does not.
    { stdio, detached: true, windowsHide: true },
  );
  let isOver = false;
  const over = (): void => {
    if (isOver) return;
    isOver = true;
    leave();
  };
  // `exit` and not `close`: a process that has left the group may keep the pipes open.
  child.once('exit', () => {
    endGroup(child);
    over();
  });
  const failed = (code: 'tool_failed' | 'tool_crashed', why: string, cause?: unknown): KernelError =>
    new KernelError(code, { message: `${name} ${why}.`, details: { tool: name }, cause });
  const ended = new Promise<unknown>((resolve, reject) => {
    child.on('error', (error) => {
      over();
      reject(failed('tool_crashed', `could not be started: ${error.message}`, error));
    });
    let isOutOfMemory = false;
    let printedBytes = 0;
    for (const stream of [child.stdout, child.stderr])
      stream?.on('data', (chunk: Buffer) => {
        printedBytes += chunk.length;
        if (printedBytes > MAX_OUTPUT_BYTES) {
          reject(failed('tool_crashed', `has printed more than ${MAX_OUTPUT_BYTES} bytes`));
          return;
        }
        isOutOfMemory ||= chunk.includes('JavaScript heap out of memory') || chunk.includes('FATAL ERROR');
        process.stderr.write(chunk);
      });
    const answered: Buffer[] = [];
    let answeredBytes = 0;
    (child.stdio[3] as Readable).on('data', (chunk: Buffer) => {
      answeredBytes += chunk.length;
      if (answeredBytes > maxBytes + ANSWER_MARGIN_BYTES) {
        reject(failed('tool_failed', `has a result of more than ${maxBytes} bytes`));
        return;
      }
      answered.push(chunk);
      if (!chunk.includes('\n')) return;
      try {
        const { result, error, crash } = JSON.parse(Buffer.concat(answered).toString()) as Answer;
        if (crash !== undefined)
          reject(failed('tool_crashed', `left an error that nothing caught: ${crash}`));
        else if (error !== undefined) reject(failed('tool_failed', `failed: ${error}`));
        else resolve(result);
      } catch (error) {
        reject(failed('tool_crashed', 'has written something else than its result', error));
      }
    });
    child.on('close', (code, signalName) =>
      reject(
        failed(
          'tool_crashed',
          isOutOfMemory
            ? `needed more than its ${memoryMb} MB of memory`
            : signalName === null
              ? `ended its process without a result (exit code ${code})`
              : `ended its process without a result (${signalName})`,
        ),
      ),
    );
    // A process that has ended takes no input. The handlers of its end report the reason.
    for (const stream of child.stdio) stream?.on('error', () => undefined);
    child.stdin?.end(request);
  });
  return unlessAborted(ended, signal).finally(() => {
    if (!isOver) endGroup(child);
  });
}
