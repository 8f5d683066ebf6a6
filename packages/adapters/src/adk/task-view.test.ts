import { type Part, TaskState } from '@a2a-js/sdk';
import { expect, test } from 'vitest';
import { textPart } from '../testing/a2a-dialect.js';
import { Concealer } from '../wire/conceal.js';
import { TaskView } from './task-view.js';

const open = (onPart: (text: string) => unknown = () => undefined): TaskView =>
  new TaskView({
    concealer: new Concealer({}),
    onPart: ({ text }) => void onPart(text),
    onId: () => undefined,
  });

const artifactOf = (parts: Part[], artifactId = 'answer') => ({
  artifactId,
  name: '',
  description: '',
  parts,
  metadata: undefined,
  extensions: [],
});
const ids = { taskId: 't', contextId: 'c' };

function write(view: TaskView, parts: Part[], append: boolean): void {
  view.take({ $case: 'artifactUpdate', value: { ...ids, artifact: artifactOf(parts), append } });
}

test('an answer of 60,000 pieces is joined in time proportional to its length', () => {
  let shown = 0;
  const view = open((text) => {
    shown += text.length;
  });
  const began = performance.now();
  for (let n = 0; n < 60_000; n += 1) write(view, [textPart('ab')], n > 0);
  expect([String(view.result()).length, shown]).toEqual([120_000, 120_000]);
  // With a copy per piece, the pieces took more than 40 s.
  expect(performance.now() - began).toBeLessThan(15_000);
});

test('an update without a context keeps the context of the task', () => {
  const view = open();
  const status = { state: TaskState.TASK_STATE_INPUT_REQUIRED, message: undefined, timestamp: undefined };
  for (const contextId of ['c', ''])
    view.take({ $case: 'statusUpdate', value: { taskId: 't', contextId, status } });
  expect(view.contextId).toBe('c');
});

test('the first parts of a task are shown, and the later pieces continue them', () => {
  const shown: string[] = [];
  const view = open((text) => shown.push(text));
  const parts = [textPart('one ')];
  const status = { state: TaskState.TASK_STATE_WORKING, message: undefined, timestamp: undefined };
  view.take({
    $case: 'task',
    value: {
      id: 't',
      contextId: 'c',
      status,
      artifacts: [artifactOf(parts)],
      history: [],
      metadata: undefined,
    },
  });
  write(view, [textPart('two')], true);
  expect(shown).toEqual(['one ', 'two']);
  expect([view.result(), parts.length]).toEqual(['one two', 1]);
});
