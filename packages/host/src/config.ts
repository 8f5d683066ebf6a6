/** The settings of a process, from its environment. They are read once and frozen; all problems are reported together. */
import {
  errorText,
  findingsOf,
  findingWords,
  KernelError,
  MAX_DURATION_MS,
  safeParse,
} from '@boxcar/kernel/base';
import {
  isPlainName,
  PLAIN_NAME,
  type PriceTable,
  pricesSchema,
  readRedisUrl,
  withClusterPassword,
} from '@boxcar/kernel/settings';
import { type ModelSettings, modelEnvironment, toModelSettings } from '@boxcar/llm/settings';
import type { PackLimits, WebhookSettings } from '@boxcar/runtime';
import type { LogLevel } from '@boxcar/runtime/log';
import { z } from 'zod';
import { type Environment, processEnvironment } from './environment.js';
import { isIssuerUrl } from './issuer-url.js';
import { readSettingsFile } from './read-file.js';

export { isIssuerUrl, isLoopbackUrl } from './issuer-url.js';

export interface Config {
  /** Undefined: the embedded Postgres of this account. */
  readonly databaseUrl: string | undefined;
  /** A connection without a transaction pooler. Default: `databaseUrl`. */
  readonly directUrl: string | undefined;
  /** A standby of `databaseUrl`, for lists and reports. Undefined: all reads use `databaseUrl`. */
  readonly readUrl: string | undefined;
  /** Undefined: the queues are in the database. */
  readonly redisUrl: string | undefined;
  /** Port of the embedded Postgres. Default: the port of the last start, otherwise any free port. */
  readonly embeddedPort: number | undefined;
  /**
   * How long the embedded Postgres is kept after the last command. Undefined: commands keep it for a minute, a library does not keep it.
   */
  readonly embeddedKeepMs: number | undefined;
  /** Undefined: `info` for a worker, `warn` for everything else. */
  readonly logLevel: LogLevel | undefined;
  readonly project: string;
  readonly plugins: readonly string[];
  /** The maximum number of concurrent turns. */
  readonly concurrency: number;
  readonly workerTargets: readonly string[];
  readonly leaseMs: number;
  /** How long a worker may take to stop, running turns included. */
  readonly graceMs: number;
  /** The time limit for the handler of a primitive that is called outside of a turn. */
  readonly handlerTimeoutMs: number;
  /** How long a request waits for its approval; null: the approval gate is off. */
  readonly approvalMs: number | null;
  /** The model that summarizes sessions that are handed on. Undefined: sessions are not summarized. */
  readonly summaryModel: string | undefined;
  /** How long a starting process waits for a database that cannot be reached. */
  readonly databaseWaitMs: number;
  /** Keys and addresses of the model providers. A turn that needs a missing setting fails with an error that names it. */
  readonly models: ModelSettings;
  /** Size limits for input; a missing limit has its default. */
  readonly limits: PackLimits;
  /** The file of the policy for tool calls and handoffs; undefined: tool calls and handoffs have no policy. */
  readonly policyFile: string | undefined;
  /** The name of this installation in policies. */
  readonly environment: string;
  /** Whether models and doors may hand off. */
  readonly handoffEnabled: boolean;
  /** The file of the agents and models of other platforms; undefined: no targets. */
  readonly targetsFile: string | undefined;
  /** The file of the MCP servers whose tools profiles may name; undefined: no servers. */
  readonly mcpServersFile: string | undefined;
  /** The issuer of tokens for `/mcp`, which are accepted in addition to keys; undefined: only keys are accepted. */
  readonly oauth: { readonly issuer: string; readonly audience: string | undefined } | undefined;
  /** How callbacks are signed and sent; undefined: callbacks are off. */
  readonly webhooks: WebhookSettings | undefined;
  /** The key for commands that ask a server. Undefined: the key that the server has left on this machine. */
  readonly apiKey: string | undefined;
  /** Prices of models, which override the built-in prices. */
  readonly prices: PriceTable | undefined;
}

const urlOf = (kind: string, protocols: readonly string[]) =>
  z
    .string()
    // The message does not repeat the value, which may contain a password.
    .refine(
      (text) => URL.canParse(text) && protocols.includes(new URL(text).protocol),
      `must be a ${kind} URL`,
    );

/** The message does not repeat the value, which may contain a password. */
const redisUrl = z.string().superRefine((text, context) => {
  const { problem } = readRedisUrl(text);
  if (problem !== undefined) context.addIssue({ code: 'custom', message: problem });
});

