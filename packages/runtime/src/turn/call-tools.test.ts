import { expect, test } from 'vitest';
import { z } from 'zod';
import { newId } from '../lib/new-id.js';
import { statementsOf } from '../testing/count-statements.js';
import { harness } from '../testing/harness.js';
import { buildToolbox } from '../toolbox/toolbox.js';
import { Toolsets } from '../toolbox/toolsets.js';

test('a handler that is registered with two names is offered with each', async () => {
  await using h = await harness();
  const handler = { description: 'Greets.', input: z.strictObject({}), handle: async () => 'hello' };
  h.runtime.registerHandler('greet', handler);
  h.runtime.registerHandler('salute', handler);
  for (const name of ['greet', 'salute', 'greet']) {
    const { schemas } = buildToolbox(
      h.runtime,
      { tools: [name], must_end_with: [] },
      { hasResultFields: false },
    );
    expect(schemas).toMatchObject([{ name, description: 'Greets.' }]);
  }
});

test('the list of tools that a profile offers is written once, including tools of workers outside', async () => {
  await using h = await harness();
  h.runtime.registerTool({
    name: 'look',
    description: 'Looks.',
    input: z.strictObject({}),
    run: () => 'seen',
  });
  const profile = {
    tools: [
      'look',
      {
        name: 'render',
        description: 'Renders.',
        target: 'render',
        retry: 'never' as const,
        parameters: { type: 'object' as const, properties: {} },
      },
    ],
    must_end_with: [],
  };
  const toolsets = new Toolsets(h.database.pool);
  const projectId = newId<'project'>();
  const keep = () =>
    toolsets.keep(projectId, buildToolbox(h.runtime, profile, { hasResultFields: false }).schemas, {
      known: h.runtime,
      told: undefined,
      served: new Map(),
    });
  const first = await keep();
  expect(await statementsOf(h.database, async () => expect(await keep()).toBe(first))).toEqual([]);
});
