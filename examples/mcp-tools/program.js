// An agent that calls the tools of an MCP server. Needs no network: the server is a program in this folder, the model is a function of this
// program, the database is the embedded one or that of DATABASE_URL.
import { fileURLToPath } from 'node:url';
import { startBoxcar } from '@boxcar/cli';

// The servers are started where the worker runs.
process.chdir(fileURLToPath(new URL('.', import.meta.url)));
process.env.BOXCAR_MCP_SERVERS = 'servers.yaml';

const article = 'bolt-m8';

/** In place of a model: wants 200 pieces, and takes what there is when it reads that there are fewer. */
function clerk({ tools }, { call, results }) {
  const [refused, taken] = results('stock.take');
  const [stock] = results('stock.look_up');
  if (refused === undefined) {
    console.log(`offered  ${tools.map(({ name }) => name).join(', ')}`);
    return { toolCalls: [call('stock.take', { article, pieces: 200 })] };
  }
  if (stock === undefined) {
    console.log(`read     ${refused.error.code}: ${refused.error.message}`);
    return { toolCalls: [call('stock.look_up', { article })] };
  }
  if (taken === undefined) {
    console.log(`read     ${JSON.stringify(stock)}`);
    return { toolCalls: [call('stock.take', { article, pieces: stock.pieces })] };
  }
  return { text: `Took ${taken.taken} pieces of ${article}; ${taken.left} are left.` };
}

const boxcar = await startBoxcar({ models: { scripted: { functions: { clerk } } } });
const { runtime } = boxcar;
try {
  await runtime.applyProfile({
    name: 'stock-clerk',
    instructions: 'You take what is asked for out of the stock.',
    model: 'scripted:clerk',
    mcp: ['stock'],
  });
  await boxcar.startWorker();
  const { turn_id } = await runtime.submit('launch_principal', {
    profile_name: 'stock-clerk',
    instruction: 'Take 200 pieces of bolt-m8.',
  });
  const { status, result } = await runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
  console.log(`result   ${status}: ${result}`);
} finally {
  await boxcar.close();
}
