import { readFileSync } from 'node:fs';
import { declareEnvironmentSecrets, type Environment } from '@boxcar/host/base';
import { Command, CommanderError, Help } from 'commander';
import type { Run } from './command.js';
import { COMMANDS } from './command-table.js';
import { EXIT } from './exit.js';
import { isUsage } from './input/usage.js';
import { refuseBlank } from './input/values.js';
import { writeOutput } from './output.js';

export interface CliOptions {
  /** Default: the environment of the process. */
  readonly env?: Environment;
  /** Aborts to ask the command to finish. */
  readonly stop?: AbortSignal;
}

/** Commands follow one another; after a worker, no user of the embedded server is expected for long. */
const KEEP_MS = 60_000;

/** Finds the wrong flag or argument in commander's message. */
const FIELD = /^option '[^']*--([\w-]+)|for argument '([\w|-]+)'/;

const EXIT_CODES = `
Exit codes:
  0  success
  1  an error, described on stderr
  2  usage error: an unknown or missing command or option, or a value
     that is not valid
  3  the command worked; the result is negative
  4  worker: a tool blocked its event loop; start the worker again`;

const ENVIRONMENT = `
Environment:
  DATABASE_URL                  Postgres; without it an embedded one is used
  DATABASE_DIRECT_URL           the same server without a transaction pooler
  DATABASE_READ_URL             its read replica, for lists and reports (none)
  BOXCAR_DATABASE_WAIT_SECONDS  how long a start waits for a Postgres that
                                cannot be reached (30)
  PGPASSWORD                    password for URLs of Postgres without one
  REDIS_URL                     Redis or a cluster (redis+cluster://a,b) for the
                                queues; without it, they are in Postgres
  REDIS_PASSWORD                password for a REDIS_URL without one
  BOXCAR_PROJECT                project, by id or name (default)
  BOXCAR_POLICY_FILE            policy for tool calls and handoffs
  BOXCAR_ENVIRONMENT            the environment for the policy (production)
  BOXCAR_HANDOFF_ENABLED        true: models and submissions may hand off (false;
                                also AGDD_HANDOFF_ENABLED)
  BOXCAR_TARGETS_FILE           agents and models of other platforms, by name
  BOXCAR_MCP_SERVERS            MCP servers whose tools profiles may name
  BOXCAR_OAUTH_ISSUER           issuer of tokens that /mcp accepts, as well as keys
  BOXCAR_OAUTH_AUDIENCE         audience of these tokens (the address of /mcp)
  BOXCAR_TARGETS_ALLOW_PRIVATE  private hosts and networks allowed for A2A agents
  BOXCAR_WEBHOOK_SECRET         signs the callbacks of handoffs
  BOXCAR_WEBHOOK_ALLOW_PRIVATE  private hosts and networks allowed for callbacks
  BOXCAR_WEBHOOK_RETRY_SECONDS  first pause after a failed callback (5)
  BOXCAR_APPROVALS_ENABLED      false: refuse calls that need an approval (true;
                                also AGDD_APPROVALS_ENABLED)
  BOXCAR_APPROVAL_MINUTES       how long a call waits for its approval (30)
  BOXCAR_SUMMARY_MODEL          summarizes sessions that are handed on (none)
  BOXCAR_API_KEY                key for commands that use a server (--url); without
                                it, the key that the server stored on this machine
  BOXCAR_PLUGINS                plugins to load, separated by commas
  BOXCAR_CONCURRENCY            worker: turns at a time (10)
  BOXCAR_WORKER_TARGETS         worker: pools it serves; '' is the default pool
  BOXCAR_LEASE_MS               worker: how long a silent worker keeps its turns
                                before others take over (10000)
  BOXCAR_GRACE_MS               worker: on shutdown, how long to wait for running
                                steps (10000)
  BOXCAR_HANDLER_TIMEOUT_MS     time limit for a handler that no turn calls
                                (60000)
  BOXCAR_MAX_CARD_BYTES         largest card (1048576)
  BOXCAR_MAX_INSTRUCTION_BYTES  largest instruction (262144)
  BOXCAR_MAX_CONTEXT_CARDS      cards of one context box (10000)
  BOXCAR_MAX_BOX_BYTES          new cards of one create_box (16777216)
  OPENAI_API_KEY, OPENAI_BASE_URL, ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL,
  GEMINI_API_KEY, GEMINI_BASE_URL, MISTRAL_API_KEY, MISTRAL_BASE_URL,
  DEEPSEEK_API_KEY, DEEPSEEK_BASE_URL,
  OPENAI_COMPATIBLE_API_KEY, OPENAI_COMPATIBLE_BASE_URL
                                worker: for profiles whose model is
                                openai:…, openai-chat:…, anthropic:…,
                                google:…, mistral:…, deepseek:… or
                                openai-compatible:…
  BOXCAR_PRICES                 JSON file with prices of models, before the
                                built-in ones
  BOXCAR_MODEL_IDLE_SECONDS     worker: how long a model's stream may be
                                silent (120)
  BOXCAR_LOG_LEVEL              debug, info, warn, error; debug prints stacks
  BOXCAR_DATA_DIR               folder for the data of the embedded Postgres and
                                for the key of this machine
  BOXCAR_POSTGRES_PORT          port of the embedded Postgres (any free one)
  BOXCAR_POSTGRES_KEEP_SECONDS  how long it runs after the last command (60)`;

