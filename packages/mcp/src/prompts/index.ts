/** The prompt that continues a session. Rule: docs/reference/mcp.md, "Prompt". */
import { openHandoffSessions } from '@boxcar/runtime';
import { type McpServer, ProtocolError, ProtocolErrorCode } from '@modelcontextprotocol/server';
import { z } from 'zod';
import type { McpClientScope } from '../client-scope.js';
import { toProtocolError } from '../resources/body.js';
import { continueSessionText } from './continue-session.js';

const DEFAULT_BUDGET = 8_000;
const MAX_BUDGET = 200_000;

const ARGUMENTS = z.strictObject({
  session_key: z.string().min(1).max(512).describe('The key of the session.'),
  budget_tokens: z
    .string()
    .regex(/^\d{1,6}$/, 'must be a whole number')
    .transform(Number)
    .refine((tokens) => tokens >= 1 && tokens <= MAX_BUDGET, `must be from 1 to ${MAX_BUDGET}`)
    .optional()
    .describe(`The largest number of tokens in the prompt, by estimate. Default: ${DEFAULT_BUDGET}.`),
});

type Arguments = z.output<typeof ARGUMENTS>;

async function continueSession(
  { runtime, projectId, as }: McpClientScope,
  { session_key, budget_tokens = DEFAULT_BUDGET }: Arguments,
): Promise<string> {
  const sessions = await openHandoffSessions(runtime, { projectId, as });
  const found = await sessions.summary({ session_key });
  if (found.outcome === 'found') return continueSessionText(sessions, found, budget_tokens);
  throw new ProtocolError(
    ProtocolErrorCode.InvalidParams,
    `There is no session '${session_key}' that you may read. Check session_key.`,
  );
}

export function registerPrompts(server: McpServer, scope: McpClientScope): void {
  if (!scope.scopes.includes('handoffs:read')) return;
  server.registerPrompt(
    'continue_session',
    {
      title: 'Continue a session',
      description: 'The summary of a session and its newest entries, within a number of tokens.',
      argsSchema: ARGUMENTS,
    },
    async (given: Arguments) => {
      try {
        const text = await continueSession(scope, given);
        return { messages: [{ role: 'user' as const, content: { type: 'text' as const, text } }] };
      } catch (error) {
        throw toProtocolError(error, given.session_key);
      }
    },
  );
}
