import { resolve } from 'node:path';
import { toLine, toPlain } from '@boxcar/host/base';
import { settingSchemas } from '@boxcar/host/config';
import { errorLine } from '@boxcar/host/errors';
import { openStack, type Stack } from '@boxcar/host/open';
import {
  errorText,
  type Handoff,
  type HandoffId,
  isFinal,
  isJsonObject,
  type JsonValue,
  KernelError,
  type ProjectId,
  parseJson,
  tryParseId,
} from '@boxcar/kernel';
import { type Accepted, loadPlugins, type TurnResult, waitForHandoff } from '@boxcar/runtime';
import { findHandoff, findLiveWorkers } from '@boxcar/store';
import type { Command } from 'commander';
import { collect, EXIT, flag, helpOf, notBlank, type Run, same } from '../../command.js';
import type { Context } from '../../context.js';
import { type FlagNames, inFlags } from '../../input/flag-errors.js';
import { MAX_DATA_BYTES, readInput } from '../../input/read-input.js';
import { type SessionFlags, sessionOf } from '../../input/session-flags.js';
import { wrongUsage } from '../../input/usage.js';
import { formatFields } from '../../text/text.js';

interface SubmitFlags extends SessionFlags {
  readonly profile?: string;
  readonly arg?: readonly string[];
  readonly jsonArgs?: string;
  readonly file?: string;
  readonly project?: string;
  readonly sourceAgent?: string;
  readonly parentTurn?: string;
  readonly channel?: string;
  readonly key?: string;
  readonly priority?: number;
  readonly plugin?: readonly string[];
  readonly handlerTimeoutMs?: number;
  readonly wait?: boolean;
  /** Seconds. */
  readonly timeout?: number;
}

const badArgument = (message: string): KernelError =>
  new KernelError('bad_request', { message: `${message}.`, details: { field: 'arguments' } });

const wrongArgument = (message: string): KernelError => wrongUsage(message, 'arguments');

/** @param refuse - Creates an error from a message: faults in read input are not faults of the command line. */
function parseArguments(
  text: string,
  source: string,
  refuse: (message: string) => KernelError,
): Record<string, unknown> {
  let value: unknown;
  try {
    value = parseJson(text);
  } catch (error) {
    throw refuse(`${source}: is not valid JSON (${errorText(error)})`);
  }
  if (!isJsonObject(value)) throw refuse(`${source}: must be a JSON object`);
  return { ...value };
}

/** `key=value` is text, `key:=json` is JSON. */
function parsePair(pair: string): readonly [string, unknown] {
  const at = pair.indexOf('=');
  if (at < 1 || pair.startsWith(':=')) throw wrongArgument(`--arg '${pair}': must be key=text or key:=json`);
  if (pair[at - 1] !== ':') return [pair.slice(0, at), pair.slice(at + 1)];
  const key = pair.slice(0, at - 1);
  try {
    return [key, parseJson(pair.slice(at + 1))];
  } catch (error) {
    throw wrongArgument(`--arg ${key}: is not valid JSON (${errorText(error)})`);
  }
}

/** The arguments: one JSON object from at most one source, with single arguments added to it. */
export async function readArguments(
  flags: Pick<SubmitFlags, 'arg' | 'jsonArgs' | 'file'>,
  source: string | undefined,
): Promise<Record<string, unknown>> {
  if (source !== undefined && source !== '-') {
    throw wrongArgument(`'${source}': only -, for stdin, may follow the primitive`);
  }
  const file = flags.file ?? source;
  if ([flags.jsonArgs, flags.file, source].filter((given) => given !== undefined).length > 1) {
    throw wrongArgument('give the arguments by --json-args, --file or -, not by several of them');
  }
  let args: Record<string, unknown> = {};
  if (flags.jsonArgs !== undefined) args = parseArguments(flags.jsonArgs, '--json-args', wrongArgument);
  else if (file !== undefined) {
    const bytes = await readInput(file, MAX_DATA_BYTES).catch((error: unknown) => {
      throw badArgument(`--file ${file}: ${errorText(error)}`);
    });
    args = parseArguments(bytes.toString('utf8'), file === '-' ? 'stdin' : file, badArgument);
  }
  for (const [key, value] of (flags.arg ?? []).map(parsePair))
    Object.defineProperty(args, key, { value, enumerable: true, configurable: true, writable: true });
  return args;
}

