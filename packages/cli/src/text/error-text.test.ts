import { describeError } from '@boxcar/host/errors';
import type { Stack } from '@boxcar/host/open';
import { ERROR_CATALOGUE, type ErrorCode, KernelError } from '@boxcar/kernel';
import { createWorker } from '@boxcar/runtime';
import { testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { cliHere, type Env, prepare } from '../testing/cli.js';

let env: Env;
let stack: Stack;

beforeAll(async () => {
  const database = await testDatabase();
  env = { DATABASE_URL: database.url };
  stack = await prepare(env);
});
afterAll(() => stack.close());

const pointing = (Object.keys(ERROR_CATALOGUE) as ErrorCode[]).filter((code) =>
  /details/.test(ERROR_CATALOGUE[code].next),
);

it('the catalogue has advice that refers to details', () => {
  expect(pointing).toContain('model_failed');
  expect(pointing.length).toBeGreaterThan(5);
});

it.each(pointing)('%s is printed with the details to which its advice refers', (code) => {
  const error = new KernelError(code, {
    message: 'It failed.',
    details: { provider_message: 'quota\n exceeded\u001b[31m', ids: ['a', 'b'], n: 3 },
  });
  expect(describeError(error.toJSON())).toEqual([
    `${code}: It failed. ${ERROR_CATALOGUE[code].next}`,
    '  provider_message: quota exceeded [31m',
    '  ids: ["a","b"]',
    '  n: 3',
  ]);
});

it('an error without such advice stays one line, and a long value is cut', () => {
  const plain = new KernelError('not_found', { message: 'No turn.', details: { turn_id: 'x' } });
  expect(describeError(plain.toJSON())).toHaveLength(1);
  const long = new KernelError('model_failed', { details: { said: 'no '.repeat(5_000) } });
  const [, line = ''] = describeError(long.toJSON());
  expect(line.length).toBeLessThan(1_100);
});

it('a refusal of a command shows the limit that it names', async () => {
  const args = [
    'submit',
    'launch_principal',
    '--arg',
    'profile_name=writer',
    '--arg',
    `instruction=${'x'.repeat(1_001)}`,
  ];
  const { code, stderr } = await cliHere(args, { ...env, BOXCAR_MAX_INSTRUCTION_BYTES: '1000' });
  expect(code).toBe(1);
  expect(stderr).toMatch(/raise the limit named in the details\.\n(.*\n)*boxcar: {3}limitBytes: 1000\n/);
});

it('the end of a turn also shows the details: in submit --wait and show', async () => {
  await using _worker = await createWorker(stack.runtime);
  const submit = ['submit', 'launch_principal', '--arg', 'profile_name=writer', '--arg', 'instruction=hello'];
  const keyed = [...submit, '--key', 'damaged', '--wait'];
  const turnId = /^turn_id +(\S+)$/m.exec((await cliHere(keyed, env)).stdout)?.[1] ?? '';
  const error = new KernelError('card_damaged', { details: { card_id: 'c-1', position: 7 } });
  await stack.runtime.pool.query("update boxcar.turns set status = 'failed', error = $2 where id = $1", [
    turnId,
    JSON.stringify(error.toJSON()),
  ]);
  for (const args of [keyed, ['show', turnId]])
    expect((await cliHere(args, env)).stdout.replace(/\s+/g, ' ')).toContain(
      'without the card that the details name. (card_id: c-1; position: 7)',
    );
});
