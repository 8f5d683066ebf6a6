/** Tools whose code runs in a thread of its own, which a deadline or too much memory ends. */
import { Worker as Thread } from 'node:worker_threads';
import { checkWholeNumber, KernelError } from '@boxcar/kernel';
import type { Tool, ToolContext } from './tool.js';
import { unlessAborted } from './unless-aborted.js';

const DEFAULT_MEMORY_MB = 128;

/**
 * A tool that is isolated from its worker: arguments and result are JSON, and nothing else is shared. Each call starts a thread, which
 * takes some 50 ms.
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
  readonly result?: string;
  readonly error?: { readonly message: string };
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
      'a closure cannot be isolated, since a thread shares no variables with it. Make it the default export of a file, and name that file by `module`',
    );
  if (!(tool.module instanceof URL) || tool.module.protocol !== 'file:')
    refuse('module', "must be a file URL, such as new URL('./my-tool.js', import.meta.url)");
  if (tool.memoryMb !== undefined)
    checkWholeNumber(tool.memoryMb, `${tool.name}: memoryMb`, { min: 16, max: 65_536 });
}

/** @throws KernelError `bad_request` for a tool that cannot be isolated. */
export function toTool(tool: Tool | IsolatedTool): Tool {
  if (!('isolate' in tool || 'module' in tool)) return tool;
  checkIsolated(tool);
  const { isolate: _isolate, module, memoryMb = DEFAULT_MEMORY_MB, ...rest } = tool;
  return { ...rest, run: (input, context) => runIsolated({ ...tool, memoryMb, module }, input, context) };
}

function runIsolated(
  { name, module, memoryMb }: Required<Pick<IsolatedTool, 'name' | 'module' | 'memoryMb'>>,
  input: unknown,
  { signal, tape: _tape, ...call }: ToolContext,
): Promise<unknown> {
  const thread = new Thread(new URL('../isolated-tool.js', import.meta.url), {
    workerData: { module: module.href, input: JSON.stringify(input), call },
    resourceLimits: { maxOldGenerationSizeMb: memoryMb, maxYoungGenerationSizeMb: memoryMb },
  });
  const failed = (code: 'tool_failed' | 'tool_crashed', why: string, cause?: unknown): KernelError =>
    new KernelError(code, { message: `${name} ${why}.`, details: { tool: name }, cause });
  const ended = new Promise<unknown>((resolve, reject) => {
    thread.on('message', ({ result, error }: Answer) => {
      if (error !== undefined) reject(failed('tool_failed', `failed: ${error.message}`));
      else resolve(result === undefined ? undefined : JSON.parse(result));
    });
    thread.on('error', (error: NodeJS.ErrnoException) =>
      reject(
        error.code === 'ERR_WORKER_OUT_OF_MEMORY'
          ? failed('tool_crashed', `needed more than its ${memoryMb} MB of memory`)
          : failed('tool_crashed', `left an error that nothing caught: ${error.message}`, error),
      ),
    );
    thread.on('exit', () => reject(failed('tool_crashed', 'ended its thread without a result')));
  });
  return unlessAborted(ended, signal).finally(() => thread.terminate());
}
