/**
 * All effects of one try of a primitive, before they are written.
 *
 * The draft owns the rows, and the announcements that follow their commit. Only its methods change it: the tools of the handler
 * call them with the results of the packer, of new turns and of joins. It decides nothing and does not read the database.
 *
 * D1  A refusal leaves no rows in the draft, because handlers may catch the refusal: rows are added only after everything about
 *     them is decided.
 * D2  A context box that is made here has one owner, the agent of its first turn. The agents of further turns that share the box
 *     get grants.
 * D3  Before each statement of the handler, `takeEarly` hands out the rows that the statement must see: everything except turns
 *     and batches, which are decided at the end, and boxes that are held back while their owner is decided.
 * D4  Each try has its own draft.
 */
import type {
  AgentId,
  BatchId,
  BoxId,
  HandoffId,
  KernelError,
  ProjectId,
  Ring,
  RunId,
  TurnId,
} from '@boxcar/kernel';
import {
  type AgentRow,
  emptySubmission,
  type NewBatch,
  type NewBudget,
  type NewGrant,
  type NewHandoff,
  type NewTurn,
  type Submission,
} from '@boxcar/store';
import type { Accepted } from '../core/index.js';
import type { EndedTurns } from '../end/index.js';
import type { Made } from '../pack/index.js';

/** A turn that this primitive makes. */
export interface MadeTurn {
  readonly agentId: AgentId;
  readonly isReuse: boolean;
  readonly argument: string | undefined;
  readonly runId: RunId;
}

/** Turns whose rows are decided, and the rows that are made together with them. */
export interface MadeTurns {
  readonly agents: readonly { readonly agent: AgentRow; readonly derivedFrom: AgentId | undefined }[];
  readonly budgets: readonly NewBudget[];
  /** The run that begins with these turns. */
  readonly run: Submission['runs'][number] | undefined;
  readonly turns: readonly { readonly row: NewTurn; readonly made: MadeTurn }[];
}

/** A batch whose members are decided. */
export interface MadeBatch {
  readonly batch: NewBatch;
  /** Settings for members that are made here; undefined for a batch of earlier turns. */
  readonly members: { readonly isWaitedFor: boolean; readonly warmTurnId: TurnId | undefined } | undefined;
  /** The runs of its turns, without repetitions. */
  readonly runIds: readonly RunId[];
}

/** The turn, batch or other event whose end is the answer of a primitive. */
export type Awaited =
  | { readonly kind: 'turn'; readonly id: TurnId; readonly deadlineMs: number }
  | { readonly kind: 'batch'; readonly id: BatchId; readonly deadlineMs: number }
  /** Something other than a turn or batch will answer the call. */
  | { readonly kind: 'elsewhere'; readonly deadlineMs: number };

/** A line of the log. */
export interface LogLine {
  readonly event: string;
  readonly fields: Readonly<Record<string, unknown>>;
}

/** The results of a draft in addition to its rows. */
export interface DraftOutcome {
  readonly turnIds: readonly TurnId[];
  readonly awaited: Awaited | undefined;
  readonly ending: Accepted['ending'];
  readonly rings: readonly Ring[];
  /** Turns that the primitive ends when it commits. */
  readonly ended: readonly EndedTurns[];
  /** Batches that are due from the start, because all their members have ended. */
  readonly dueBatchIds: readonly BatchId[];
  readonly lines: readonly LogLine[];
  /** Handoffs that are refused at once, and the reactions that were requested for their ends. */
  readonly endedHandoffs: readonly {
    readonly handoffId: HandoffId;
    readonly callsBack: boolean;
    readonly notifies: boolean;
  }[];
}

