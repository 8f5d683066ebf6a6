/**
 * The stack of a process: the configured or the embedded server, its schema, pool, queues and models. Packages that only some cases need
 * are loaded by those cases, because most commands only read rows, and a health check starts every few seconds.
 */

import type { Targets } from '@boxcar/adapters/targets';
import type { Model } from '@boxcar/kernel';
import { errorText, KernelError } from '@boxcar/kernel/base';
import type { ModelRouterOptions } from '@boxcar/llm';
import type { McpServers } from '@boxcar/mcp-client';
import type { PermissionEvaluator } from '@boxcar/policy';
import type { OpenRuntime, WebhookSettings } from '@boxcar/runtime';
import { type Log, silentLog } from '@boxcar/runtime/log';
import type { MigrateResult } from '@boxcar/store';
import { checkSchemaVersion, type createPool } from '@boxcar/store/health';
import type { Config } from './config.js';
import { type DatabaseWait, untilReachable } from './database-wait.js';
import { processEnvironment } from './environment.js';
import { strayCalls } from './stray-calls.js';

export interface Server extends AsyncDisposable {
  readonly databaseUrl: string;
  readonly directUrl: string;
  /** True when the embedded Postgres was started or joined for this process. */
  readonly isEmbedded: boolean;
  close(): Promise<void>;
}

/** The settings that say which server to use. */
export type ServerConfig = Pick<Config, 'databaseUrl' | 'directUrl' | 'embeddedPort' | 'embeddedKeepMs'>;

/**
 * The Postgres of `DATABASE_URL`; without that setting the embedded one, which is started or joined. Runs no migrations.
 *
 * @throws KernelError `port_in_use`, `bad_config` or `database_unavailable` when the embedded one does not start.
 */
export async function openServer(config: ServerConfig, log: Log): Promise<Server> {
  if (config.databaseUrl !== undefined) {
    const close = (): Promise<void> => Promise.resolve();
    return {
      databaseUrl: config.databaseUrl,
      directUrl: config.directUrl ?? config.databaseUrl,
      isEmbedded: false,
      close,
      [Symbol.asyncDispose]: close,
    };
  }
  const { startEmbeddedPostgres } = await import('@boxcar/embedded');
  const embedded = await startEmbeddedPostgres({
    log: (line, level) => log(level, 'database.embedded', { message: line }),
    port: config.embeddedPort,
    keepMs: config.embeddedKeepMs,
  });
  const close = (): Promise<void> => embedded.stop();
  return {
    databaseUrl: embedded.url,
    directUrl: embedded.directUrl,
    isEmbedded: true,
    close,
    [Symbol.asyncDispose]: close,
  };
}

/** Migrates the schemas of Boxcar and BullMQ to the newest version. A repeated run has no effect. */
export async function migrateServer(
  server: Pick<Server, 'directUrl'>,
  wait: DatabaseWait,
): Promise<MigrateResult> {
  const { log } = wait;
  const { migrate } = await import('@boxcar/store');
  const { migrateQueues } = await import('@boxcar/runtime');
  const result = await untilReachable(
    () =>
      migrate(server.directUrl, {
        log: (line) => log('info', 'database.migrate', { message: line }),
      }),
    wait,
  );
  await untilReachable(() => migrateQueues(server.directUrl), wait);
  return result;
}

/** @throws KernelError `schema_outdated` naming the missing migrations; its advice is `boxcar migrate`. */
async function checkSchema(
  pool: ReturnType<typeof createPool>,
  config: Pick<Config, 'redisUrl'>,
): Promise<void> {
  await checkSchemaVersion(pool);
  const { hasQueueTables } = await import('@boxcar/store');
  if (config.redisUrl === undefined && !(await hasQueueTables(pool))) {
    throw new KernelError('schema_outdated', { message: 'The database has no queue tables yet.' });
  }
}

/**
 * The policy of `BOXCAR_POLICY_FILE`; undefined without it.
 *
 * @throws KernelError `policy_invalid`, `bad_config`: a program does not start with a policy that it cannot read.
 */
async function openPolicy(config: Config, log: Log): Promise<PermissionEvaluator | undefined> {
  const { policyFile: file, environment } = config;
  if (file === undefined) return undefined;
  const { PermissionEvaluator } = await import('@boxcar/policy');
  return new PermissionEvaluator({
    file,
    environment,
    onProblem: (problem) => log('error', 'policy.broken', { file, error: problem.message }),
  });
}

/** The policy that the program needs. Null when the file of the policy is not valid and the program can work without it. */
async function policyOf(
  config: Config,
  { policy, log }: { readonly policy: StackOptions['policy']; readonly log: Log },
): Promise<PermissionEvaluator | undefined | null> {
  if (policy === false) return undefined;
  try {
    return await openPolicy(config, log);
  } catch (error) {
    if (policy === undefined) throw error;
    log('warn', 'policy.broken', { file: config.policyFile, error: errorText(error) });
    return null;
  }
}

