/**
 * Decides where the views of new turns begin, and which selectors make their prompts. Rule: docs/reference/views.md, "Where a
 * view begins".
 */
import {
  BOOTSTRAP_ANCHOR,
  KernelError,
  selectorOfView,
  startOfView,
  type TurnView,
  turnViewSchema,
} from '@boxcar/kernel';
import {
  findViewStarts,
  type HiddenView,
  type NewTurn,
  type ProfileRow,
  type Queryable,
  type ViewStart,
  type ViewWish,
} from '@boxcar/store';
import type { TurnRef } from '../handler/index.js';
import type { TryContext } from './try-context.js';

interface Viewed {
  readonly view?: TurnView | undefined;
  readonly argument?: string | undefined;
  readonly turn: TurnRef;
  readonly profile: ProfileRow;
  readonly isReuse: boolean;
}

/** The columns of a turn's view, and the migration that a build must support to read the turn. */
export type ViewColumns = Pick<NewTurn, 'format' | 'ownViewAnchor' | 'ownViewPosition' | 'selector'>;

/**
 * Finds where the views begin, in one statement for all turns that specify it, and which selectors make the prompts.
 *
 * @throws KernelError `not_found` for an anchor that is not on the tape; `box_not_authorized` when a session would show entries
 * that its maker may not read.
 */
export async function decideViews(
  { unit, runtime }: Pick<TryContext, 'unit' | 'runtime'>,
  made: readonly Viewed[],
): Promise<readonly ViewColumns[]> {
  const starts = await findViews(unit.db, made);
  return made.map(({ view, profile }, index) => {
    const selector = view === undefined ? profile.selector : selectorOfView(view);
    return viewColumns(starts[index], selector, runtime.builds.build);
  });
}

async function findViews(
  db: Queryable,
  made: readonly Viewed[],
): Promise<readonly (ViewStart | undefined)[]> {
  for (const { view } of made) checkView(view);
  const wishes = made.flatMap(({ view: whole, turn, profile, isReuse, argument }, index) => {
    const view = startOfView(whole);
    if (!isReuse && typeof view === 'object' && view.anchor !== BOOTSTRAP_ANCHOR)
      refuseAnchor(view, turn, argument);
    const byProfile = whole === undefined && profile.isFullView ? 'profile' : undefined;
    const wish: ViewWish['view'] | undefined = view ?? byProfile;
    // The view of a fresh tape shows the whole tape.
    return wish === undefined || !isReuse ? [] : [{ boxId: turn.outputBoxId, view: wish, index }];
  });
  const found = await findViewStarts(db, wishes);
  const views: (ViewStart | undefined)[] = made.map(() => undefined);
  for (const [n, { view, index }] of wishes.entries()) {
    const start = found[n];
    const { turn, argument } = made[index] ?? {};
    if (start === undefined && typeof view === 'object' && turn !== undefined)
      refuseAnchor(view, turn, argument);
    if (start != null && 'contextBoxId' in start) throw hiddenView(start, argument, turn);
    views[index] = start ?? undefined;
  }
  return views;
}

function refuseAnchor(
  { anchor }: { readonly anchor: string },
  { outputBoxId, agentId }: TurnRef,
  argument?: string,
): never {
  const field = viewField(argument);
  throw new KernelError('not_found', {
    message: `${field}: Anchor '${anchor}' was not found.`,
    details: { field, anchor, agent_id: agentId, output_box_id: outputBoxId },
  });
}

/** The migration from which builds support turns with their own view. */
const VIEWS_FORMAT = 29;

/** Handlers of programs call this without a schema. */
function checkView(view: TurnView | undefined): void {
  if (view === undefined || turnViewSchema.safeParse(view).success) return;
  throw new KernelError('bad_request', {
    message: 'submitTurn: view must be last_anchor, full, { anchor: name } or { selector: name, from? }.',
    details: { field: 'view' },
  });
}

const viewField = (argument = 'target_ref'): string => `arguments.${argument.replace(/target_ref$/, '')}view`;

function hiddenView(
  { contextBoxId, makerId }: HiddenView,
  argument: string | undefined,
  turn: TurnRef | undefined,
): KernelError {
  const field = viewField(argument);
  return new KernelError('box_not_authorized', {
    message: `${field}: the prompt would show context box ${contextBoxId}, which agent ${makerId}, which made the session, may not read. Begin with a later anchor.`,
    details: {
      field,
      box_id: turn?.outputBoxId ?? null,
      context_box_id: contextBoxId,
      source_agent_id: makerId,
    },
  });
}

/** The migration from which builds support turns with a selector. */
const SELECTORS_FORMAT = 30;

const viewColumns = (
  view: ViewStart | undefined,
  selector: string | null,
  { turnFormat }: { readonly turnFormat: number },
) => ({
  format: Math.max(
    turnFormat,
    view === undefined ? 0 : VIEWS_FORMAT,
    selector === null ? 0 : SELECTORS_FORMAT,
  ),
  ...view,
  ...(selector === null ? {} : { selector }),
});
