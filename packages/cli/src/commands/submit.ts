import { readFile } from 'node:fs/promises';
import { resolve } from 'node:path';
import { text as readText } from 'node:stream/consumers';
import { isFinal, isJsonObject, type JsonValue, KernelError, tryParseId } from '@boxcar/kernel';
import { loadPlugins, type TurnResult } from '@boxcar/runtime';
import { findLiveWorkers } from '@boxcar/store';
import type { Command } from 'commander';
import { collect, EXIT, flag, helpOf, type Run, same } from '../command.js';
import { settingSchemas } from '../config.js';
import type { Context } from '../context.js';
import { openStack, type Stack } from '../stack.js';
import { formatFields, toLine, toPlain } from '../text.js';

interface SubmitFlags {
  readonly arg?: readonly string[];
  readonly jsonArgs?: string;
  readonly file?: string;
  readonly project?: string;
  readonly sourceAgent?: string;
  readonly parentTurn?: string;
  readonly channel?: string;
  readonly key?: string;
  readonly plugin?: readonly string[];
  readonly wait?: boolean;
  /** Seconds. */
  readonly timeout?: number;
}

const badArgument = (message: string): KernelError =>
  new KernelError('bad_request', { message: `${message}.`, details: { field: 'arguments' } });

function parseArguments(text: string, source: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw badArgument(`${source}: is no JSON (${error instanceof Error ? error.message : String(error)})`);
  }
  if (!isJsonObject(value)) throw badArgument(`${source}: must be a JSON object`);
  return { ...value };
}

/** `key=value` is text, `key:=json` is JSON. */
function parsePair(pair: string): readonly [string, unknown] {
  const at = pair.indexOf('=');
  if (at < 1 || pair.startsWith(':=')) throw badArgument(`--arg '${pair}': must be key=text or key:=json`);
  if (pair[at - 1] !== ':') return [pair.slice(0, at), pair.slice(at + 1)];
  const key = pair.slice(0, at - 1);
  try {
    return [key, JSON.parse(pair.slice(at + 1))];
  } catch (error) {
    throw badArgument(`--arg ${key}: is no JSON (${error instanceof Error ? error.message : String(error)})`);
  }
}

/** The arguments: one JSON object from at most one place, with the single ones on top. */
export async function readArguments(
  flags: Pick<SubmitFlags, 'arg' | 'jsonArgs' | 'file'>,
  source: string | undefined,
): Promise<Record<string, unknown>> {
  if (source !== undefined && source !== '-') {
    throw badArgument(`'${source}': the only thing that may stand behind the primitive is -, for stdin`);
  }
  const file = flags.file ?? source;
  if ([flags.jsonArgs, flags.file, source].filter((given) => given !== undefined).length > 1) {
    throw badArgument('give the arguments by --json-args, --file or -, not by several of them');
  }
  let args: Record<string, unknown> = {};
  if (flags.jsonArgs !== undefined) args = parseArguments(flags.jsonArgs, '--json-args');
  else if (file === '-') args = parseArguments(await readText(process.stdin), 'stdin');
  else if (file !== undefined) {
    const text = await readFile(file, 'utf8').catch((error: unknown) => {
      throw badArgument(`--file ${file}: ${error instanceof Error ? error.message : String(error)}`);
    });
    args = parseArguments(text, file);
  }
  for (const [key, value] of (flags.arg ?? []).map(parsePair))
    Object.defineProperty(args, key, { value, enumerable: true, configurable: true, writable: true });
  return args;
}

const show = (value: JsonValue): string =>
  typeof value === 'string' ? toPlain(value) : JSON.stringify(value, null, 2);

function describeReceipt(answer: JsonValue): string {
  if (!isJsonObject(answer)) return show(answer);
  const members = Object.entries(answer);
  const isFlat =
    members.length > 0 && members.every(([, value]) => typeof value !== 'object' || value === null);
  return isFlat
    ? formatFields(members.map(([name, value]) => [toLine(name), String(value)] as const))
    : show(answer);
}

function describeResult(result: TurnResult): string {
  const fields: [string, string][] = [
    ['status', result.status],
    ['turn_id', result.turn_id],
    ['agent_id', result.agent_id],
    ['output_box_id', result.output_box_id],
  ];
  if (result.error !== undefined) fields.push(['error', `${result.error.code}: ${result.error.message}`]);
  return `${formatFields(fields)}\n\n${show(result.result)}`;
}

/** The turn that the receipt is about, when the primitive has made one. */
function turnOf(answer: JsonValue, awaited: string | null): string | undefined {
  if (awaited !== null) return awaited;
  const turnId = isJsonObject(answer) ? answer.turn_id : undefined;
  return typeof turnId === 'string' ? tryParseId(turnId) : undefined;
}