const version = (): string => {
  const manifest: { version: string } = JSON.parse(
    readFileSync(new URL('../package.json', import.meta.url), 'utf8'),
  );
  return manifest.version;
};

/** The word of a command line that names its command; for `help submit` it is the second. */
const commandIn = (args: readonly string[]): string | undefined => {
  const [first, second] = args.filter((word) => !word.startsWith('-'));
  return first === 'help' ? second : first;
};

/**
 * The program with its commands.
 *
 * @param run - Runs the work of a command.
 * @param name - The command in use. The modules of other commands are not loaded: these have only a name and a description.
 * Without a name, all modules are loaded.
 */
export async function createProgram(run: Run, name?: string): Promise<Command> {
  const program: Command = new Command('boxcar')
    .description('Multi-agent orchestration: turns are rows in Postgres, queues only announce them.')
    .version(version(), '--version')
    .option('--json', 'answers, logs and errors as JSON')
    .configureHelp({
      showGlobalOptions: true,
      subcommandTerm: (command: Command): string =>
        command.parent?.parent === null ? command.name() : Help.prototype.subcommandTerm(command),
    })
    .addHelpText('after', `${EXIT_CODES}\n${ENVIRONMENT}`)
    // An error is reported once, in one line, by the code that catches it.
    .configureOutput({ writeOut: writeOutput, outputError: () => undefined })
    .exitOverride();
  const needsAll = name === undefined || COMMANDS.some((one) => one.name === name && one.knowsAll === true);
  for (const listed of COMMANDS) {
    if (needsAll || listed.name === name) (await listed.load())(program, run);
    else program.command(listed.name);
    program.commands.find((command) => command.name() === listed.name)?.description(listed.description);
  }
  refuseBlank(program);
  return program;
}

/** The help of the given command, as far as the command exists. */
function helpFor(program: Command, args: readonly string[]): string {
  const path: string[] = [];
  let command = program;
  for (const arg of args.filter((word) => !word.startsWith('-'))) {
    const next = command.commands.find((known) => known.name() === arg);
    if (next === undefined) break;
    path.push(arg);
    command = next;
  }
  return path.length === 0 ? 'boxcar help' : `boxcar ${path.join(' ')} --help`;
}

/**
 * Runs one command line.
 *
 * @param args - Without the program: `['submit', …]`.
 * @returns The exit code; failures have been reported on stderr.
 */
