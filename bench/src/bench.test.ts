import { spawnNode } from '@boxcar/testkit';
import { describe, expect, it } from 'vitest';

const main = new URL('./main.ts', import.meta.url);
const KEYS = ['case', 'floor', 'goal', 'ok', 'ratio', 'suite', 'unit', 'value'];

async function bench(...args: string[]) {
  const child = spawnNode(main, args);
  const { code } = await child.exited;
  return { code, stdout: child.stdout, stderr: child.stderr };
}

/** The JSON lines on stdout; nothing else may stand there. */
const casesOf = (stdout: string): Record<string, unknown>[] =>
  stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, unknown>);

describe('the bench', () => {
  it('prints one JSON line per case, each with its floor from the same run', {
    timeout: 120_000,
  }, async () => {
    const args = ['--concurrency', '4', '--seconds', '0.2', '--rounds', '1', '--samples', '5'];
    const { code, stdout, stderr } = await bench('turns', 'idle', '--json', ...args);

    expect(code, stderr).toBe(0);
    const cases = casesOf(stdout);
    expect(cases.map((of) => `${of.suite} ${of.case}`)).toEqual([
      'turns redis',
      'turns postgres',
      'idle redis p50',
      'idle redis p99',
      'idle postgres p50',
      'idle postgres p99',
    ]);
    for (const of of cases) {
      if ('skipped' in of) {
        expect(of).toMatchObject({ value: null, floor: null, ratio: null, ok: null });
        continue;
      }
      expect(Object.keys(of).sort()).toEqual(KEYS);
      expect(of).toMatchObject({
        unit: of.suite === 'turns' ? 'turns/s' : 'ms',
        value: expect.any(Number),
        floor: expect.any(Number),
        ratio: expect.any(Number),
      });
      expect(typeof of.ok).toBe(of.goal === null ? 'object' : 'boolean');
    }
    expect(stderr).toMatch(/cores.*node.*postgres.*redis/);
  });

  it('says in one line what it cannot do, and ends with 2', async () => {
    for (const args of [
      ['warp'],
      [],
      ['turns', '--queue', 'kafka'],
      ['turns', '--seconds', '0'],
      ['--warp'],
    ]) {
      const { code, stdout, stderr } = await bench(...args);

      expect(code).toBe(2);
      expect(stdout).toBe('');
      expect(stderr.trim().split('\n')).toHaveLength(1);
    }
  });

  it('explains itself', async () => {
    const { code, stdout } = await bench('--help');

    expect(code).toBe(0);
    expect(stdout).toContain('usage: npm run bench -- <suite>');
  });
});