const show = (value: JsonValue): string =>
  typeof value === 'string' ? toPlain(value) : JSON.stringify(value, null, 2);

function describeReceipt(answer: JsonValue): string {
  if (!isJsonObject(answer)) return show(answer);
  // A comma command has separate texts for people and for programs.
  const { command, output } = answer;
  if (typeof command === 'string' && typeof output === 'string') return show(output);
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
  if (result.error !== undefined) fields.push(['error', errorLine(result.error)]);
  return `${formatFields(fields)}\n\n${show(result.result)}`;
}

function describeEnd({ handoff_id, status, result, error }: Handoff): string {
  const fields: [string, string][] = [
    ['status', status],
    ['handoff_id', handoff_id],
  ];
  if (error !== null) fields.push(['error', errorLine(error)]);
  const facts = formatFields(fields);
  return status === 'completed' ? `${facts}\n\n${show(result)}` : facts;
}

type Awaited = { readonly kind: 'turn' | 'batch' | 'handoff'; readonly id: string };

/** The handoff, turn or batch of the receipt, when the primitive has created one. */
function awaitedOf({ answer, awaitedTurnId, awaitedBatchId }: Accepted): Awaited | undefined {
  const handoff = isJsonObject(answer) ? answer.handoff_id : undefined;
  if (typeof handoff === 'string') return { kind: 'handoff', id: handoff };
  if (awaitedBatchId !== null) return { kind: 'batch', id: awaitedBatchId };
  if (awaitedTurnId !== null) return { kind: 'turn', id: awaitedTurnId };
  for (const kind of ['turn', 'batch'] as const) {
    const named = isJsonObject(answer) ? answer[`${kind}_id`] : undefined;
    const id = typeof named === 'string' ? tryParseId(named) : undefined;
    if (id !== undefined) return { kind, id };
  }
  return undefined;
}

const runOf = (receipt: JsonValue): string | undefined =>
  isJsonObject(receipt) && typeof receipt.run_id === 'string' ? receipt.run_id : undefined;

/** Warns when there is no worker to run the turn, the most common reason for a wait that seems to hang. */
export async function warnWithoutWorker(
  context: Context,
  { pool }: Pick<Stack['runtime'], 'pool'>,
): Promise<void> {
  if ((await findLiveWorkers(pool)).length === 0)
    context.note('no worker is running; start one with `boxcar worker`');
}

interface WaitOptions {
  readonly projectId: string;
  readonly signal: AbortSignal;
  readonly timeoutMs: number | undefined;
}

/** The command that shows work whose wait was given up. */
const LOOK: Readonly<Record<Awaited['kind'], (id: string) => string>> = {
  turn: (id) => `boxcar show ${id}`,
  batch: (id) => `boxcar submit collect --arg batch_id=${id} --wait`,
  handoff: (id) => `boxcar handoffs show ${id}`,
};

async function isOver({ runtime }: Stack, { kind, id }: Awaited, projectId: string): Promise<boolean> {
  switch (kind) {
    case 'turn':
      return isFinal((await runtime.getTurn(id, { projectId })).status);
    case 'handoff': {
      const ids = { handoffId: id as HandoffId, projectId: projectId as ProjectId };
      return (await findHandoff(runtime.pool, ids))?.ended_at != null;
    }
    case 'batch':
      return false;
    default:
      return kind satisfies never;
  }
}

