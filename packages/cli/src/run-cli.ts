import { readFileSync } from 'node:fs';
import { Command, CommanderError, InvalidArgumentError } from 'commander';
import type { z } from 'zod';
import { checkHealth } from './commands/health.js';
import { runMigrate } from './commands/migrate.js';
import { type ApplyFlags, applyProfiles } from './commands/profiles.js';
import { showTurn } from './commands/show.js';
import { runSubmit, type SubmitFlags } from './commands/submit.js';
import { runWorker, type WorkerFlags } from './commands/worker.js';
import { parseConfig, settingSchemas } from './config.js';
import { type Context, createContext } from './context.js';
import { reportError } from './report-error.js';

export interface CliOptions {
  /** Default: the environment of the process. */
  readonly env?: Readonly<Record<string, string | undefined>>;
  /** Asks the command to finish. */
  readonly stop?: AbortSignal;
}

const EXIT_ERROR = 1;
const EXIT_USAGE = 2;

const EXIT_CODES = `
Exit codes:
  0  success
  1  an error; stderr says which
  2  wrong usage
  3  submit --wait: the turn ended, but not in success`;

const ENVIRONMENT = `
Environment:
  DATABASE_URL           Postgres; without it an embedded one is started or joined
  DATABASE_DIRECT_URL    the same without a transaction pooler in between
  REDIS_URL              Redis for the queues; without it they live in Postgres
  BOXCAR_PROJECT         project, by id or name (default)
  BOXCAR_PLUGINS         plugins to load, with a comma between them
  BOXCAR_CONCURRENCY     worker: turns at once (10)
  BOXCAR_WORKER_TARGETS  worker: pools it serves; an empty name is the default pool
  BOXCAR_LEASE_MS        worker: how long its turns stay its own without news (10000)
  BOXCAR_GRACE_MS        worker: patience with turns in hand when it stops (10000)
  BOXCAR_LOG_LEVEL       debug, info, warn, error; debug also prints stacks
  BOXCAR_DATA_DIR        where the embedded Postgres keeps its data
  BOXCAR_POSTGRES_PORT   its port (any free one)`;

const version = (): string => {
  const manifest: { version: string } = JSON.parse(
    readFileSync(new URL('../package.json', import.meta.url), 'utf8'),
  );
  return manifest.version;
};

/** A flag that follows the same rule as the setting it overrides. */
const flag =
  <T>(schema: z.ZodType<T, string>) =>
  (text: string): T => {
    const parsed = schema.safeParse(text);
    if (parsed.success) return parsed.data;
    throw new InvalidArgumentError(`It ${parsed.error.issues[0]?.message ?? 'is not valid'}.`);
  };

const collect =
  <T>(read: (text: string) => T) =>
  (text: string, before: readonly T[] | undefined): readonly T[] => [...(before ?? []), read(text)];

const same = (text: string): string => text;

type Run = (command: (context: Context) => Promise<number>) => Promise<void>;

function addWorker(program: Command, run: Run): void {
  program
    .command('worker')
    .description('Run turns, and accept primitives from the queue boxcar-primitives, until told to stop.')
    .option('--concurrency <n>', 'turns at once', flag(settingSchemas.concurrency))
    .option(
      '--target <name>',
      "a pool to serve, repeatable; '' is the default pool",
      collect(flag(settingSchemas.workerTarget)),
    )
    .option('--plugin <file>', 'a module that registers handlers and tools, repeatable', collect(same))
    .option('--lease-ms <ms>', 'how long its turns stay its own without news', flag(settingSchemas.leaseMs))
    .option(
      '--grace-ms <ms>',
      'how long turns in hand may take to their next commit when it stops',
      flag(settingSchemas.graceMs),
    )
    .option('--no-door', 'do not serve the queue boxcar-primitives')
    .addHelpText(
      'after',
      '\nSIGTERM and Ctrl-C finish the steps in hand and give the turns back; the second one stops at once.',
    )
    .action((flags: WorkerFlags) => run((context) => runWorker(context, flags)));
}

function addSubmit(program: Command, run: Run): void {
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
      `${EXIT_CODES}\n
Examples:
  boxcar submit launch_principal --arg profile_name=writer --arg instruction='A haiku' --wait
  boxcar submit delegate_async --file task.json --key order-4711
  boxcar submit ask_expert --arg expert_profile=counter --arg question=6x7 --arg deadline_seconds:=30 --wait`,
    )
    .action((primitive: string, source: string | undefined, flags: SubmitFlags) =>
      run((context) => runSubmit(context, primitive, source, flags)),
    );
}

function createProgram(run: Run): Command {
  const program = new Command('boxcar')
    .description('Multi-agent orchestration: turns are rows in Postgres, queues only ring the bell.')
    .version(version(), '--version')
    .option('--json', 'answers, logs and errors as JSON')
    .configureHelp({ showGlobalOptions: true })
    .addHelpText('after', `${EXIT_CODES}\n${ENVIRONMENT}`)
    // What is wrong is said once, in one line, where the error arrives.
    .configureOutput({ outputError: () => undefined })
    .exitOverride();
  addWorker(program, run);
  addSubmit(program, run);
  program
    .command('show')
    .description('What became of a turn: steps, calls, context, deliverable.')
    .argument('<turn>', 'its id, or at least the first 8 digits of it')
    .option('--project <name>', 'project, by id or name')
    .action((turn: string, flags: { project?: string }) => run((context) => showTurn(context, turn, flags)));
  program
    .command('profiles')
    .description('Agent profiles.')
    .command('apply')
    .description('Make the profiles of YAML or JSON files current: a new version of each that has changed.')
    .requiredOption('-f, --file <file...>', 'one or more files, each with one or more documents; - is stdin')
    .option('--project <name>', 'project, by id or name')
    .option('--plugin <file>', 'a module that registers what the profiles use, repeatable', collect(same))
    .action((flags: ApplyFlags) => run((context) => applyProfiles(context, flags)));
  program
    .command('migrate')
    .description("Bring the database to this program's schema, the queue tables included.")
    .action(() => run((context) => runMigrate(context)));
  program
    .command('health')
    .description(
      'Exit 0 when a worker of this host is alive, by its rows. For the health checks of containers.',
    )
    .option('--pid <pid>', 'that very process', flag(settingSchemas.pid))
    .action((flags: { pid?: number }) => run((context) => checkHealth(context, flags)));
  return program;
}

/**
 * Runs one command line.
 *
 * @param args - Without the program: `['submit', …]`.
 * @returns The exit code; failures have been reported on stderr.
 */
export async function runCli(args: readonly string[], options: CliOptions = {}): Promise<number> {
  let exitCode = 0;
  let withStack = false;
  // Also when the command line cannot be read.
  const isJson = args.includes('--json');
  const stop = options.stop ?? new AbortController().signal;
  const program = createProgram(async (command) => {
    const config = parseConfig(options.env);
    withStack = config.logLevel === 'debug';
    exitCode = await command(createContext({ config, isJson, stop }));
  });
  try {
    await program.parseAsync(args, { from: 'user' });
    return exitCode;
  } catch (error) {
    if (!(error instanceof CommanderError)) {
      reportError(error, { isJson, withStack });
      return EXIT_ERROR;
    }
    if (error.exitCode === 0) return 0;
    // Without a command the help was printed, which says it all.
    if (error.code !== 'commander.help') {
      const message = error.message.replace(/^error: /, '').replace(/\.$/, '');
      reportError(new Error(`${message}; see boxcar help`), { isJson, withStack, code: 'bad_request' });
    }
    return EXIT_USAGE;
  }
}
