// An MCP server over stdio, which knows nothing of Boxcar: a stock that can be looked at and taken from.
import { McpServer } from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import { z } from 'zod';

const stock = new Map([['bolt-m8', 120]]);

function find(article) {
  const pieces = stock.get(article);
  // What a tool throws is the error that the model reads.
  if (pieces === undefined) throw new Error(`There is no article ${article}.`);
  return pieces;
}

const answer = (structuredContent) => ({
  content: [{ type: 'text', text: JSON.stringify(structuredContent) }],
  structuredContent,
});

serveStdio(() => {
  const server = new McpServer({ name: 'stock', version: '1.0.0' });
  server.registerTool(
    'look_up',
    {
      description: 'Tells how many pieces of an article are in stock.',
      inputSchema: z.object({ article: z.string() }),
      outputSchema: z.object({ article: z.string(), pieces: z.number() }),
    },
    ({ article }) => answer({ article, pieces: find(article) }),
  );
  server.registerTool(
    'take',
    {
      description: 'Takes pieces of an article out of the stock.',
      inputSchema: z.object({ article: z.string(), pieces: z.int().min(1) }),
      outputSchema: z.object({ taken: z.number(), left: z.number() }),
    },
    ({ article, pieces }) => {
      const left = find(article) - pieces;
      if (left < 0) throw new Error(`Only ${left + pieces} pieces of ${article} are in stock.`);
      stock.set(article, left);
      return answer({ taken: pieces, left });
    },
  );
  return server;
});
