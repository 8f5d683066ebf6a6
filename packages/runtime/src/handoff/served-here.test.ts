/** The targets that a tool serves in its own process, and the cost of serving them. */
import { expect, test } from 'vitest';
import { harness } from '../testing/harness.js';
import { HandoffTool } from './handoff-tool.js';

const COUNT = 20;

test('one worker serves all functions of a program, and as many handoffs at once as its concurrency', async () => {
  await using h = await harness({ connections: 6 });
  await using tool = new HandoffTool({ runtime: h.runtime, concurrency: 3 });
  let running = 0;
  let most = 0;
  const names = Array.from({ length: COUNT }, (_, n) => `function-${n}`);
  for (const name of names)
    tool.registerAgent(name, async () => {
      running += 1;
      most = Math.max(most, running);
      await new Promise((settle) => setTimeout(settle, 20));
      running -= 1;
      return name;
    });
  const answers = await Promise.all(
    names.map((target_agent) => tool.handoff({ source_agent: 'main', target_agent, task: 'do it' })),
  );
  expect(answers.map(({ result }) => result)).toEqual(names);
  expect(most).toBeLessThanOrEqual(3);
  const [worker, ...others] = await h.rows<{ targets: readonly string[] }>(
    "select targets from boxcar.workers where targets <> '{}'",
  );
  expect(others).toEqual([]);
  expect(worker?.targets).toHaveLength(COUNT);
});

test.each(['a worker', 'the tool'])(
  'functions that hand off wait without a slot of %s, which their targets need',
  async (server) => {
    await using h = await harness({ connections: 8, handoffs: { enabled: true } });
    await using tool = new HandoffTool({ runtime: h.runtime, concurrency: server === 'the tool' ? 2 : 0 });
    let running = 0;
    let release = (): void => undefined;
    const bothRun = new Promise<void>((settle) => {
      release = settle;
    });
    tool.registerAgent('inner', () => 'from inside');
    tool.registerAgent('outer', async (_input, { handoff }) => {
      running += 1;
      if (running === 2) release();
      await bothRun;
      return (await handoff({ target_agent: 'inner', task: 'do it' })).result;
    });
    if (server === 'a worker') await h.worker({ concurrency: 2 });
    const ask = () =>
      tool.handoff({ source_agent: 'main', target_agent: 'outer', task: 'do it', timeout: 15 });
    const answers = await Promise.all([ask(), ask(), ask()]);
    expect(answers.map(({ result }) => result)).toEqual(['from inside', 'from inside', 'from inside']);
  },
);
