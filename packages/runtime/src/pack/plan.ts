/** Turns specs into decided context boxes: loads the rows that the rules need, and applies the rules. Nothing is written here. */
import {
  type AgentId,
  type CardFacts,
  type CardId,
  cutDraft,
  decideNamedBoxes,
  draftPacking,
  type Handover,
  type InheritedBox,
  isOverBudget,
  type JsonObject,
  KernelError,
  type NamedBox,
  type NewId,
  type Packing,
  type PackingCuts,
  type PackingDraft,
  type PackingStrategies,
  type ProjectId,
  sealPacking,
} from '@boxcar/kernel';
import { type LoadedBox, loadBoxes, loadCardFacts, type ProfileRow, type Queryable } from '@boxcar/store';

/** The specification of one context; its project and actor are known. */
export interface ContextSpec {
  readonly projectId: ProjectId;
  readonly actorId: AgentId;
  readonly toolSuffix: string;
  readonly arguments: JsonObject;
  readonly handover: Handover;
  readonly access: 'actor' | 'trusted';
  /** Boxes that follow the named boxes without an argument of their own: a clone's view of its source, or a place on a tape. */
  readonly extra?: readonly InheritedBox[];
  /** The place of the spec in the arguments, when it is one of several: `tasks.3.`. */
  readonly path?: string;
  /** The caller's names for arguments that have another name here. */
  readonly names?: Readonly<Record<string, string>>;
}

/** A spec for an agent of a profile. */
export interface ResolvedSpec extends ContextSpec {
  readonly profile: ProfileRow;
}

export interface PlannedContext<S extends ContextSpec = ContextSpec> {
  readonly spec: S;
  readonly draft: PackingDraft;
  /** The cards that the budget leaves out; undefined when it leaves out none. */
  readonly cuts: PackingCuts | undefined;
  readonly packing: Packing;
}

export interface PlanOptions {
  readonly newId: NewId;
  readonly strategies: PackingStrategies;
  readonly maxCardBytes?: number | undefined;
  readonly maxInstructionBytes?: number | undefined;
  readonly maxContextCards?: number | undefined;
}

/** Adds to an error the spec in which it arose, and the argument under the caller's name for it. */
function atPath<T>({ path = '', names = {} }: ContextSpec, work: () => T): T {
  try {
    return work();
  } catch (error) {
    if (!(error instanceof KernelError)) throw error;
    const written = error.field?.replace(/^arguments\./, '') ?? '';
    const within = written.replace(/^[^.]+/, (argument) =>
      Object.hasOwn(names, argument) ? (names[argument] ?? argument) : argument,
    );
    if (path === '' && within === written) throw error;
    throw error.atField(`arguments.${path}${within}`.replace(/\.$/, ''));
  }
}

function inherit(spec: ContextSpec, { argument, boxId }: NamedBox, box: LoadedBox | undefined): InheritedBox {
  if (box === undefined) {
    throw new KernelError('not_found', {
      message: `arguments.${argument}: no box ${boxId} in this project.`,
      details: { field: `arguments.${argument}`, box_id: boxId },
    });
  }
  if (spec.access !== 'trusted' && !box.isReadable) {
    throw new KernelError('box_not_authorized', {
      message: `arguments.${argument}: agent ${spec.actorId} may not read box ${boxId}.`,
      details: { field: `arguments.${argument}`, box_id: boxId, source_agent_id: spec.actorId },
    });
  }
  return { argument, boxId, box };
}

function draft(spec: ContextSpec, inherited: readonly InheritedBox[], options: PlanOptions): PackingDraft {
  return draftPacking({
    projectId: spec.projectId,
    toolSuffix: spec.toolSuffix,
    sourceAgentId: spec.actorId,
    arguments: spec.arguments,
    handover: spec.handover,
    inherited,
    newId: options.newId,
    maxCardBytes: options.maxCardBytes,
    maxInstructionBytes: options.maxInstructionBytes,
    maxCards: options.maxContextCards,
  });
}

/** Facts of the cards that budgets must choose from. Cards of a draft within its budget are not read. */
function loadFacts(
  db: Queryable,
  drafts: readonly PackingDraft[],
  projectId: ProjectId,
): Promise<ReadonlyMap<CardId, CardFacts>> {
  const ids = new Set(drafts.filter(isOverBudget).flatMap(({ inheritedIds }) => inheritedIds));
  return loadCardFacts(db, [...ids], projectId);
}

/**
 * Decides the context boxes of specs of one project and actor: one statement for all boxes, and one more when a budget must
 * choose.
 */
export async function planContexts<S extends ContextSpec>(
  db: Queryable,
  specs: readonly S[],
  options: PlanOptions,
): Promise<readonly PlannedContext<S>[]> {
  const first = specs[0];
  if (first === undefined) return [];
  const named = specs.map((spec) => atPath(spec, () => decideNamedBoxes(spec.arguments, spec.handover)));
  const boxes = await loadBoxes(
    db,
    named.flat().map((item) => item.boxId),
    { projectId: first.projectId, actorId: first.actorId },
  );
  const drafts = specs.map((spec, index) =>
    atPath(spec, () =>
      draft(
        spec,
        [
          ...(named[index] ?? []).map((item) => inherit(spec, item, boxes.get(item.boxId))),
          ...(spec.extra ?? []),
        ],
        options,
      ),
    ),
  );
  const facts = await loadFacts(db, drafts, first.projectId);
  return specs.map((spec, index) => {
    const drafted = drafts[index] as PackingDraft;
    return atPath(spec, () => {
      const cuts = cutDraft(drafted, facts, options.strategies);
      return { spec, draft: drafted, cuts, packing: sealPacking(drafted, cuts) };
    });
  });
}