export class SubmissionDraft {
  readonly #rows: Submission = emptySubmission();
  readonly #author: { readonly projectId: ProjectId; readonly agentId: AgentId };
  /** Boxes whose owner is being decided. */
  readonly #heldBack = new Set<BoxId>();
  /** The context boxes made here that belong to a turn made here. */
  readonly #owned = new Set<BoxId>();
  readonly #made = new Map<TurnId, MadeTurn>();
  readonly #runs = new Map<TurnId | BatchId, RunId>();
  readonly #rings: Ring[] = [];
  readonly #ended: EndedTurns[] = [];
  readonly #dueBatchIds: BatchId[] = [];
  readonly #lines: LogLine[] = [];
  #awaited: Awaited | undefined;
  #ending: Accepted['ending'] = null;
  #refusal: KernelError | undefined;

  /** @param author - The agent in whose name everything is made. */
  constructor(author: { readonly projectId: ProjectId; readonly agentId: AgentId }) {
    this.#author = author;
  }

  /** Adds the results of a packing. @returns Its answer. */
  addPacked<T>({ answer, rows }: Made<T>): T {
    this.#rows.cards.push(...rows.cards);
    this.#rows.contextBoxes.push(...rows.contextBoxes);
    this.#rows.grants.push(...rows.grants);
    return answer;
  }

  addGrants(grants: readonly NewGrant[]): void {
    this.#rows.grants.push(...grants);
  }

