import { relative } from 'node:path';
import { createInterface } from 'node:readline/promises';
import { setTimeout as delay } from 'node:timers/promises';
import { defaultDataDir, deleteEmbeddedData } from '@boxcar/embedded';
import { toLine } from '@boxcar/host/base';
import { settingSchemas } from '@boxcar/host/config';
import { describeError, reportError } from '@boxcar/host/errors';
import { migrateServer, openServer } from '@boxcar/host/open';
import { type ErrorBody, KernelError } from '@boxcar/kernel';
import type { AppliedProfile } from '@boxcar/runtime';
import { createPool, endPool } from '@boxcar/store';
import { ActivityFeed } from '@boxcar/store/report';
import type { Command } from 'commander';
import { collect, EXIT, flag, helpOf, notBlank, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { wrongUsage } from '../../input/usage.js';
import { writeOutput } from '../../output.js';
import { countOf } from '../../text/text.js';
import { describeFindings } from '../profile/profiles.js';
import { formatActivity } from './activity-text.js';
import { GIVEN_UP_MS, startChild } from './child.js';
import { codeFiles, findSources, profileFiles, type Sources, stampOf } from './sources.js';
import { parseSaid, type Said, WorkerSupervisor } from './supervisor.js';

const LOOK_MS = 300;
/** A child that takes longer than this, plus its wait for the database, is ended. */
const CHILD_MS = 60_000;

type GivenUp = 'saved' | 'late';

interface DevFlags {
  readonly profiles?: readonly string[];
  readonly plugin?: readonly string[];
  readonly project?: string;
  readonly concurrency?: number;
  readonly reset?: boolean;
  readonly yes?: boolean;
}

/** Deletes the data of the embedded Postgres after a confirmation. */
async function resetData(context: Context, flags: DevFlags): Promise<void> {
  if (context.config.databaseUrl !== undefined) {
    throw new KernelError('bad_request', {
      message: '--reset: deletes the embedded Postgres only, and DATABASE_URL names another server.',
      details: { field: 'reset' },
    });
  }
  const folder = defaultDataDir();
  if (flags.yes !== true) {
    if (!process.stdin.isTTY || context.isJson) {
      throw wrongUsage('--reset: no terminal is available for the question; pass --yes as well', 'yes');
    }
    const lines = createInterface({ input: process.stdin, output: process.stderr });
    // Ctrl-C and the end of the input must also end the question, which would otherwise wait forever.
    const noAnswer = new AbortController();
    for (const event of ['SIGINT', 'close'] as const) lines.once(event, () => noAnswer.abort());
    const question = `Delete all data in ${toLine(folder)}? [y/N] `;
    const answer = await lines.question(question, { signal: noAnswer.signal }).catch(() => '');
    lines.close();
    if (!/^y(es)?$/i.test(answer.trim()))
      throw new KernelError('bad_request', { message: '--reset: not confirmed, nothing was deleted.' });
  }
  await deleteEmbeddedData({ dataDir: folder });
  if (context.isJson) context.answer({ event: 'dev.reset', data_dir: folder }, () => '');
  context.note(`deleted the data in ${folder}`);
}

const here = (path: string): string => {
  const short = relative(process.cwd(), path);
  return short === '' || short.startsWith('..') ? path : short;
};

/**
 * Reports a failure, after which the previous worker and profiles stay in use: one line per finding with its place on stderr, or with
 * `--json` one event on stdout.
 */
function sayFailure(context: Context, event: string, failure: ErrorBody): void {
  if (context.isJson) context.answer({ event, error: failure }, () => '');
  else for (const line of describeError(failure)) context.note(line);
}

/** The syntax error of a module has no position; `node --check` reports it. */
async function findSyntaxError(files: readonly string[]): Promise<string | undefined> {
  const { execFile } = await import('node:child_process');
  for (const file of files.filter((path) => /\.[cm]?js$/.test(path))) {
    const said = await new Promise<string>((settle) => {
      execFile(process.execPath, ['--check', file], { timeout: 10_000 }, (error, _stdout, stderr) =>
        settle(error === null ? '' : stderr),
      );
    });
    const place = /^(\S.*:\d+)$/m.exec(said)?.[1];
    const message = /^\w*Error: .*$/m.exec(said)?.[0];
    if (place !== undefined && message !== undefined) return `${here(place)}: ${message}`;
  }
  return undefined;
}

class DevServer {
  readonly #context: Context;
  readonly #flags: DevFlags;
  readonly #findSources: () => Sources;
  #sources: Sources;
  readonly #env: Readonly<Record<string, string | undefined>>;
  readonly #worker: WorkerSupervisor;

  constructor(
    context: Context,
    options: {
      readonly flags: DevFlags;
      readonly findSources: () => Sources;
      readonly env: Readonly<Record<string, string | undefined>>;
    },
  ) {
    this.#context = context;
    this.#flags = options.flags;
    this.#findSources = options.findSources;
    this.#sources = options.findSources();
    this.#env = { BOXCAR_LOG_LEVEL: 'warn', ...options.env };
    const { config } = context;
    this.#worker = new WorkerSupervisor({
      args: () => [
        ...['worker', '--concurrency', String(options.flags.concurrency ?? config.concurrency)],
        ...this.#pluginArgs(),
      ],
      env: this.#env,
      graceMs: config.graceMs,
      onSaid: (said) => this.#hear(said),
      onWords: (line) => this.#say('worker.output', { line }, `worker | ${line}`),
      onExit: () => this.#say('worker.ended', {}, 'the worker has ended; starting another'),
    });
  }

  #say(event: string, fields: Readonly<Record<string, unknown>>, words: string): void {
    if (this.#context.isJson) this.#context.answer({ event, ...fields }, () => '');
    else this.#context.note(toLine(words));
  }

  #pluginArgs(): string[] {
    return this.#sources.plugins.flatMap((path) => ['--plugin', path]);
  }

  #hear(said: Said): void {
    if (said.kind === 'failure') {
      sayFailure(this.#context, 'worker.failed', said.failure);
      return;
    }
    const { event, fields } = said;
    if (event === 'worker.ready') this.#say(event, fields, `worker ready (process ${fields.pid})`);
    else if (event !== 'worker.stopped' || this.#context.isJson) {
      const rest = Object.entries(fields).filter(([name]) => name !== 'time' && name !== 'level');
      const words = rest.map(
        ([name, value]) => `${name}=${typeof value === 'string' ? value : JSON.stringify(value)}`,
      );
      this.#say(event, fields, [event, ...words].join(' '));
    }
  }

  /**
   * Runs a child and gives it up when one of the files is saved meanwhile or the time limit is reached, so that no edit waits for a
   * child.
   */
  async #watching<T>(
    filesOf: (sources: Sources) => readonly string[],
    work: (giveUp: AbortSignal) => Promise<T>,
  ): Promise<T> {
    const giveUp = new AbortController();
    const seen = stampOf(filesOf(this.#sources));
    const endsAt = performance.now() + this.#context.config.databaseWaitMs + CHILD_MS;
    const timer = setInterval(() => {
      const given: GivenUp | undefined =
        stampOf(filesOf(this.#findSources())) === seen
          ? performance.now() < endsAt
            ? undefined
            : 'late'
          : 'saved';
      if (given !== undefined) giveUp.abort(given);
    }, LOOK_MS);
    try {
      return await work(giveUp.signal);
    } finally {
      clearInterval(timer);
    }
  }

  /** Applies the current profiles, in a process with the current plugins. */
  async #applyProfiles(giveUp: AbortSignal): Promise<void> {
    const files = profileFiles(this.#sources);
    if (files.length === 0) return;
    let answer: unknown;
    const child = startChild(
      [
        ...['profiles', 'apply', '--json', '--project', this.#flags.project ?? this.#context.config.project],
        ...['-f', ...files.map(here), ...this.#pluginArgs()],
      ],
      {
        env: this.#env,
        onLine: (from, line) => {
          const what = parseSaid(line);
          if (what?.kind === 'failure') sayFailure(this.#context, 'profiles.failed', what.failure);
          else if (from === 'stdout' && line.startsWith('{"profiles":')) answer = JSON.parse(line);
        },
      },
    );
    const abort = (): void => void child.stop(0, GIVEN_UP_MS);
    const signal = AbortSignal.any([this.#context.stop, giveUp]);
    signal.addEventListener('abort', abort, { once: true });
    if (signal.aborted) abort();
    await child.exited;
    signal.removeEventListener('abort', abort);
    if (answer === undefined) {
      this.#sayLate(giveUp, 'profiles.late', 'the profiles were not applied in time');
      if (!signal.aborted || giveUp.reason === 'late') this.#context.note('the profiles stay as they were');
      return;
    }
    const { profiles } = answer as {
      profiles: readonly Pick<AppliedProfile, 'name' | 'version' | 'changed' | 'findings'>[];
    };
    const changed = profiles.filter((profile) => profile.changed);
    const names = changed.map(({ name, version }) => `${name}@${version}`).join(', ');
    this.#say(
      'profiles.applied',
      { profiles },
      `${countOf(profiles.length, 'profile')} from ${countOf(files.length, 'file')}; ${changed.length === 0 ? 'none has changed' : `new: ${names}`}`,
    );
    for (const profile of profiles)
      for (const [index, line] of describeFindings(profile).entries())
        this.#say('profiles.finding', { profile: profile.name, ...profile.findings?.[index] }, line);
  }

  #sayLate({ reason }: AbortSignal, event: string, words: string): void {
    if (reason === ('late' satisfies GivenUp)) this.#say(event, {}, words);
  }

  async #exchangeWorker(giveUp: AbortSignal): Promise<boolean> {
    if (await this.#worker.exchange(giveUp)) return true;
    // A saved change is processed at once.
    if (this.#context.stop.aborted || giveUp.reason === ('saved' satisfies GivenUp)) return false;
    this.#sayLate(giveUp, 'worker.late', 'the worker did not get ready in time');
    const place = await findSyntaxError(codeFiles(this.#sources));
    if (place !== undefined) this.#say('plugin.syntax_error', { place }, place);
    this.#context.note(
      this.#worker.isRunning
        ? 'the previous worker continues; save again when the error is fixed'
        : 'no worker runs; save again when the error is fixed',
    );
    return false;
  }

  /** Runs until asked to stop. */
  async run(feed: ActivityFeed): Promise<void> {
    await feed.readNew();
    await Promise.all([this.#reload(), this.#tell(feed)]);
  }

  async #reload(): Promise<void> {
    const { stop } = this.#context;
    let profileStamp: string | undefined;
    let codeStamp: string | undefined;
    let isCodeGood = false;
    while (!stop.aborted) {
      this.#sources = this.#findSources();
      const profiles = stampOf(profileFiles(this.#sources));
      const code = stampOf(codeFiles(this.#sources));
      const hasNewCode = code !== codeStamp;
      // The plugins decide which names a profile may use.
      const hasNewProfiles = profiles !== profileStamp || hasNewCode;
      profileStamp = profiles;
      codeStamp = code;
      if (hasNewCode) isCodeGood = await this.#watching(codeFiles, (giveUp) => this.#exchangeWorker(giveUp));
      // Profiles cannot be checked while the code cannot be loaded; they are checked after the code is fixed.
      if (hasNewProfiles && isCodeGood && !stop.aborted)
        await this.#watching(
          (sources) => [...codeFiles(sources), ...profileFiles(sources)],
          (giveUp) => this.#applyProfiles(giveUp),
        );
      await delay(LOOK_MS, undefined, { signal: stop }).catch(() => undefined);
    }
  }

  async #tell(feed: ActivityFeed): Promise<void> {
    const { stop, isJson } = this.#context;
    let isLost = false;
    while (!stop.aborted) {
      try {
        for (const activity of await feed.readNew()) {
          if (isJson) this.#context.answer(activity, () => '');
          else writeOutput(`${formatActivity(activity, process.stdout.columns || 120)}\n`);
        }
        isLost = false;
      } catch (error) {
        // Waits for a server that restarts, as workers do; the error is reported once.
        if (!isLost) reportError(error, { isJson, withStack: false });
        isLost = true;
      }
      await delay(LOOK_MS, undefined, { signal: stop }).catch(() => undefined);
    }
  }

  close(): Promise<void> {
    return this.#worker.stop();
  }
}

/**
 * `boxcar dev`: runs the database and a worker, with the profiles and plugins of the working folder, and reloads them when they change.
 */
async function runDev(context: Context, flags: DevFlags): Promise<number> {
  const { config, stop } = context;
  const findNow = findSources(process.cwd(), {
    profiles: flags.profiles,
    plugins: flags.plugin ?? config.plugins,
  });
  // From here on the command listens for the abort, so that Ctrl-C never leaves a server running.
  const ignore = (): void => undefined;
  stop.addEventListener('abort', ignore);
  if (flags.reset === true) await resetData(context, flags);
  const log = context.log('warn');
  await using server = await openServer({ ...config, embeddedKeepMs: undefined }, log);
  await migrateServer(server, { waitMs: config.databaseWaitMs, log });
  const pool = createPool({
    connectionString: server.databaseUrl,
    max: 2,
    applicationName: 'boxcar-dev',
    isPooled: server.directUrl !== server.databaseUrl,
  });
  const dev = new DevServer(context, {
    flags,
    findSources: findNow,
    env: { DATABASE_URL: server.databaseUrl, DATABASE_DIRECT_URL: server.directUrl, BOXCAR_PLUGINS: '' },
  });
  try {
    const where = server.isEmbedded ? `embedded Postgres in ${defaultDataDir()}` : 'DATABASE_URL';
    const sources = findNow();
    const named = (paths: readonly string[], what: string, usual: string): string =>
      `${what} ${paths.length === 0 ? `(none yet; ${usual} will do)` : paths.map(here).join(', ')}`;
    context.note(`database: ${where}; queues on ${config.redisUrl === undefined ? 'Postgres' : 'Redis'}`);
    context.note(
      `watching ${named(sources.profiles, 'profiles', 'profiles.yaml')}; ${named(sources.plugins, 'plugins', 'plugin.js')}; Ctrl-C stops`,
    );
    if (context.isJson)
      context.answer({ event: 'dev.started', is_embedded: server.isEmbedded, ...sources }, () => '');
    await dev.run(new ActivityFeed(pool));
  } finally {
    context.note('stopping');
    await dev.close();
    await endPool(pool);
  }
  stop.removeEventListener('abort', ignore);
  if (context.isJson) context.answer({ event: 'dev.stopped' }, () => '');
  return EXIT.success;
}

export function addDev(program: Command, run: Run): void {
  program
    .command('dev')
    .option(
      '--profiles <path>',
      'a file or folder with profiles, repeatable (profiles.yaml, profiles/)',
      collect(notBlank),
    )
    .option('--plugin <file>', 'a module with handlers and tools, repeatable (plugin.js)', collect(notBlank))
    .option('--project <name>', 'project of the profiles, by id or name')
    .option('--concurrency <n>', 'turns at once', flag(settingSchemas.concurrency))
    .option('--reset', 'first delete the data of the embedded Postgres, after a question')
    .option('--yes', 'with --reset: do not ask')
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'When you save a profile, a new version of it is made. When you save a plugin or code next to it, a new worker starts and the previous worker finishes. A file that cannot be loaded is reported with its line, and the previous version stays in use.',
        examples: [
          'boxcar dev',
          'boxcar dev --profiles agents/ --plugin ./tools.js',
          'boxcar dev --reset --yes',
          'boxcar submit launch_principal --arg profile_name=writer \\',
          "      --arg instruction='A haiku'         # in another terminal",
        ],
      }),
    )
    .action((flags: DevFlags) => run((context) => runDev(context, flags)));
}
