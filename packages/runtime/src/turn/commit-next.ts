import { type NewCard, stepNotice } from '@boxcar/kernel';
import type { NewEntry, StepCommit } from '@boxcar/store';
import { entryOf } from '../end/index.js';
import type { HeldPrompt } from './context-keeper.js';
import type { ClosedStep, HeldTurn, TurnRun } from './held-turn.js';
import type { ReplyVerdict } from './judge-reply.js';
import { successOf } from './progress.js';
import type { OpenCalls, StepCalls } from './step-calls.js';
import { noticeCard } from './step-cards.js';
import type { TurnCommits } from './turn-commits.js';

/** The state with which a turn continues after a step. */
interface NextStep {
  readonly attempt: number;
  readonly emptyReplies: number;
  readonly open: OpenCalls;
}

type Written = readonly { readonly kind: NewEntry['kind']; readonly card: NewCard }[];

const onTape = (written: Written): Pick<StepCommit, 'cards' | 'entries'> => ({
  cards: written.map(({ card }) => card),
  entries: written.map(({ kind, card }) => entryOf(kind, card)),
});

/**
 * Commits a step after which the turn continues: its thought, its calls and reminders to the model. A call that ends
 * the turn is committed with its result and the end.
 */
export async function commitNext(
  {
    held,
    calls: stepCalls,
    commits,
  }: { readonly held: HeldTurn; readonly calls: StepCalls; readonly commits: TurnCommits },
  { rows, step }: Pick<HeldPrompt, 'rows' | 'step'>,
  next: Extract<ReplyVerdict, { kind: 'next' }> & {
    readonly closed: ClosedStep;
    readonly spent: StepCommit['spent'];
  },
): Promise<TurnRun | NextStep> {
  const { turn, view } = held;
  const written: { kind: NewEntry['kind']; card: NewCard }[] = [];
  const add = (kind: NewEntry['kind'], card: NewCard): void => void written.push({ kind, card });
  if (next.thought !== undefined) add('message', next.thought);
  const calls = stepCalls.write(next.calls, { rows, facts: next.facts });
  for (const { card } of calls) add('tool_call', card);
  const ending = stepCalls.readEnding(calls);
  if (ending !== undefined) {
    add('tool_result', ending.result.card);
    return commits.end(successOf(ending.deliverable, ending), {
      step: next.closed,
      spent: next.spent,
      before: { ...onTape(written), calls: [ending.row] },
    });
  }
  stepCalls.begin(calls, step);
  if (next.reminder !== undefined) add('message', noticeCard(turn, next.reminder, next.notice));
  const notice = stepNotice(turn.maxSteps - step, stepCalls.bound.enders);
  if (notice !== undefined) add('message', noticeCard(turn, notice));
  const { emptyReplies, spent } = next;
  const outcome = await commits.step({
    step: { ...next.closed, thoughtCardId: (next.thought ?? calls[0]?.card)?.id ?? null },
    ...onTape(written),
    calls: calls.map(({ row }) => row),
    emptyReplies,
    spent,
  });
  if (outcome.outcome !== 'committed') return outcome.outcome;
  view.append(outcome.basePosition, step, written);
  return { attempt: calls.length > 0 ? 0 : 1, emptyReplies, open: stepCalls.toOpen(calls, step) };
}
