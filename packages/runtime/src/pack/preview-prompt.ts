/** The first prompt of a planned context, and its cost. */
import {
  agentsIn,
  bindProfile,
  buildView,
  type ContextCard,
  contextLimitsOf,
  type HandoverNotice,
  KernelError,
  type Message,
  type NewId,
  type Profile,
  selectorOfView,
  TURN_STARTED,
  toldLimitOf,
  type View,
  type ViewRows,
} from '@boxcar/kernel';
import { toContextCard } from './context-rows.js';
import type { Line } from './preview-lines.js';
import type { CountTokens, PackPreview, PreviewMessage } from './preview-types.js';
import { type Selectors, selectorUnknown } from './selectors.js';

const YIELD_CHARACTERS = 256 * 1024;

/** Counts one text after another, and lets other work run in between. */
export class Counter {
  readonly #count: CountTokens | undefined;
  readonly #model: string;
  #sinceYield = 0;

  constructor(count: CountTokens | undefined, model: string) {
    this.#count = count;
    this.#model = model;
  }

  async count(text: string): Promise<number | null> {
    if (this.#count === undefined) return null;
    this.#sinceYield += text.length;
    if (this.#sinceYield > YIELD_CHARACTERS) {
      this.#sinceYield = 0;
      await new Promise((resolve) => setImmediate(resolve));
    }
    return this.#count(text, this.#model);
  }
}

/** The text of a message, including its calls. */
const wordsOf = (message: Message): string =>
  message.role === 'assistant' && message.toolCalls !== undefined
    ? [
        message.content,
        ...message.toolCalls.map((call) => `${call.name} ${JSON.stringify(call.arguments)}`),
      ].join('\n')
    : message.content;

/** The rows of a fresh agent's first step: the tape contains only the start of the turn. */
function firstRows(
  context: readonly ContextCard[],
  of: { readonly profile: Profile; readonly newId: NewId },
): ViewRows {
  const turnId = of.newId<'turn'>();
  const contextBoxId = of.newId<'box'>();
  const { max_steps: stepsLeft } = of.profile.limits;
  const data = { turn_id: turnId, context_box_id: contextBoxId, steps_left: stepsLeft };
  return {
    turn: { turnId, agentId: of.newId<'agent'>(), contextBoxId },
    profile: of.profile,
    entries: [
      {
        position: 1,
        kind: 'event',
        card: null,
        payload: { name: TURN_STARTED, data },
        anchorName: null,
        turnId,
        step: null,
      },
    ],
    lastAnchorPosition: 0,
    contexts: new Map([[contextBoxId, context]]),
  };
}

/** The first prompt as the profile's selector makes it. The version is the one that a first step would take in this process. */
function selected(
  view: View,
  rows: ViewRows,
  { profile, selectors }: { readonly profile: Profile; readonly selectors: Selectors | undefined },
): View | KernelError {
  const name = selectorOfView(profile.view);
  if (name === null) return view;
  const wanted = { name, version: null };
  const ref = selectors?.find(wanted);
  if (selectors === undefined || ref === undefined)
    return selectorUnknown(wanted, 'makes the prompts of this profile, and this process does not have it');
  try {
    return selectors.apply(view, rows, ref);
  } catch (error) {
    if (error instanceof KernelError) return error;
    throw error;
  }
}

export async function toPrompt(
  lines: readonly Line[],
  of: {
    readonly profile: Profile;
    readonly counter: Counter;
    readonly newId: NewId;
    readonly selectors: Selectors | undefined;
    readonly arrange: (lines: readonly Line[]) => readonly Line[];
    readonly namesOf: (ids: ReadonlySet<string>) => Promise<ReadonlyMap<string, string>>;
  },
): Promise<PackPreview['prompt']> {
  const isNew = new Set(lines.flatMap(({ card, isNew }) => (isNew && card !== undefined ? [card.id] : [])));
  const context = of
    .arrange(lines)
    .flatMap(({ card, of: { rule }, reason }): ContextCard[] =>
      card === undefined || reason !== undefined
        ? []
        : [toContextCard({ card, rule, native: false, isReference: false, isExpandable: false })],
    );
  const profile = bindProfile(of.profile, context);
  const bare = firstRows(context, { ...of, profile });
  const rows = {
    ...bare,
    names: await of.namesOf(agentsIn(bare)),
    contextLimit: toldLimitOf(of.profile),
  };
  const view = selected(buildView(rows), rows, of);
  if (view instanceof KernelError)
    return { messages: [], tokens: null, estimated_tokens: 0, unmade: view.message };
  const messages: PreviewMessage[] = [];
  for (const [index, message] of view.messages.entries()) {
    messages.push({
      message,
      tokens: await of.counter.count(wordsOf(message)),
      card_ids: (view.origins[index]?.cardIds ?? []).map((id) => (isNew.has(id) ? 'new' : id)),
    });
  }
  return {
    messages,
    tokens: messages.reduce<number | null>(
      (sum, { tokens }) => (sum === null || tokens === null ? null : sum + tokens),
      0,
    ),
    estimated_tokens: view.estimateTokens,
  };
}

/**
 * Notices for a prompt that the worker would change before its first call. The real prompt also contains the tools, which a
 * preview does not know.
 */
export function promptNotices(prompt: PackPreview['prompt'], profile: Profile): readonly HandoverNotice[] {
  const { promptTokens, limitTokens, reminderTokens } = contextLimitsOf(profile);
  const tokens = prompt.tokens ?? prompt.estimated_tokens;
  const notice = (what: string): readonly HandoverNotice[] => [
    { field: 'prompt', message: `has about ${tokens} tokens without its tools; ${what}` },
  ];
  const hasSelector = selectorOfView(profile.view) !== null;
  if (tokens > promptTokens)
    return notice(
      `the model takes ${limitTokens}, of which ${limitTokens - promptTokens} are left to its answer: ${
        hasSelector
          ? 'it is not sent, and the turn ends as failed: the prompts of selectors are not made shorter'
          : 'before the first call large cards become references'
      }`,
    );
  if (reminderTokens !== undefined && tokens > reminderTokens)
    return notice(
      `the model takes ${limitTokens}: before the first call the agent is reminded that it can hand off`,
    );
  return [];
}