const wholeNumber = (min: number, max: number) => {
  const message = `must be a whole number from ${min} to ${max}`;
  return z
    .string()
    .regex(/^\d+$/, message)
    .transform(Number)
    .refine((value) => value >= min && value <= max, message);
};

const listOf = <T extends z.ZodType<string, string>>(item: T) =>
  z
    .string()
    .transform((text) => text.split(',').map((part) => part.trim()))
    .pipe(z.array(item));

const AGE_MS = new Map([
  ['h', 3_600_000],
  ['d', 86_400_000],
  ['w', 7 * 86_400_000],
]);

/** The schemas of single settings, for flags that override them. */
export const settingSchemas = {
  concurrency: wholeNumber(1, 1_000),
  leaseMs: wholeNumber(500, 600_000),
  graceMs: wholeNumber(0, 3_600_000),
  handlerTimeoutMs: wholeNumber(1, MAX_DURATION_MS),
  databaseWait: wholeNumber(0, 3_600),
  workerTarget: z
    .string()
    .regex(
      /^[a-z0-9_-]{0,64}$/,
      'must have lower-case letters, digits, - and _ only; empty = the default pool',
    ),
  seconds: z
    .string()
    .regex(/^\d+(\.\d+)?$/, 'must be a number of seconds')
    .transform(Number)
    .refine(
      (value) => value > 0 && value <= MAX_DURATION_MS / 1000,
      'must be more than 0 and at most 2592000 seconds (30 days)',
    ),
  minutes: z
    .string()
    .regex(/^\d+(\.\d+)?$/, 'must be a number of minutes')
    .transform(Number)
    .refine(
      (value) => value > 0 && value <= 43_200,
      'must be more than 0 and at most 43200 minutes (30 days)',
    ),
  yesNo: z.enum(['true', 'false'], 'must be true or false').transform((word) => word === 'true'),
  /** The receiver of the number checks its range. */
  number: z
    .string()
    .regex(/^-?\d+(\.\d+)?$/, 'must be a number')
    .transform(Number),
  /** At most 30 days. */
  graceSeconds: wholeNumber(0, 2_592_000),
  /** 0: any free port. */
  port: wholeNumber(0, 65_535),
  pid: wholeNumber(1, 2 ** 31),
  turns: wholeNumber(1, 10_000_000),
  position: wholeNumber(0, 1_000_000_000),
  pageSize: wholeNumber(1, 1_000),
  tokens: wholeNumber(1, 1_000_000_000),
  age: z
    .string()
    .regex(/^[1-9]\d{0,4}[hdw]$/, 'must be a number of hours, days or weeks, such as 12h, 30d or 8w')
    .transform((text) => Number(text.slice(0, -1)) * (AGE_MS.get(text.slice(-1)) ?? 0)),
} as const;

/** A JSON file, read together with the environment that names it. */
const pricesFile = z.string().transform((path, context): PriceTable => {
  const refuse = (message: string): never => {
    context.addIssue({ code: 'custom', message });
    return z.NEVER;
  };
  let value: unknown;
  try {
    value = JSON.parse(readSettingsFile(path).toString('utf8'));
  } catch (error) {
    return refuse(`cannot be read as JSON: ${errorText(error)}`);
  }
  const parsed = safeParse(pricesSchema, value);
  if (parsed.success) return parsed.data as PriceTable;
  return refuse(findingWords(findingsOf(parsed.error)).replace(/\.$/, ''));
});

/** Base64 after its prefix, or any text. The message does not repeat the value. */
const webhookSecret = z
  .string()
  .trim()
  .refine(
    (text) =>
      !text.startsWith('whsec_') ||
      text.split(/ +/).every((one) => /^whsec_[A-Za-z0-9+/]{2,}={0,2}$/.test(one)),
    'must be base64 after whsec_',
  );

