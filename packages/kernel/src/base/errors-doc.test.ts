import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { ERROR_CATALOGUE } from './error-catalogue.js';

const page = readFileSync(new URL('../../../../docs/reference/errors.md', import.meta.url), 'utf8');
const rows = page.split('\n').filter((line) => line.startsWith('| `'));

test('docs/reference/errors.md lists every code of the catalogue, with its status, its words and its next step', () => {
  const expected = Object.entries(ERROR_CATALOGUE).map(
    ([code, entry]) =>
      `| \`${code}\` | ${entry.httpStatus} | ${entry.canRetry ? 'yes' : 'no'} | ${entry.message} ${entry.next} |`,
  );
  expect(rows).toEqual(expected);
});
