import { readFileSync } from 'node:fs';
import { Command, CommanderError } from 'commander';
import { EXIT, type Run } from './command.js';
import { addBox } from './commands/box.js';
import { addBudget } from './commands/budget.js';
import { addCancel } from './commands/cancel.js';
import { addCompletion } from './commands/completion.js';
import { addDev } from './commands/dev.js';
import { addDoctor } from './commands/doctor.js';
import { addErase } from './commands/erase.js';
import { addExplain } from './commands/explain.js';
import { addHealth } from './commands/health.js';
import { addLists } from './commands/list.js';
import { addMigrate } from './commands/migrate.js';
import { addPack } from './commands/pack.js';
import { addPrices } from './commands/prices.js';
import { addProfiles } from './commands/profiles.js';
import { addProjects } from './commands/projects.js';
import { addProviders } from './commands/providers.js';
import { addPurge } from './commands/purge.js';
import { addShow } from './commands/show.js';
import { addSubmit } from './commands/submit.js';
import { addTape } from './commands/tape.js';
import { addTree } from './commands/tree.js';
import { addWhy } from './commands/why.js';
import { addWhyStuck } from './commands/why-stuck.js';
import { addWorker } from './commands/worker.js';
import { declareEnvironmentSecrets, parseConfig } from './config.js';
import { createContext, writeOutput } from './context.js';
import { reportError } from './report-error.js';
import { nameSession } from './session-flags.js';

export interface CliOptions {
  /** Default: the environment of the process. */
  readonly env?: Readonly<Record<string, string | undefined>>;
  /** Asks the command to finish. */
  readonly stop?: AbortSignal;
}

const EXIT_CODES = `
Exit codes:
  0  success
  1  an error; stderr says which
  2  wrong usage
  3  the command did its work, and the answer is no
  4  worker: a tool held its event loop; start it again`;

const ENVIRONMENT = `
Environment:
  DATABASE_URL                  Postgres; without it an embedded one is used
  DATABASE_DIRECT_URL           the same without a transaction pooler in between
  BOXCAR_DATABASE_WAIT_SECONDS  how long a start waits for a Postgres that
                                cannot be reached (30)
  PGPASSWORD                    password for those two, where the URL has none
  REDIS_URL                     Redis for the queues; else they live in Postgres
  REDIS_PASSWORD                its password, where the URL has none
  BOXCAR_PROJECT                project, by id or name (default)
  BOXCAR_PLUGINS                plugins to load, with a comma between them
  BOXCAR_CONCURRENCY            worker: turns at once (10)
  BOXCAR_WORKER_TARGETS         worker: pools it serves; '' is the default pool
  BOXCAR_LEASE_MS               worker: its turns stay its own so long without
                                news (10000)
  BOXCAR_GRACE_MS               worker: how long a stop may take, most of it
                                for running turns (10000)
  BOXCAR_HANDLER_TIMEOUT_MS     how long the handler of a primitive that no
                                turn calls may take (60000)
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
  BOXCAR_DATA_DIR               where the embedded Postgres keeps its data
  BOXCAR_POSTGRES_PORT          its port (any free one)`;

const version = (): string => {
  const manifest: { version: string } = JSON.parse(
    readFileSync(new URL('../package.json', import.meta.url), 'utf8'),
  );
  return manifest.version;
};

/** Each puts itself on the program; the order is that of the help. */
const COMMANDS: readonly ((program: Command, run: Run) => void)[] = [
  addDev,
  addWorker,
  addSubmit,
  addCancel,
  addPack,
  addTree,
  addBudget,
  addShow,
  addExplain,
  addWhy,
  addWhyStuck,
  addLists,
  addProfiles,
  addProviders,
  addBox,
  addTape,
  addPrices,
  addProjects,
  addErase,
  addPurge,
  addMigrate,
  addHealth,
  addDoctor,
  addCompletion,
];

/** All commands, their help and options; `run` is what they do. */
export function createProgram(run: Run): Command {
  const program = new Command('boxcar')
    .description('Multi-agent orchestration: turns are rows in Postgres, queues only ring the bell.')
    .version(version(), '--version')
    .option('--json', 'answers, logs and errors as JSON')
    .configureHelp({ showGlobalOptions: true })
    .addHelpText('after', `${EXIT_CODES}\n${ENVIRONMENT}`)
    // What is wrong is said once, in one line, where the error arrives.
    .configureOutput({ writeOut: writeOutput, outputError: () => undefined })
    .exitOverride();
  for (const add of COMMANDS) add(program, run);
  return program;
}

/** The help of the command that was meant, as far as it exists. */
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
  using _secrets = declareEnvironmentSecrets(options.env);
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
    const group = program.commands.find((command) => command.name() === 'tape');
    await program.parseAsync(nameSession(args, group), { from: 'user' });
    return exitCode;
  } catch (error) {
    if (!(error instanceof CommanderError)) {
      reportError(error, { isJson, withStack });
      return EXIT.error;
    }
    if (error.exitCode === 0) return 0;
    // Without a command the help was printed, which says it all.
    if (error.code !== 'commander.help') {
      const message = error.message.replace(/^error: /, '').replace(/\.$/, '');
      reportError(new Error(`${message}; see ${helpFor(program, args)}`), {
        isJson,
        withStack,
        code: 'bad_request',
      });
    }
    return EXIT.usage;
  }
}