/** Says so when nobody is there to run the turn: the commonest reason why a wait seems to hang. */
async function warnWithoutWorker(context: Context, stack: Stack): Promise<void> {
  if ((await findLiveWorkers(stack.runtime.pool)).length === 0)
    context.note('no worker is running; start one with `boxcar worker`');
}

async function waitFor(
  context: Context,
  stack: Stack,
  of: { readonly turnId: string; readonly projectId: string; readonly timeoutSeconds: number | undefined },
): Promise<number> {
  const { turnId, projectId, timeoutSeconds } = of;
  const state = await stack.runtime.getTurn(turnId, { projectId });
  if (!isFinal(state.status)) {
    context.note(`accepted as turn ${turnId}; waiting for its end`);
    await warnWithoutWorker(context, stack);
  }
  let result: TurnResult;
  try {
    result = await stack.runtime.waitForTurn(turnId, {
      projectId,
      signal: context.stop,
      ...(timeoutSeconds === undefined ? {} : { timeoutMs: timeoutSeconds * 1000 }),
    });
  } catch (error) {
    if (context.stop.aborted) {
      context.note(`no longer waiting; the turn goes on: boxcar show ${turnId}`);
      return EXIT.interrupted;
    }
    if (error instanceof KernelError && error.code === 'wait_timeout') {
      throw new KernelError('wait_timeout', {
        message: `Turn ${turnId} has not ended within ${timeoutSeconds} s; it goes on, see: boxcar show ${turnId}.`,
        details: { turn_id: turnId, timeout_seconds: timeoutSeconds },
        cause: error,
      });
    }
    throw error;
  }
  context.answer(result, () => describeResult(result));
  return result.status === 'success' ? EXIT.success : EXIT.negative;
}

/** `boxcar submit`: accepted when it returns, like a call of the library. */
async function runSubmit(
  context: Context,
  primitive: string,
  source: string | undefined,
  flags: SubmitFlags,
): Promise<number> {
  const args = await readArguments(flags, source);
  const { config } = context;
  await using stack = await openStack(config, { log: context.log('warn') });
  await loadPlugins(
    stack.runtime,
    (flags.plugin ?? config.plugins).map((path) => resolve(path)),
  );
  const accepted = await stack.runtime.accept(primitive, args, {
    projectId: flags.project ?? config.project,
    sourceAgentId: flags.sourceAgent,
    parentTurnId: flags.parentTurn,
    channelId: flags.channel,
    idempotencyKey: flags.key,
  });
  if (accepted.isReplay) context.note('this key was accepted before; nothing was done again');
  const turnId = flags.wait === true ? turnOf(accepted.answer, accepted.awaitedTurnId) : undefined;
  if (turnId === undefined) {
    context.answer(accepted.answer, () => describeReceipt(accepted.answer));
    return 0;
  }
  return await waitFor(context, stack, {
    turnId,
    projectId: accepted.projectId,
    timeoutSeconds: flags.timeout,
  });
}

export function addSubmit(program: Command, run: Run): void {
  program
    .command('submit')
    .description('Submit a primitive. When the receipt is printed it is accepted and cannot get lost.')
    .argument('<primitive>', 'delegate_async, launch_principal, ask_expert, create_box, … or one of a plugin')
    .argument('[-]', 'read the arguments from stdin, as JSON')
    .option('--arg <key=value>', 'one argument, repeatable: key=text or key:=json', collect(same))
    .option('--json-args <json>', 'all arguments as one JSON object')
    .option('--file <file>', 'the same from a file; - is stdin')
    .option('--project <name>', 'project, by id or name')
    .option('--source-agent <agent>', "in whose name, by id or name (the project's operator)")
    .option('--parent-turn <id>', 'file the new turn under this one')
    .option('--channel <name>', 'channel of the new turn')
    .option('--key <key>', 'idempotency key: the second submission under it changes nothing')
    .option('--plugin <file>', 'a module that registers handlers, repeatable', collect(same))
    .option('--wait', 'wait for the end of the turn and print its result')
    .option('--timeout <seconds>', 'wait at most this long; the turn goes on', flag(settingSchemas.seconds))
    .addHelpText(
      'after',
      helpOf({
        examples: [
          'boxcar submit launch_principal --arg profile_name=writer \\',
          "      --arg instruction='A haiku' --wait",
          'boxcar submit delegate_async --file task.json --key order-4711',
          'boxcar submit ask_expert --arg expert_profile=counter --arg question=6x7 \\',
          '      --arg deadline_seconds:=30 --wait',
        ],
        negative: '--wait: the turn ended, but not in success',
      }),
    )
    .action((primitive: string, source: string | undefined, flags: SubmitFlags) =>
      run((context) => runSubmit(context, primitive, source, flags)),
    );
}
