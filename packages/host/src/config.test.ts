import { KernelError, readRedisUrl } from '@boxcar/kernel';
import { Redis } from 'ioredis';
import { describe, expect, it } from 'vitest';
import { parseConfig, settingSchemas } from './config.js';

const problemsOf = (env: Record<string, string>): unknown => {
  try {
    parseConfig(env);
    return [];
  } catch (error) {
    if (!(error instanceof KernelError)) throw error;
    expect(error.code).toBe('bad_config');
    return error.details.issues;
  }
};

describe('a duration on the command line', () => {
  it.each(['0', '0.0', '2592000.5', '1e3', '-1', 'Infinity', 'NaN'])('of %s seconds is refused', (text) => {
    expect(settingSchemas.seconds.safeParse(text).success).toBe(false);
  });

  it.each(['0.5', '1', '2592000'])('of %s seconds is accepted', (text) => {
    expect(settingSchemas.seconds.parse(text)).toBe(Number(text));
  });
});

describe('the configuration', () => {
  it('puts passwords with any characters into URLs that have none', () => {
    const password = 'a@b/c#d?e:f%41 ü';
    const { databaseUrl, directUrl, redisUrl } = parseConfig({
      DATABASE_URL: 'postgres://u@h/d?sslmode=disable',
      DATABASE_DIRECT_URL: 'postgres://u:own@h/d',
      PGPASSWORD: password,
      REDIS_URL: 'redis://h:1/0',
      REDIS_PASSWORD: password,
    });
    expect(databaseUrl).toMatch(/^postgres:\/\/u:[^@/]+@h\/d\?sslmode=disable$/);
    expect(decodeURIComponent(new URL(databaseUrl ?? '').password)).toBe(password);
    expect(directUrl).toBe('postgres://u:own@h/d');
    const redis = new Redis(redisUrl ?? '', { lazyConnect: true });
    expect(redis.options).toMatchObject({ host: 'h', port: 1, db: 0, password });
    redis.disconnect();
  });

  it.each(['redis+cluster://h:1/x', 'redis+cluster://h:1,i:2/x'])('puts the password into %s', (url) => {
    const password = 'a@b/c#d?e:f%41 ü,';
    const { redisUrl = '' } = parseConfig({ REDIS_URL: url, REDIS_PASSWORD: password });
    expect(readRedisUrl(redisUrl)).toMatchObject({ address: { kind: 'cluster', password, name: 'x' } });
  });

  it('reports errors in the URL of a cluster', () => {
    expect(problemsOf({ REDIS_URL: 'redis+cluster://:secret@h:1,i/0' })).toEqual([
      { path: 'REDIS_URL', message: expect.stringMatching(/^(?!.*secret).*no numbered databases$/) },
    ]);
  });

  it('needs no variable: the default is the embedded Postgres, queues in it, and one default pool', () => {
    expect(parseConfig({ HOME: '/root' })).toEqual({
      databaseUrl: undefined,
      directUrl: undefined,
      readUrl: undefined,
      redisUrl: undefined,
      embeddedPort: undefined,
      logLevel: undefined,
      project: 'default',
      environment: 'production',
      plugins: [],
      concurrency: 10,
      workerTargets: [''],
      leaseMs: 10_000,
      graceMs: 10_000,
      handlerTimeoutMs: 60_000,
      approvalMs: 1_800_000,
      handoffEnabled: false,
      targetsFile: undefined,
      mcpServersFile: undefined,
      databaseWaitMs: 30_000,
      models: { openai: {}, anthropic: {}, google: {}, mistral: {}, deepseek: {}, openaiCompatible: {} },
      limits: {},
    });
  });

  it('reads every variable', () => {
    expect(
      parseConfig({
        DATABASE_URL: 'postgres://u:p@h/d',
        DATABASE_DIRECT_URL: 'postgresql:///d?host=/run/postgresql',
        DATABASE_READ_URL: 'postgres://u:p@standby/d',
        REDIS_URL: 'rediss://h:6380/2',
        BOXCAR_POSTGRES_PORT: '5432',
        BOXCAR_LOG_LEVEL: 'debug',
        BOXCAR_PROJECT: 'acme',
        BOXCAR_POLICY_FILE: '/etc/boxcar/policy.yaml',
        BOXCAR_ENVIRONMENT: ' staging ',
        BOXCAR_HANDOFF_ENABLED: 'true',
        BOXCAR_TARGETS_FILE: '/etc/boxcar/targets.yaml',
        BOXCAR_MCP_SERVERS: '/etc/boxcar/mcp.yaml',
        BOXCAR_OAUTH_ISSUER: ' https://id.example/tenant ',
        BOXCAR_OAUTH_AUDIENCE: 'boxcar',
        BOXCAR_WEBHOOK_SECRET: ' whsec_YQ== ',
        BOXCAR_WEBHOOK_ALLOW_PRIVATE: '10.0.0.0/8, hooks.internal',
        BOXCAR_WEBHOOK_RETRY_SECONDS: '0.5',
        BOXCAR_SUMMARY_MODEL: 'openai:small',
        BOXCAR_PLUGINS: './a.js, ./b.js',
        BOXCAR_CONCURRENCY: '50',
        BOXCAR_WORKER_TARGETS: ',gpu',
        BOXCAR_LEASE_MS: '5000',
        BOXCAR_GRACE_MS: '0',
        BOXCAR_HANDLER_TIMEOUT_MS: '90000',
        BOXCAR_APPROVAL_MINUTES: '0.5',
        AGDD_APPROVALS_ENABLED: 'true',
        BOXCAR_DATABASE_WAIT_SECONDS: '5',
        OPENAI_API_KEY: ' sk-1\n',
        ANTHROPIC_BASE_URL: 'http://localhost:1/v1/',
        GEMINI_API_KEY: 'g-1',
        MISTRAL_BASE_URL: 'http://localhost:3/v1',
        DEEPSEEK_API_KEY: 'd-1',
        OPENAI_COMPATIBLE_BASE_URL: 'http://localhost:2/v1',
        BOXCAR_MODEL_IDLE_SECONDS: '30',
        BOXCAR_MAX_CARD_BYTES: '2000',
        BOXCAR_MAX_INSTRUCTION_BYTES: '3000',
        BOXCAR_MAX_CONTEXT_CARDS: '4',
        BOXCAR_MAX_BOX_BYTES: '5000',
      }),
    ).toEqual({
      databaseUrl: 'postgres://u:p@h/d',
      directUrl: 'postgresql:///d?host=/run/postgresql',
      readUrl: 'postgres://u:p@standby/d',
      redisUrl: 'rediss://h:6380/2',
      embeddedPort: 5432,
      logLevel: 'debug',
      project: 'acme',
      policyFile: '/etc/boxcar/policy.yaml',
      environment: 'staging',
      plugins: ['./a.js', './b.js'],
      concurrency: 50,
      workerTargets: ['', 'gpu'],
      leaseMs: 5_000,
      graceMs: 0,
      handlerTimeoutMs: 90_000,
      approvalMs: 30_000,
      summaryModel: 'openai:small',
      handoffEnabled: true,
      targetsFile: '/etc/boxcar/targets.yaml',
      mcpServersFile: '/etc/boxcar/mcp.yaml',
      oauth: { issuer: 'https://id.example/tenant', audience: 'boxcar' },
      webhooks: {
        secret: 'whsec_YQ==',
        allowPrivate: ['10.0.0.0/8', 'hooks.internal'],
        retrySeconds: 0.5,
      },
      databaseWaitMs: 5_000,
      models: {
        openai: { apiKey: 'sk-1' },
        anthropic: { baseUrl: 'http://localhost:1/v1' },
        google: { apiKey: 'g-1' },
        mistral: { baseUrl: 'http://localhost:3/v1' },
        deepseek: { apiKey: 'd-1' },
        openaiCompatible: { baseUrl: 'http://localhost:2/v1' },
        idleTimeoutMs: 30_000,
      },
      limits: { maxCardBytes: 2_000, maxInstructionBytes: 3_000, maxContextCards: 4, maxBoxBytes: 5_000 },
    });
  });

  it('reports an invalid secret of callbacks without repeating it', () => {
    for (const [name, value] of [
      ['BOXCAR_WEBHOOK_SECRET', 'whsec_no/base64!'],
      ['BOXCAR_WEBHOOK_SECRET', 'whsec_A'],
      ['BOXCAR_WEBHOOK_RETRY_SECONDS', '0'],
      ['BOXCAR_WEBHOOK_ALLOW_PRIVATE', 'a,,b'],
    ] as const) {
      const parse = () => parseConfig({ BOXCAR_WEBHOOK_SECRET: 'x', [name]: value });
      expect(parse).toThrow(name);
      if (name === 'BOXCAR_WEBHOOK_SECRET') expect(parse).not.toThrow(value);
    }
    expect(parseConfig({ BOXCAR_WEBHOOK_RETRY_SECONDS: '1' }).webhooks).toBeUndefined();
  });

  it('has no gate when either variable says so, and the first variable has precedence', () => {
    const gateOf = (env: Record<string, string>) => parseConfig(env).approvalMs;
    expect(gateOf({ BOXCAR_APPROVALS_ENABLED: 'false' })).toBeNull();
    expect(gateOf({ AGDD_APPROVALS_ENABLED: 'false' })).toBeNull();
    expect(gateOf({ BOXCAR_APPROVALS_ENABLED: 'true', AGDD_APPROVALS_ENABLED: 'false' })).toBe(1_800_000);
    for (const wrong of [{ BOXCAR_APPROVALS_ENABLED: 'maybe' }, { BOXCAR_APPROVAL_MINUTES: '0' }])
      expect(() => parseConfig(wrong)).toThrow(expect.objectContaining({ code: 'bad_config' }));
  });

  it('hands off when either variable says so, and the first variable has precedence', () => {
    const isOn = (env: Record<string, string>) => parseConfig(env).handoffEnabled;
    expect(isOn({ AGDD_HANDOFF_ENABLED: 'true' })).toBe(true);
    expect(isOn({ BOXCAR_HANDOFF_ENABLED: 'false', AGDD_HANDOFF_ENABLED: 'true' })).toBe(false);
    expect(isOn({ BOXCAR_HANDOFF_ENABLED: 'true', AGDD_HANDOFF_ENABLED: 'false' })).toBe(true);
    expect(problemsOf({ BOXCAR_HANDOFF_ENABLED: 'yes', AGDD_HANDOFF_ENABLED: '1' })).toEqual([
      { path: 'BOXCAR_HANDOFF_ENABLED', message: 'must be true or false' },
      { path: 'AGDD_HANDOFF_ENABLED', message: 'must be true or false' },
    ]);
  });

  it('reports all problems together, and repeats no password', () => {
    const env = {
      DATABASE_URL: 'mysql://u:secret@h/d',
      REDIS_URL: 'secret@h',
      BOXCAR_LOG_LEVEL: 'loud',
      BOXCAR_CONCURRENCY: '0',
      BOXCAR_WORKER_TARGETS: 'gpu,No Such',
      BOXCAR_LEASE_MS: '10s',
      BOXCAR_HANDLER_TIMEOUT_MS: '2592000001',
    };
    const problems = problemsOf(env);
    expect(problems).toEqual([
      { path: 'DATABASE_URL', message: 'must be a postgres:// URL' },
      {
        path: 'REDIS_URL',
        message: 'must be a redis://, rediss://, redis+cluster:// or rediss+cluster:// URL',
      },
      { path: 'BOXCAR_LOG_LEVEL', message: 'must be debug, info, warn or error' },
      { path: 'BOXCAR_CONCURRENCY', message: 'must be a whole number from 1 to 1000' },
      { path: 'BOXCAR_WORKER_TARGETS', message: expect.stringContaining('lower-case letters') },
      { path: 'BOXCAR_LEASE_MS', message: 'must be a whole number from 500 to 600000' },
      { path: 'BOXCAR_HANDLER_TIMEOUT_MS', message: 'must be a whole number from 1 to 2592000000' },
    ]);
    expect(() => parseConfig(env)).toThrow(/^DATABASE_URL: must be .*; REDIS_URL: .*; BOXCAR_LEASE_MS: /);
    expect(JSON.stringify(problems)).not.toContain('secret');
  });

  it('reports a wrong key or address of a model, and never repeats it', () => {
    const problems = problemsOf({
      OPENAI_API_KEY: 'sk secret',
      ANTHROPIC_API_KEY: 'sécret',
      OPENAI_BASE_URL: 'secret.example/v1',
      ANTHROPIC_BASE_URL: 'ftp://secret.example',
      OPENAI_COMPATIBLE_BASE_URL: 'https://user:secret@h/v1',
      BOXCAR_MODEL_IDLE_SECONDS: '0',
    });
    expect(problems).toEqual([
      { path: 'OPENAI_API_KEY', message: 'must be printable ASCII without spaces' },
      { path: 'OPENAI_BASE_URL', message: 'must be an http:// or https:// URL' },
      { path: 'ANTHROPIC_API_KEY', message: 'must be printable ASCII without spaces' },
      { path: 'ANTHROPIC_BASE_URL', message: 'must be an http:// or https:// URL' },
      { path: 'OPENAI_COMPATIBLE_BASE_URL', message: 'must hold no user and no password' },
      { path: 'BOXCAR_MODEL_IDLE_SECONDS', message: 'must be a whole number of seconds from 1 to 99999' },
    ]);
    expect(JSON.stringify(problems)).not.toMatch(/s[eé]cret/);
    expect(problemsOf({ OPENAI_BASE_URL: 'https://h/v1?key=1' })).toEqual([
      { path: 'OPENAI_BASE_URL', message: 'must have no ? and no #' },
    ]);
  });

  it('refuses a direct URL or a read URL without DATABASE_URL, also with other problems', () => {
    const alone = { DATABASE_DIRECT_URL: 'postgres://h/d', DATABASE_READ_URL: 'postgres://h/d' };
    expect(problemsOf({ ...alone, BOXCAR_CONCURRENCY: 'x' })).toEqual([
      { path: 'BOXCAR_CONCURRENCY', message: 'must be a whole number from 1 to 1000' },
      { path: 'DATABASE_DIRECT_URL', message: 'needs DATABASE_URL as well' },
      { path: 'DATABASE_READ_URL', message: 'needs DATABASE_URL as well' },
    ]);
  });

  it('accepts an issuer with https or on this machine, and needs an issuer for an audience', () => {
    const message = 'must be an https:// URL (http:// on this machine), without a query and a fragment';
    for (const text of ['id.example', 'http://id.example', 'https://id.example?x=1'])
      expect(problemsOf({ BOXCAR_OAUTH_ISSUER: text })).toEqual([{ path: 'BOXCAR_OAUTH_ISSUER', message }]);
    expect(problemsOf({ BOXCAR_OAUTH_AUDIENCE: 'boxcar' })).toEqual([
      { path: 'BOXCAR_OAUTH_AUDIENCE', message: 'needs BOXCAR_OAUTH_ISSUER as well' },
    ]);
    expect(parseConfig({ BOXCAR_OAUTH_ISSUER: 'http://localhost:8080/' }).oauth).toEqual({
      issuer: 'http://localhost:8080/',
    });
  });

  it('treats an empty variable as unset', () => {
    expect(parseConfig({ DATABASE_URL: '', REDIS_URL: '', BOXCAR_CONCURRENCY: '' })).toEqual(parseConfig({}));
  });

  it('cannot be changed afterwards', () => {
    const config = parseConfig({});
    expect(Object.isFrozen(config) && Object.isFrozen(config.workerTargets)).toBe(true);
  });
});
