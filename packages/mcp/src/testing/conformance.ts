/** Runs the official conformance suite against a server. The suite sends no key, so a proxy adds one to each of its requests. */
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer, request } from 'node:http';
import { createRequire } from 'node:module';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { spawnNode } from '@boxcar/testkit';

export interface KeyProxy extends AsyncDisposable {
  readonly origin: string;
  readonly url: string;
  /** Sets the target of further requests, and their key. */
  passTo(target: string, key: string): void;
}

/** A proxy that passes all requests on and adds the key. */
export async function keyProxy(): Promise<KeyProxy> {
  let target = '';
  let authorization = '';
  const server = createServer((incoming, outgoing) => {
    const passed = request(
      target,
      { method: incoming.method, headers: { ...incoming.headers, authorization } },
      (answer) => {
        outgoing.writeHead(answer.statusCode ?? 500, answer.headers);
        answer.pipe(outgoing);
      },
    );
    passed.on('error', () => outgoing.destroy());
    outgoing.on('close', () => passed.destroy());
    incoming.pipe(passed);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return {
    origin,
    url: `${origin}/mcp`,
    passTo: (to, key) => {
      target = to;
      authorization = `Bearer ${key}`;
    },
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}

/** All scenarios of the suite for servers. */
export const SCENARIOS: readonly string[] = [
  'completion-complete',
  'dns-rebinding-protection',
  'elicitation-sep1034-defaults',
  'elicitation-sep1330-enums',
  'json-schema-2020-12',
  'logging-set-level',
  'ping',
  'prompts-get-embedded-resource',
  'prompts-get-simple',
  'prompts-get-with-args',
  'prompts-get-with-image',
  'prompts-list',
  'resources-list',
  'resources-read-binary',
  'resources-read-text',
  'resources-subscribe',
  'resources-templates-read',
  'resources-unsubscribe',
  'server-initialize',
  'server-sse-multiple-streams',
  'server-sse-polling',
  'tools-call-audio',
  'tools-call-elicitation',
  'tools-call-embedded-resource',
  'tools-call-error',
  'tools-call-image',
  'tools-call-mixed-content',
  'tools-call-sampling',
  'tools-call-simple-text',
  'tools-call-with-logging',
  'tools-call-with-progress',
  'tools-list',
];

const SUITE = createRequire(import.meta.url).resolve('@modelcontextprotocol/conformance/package.json');

export interface Verdict {
  readonly code: number | null;
  /** Each scenario that has run, with the numbers of passed and failed checks. */
  readonly scenarios: ReadonlyMap<string, { readonly passed: number; readonly failed: number }>;
  readonly output: string;
}

const LINE = /^[✓✗] ([a-z0-9-]+): (\d+) passed, (\d+) failed/gm;

/** Runs one scenario against a server; without a name, all scenarios. */
export async function runConformance(url: string, scenario?: string): Promise<Verdict> {
  const folder = mkdtempSync(join(tmpdir(), 'boxcar-conformance-'));
  const what = scenario === undefined ? ['--suite', 'all'] : ['--scenario', scenario];
  await using child = spawnNode(
    join(dirname(SUITE), 'dist', 'index.js'),
    ['server', '--url', url, '--output-dir', folder, ...what],
    {},
    { isJoined: false },
  );
  const { code } = await child.exited;
  rmSync(folder, { recursive: true, force: true });
  const output = `${child.stdout}${child.stderr}`;
  const scenarios = new Map(
    [...output.matchAll(LINE)].map(([, name = '', passed, failed]) => [
      name,
      { passed: Number(passed), failed: Number(failed) },
    ]),
  );
  return { code, scenarios, output };
}