/**
 * The targets of `BOXCAR_TARGETS_FILE`; undefined without it. The first handoff that needs an adapter loads it.
 *
 * @throws KernelError `bad_config`: a program does not start with targets that it cannot read.
 */
async function openTargets({ targetsFile }: Pick<Config, 'targetsFile'>): Promise<Targets | undefined> {
  if (targetsFile === undefined) return undefined;
  const { readTargetsFile } = await import('@boxcar/adapters/targets');
  return readTargetsFile(targetsFile);
}

/**
 * The servers of `BOXCAR_MCP_SERVERS`; undefined without it. A server is started when a turn first needs it.
 *
 * @throws KernelError `bad_config`: a program does not start with servers that it cannot read.
 */
async function openToolServers({ mcpServersFile }: Config, log: Log): Promise<McpServers | undefined> {
  if (mcpServersFile === undefined) return undefined;
  const { McpServers, readServersFile } = await import('@boxcar/mcp-client');
  return new McpServers(readServersFile(mcpServersFile), { env: processEnvironment(), log });
}

/** @throws KernelError `bad_config`: a program does not start when the exceptions for private addresses are not valid. */
async function openWebhooks({ webhooks }: Pick<Config, 'webhooks'>): Promise<WebhookSettings | undefined> {
  if (webhooks?.allowPrivate === undefined || webhooks.allowPrivate.length === 0) return webhooks;
  const { AddressRules } = await import('@boxcar/adapters/wire');
  new AddressRules(webhooks.allowPrivate, 'BOXCAR_WEBHOOK_ALLOW_PRIVATE');
  return webhooks;
}

export interface StackOptions {
  readonly log?: Log;
  /** Replaces the router over `models`. */
  readonly model?: Model;
  /** Models in addition to `scripted`, and the functions of `scripted:<name>`. */
  readonly models?: ModelRouterOptions;
  /**
   * False: the program runs no calls, so it works without the policy, and also when the policy file is not valid. `decides`: the same, but
   * the program asks the policy again before it begins an approved handoff. When the file is not valid, it leaves such handoffs to
   * workers.
   */
  readonly policy?: false | 'decides';
  /** Migrates a server that was given by URL too. The embedded server is always migrated. */
  readonly migrate?: boolean;
}

export interface Stack extends OpenRuntime {
  readonly databaseUrl: string;
  readonly directUrl: string;
  readonly isEmbedded: boolean;
}

/**
 * Opens everything that a runtime needs, according to the configuration. Closing the stack also leaves the embedded Postgres. Does not
 * contact Redis: without Redis, work continues from the rows.
 *
 * @throws KernelError `schema_outdated` when a server that is not embedded lacks a migration, and the cause when the database cannot be
 * reached within the wait.
 */
export async function openStack(config: Config, options: StackOptions = {}): Promise<Stack> {
  let log = options.log ?? silentLog;
  const { failStrayCall, openRuntime } = await import('@boxcar/runtime');
  const { createModelRouter } = await import('@boxcar/llm');
  strayCalls.fail = failStrayCall;
  const server = await openServer(config, log);
  let opened: OpenRuntime | undefined;
  let toolServers: McpServers | undefined;
  const end = async (): Promise<void> => {
    try {
      await opened?.close();
      await toolServers?.close();
    } finally {
      // Connections may report errors while the server stops. Such errors are not logged.
      log = silentLog;
      await server.close();
    }
  };
  let closing: Promise<void> | undefined;
  const close = (): Promise<void> => {
    closing ??= end();
    return closing;
  };
  try {
    const wait = { waitMs: config.databaseWaitMs, log };
    if (server.isEmbedded || options.migrate === true) await migrateServer(server, wait);
    const policy = await policyOf(config, { policy: options.policy, log: (...entry) => log(...entry) });
    toolServers = await openToolServers(config, (...entry) => log(...entry));
    opened = openRuntime({
      toolServers,
      databaseUrl: server.databaseUrl,
      directUrl: server.directUrl,
      readUrl: config.readUrl,
      redisUrl: config.redisUrl,
      limits: config.limits,
      prices: config.prices,
      handlerTimeoutMs: config.handlerTimeoutMs,
      permissionEvaluator: policy ?? undefined,
      approvalMs: config.approvalMs,
      handoffs: {
        enabled: config.handoffEnabled,
        targets: await openTargets(config),
        beginsApproved: policy !== null,
        webhooks: await openWebhooks(config),
      },
      summaryModel: config.summaryModel,
      model: options.model ?? createModelRouter({ providers: config.models, ...options.models }),
      log: (...entry) => log(...entry),
    });
    const { runtime, serveQueueDoor, serveToolResultsDoor } = opened;
    await untilReachable(() => checkSchema(runtime.pool, config), wait);
    return {
      runtime,
      serveQueueDoor,
      serveToolResultsDoor,
      databaseUrl: server.databaseUrl,
      directUrl: server.directUrl,
      isEmbedded: server.isEmbedded,
      close,
      [Symbol.asyncDispose]: close,
    };
  } catch (error) {
    await close();
    throw error;
  }
}