/** Prints the outcome. @returns The exit code. */
async function answerEnd(
  context: Context,
  { runtime }: Stack,
  of: Awaited & { readonly options: WaitOptions },
): Promise<number> {
  const { kind, id, options } = of;
  const codeOf = (isSuccess: boolean): number => (isSuccess ? EXIT.success : EXIT.negative);
  switch (kind) {
    case 'turn': {
      const result = await runtime.waitForTurn(id, options);
      context.answer(result, () => describeResult(result));
      return codeOf(result.status === 'success');
    }
    case 'batch': {
      const answer = await runtime.waitForBatch(id, options);
      context.answer(answer, () => show(answer));
      return codeOf(isJsonObject(answer) && answer.status === 'success');
    }
    case 'handoff': {
      const handoff = await waitForHandoff(runtime, id as HandoffId, options);
      const { handoff_id, status, result, error } = handoff;
      context.answer({ handoff_id, status, result, ...(error === null ? {} : { error }) }, () =>
        describeEnd(handoff),
      );
      return codeOf(status === 'completed');
    }
    default:
      return kind satisfies never;
  }
}

async function waitFor(
  context: Context,
  stack: Stack,
  of: Awaited & {
    readonly projectId: string;
    /** Receipts of older builds do not name a run. */
    readonly runId: string | undefined;
    readonly timeoutSeconds: number | undefined;
  },
): Promise<number> {
  const { kind, id, projectId, runId, timeoutSeconds } = of;
  if (!(await isOver(stack, of, projectId))) {
    const run = runId === undefined ? '' : ` of run ${runId}`;
    context.note(`accepted as ${kind} ${id}${run}; waiting for its end`);
    await warnWithoutWorker(context, stack.runtime);
  }
  const look = LOOK[kind](id);
  const timeoutMs = timeoutSeconds === undefined ? undefined : timeoutSeconds * 1000;
  try {
    const options = { projectId, signal: context.stop, timeoutMs };
    return await answerEnd(context, stack, { kind, id, options });
  } catch (error) {
    if (context.stop.aborted) {
      context.note(`no longer waiting; the ${kind} continues: ${look}`);
      return EXIT.interrupted;
    }
    if (error instanceof KernelError && error.code === 'wait_timeout') {
      throw new KernelError('wait_timeout', {
        message: `${kind.slice(0, 1).toUpperCase()}${kind.slice(1)} ${id} has not ended within ${timeoutSeconds} s; it continues; see: ${look}.`,
        details: { [`${kind}_id`]: id, timeout_seconds: timeoutSeconds },
        cause: error,
      });
    }
    throw error;
  }
}

const warningsOf = (answer: JsonValue): readonly string[] => {
  const warnings = isJsonObject(answer) ? answer.warnings : undefined;
  return Array.isArray(warnings) ? warnings.filter((warning) => typeof warning === 'string') : [];
};

const TO_SESSIONS = ['delegate_async', 'context_handoff'];

/** Adds the target for a submission to a session by name. */
function addSession(
  args: Record<string, unknown>,
  primitive: string,
  flags: SessionFlags & { readonly profile?: string },
): void {
  const session = sessionOf(flags);
  if (session === undefined) {
    if (flags.profile !== undefined) throw wrongArgument('--profile: is of a session; give --session too');
    return;
  }
  if (!TO_SESSIONS.includes(primitive))
    throw wrongArgument(`--session: is for ${TO_SESSIONS.join(' and ')}; ${primitive} takes none`);
  if (args.target_ref !== undefined)
    throw wrongArgument('--session: says the target, so leave target_ref out');
  args.target_ref = { ...session, ...(flags.profile === undefined ? {} : { profile_name: flags.profile }) };
  if (primitive === 'delegate_async') args.target_strategy ??= 'reuse';
}

const SESSION_FLAGS: FlagNames = {
  'arguments.target_ref': '--session',
  'arguments.target_ref.workspace': '--workspace',
  'arguments.target_ref.profile_name': '--profile',
  profile_name: '--profile',
};