export async function runCli(args: readonly string[], options: CliOptions = {}): Promise<number> {
  const { env, stop = new AbortController().signal } = options;
  using _secrets = declareEnvironmentSecrets(env);
  let exitCode = 0;
  let withStack = false;
  // Also used when the command line cannot be parsed.
  const isJson = args.includes('--json');
  const name = commandIn(args);
  const report = async (error: unknown): Promise<void> => {
    const { reportError } = await import('@boxcar/host/errors');
    reportError(error, { isJson, withStack });
  };
  try {
    const run: Run = async (command) => {
      const { parseConfig } = await import('@boxcar/host/config');
      const { createContext } = await import('./context.js');
      const given = parseConfig(env);
      const config = { ...given, embeddedKeepMs: given.embeddedKeepMs ?? KEEP_MS };
      withStack = config.logLevel === 'debug';
      exitCode = await command(createContext({ config, isJson, stop }));
    };
    const program = await createProgram(run, name ?? '');
    try {
      const words = readHelp(args, program);
      if (await explainTopic(words, program, run)) return exitCode;
      await program.parseAsync(await withSession(words, name, program), { from: 'user' });
      return exitCode;
    } catch (error) {
      if (!(error instanceof CommanderError)) throw error;
      if (error.exitCode === 0) return EXIT.success;
      // Without a command the help was printed, which is sufficient.
      if (error.code !== 'commander.help') {
        const message = error.message.replace(/^error: /, '').replace(/\.$/, '');
        const { KernelError } = await import('@boxcar/kernel/base');
        const field = FIELD.exec(message)
          ?.slice(1)
          .find((name) => name !== undefined);
        await report(
          new KernelError('bad_request', {
            message: `${message};`,
            next: `see ${helpFor(program, args)}`,
            details: field === undefined ? {} : { field },
          }),
        );
      }
      return EXIT.usage;
    }
  } catch (error) {
    await report(error);
    return isUsage(error) ? EXIT.usage : EXIT.error;
  }
}

/**
 * Converts `help tape show` to `tape show --help`. When the command does not exist, returns the command line without the help request,
 * which is then rejected.
 */
function readHelp(args: readonly string[], program: Command): readonly string[] {
  const words = args.filter((word) => !word.startsWith('-'));
  const flags = args.filter((word) => word.startsWith('-'));
  const hasFlag = flags.includes('--help') || flags.includes('-h');
  const path: string[] = [];
  let command = program;
  let hasWord = false;
  for (const [index, word] of words.entries()) {
    if (command.commands.length === 0) {
      if (!hasWord) break;
      const rest = words.slice(index);
      return command.registeredArguments.length === 0
        ? [...path, ...rest]
        : [...path, ...rest, ...flags, '--help'];
    }
    const next = command.commands.find((known) => known.name() === word);
    if (next !== undefined) {
      path.push(word);
      command = next;
    } else if (word === 'help') hasWord = true;
    else return hasFlag || hasWord ? [...path, word] : args;
  }
  return hasWord ? [...path, ...flags, '--help'] : args;
}

/** Returns the command line with the tape that `--session` names inserted in its place. */
async function withSession(
  args: readonly string[],
  name: string | undefined,
  program: Command,
): Promise<string[]> {
  if (name !== 'tape') return [...args];
  const { nameSession } = await import('./input/session-flags.js');
  return nameSession(
    args,
    program.commands.find((command) => command.name() === name),
  );
}

/** `submit <primitive> --help` shows the help of that primitive. @returns Whether it was requested. */
async function explainTopic(args: readonly string[], program: Command, run: Run): Promise<boolean> {
  const words = args.filter((word) => !['--help', '-h', '--json'].includes(word));
  const asksForHelp = args.includes('--help') || args.includes('-h');
  if (!asksForHelp || commandIn(args) !== 'submit') return false;
  const submit = program.commands.find((command) => command.name() === 'submit');
  const [primitive] = submit?.parseOptions(words.slice(words.indexOf('submit') + 1)).operands ?? [];
  if (submit === undefined || primitive === undefined) return false;
  const { explainPrimitive } = await import('./commands/turn/primitive-help.js');
  await run((context) => explainPrimitive(context, primitive, submit.opts<{ plugin?: string[] }>().plugin));
  return true;
}