  /** Adds an agent with its tape. */
  addAgent(
    { agentId, name, tapeBoxId, profile, isShared }: AgentRow,
    derivedFrom: AgentId | undefined,
  ): void {
    const { projectId, agentId: ownerAgentId } = this.#author;
    this.#rows.tapes.push({ id: tapeBoxId, projectId, ownerAgentId: agentId });
    this.#rows.agents.push({
      id: agentId,
      projectId,
      name,
      profileId: profile.profileId,
      ownerAgentId,
      derivedFrom: derivedFrom ?? null,
      tapeBoxId,
      ...(isShared ? { isShared } : {}),
    });
  }

  addTurns({ agents, budgets, run, turns }: MadeTurns): void {
    for (const { agent, derivedFrom } of agents) this.addAgent(agent, derivedFrom);
    this.#ownBoxes(turns.map(({ row }) => row));
    this.#rows.budgets.push(...budgets);
    if (run !== undefined) this.#rows.runs.push(run);
    for (const { row, made } of turns) {
      this.#rows.turns.push(row);
      this.#made.set(row.id, made);
      this.#runs.set(row.id, made.runId);
    }
  }

  /**
   * Gives the agents access to their turns' contexts: as owners of boxes made here, by a grant for boxes that were written before
   * (D2).
   */
  #ownBoxes(turns: readonly Pick<NewTurn, 'contextBoxId' | 'agentId'>[]): void {
    const { projectId, agentId: source } = this.#author;
    const { contextBoxes, grants } = this.#rows;
    const indexes = new Map(contextBoxes.map((box, index) => [box.id, index]));
    for (const { contextBoxId: boxId, agentId } of turns) {
      const index = indexes.get(boxId) ?? -1;
      const box = contextBoxes[index];
      if (box === undefined || this.#owned.has(boxId)) {
        grants.push({ projectId, agentId, boxId, mode: 'read', uptoPosition: null, source, expiresAt: null });
        continue;
      }
      this.#owned.add(boxId);
      contextBoxes[index] = { ...box, ownerAgentId: agentId };
    }
  }

  addBatch({ batch, members, runIds }: MadeBatch): void {
    const [runId, ...others] = runIds;
    if (members !== undefined) this.#joinMembers(batch, members);
    this.#rows.batches.push(batch);
    if (runId !== undefined && others.length === 0) this.#runs.set(batch.id, runId);
    if (batch.remaining === 0) this.#dueBatchIds.push(batch.id);
  }

  #joinMembers(
    { id: batchId, turnIds }: NewBatch,
    { isWaitedFor, warmTurnId }: NonNullable<MadeBatch['members']>,
  ): void {
    const { turns } = this.#rows;
    const ids = new Set(turnIds);
    turns.forEach((turn, index) => {
      if (!ids.has(turn.id)) return;
      turns[index] = {
        ...turn,
        batchIds: [...(turn.batchIds ?? []), batchId],
        ...(isWaitedFor ? { isWaitedFor } : {}),
        ...(warmTurnId === undefined ? {} : { warmTurnId }),
      };
    });
  }

  addHandoff(handoff: NewHandoff): void {
    this.#rows.handoffs.push(handoff);
  }

  /** Records how far the targets of these handoffs read the session. */
  noteHead(handoffIds: readonly HandoffId[], sessionHead: number): void {
    const { handoffs } = this.#rows;
    for (const [at, row] of handoffs.entries())
      if (handoffIds.includes(row.id)) handoffs[at] = { ...row, sessionHead };
  }

  addLine(line: LogLine): void {
    this.#lines.push(line);
  }

  addRings(rings: readonly Ring[]): void {
    this.#rings.push(...rings);
  }

  addEnded(ended: EndedTurns): void {
    this.#ended.push(ended);
  }

  /** Makes the end of this turn or batch the answer. */
  await(awaited: Awaited): void {
    this.#awaited = awaited;
  }

  endTurn(ending: NonNullable<Accepted['ending']>): void {
    this.#ending = ending;
  }

  /**
   * Prevents the commit, even if the handler has caught the refusal: a part of the refused effect is already in the transaction.
   */
  refuse(refusal: KernelError): void {
    this.#refusal ??= refusal;
  }

  /** Keeps boxes out of early writes (D3). @returns A function that ends this. */
  holdBack(boxIds: readonly BoxId[]): () => void {
    for (const id of boxIds) this.#heldBack.add(id);
    return () => {
      for (const id of boxIds) this.#heldBack.delete(id);
    };
  }

  /** The tokens of the context boxes that are made here and not written yet. */
  boxTokens(): ReadonlyMap<BoxId, number> {
    return new Map(this.#rows.contextBoxes.map(({ id, tokens }) => [id, tokens]));
  }

  madeTurn(id: TurnId): MadeTurn | undefined {
    return this.#made.get(id);
  }

  /** The run of each turn and batch that is made here. A batch of turns from several runs has no entry. */
  get runs(): ReadonlyMap<TurnId | BatchId, RunId> {
    return this.#runs;
  }

  get awaited(): Awaited | undefined {
    return this.#awaited;
  }

  get ended(): readonly EndedTurns[] {
    return this.#ended;
  }

  get refusal(): KernelError | undefined {
    return this.#refusal;
  }

  get isEmpty(): boolean {
    return Object.values(this.#rows).every((rows: readonly unknown[]) => rows.length === 0);
  }

  /** The rows that are not written yet. */
  get rows(): Submission {
    return this.#rows;
  }

  get outcome(): DraftOutcome {
    return {
      turnIds: this.#rows.turns.map(({ id }) => id),
      awaited: this.#awaited,
      ending: this.#ending,
      rings: this.#rings,
      ended: this.#ended,
      dueBatchIds: this.#dueBatchIds,
      lines: this.#lines,
      endedHandoffs: this.#rows.handoffs.flatMap(({ id, isEnded, callbackUrl, notifies }) =>
        isEnded ? [{ handoffId: id, callsBack: callbackUrl !== null, notifies: notifies === true }] : [],
      ),
    };
  }

  /** Takes out the rows that a statement of the handler must see (D3); undefined when there are none. */
  takeEarly(): Submission | undefined {
    const { cards, tapes, agents, grants, contextBoxes } = this.#rows;
    const isHeld = ({ id }: { readonly id: BoxId }): boolean => this.#heldBack.has(id);
    const decided = contextBoxes.filter((box) => !isHeld(box));
    if (cards.length + decided.length + tapes.length + agents.length + grants.length === 0) return undefined;
    contextBoxes.splice(0, contextBoxes.length, ...contextBoxes.filter(isHeld));
    // Removed before the write: rows that are added meanwhile belong to the next write.
    return {
      ...emptySubmission(),
      cards: cards.splice(0),
      contextBoxes: decided,
      tapes: tapes.splice(0),
      agents: agents.splice(0),
      grants: grants.splice(0),
    };
  }
}
