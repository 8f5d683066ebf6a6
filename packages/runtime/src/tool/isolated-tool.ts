/** Tools whose code runs in a process of its own, which a deadline, too much memory or too much output ends. */
import { type ChildProcess, type StdioOptions, spawn } from 'node:child_process';
import { availableParallelism } from 'node:os';
import type { Readable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { checkWholeNumber, KernelError, MAX_CARD_BYTES } from '@boxcar/kernel';
import { unlessAborted } from '../lib/index.js';
import type { Tool } from './tool.js';

const DEFAULT_MEMORY_MB = 128;
/** Processes at once. Further calls wait in order, within their deadlines. */
export const MAX_ISOLATED = Math.max(4, 2 * availableParallelism());
/** What a call may print. The process itself drops what a stream prints beyond half of it. */
const MAX_OUTPUT_BYTES = 131_072;
/** Room for the other fields of the line with the result, and for a message of an error. */
const ANSWER_MARGIN_BYTES = 16_384;
const PROGRAM = fileURLToPath(new URL('../../isolated-tool.js', import.meta.url));

/**
 * A tool that is isolated from its worker: arguments and result are JSON, and nothing else is shared. Each call starts a process.
 */
export interface IsolatedTool<I = unknown> extends Omit<Tool<I>, 'run'> {
  readonly isolate: true;
  /**
   * A file whose default export is `(input, { toolCallId, turnId, agentId, projectId }) => result`. The parsed input and the result
   * pass as JSON.
   */
  readonly module: URL;
  /** Of the JavaScript heap of a call; a call that needs more fails. Default 128. */
  readonly memoryMb?: number;
}

/** What a program in JavaScript may hand in. */
type Declared = Omit<IsolatedTool, 'isolate' | 'module' | 'memoryMb'> & {
  readonly [key in 'isolate' | 'module' | 'memoryMb' | 'run']?: unknown;
};

interface Answer {
  readonly result?: unknown;
  /** Messages. */
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
 * @param maxBytes - Of the result of a call, as JSON.
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
      // Granted at the moment of the abort: the next call gets the slot.
      if (!waiting.delete(grant)) leaveSlot();
      throw error;
    });
  }
  return work(leaveSlot);
}

/** The options of this process by which modules are loaded. Those of a debugger or of an evaluated text are not passed on. */
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

/** Ends the process and those of its group, whatever they do. Does not wait for their end. */
function endGroup({ pid }: ChildProcess): void {
  try {
    if (pid !== undefined) process.kill(-pid, 'SIGKILL');
  } catch {
    // It has ended.
  }
}

function runIsolated({ name, memoryMb, maxBytes, signal, leave }: Limits, request: string): Promise<unknown> {
  const stdio: StdioOptions = ['pipe', 'pipe', 'pipe', 'pipe', 'pipe'];
  const child = spawn(
    process.execPath,
    [...loaderOptions(), `--max-old-space-size=${memoryMb}`, PROGRAM],
    // A group of its own: `endGroup` reaches what the tool has started, and Ctrl-C does not.
    { stdio, detached: true, windowsHide: true },
  );
  let isOver = false;
  const over = (): void => {
    if (isOver) return;
    isOver = true;
    leave();
  };
  // Not at `close`: a process that has left the group may keep the pipes open.
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
    // A process that has ended takes no input; its end says why.
    for (const stream of child.stdio) stream?.on('error', () => undefined);
    child.stdin?.end(request);
  });
  return unlessAborted(ended, signal).finally(() => {
    if (!isOver) endGroup(child);
  });
}
