import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { KernelError } from '@boxcar/kernel';
import { expect, test } from 'vitest';
import { checkServers, parseServers, readServersFile } from './parse-servers.js';

const YAML = `
files:
  command: mcp-server-filesystem
  args: [/srv/files]
  tools: [read_text_file, write_file]
  retry_safe: [read_text_file]
  timeout_ms: 30000
tickets:
  url: https://tickets.example/mcp
  headers: { Authorization: "Bearer \${TICKETS_TOKEN}" }
`;

function failureOf(work: () => unknown): KernelError {
  try {
    work();
  } catch (error) {
    if (error instanceof KernelError) return error;
    throw error;
  }
  throw new Error('it did not fail');
}

test('a file in YAML or JSON has an entry for each server', () => {
  const servers = parseServers(YAML, 'servers.yaml');
  expect([...servers]).toEqual([
    [
      'files',
      {
        command: 'mcp-server-filesystem',
        args: ['/srv/files'],
        env: {},
        tools: ['read_text_file', 'write_file'],
        retry_safe: ['read_text_file'],
        timeout_ms: 30_000,
      },
    ],
    [
      'tickets',
      {
        url: 'https://tickets.example/mcp',
        headers: { Authorization: `Bearer $\{TICKETS_TOKEN}` },
        allow_private: false,
      },
    ],
  ]);
  const json = JSON.stringify(Object.fromEntries(servers));
  expect(parseServers(json, 'servers.json')).toEqual(servers);
  expect(checkServers(JSON.parse(json))).toEqual(servers);
  expect(parseServers('# none yet\n', 'servers.yaml').size).toBe(0);
});

test('all findings are reported at once with their places, and no value is repeated', () => {
  const text = `a.b: { command: x }
both: { command: x, url: "https://h/" }
none: { args: [x] }
url: { url: "https://name:word-that-is-secret@host/" }
near: { url: "http://127.0.0.1:9/word-that-is-secret" }
local: { url: "http://localhost:9/" }
env: { command: x, env: { HOME: "\${DATABASE_URL}", "a b": "1" } }
head: { url: "https://h/", headers: { "X Y": "1", Z: "a\\nb" } }
tools: { command: x, tools: [] }
more: { command: x, secret_key: word-that-is-secret }
time: { command: x, timeout_ms: 0 }
words: text
`;
  const { code, message } = failureOf(() => parseServers(text, 's'));
  expect(code).toBe('bad_config');
  for (const finding of [
    's:1:6 a.b: the name of a server has letters',
    's:2:7 both: must have command, or url: one of the two',
    's:3:7 none: must have command, or url: one of the two',
    's:4:13 url.url: must be an http:// or https:// URL without a user and a password',
    's:5:14 near.url: is at an address that is not public; allow_private: true allows it',
    's:6:15 local.url: is at an address that is not public',
    's:7:33 env.env.HOME: must not take DATABASE_URL',
    's:7:59 env.env.a b: has a key that is not allowed',
    's:8:46 head.headers.X Y: has a key that is not allowed',
    's:8:54 head.headers.Z: must be one line',
    's:9:29 tools.tools: must name a tool',
    's:10:7 more: unknown key "secret_key"',
    's:11:33 time.timeout_ms: must be at least 1',
    's:12:8 words: must be an object',
  ])
    expect(message).toContain(finding);
  expect(message).not.toContain('word-that-is-secret');
});

test('an address that is not public is accepted when the entry allows it', () => {
  const url = 'http://127.0.0.1:9/mcp';
  expect(checkServers({ near: { url, allow_private: true } }).get('near')).toMatchObject({ url });
});

test('a missing file is reported with its variable', () => {
  const file = join(mkdtempSync(join(tmpdir(), 'boxcar-mcp-')), 'none.yaml');
  const { code, message } = failureOf(() => readServersFile(file));
  expect([code, message.includes('ENOENT'), message.includes('BOXCAR_MCP_SERVERS')]).toEqual([
    'bad_config',
    true,
    true,
  ]);
});