const environmentSchema = z
  .object({
    DATABASE_URL: urlOf('postgres://', ['postgres:', 'postgresql:']).optional(),
    DATABASE_DIRECT_URL: urlOf('postgres://', ['postgres:', 'postgresql:']).optional(),
    PGPASSWORD: z.string().optional(),
    DATABASE_READ_URL: urlOf('postgres://', ['postgres:', 'postgresql:']).optional(),
    REDIS_URL: redisUrl.optional(),
    REDIS_PASSWORD: z.string().optional(),
    BOXCAR_POSTGRES_PORT: wholeNumber(1, 65_535).optional(),
    BOXCAR_POSTGRES_KEEP_SECONDS: wholeNumber(0, 86_400).optional(),
    BOXCAR_LOG_LEVEL: z
      .enum(['debug', 'info', 'warn', 'error'], 'must be debug, info, warn or error')
      .optional(),
    BOXCAR_PROJECT: z.string().trim().min(1).max(200).refine(isPlainName, PLAIN_NAME).default('default'),
    BOXCAR_POLICY_FILE: z.string().optional(),
    BOXCAR_ENVIRONMENT: z
      .string()
      .trim()
      .min(1)
      .max(200)
      .refine(isPlainName, PLAIN_NAME)
      .default('production'),
    BOXCAR_HANDOFF_ENABLED: settingSchemas.yesNo.optional(),
    AGDD_HANDOFF_ENABLED: settingSchemas.yesNo.optional(),
    BOXCAR_TARGETS_FILE: z.string().optional(),
    BOXCAR_MCP_SERVERS: z.string().optional(),
    BOXCAR_OAUTH_ISSUER: z
      .string()
      .trim()
      .refine(
        isIssuerUrl,
        'must be an https:// URL (http:// on this machine), without a query and a fragment',
      )
      .optional(),
    BOXCAR_OAUTH_AUDIENCE: z.string().trim().min(1).max(2_000).optional(),
    BOXCAR_WEBHOOK_SECRET: webhookSecret.optional(),
    BOXCAR_WEBHOOK_ALLOW_PRIVATE: listOf(
      z.string().min(1, 'must be hosts or networks with a comma between them'),
    ).default([]),
    BOXCAR_WEBHOOK_RETRY_SECONDS: settingSchemas.seconds.default(5),
    BOXCAR_SUMMARY_MODEL: z.string().trim().min(1).max(200).optional(),
    BOXCAR_PLUGINS: listOf(z.string().min(1, 'must be paths with a comma between them')).default([]),
    BOXCAR_CONCURRENCY: settingSchemas.concurrency.default(10),
    BOXCAR_WORKER_TARGETS: listOf(settingSchemas.workerTarget).default(['']),
    BOXCAR_LEASE_MS: settingSchemas.leaseMs.default(10_000),
    BOXCAR_GRACE_MS: settingSchemas.graceMs.default(10_000),
    BOXCAR_HANDLER_TIMEOUT_MS: settingSchemas.handlerTimeoutMs.default(60_000),
    BOXCAR_APPROVAL_MINUTES: settingSchemas.minutes.default(30),
    BOXCAR_APPROVALS_ENABLED: settingSchemas.yesNo.optional(),
    AGDD_APPROVALS_ENABLED: settingSchemas.yesNo.optional(),
    BOXCAR_API_KEY: z.string().trim().optional(),
    BOXCAR_DATABASE_WAIT_SECONDS: settingSchemas.databaseWait.default(30),
    ...modelEnvironment,
    BOXCAR_PRICES: pricesFile.optional(),
    BOXCAR_MAX_CARD_BYTES: wholeNumber(1_000, 100_000_000).optional(),
    BOXCAR_MAX_INSTRUCTION_BYTES: wholeNumber(1_000, 100_000_000).optional(),
    BOXCAR_MAX_CONTEXT_CARDS: wholeNumber(1, 1_000_000).optional(),
    BOXCAR_MAX_BOX_BYTES: wholeNumber(1_000, 1_000_000_000).optional(),
  })
  .refine((env) => env.DATABASE_DIRECT_URL === undefined || env.DATABASE_URL !== undefined, {
    path: ['DATABASE_DIRECT_URL'],
    message: 'needs DATABASE_URL as well',
    // Reported together with all other problems.
    when: () => true,
  })
  .refine((env) => env.DATABASE_READ_URL === undefined || env.DATABASE_URL !== undefined, {
    path: ['DATABASE_READ_URL'],
    message: 'needs DATABASE_URL as well',
    when: () => true,
  })
  .refine((env) => env.BOXCAR_OAUTH_AUDIENCE === undefined || env.BOXCAR_OAUTH_ISSUER !== undefined, {
    path: ['BOXCAR_OAUTH_AUDIENCE'],
    message: 'needs BOXCAR_OAUTH_ISSUER as well',
    when: () => true,
  });

/** Adds the password, which may contain any characters, to a URL without a password. */
function withPassword(url: string | undefined, password: string | undefined): string | undefined {
  if (url === undefined || password === undefined) return url;
  if (!URL.canParse(url)) return withClusterPassword(url, password);
  const parsed = new URL(url);
  if (parsed.password !== '') return url;
  parsed.password = encodeURIComponent(password);
  return parsed.href;
}