/** `boxcar submit`: the submission is accepted when it returns, as with the library's call. */
async function runSubmit(
  context: Context,
  primitive: string,
  source: string | undefined,
  flags: SubmitFlags,
): Promise<number> {
  const args = await readArguments(flags, source);
  addSession(args, primitive, flags);
  if (flags.priority !== undefined) args.priority = flags.priority;
  const { config } = context;
  const handlerTimeoutMs = flags.handlerTimeoutMs ?? config.handlerTimeoutMs;
  await using stack = await openStack({ ...config, handlerTimeoutMs }, { log: context.log('warn') });
  await loadPlugins(
    stack.runtime,
    (flags.plugin ?? config.plugins).map((path) => resolve(path)),
  );
  const accepted = await inFlags(flags.session === undefined ? {} : SESSION_FLAGS, () =>
    stack.runtime.accept(primitive, args, {
      projectId: flags.project ?? config.project,
      sourceAgentId: flags.sourceAgent,
      parentTurnId: flags.parentTurn,
      channelId: flags.channel,
      idempotencyKey: flags.key,
    }),
  );
  for (const warning of warningsOf(accepted.answer)) context.note(warning);
  if (accepted.isReplay) context.note('this key was accepted before; nothing was done again');
  const awaited = flags.wait === true ? awaitedOf(accepted) : undefined;
  if (awaited === undefined) {
    context.answer(accepted.answer, () => describeReceipt(accepted.answer));
    return 0;
  }
  const ticket = isJsonObject(accepted.answer) ? accepted.answer.ticket_id : undefined;
  if (typeof ticket === 'string')
    context.note(`it waits for an approval; decide with boxcar approvals approve ${ticket}, or deny`);
  return await waitFor(context, stack, {
    ...awaited,
    projectId: accepted.projectId,
    runId: runOf(accepted.answer),
    timeoutSeconds: flags.timeout,
  });
}

export function addSubmit(program: Command, run: Run): void {
  program
    .command('submit')
    .argument(
      '<primitive>',
      'delegate_async, fork_join, collect, launch_principal, ask_expert, … or one of a plugin; with --help its arguments are shown',
    )
    .argument('[-]', 'read the arguments from stdin, as JSON')
    .option('--arg <key=value>', 'one argument, repeatable: key=text or key:=json', collect(same))
    .option('--json-args <json>', 'all arguments as one JSON object')
    .option('--file <file>', 'the arguments from a file; - is stdin')
    .option('--project <name>', 'project, by id or name')
    .option('--source-agent <agent>', "in whose name, by id or name (the project's operator)")
    .option('--parent-turn <id>', 'make the new turn a child of this turn')
    .option('--channel <name>', 'channel of the new turn')
    .option('--key <key>', 'idempotency key: a second submission with it changes nothing')
    .option(
      '--priority <n>',
      'the argument priority: -100 to 100, the higher the sooner',
      flag(settingSchemas.number),
    )
    .option('--plugin <file>', 'a module that registers handlers, repeatable', collect(notBlank))
    .option(
      '--handler-timeout-ms <ms>',
      'time limit for a handler that no turn calls',
      flag(settingSchemas.handlerTimeoutMs),
    )
    .option('--workspace <folder>', 'folder of the session (default: the current one)')
    .option('--session <name>', 'the target is this session of the workspace')
    .option('--profile <name>', 'profile of the agent that the first use makes')
    .option('--wait', 'wait for the end of the turn, batch or handoff and print its result')
    .option('--timeout <seconds>', 'wait at most this long; the turn continues', flag(settingSchemas.seconds))
    .addHelpText(
      'after',
      helpOf({
        examples: [
          'boxcar submit launch_principal --arg profile_name=writer \\',
          "      --arg instruction='A haiku' --wait",
          'boxcar submit delegate_async --help',
          'boxcar submit delegate_async --file task.json --key order-4711',
          'boxcar submit delegate_async --workspace . --session main \\',
          "      --profile writer --arg instruction='What is left to do?' --wait",
          'boxcar submit ask_expert --arg expert_profile=counter --arg question=6x7 \\',
          '      --arg deadline_seconds:=30 --wait',
        ],
        negative: '--wait: the turn, batch or handoff ended, but not in success',
      }),
    )
    .action((primitive: string, source: string | undefined, flags: SubmitFlags) =>
      run((context) => runSubmit(context, primitive, source, flags)),
    );
}
