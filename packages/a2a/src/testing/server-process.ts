/**
 * A server with public agents, in a separate process. It prints `ready <url>`, and runs no turns.
 *
 * argv: the URL of its database.
 */
import { createHttpFrame } from '@boxcar/http';
import { createModelRouter } from '@boxcar/llm';
import { createLog, openRuntime } from '@boxcar/runtime';
import { a2aRoutes } from '../a2a-routes.js';

const [databaseUrl = ''] = process.argv.slice(2);
const log = createLog('debug');
const { runtime } = openRuntime({ databaseUrl, model: createModelRouter({}), log });
const frame = createHttpFrame({ runtime, port: 0, log }).mount(a2aRoutes(runtime));
const { url } = await frame.listen();
console.log(`ready ${url}`);