const isSet = (entry: [string, string | undefined]): boolean => entry[1] !== undefined && entry[1] !== '';

/**
 * Reads the environment. An empty variable counts as unset.
 *
 * @throws KernelError `bad_config` naming every wrong variable.
 */
export function parseConfig(env?: Environment): Config {
  const parsed = safeParse(
    environmentSchema,
    Object.fromEntries(Object.entries(env ?? processEnvironment()).filter(isSet)),
  );
  if (!parsed.success) {
    const issues = findingsOf(parsed.error).map(({ path, message }) => ({
      path: path.split('.', 1)[0] ?? '',
      message,
    }));
    throw new KernelError('bad_config', {
      message: `${issues.map(({ path, message }) => `${path}: ${message}`).join('; ')}.`,
      details: { issues },
    });
  }
  const { data } = parsed;
  return Object.freeze({
    databaseUrl: withPassword(data.DATABASE_URL, data.PGPASSWORD),
    directUrl: withPassword(data.DATABASE_DIRECT_URL, data.PGPASSWORD),
    readUrl: withPassword(data.DATABASE_READ_URL, data.PGPASSWORD),
    redisUrl: withPassword(data.REDIS_URL, data.REDIS_PASSWORD),
    embeddedPort: data.BOXCAR_POSTGRES_PORT,
    embeddedKeepMs:
      data.BOXCAR_POSTGRES_KEEP_SECONDS === undefined ? undefined : data.BOXCAR_POSTGRES_KEEP_SECONDS * 1000,
    logLevel: data.BOXCAR_LOG_LEVEL,
    project: data.BOXCAR_PROJECT,
    policyFile: data.BOXCAR_POLICY_FILE,
    environment: data.BOXCAR_ENVIRONMENT,
    handoffEnabled: data.BOXCAR_HANDOFF_ENABLED ?? data.AGDD_HANDOFF_ENABLED ?? false,
    targetsFile: data.BOXCAR_TARGETS_FILE,
    mcpServersFile: data.BOXCAR_MCP_SERVERS,
    oauth:
      data.BOXCAR_OAUTH_ISSUER === undefined
        ? undefined
        : Object.freeze({ issuer: data.BOXCAR_OAUTH_ISSUER, audience: data.BOXCAR_OAUTH_AUDIENCE }),
    webhooks:
      data.BOXCAR_WEBHOOK_SECRET === undefined
        ? undefined
        : Object.freeze({
            secret: data.BOXCAR_WEBHOOK_SECRET,
            allowPrivate: Object.freeze(data.BOXCAR_WEBHOOK_ALLOW_PRIVATE),
            retrySeconds: data.BOXCAR_WEBHOOK_RETRY_SECONDS,
          }),
    summaryModel: data.BOXCAR_SUMMARY_MODEL,
    plugins: Object.freeze(data.BOXCAR_PLUGINS),
    concurrency: data.BOXCAR_CONCURRENCY,
    workerTargets: Object.freeze(data.BOXCAR_WORKER_TARGETS),
    leaseMs: data.BOXCAR_LEASE_MS,
    graceMs: data.BOXCAR_GRACE_MS,
    handlerTimeoutMs: data.BOXCAR_HANDLER_TIMEOUT_MS,
    approvalMs:
      (data.BOXCAR_APPROVALS_ENABLED ?? data.AGDD_APPROVALS_ENABLED ?? true)
        ? data.BOXCAR_APPROVAL_MINUTES * 60_000
        : null,
    databaseWaitMs: data.BOXCAR_DATABASE_WAIT_SECONDS * 1000,
    models: Object.freeze(toModelSettings(data)),
    apiKey: data.BOXCAR_API_KEY,
    prices: data.BOXCAR_PRICES,
    limits: Object.freeze({
      ...(data.BOXCAR_MAX_CARD_BYTES === undefined ? {} : { maxCardBytes: data.BOXCAR_MAX_CARD_BYTES }),
      ...(data.BOXCAR_MAX_INSTRUCTION_BYTES === undefined
        ? {}
        : { maxInstructionBytes: data.BOXCAR_MAX_INSTRUCTION_BYTES }),
      ...(data.BOXCAR_MAX_CONTEXT_CARDS === undefined
        ? {}
        : { maxContextCards: data.BOXCAR_MAX_CONTEXT_CARDS }),
      ...(data.BOXCAR_MAX_BOX_BYTES === undefined ? {} : { maxBoxBytes: data.BOXCAR_MAX_BOX_BYTES }),
    }),
  });
}
