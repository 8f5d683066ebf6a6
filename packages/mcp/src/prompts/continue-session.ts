/** The text for an agent that continues a session: the summary and the newest entries, within a budget of tokens. */
import { estimateTokens } from '@boxcar/kernel';
import type { ContextAnswer, HandoffSessions, SummaryAnswer } from '@boxcar/runtime';

type Found = Extract<SummaryAnswer, { readonly outcome: 'found' }>;

/** The number of entries that are read at once, from the end backwards. */
const WINDOW = 50;
/** The maximum number of such reads. */
const MAX_WINDOWS = 10;

const tokensOf = (text: string): number => estimateTokens(Buffer.byteLength(text));

const textOf = (value: unknown): string =>
  value === null ? '(erased)' : typeof value === 'string' ? value : JSON.stringify(value);

const entryText = ({ sequence_number, context_type, content }: ContextAnswer): string =>
  `[${sequence_number}] ${context_type}: ${textOf(content)}`;

/** All entries between two numbers; several reads may be needed, since a page may end earlier. */
async function readWindow(
  sessions: HandoffSessions,
  { sessionKey, after, upto }: { readonly sessionKey: string; readonly after: number; readonly upto: number },
): Promise<readonly ContextAnswer[]> {
  const entries: ContextAnswer[] = [];
  for (let cursor: number | null = after; cursor !== null && cursor < upto; ) {
    const page = await sessions.context({ session_key: sessionKey, cursor, limit: upto - cursor });
    if (page.outcome !== 'found' || page.entries.length === 0) break;
    entries.push(...page.entries);
    cursor = page.next_cursor;
  }
  return entries;
}

/** The newest entries that fit, in their order. */
async function newestWithin(
  sessions: HandoffSessions,
  {
    sessionKey,
    last,
    tokens,
  }: { readonly sessionKey: string; readonly last: number; readonly tokens: number },
): Promise<readonly string[]> {
  const shown: string[] = [];
  let left = tokens;
  for (let upto = last, n = 0; upto > 0 && n < MAX_WINDOWS; upto -= WINDOW, n += 1) {
    const after = Math.max(0, upto - WINDOW);
    const entries = await readWindow(sessions, { sessionKey, after, upto });
    for (const entry of entries.toReversed()) {
      const text = entryText(entry);
      left -= tokensOf(text);
      if (left < 0) return shown.toReversed();
      shown.push(text);
    }
  }
  return shown.toReversed();
}

/** The text of the prompt. The summary is always in it. */
export async function continueSessionText(
  sessions: HandoffSessions,
  found: Found,
  budgetTokens: number,
): Promise<string> {
  const { session_key: sessionKey, context_entries: last, status } = found.session;
  const head = [
    `Continue the work of session ${sessionKey}. It is ${status}.`,
    '',
    'Summary:',
    found.summary,
    ...found.key_points.map((point) => `- ${point}`),
  ].join('\n');
  const tokens = budgetTokens - tokensOf(head);
  const entries = await newestWithin(sessions, { sessionKey, last, tokens });
  const missing = last - entries.length;
  const note =
    missing === 0
      ? `All ${last} entries:`
      : `The newest ${entries.length} of ${last} entries. Read the others with get_context.`;
  return [head, '', note, ...entries].join('\n');
}
