/**
 * Calls an isolated tool that never answers.
 *
 * argv: the URL of its module, and the file that the tool writes its pid to.
 */
import { z } from 'zod';
import { toTool } from '../tool/isolated-tool.js';

const [module = '', pidFile = ''] = process.argv.slice(2);
const tool = toTool({
  name: 'apart',
  description: 'Runs apart.',
  input: z.looseObject({}),
  isolate: true,
  module: new URL(module),
});
const { signal } = new AbortController();
await tool.run({ what: 'native', pidFile }, { signal } as Parameters<typeof tool.run>[1]);
