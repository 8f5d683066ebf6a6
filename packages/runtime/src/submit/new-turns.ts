/** The rows of the agents and turns that a primitive makes. Source: docs/primitives.md, "Accepting". */
import {
  type AgentId,
  BOOTSTRAP_ANCHOR,
  type BudgetInput,
  checkReuse,
  freshAgentName,
  KernelError,
  type RunId,
  selectorOfView,
  startOfView,
  type TurnId,
  type TurnView,
  turnViewSchema,
} from '@boxcar/kernel';
import {
  type AgentRow,
  findAgents,
  findContextBoxes,
  findNotifyRefusal,
  findSessionMaker,
  findTape,
  findViewStarts,
  type HiddenView,
  hasProfile,
  isCanceled,
  lockAgents,
  lockGrants,
  type Opening,
  type ProfileRow,
  type ViewStart,
  type ViewWish,
} from '@boxcar/store';
import type { DoorOptions, RuntimeCore } from '../core/index.js';
import type { CallerContext, NewAgentRequest, SubmitTurnRequest, TurnRef } from '../handler/index.js';
import { newId } from '../lib/index.js';
import { reserveSpawn } from './spawn-budget.js';
import type { UnitOfWork } from './unit-of-work.js';
import { checkCycle } from './waiting-chain.js';

const DEFAULT_MAX_DEPTH = 20;

/** A turn that this primitive makes. */
export interface MadeTurn {
  readonly agentId: AgentId;
  readonly isReuse: boolean;
  readonly argument: string | undefined;
  readonly runId: RunId;
}

/** How a primitive waits for its turns, and what their run may use. */
export interface TurnWait {
  readonly isAwaited: boolean;
  readonly deadlineMs: number | null;
  /** Of a run that begins with them. */
  readonly runBudget: BudgetInput | undefined;
}

/** Agents that get turns by a right that may be taken back, and who has it: the maker of a session, or the caller. */
interface GivenRights {
  readonly agents: readonly AgentRow[];
  readonly makerId: AgentId | undefined;
}

/** What one primitive has to go by, and where it gathers its rows. */
export interface Gathering {
  readonly runtime: Pick<RuntimeCore, 'prices' | 'builds'>;
  readonly opening: Opening;
  readonly ctx: CallerContext;
  readonly unit: UnitOfWork;
  readonly call: DoorOptions['call'];
  /** The parent has ended, and its end starts these turns. */
  readonly isWoken: boolean;
}

export class NewTurns {
  readonly #gathering: Gathering;
  /** Of profiles that were read from the rows. */
  readonly #profileIds: Set<string>;
  readonly made = new Map<TurnId, MadeTurn>();
  /** The context boxes made here that a turn made here has. */
  readonly #owned = new Set<string>();

  constructor(gathering: Gathering) {
    this.#gathering = gathering;
    this.#profileIds = new Set([...gathering.opening.profiles.values()].map((profile) => profile.profileId));
  }

  /** A profile that was read from the rows. */
  noteProfile({ profileId }: Pick<ProfileRow, 'profileId'>): void {
    this.#profileIds.add(profileId);
  }

  /** Gathers the rows of an agent: its tape and itself. */
  addAgent(request: NewAgentRequest): AgentRow {
    const agent = toAgent(request, this.#gathering.ctx.source);
    this.#addAgent(agent, request.derivedFrom);
    return agent;
  }

  #addAgent(
    { agentId, name, tapeBoxId, profile, isShared }: AgentRow,
    derivedFrom: AgentId | undefined,
  ): void {
    const { submission } = this.#gathering.unit;
    const { projectId, source } = this.#gathering.ctx;
    submission.tapes.push({ id: tapeBoxId, projectId, ownerAgentId: agentId });
    submission.agents.push({
      id: agentId,
      projectId,
      name,
      profileId: profile.profileId,
      ownerAgentId: source.agentId,
      derivedFrom: derivedFrom ?? null,
      tapeBoxId,
      ...(isShared ? { isShared } : {}),
    });
  }

  /**
   * Gathers the rows of turns; those of agents that exist are decided under their locks. A refusal leaves nothing behind, because
   * handlers may catch it: rows are gathered when all is decided.
   */
  async add(requests: readonly SubmitTurnRequest[], wait: TurnWait): Promise<readonly TurnRef[]> {
    const { undecided } = this.#gathering.unit;
    const boxIds = requests.map(({ contextBoxId }) => contextBoxId);
    for (const id of boxIds) undecided.add(id);
    try {
      return await this.#add(requests, wait);
    } finally {
      for (const id of boxIds) undecided.delete(id);
    }
  }

  async #add(requests: readonly SubmitTurnRequest[], wait: TurnWait): Promise<readonly TurnRef[]> {
    const { parent, projectId } = this.#gathering.ctx;
    const { submission } = this.#gathering.unit;
    const maxDepth = this.#gathering.opening.limits.max_depth ?? DEFAULT_MAX_DEPTH;
    const depth = parent === undefined ? 0 : parent.depth + 1;
    if (depth > maxDepth) {
      throw new KernelError('depth_exceeded', {
        message: `The turn would stand at depth ${depth}; the limit is ${maxDepth}.`,
        details: { depth, max_depth: maxDepth, turn_id: parent?.turnId },
      });
    }
    const made = requests.map(({ target, contextBoxId, deadlineMs, argument, priority, budget, view }) => {
      const agent = target.kind === 'new' ? toAgent(target, this.#gathering.ctx.source) : target.agent;
      const profile = target.kind === 'new' ? target.profile : target.agent.profile;
      const turn: TurnRef = {
        turnId: newId<'turn'>(),
        agentId: agent.agentId,
        contextBoxId,
        outputBoxId: agent.tapeBoxId,
      };
      const isReuse = target.kind === 'reuse';
      return { turn, agent, target, profile, isReuse, deadlineMs, argument, priority, budget, view };
    });
    const sizes = new Map(submission.contextBoxes.map((box) => [box.id, box.tokens]));
    await this.#checkContexts(requests);
    const reused = made.filter(({ isReuse }) => isReuse);
    const views = await this.#findViews(made);
    const selectors = made.map(({ view, profile }) =>
      view === undefined ? profile.selector : selectorOfView(view),
    );
    const rights = await this.#lockRights(requests);
    if (wait.isAwaited) for (const { turn } of reused) checkCycle(this.#gathering.ctx, turn.agentId);
    for (const profile of new Set(made.map((turn) => turn.profile))) await this.#checkProfile(profile);
    const runId = parent?.runId ?? newId<'run'>();
    const { shares, budgets } = await reserveSpawn(
      {
        projectId,
        parent,
        runBudget: { own: wait.runBudget, defaults: this.#gathering.opening.limits.run_budget },
        prices: this.#gathering.runtime.prices,
        db: this.#gathering.unit.db,
        tx: () => this.#gathering.unit.tx,
      },
      made.map(({ turn, profile, budget, argument }) => ({
        turnId: turn.turnId,
        runId,
        profileId: profile.profileId,
        depth,
        contextTokens: sizes.get(turn.contextBoxId) ?? 0,
        budget,
        argument: `${argument?.replace(/[^.]+$/, '') ?? ''}budget`,
      })),
    );
    // Whether an agent is free is decided under its lock: an end and a submit can then not miss each other.
    if (reused.length > 0) {
      const ids = [...new Set(reused.map(({ turn }) => turn.agentId))];
      const tapes = await lockAgents(this.#gathering.unit.tx, ids, parent?.runId);
      for (const { turn } of reused)
        if (tapes.get(turn.agentId) !== turn.outputBoxId) this.#refuse(await this.#explainTape(turn));
      const refusal = await this.#findLostRight(rights);
      if (refusal !== undefined) this.#refuse(refusal);
      if (this.#gathering.isWoken && parent !== undefined) await this.#checkOpen(parent);
    }
    for (const { agent, target } of made)
      if (target.kind === 'new') this.#addAgent(agent, target.derivedFrom);
    this.#own(made.map(({ turn }) => turn));
    submission.budgets.push(...budgets);
    const [first] = made;
    if (parent === undefined && first !== undefined)
      submission.runs.push({
        id: runId,
        projectId,
        rootTurnId: first.turn.turnId,
        turnCount: made.length,
        traceparent: this.#gathering.ctx.traceparent,
      });
    for (const [index, { turn, profile, isReuse, deadlineMs, argument, priority }] of made.entries()) {
      const share = shares[index] ?? { columns: {}, deadlineMs: undefined };
      const ownDeadlineMs = wait.deadlineMs ?? deadlineMs ?? null;
      this.made.set(turn.turnId, { agentId: turn.agentId, isReuse, argument, runId });
      submission.turns.push({
        id: turn.turnId,
        projectId,
        runId,
        agentId: turn.agentId,
        profileId: profile.profileId,
        parentTurnId: parent?.turnId ?? null,
        parentToolCallId: this.#gathering.call?.toolCallId ?? null,
        isAwaited: wait.isAwaited && this.#gathering.call !== undefined,
        depth,
        primitive: this.#gathering.ctx.primitive,
        channelId: this.#gathering.ctx.channelId,
        maxSteps: profile.maxSteps,
        contextBoxId: turn.contextBoxId,
        outputBoxId: turn.outputBoxId,
        workerTarget: profile.workerTarget,
        deadlineMs:
          share.deadlineMs === undefined
            ? ownDeadlineMs
            : Math.min(share.deadlineMs, ownDeadlineMs ?? share.deadlineMs),
        ...share.columns,
        ...(wait.isAwaited && this.#gathering.call !== undefined ? { isWaitedFor: true } : {}),
        ...(profile.isCapped || share.columns.budgetId !== undefined ? { isMetered: true } : {}),
        traceparent: this.#gathering.ctx.traceparent,
        isReuse,
        ...(this.#gathering.isWoken ? { isWoken: true } : {}),
        ...viewColumns(views[index], selectors[index] ?? null, this.#gathering.runtime.builds.build),
        priority: priority ?? parent?.priority ?? 0,
      });
    }
    return made.map(({ turn }) => turn);
  }

  /**
   * Where their views begin, in one statement for those that say so.
   *
   * @throws KernelError `not_found` for an anchor that is not on the tape; `box_not_authorized` where a session would show what who made
   * it may not read.
   */
  async #findViews(
    made: readonly {
      readonly view: TurnView | undefined;
      readonly argument: string | undefined;
      readonly turn: TurnRef;
      readonly profile: ProfileRow;
      readonly isReuse: boolean;
    }[],
  ): Promise<readonly (ViewStart | undefined)[]> {
    for (const { view } of made) checkView(view);
    const wishes = made.flatMap(({ view: whole, turn, profile, isReuse, argument }, index) => {
      const view = startOfView(whole);
      if (!isReuse && typeof view === 'object' && view.anchor !== BOOTSTRAP_ANCHOR)
        this.#refuseAnchor(view, turn, argument);
      const byProfile = whole === undefined && profile.isFullView ? 'profile' : undefined;
      const wish: ViewWish['view'] | undefined = view ?? byProfile;
      // A fresh tape is seen whole.
      return wish === undefined || !isReuse ? [] : [{ boxId: turn.outputBoxId, view: wish, index }];
    });
    const found = await findViewStarts(this.#gathering.unit.db, wishes);
    const views: (ViewStart | undefined)[] = made.map(() => undefined);
    for (const [n, { view, index }] of wishes.entries()) {
      const start = found[n];
      const { turn, argument } = made[index] ?? {};
      if (start === undefined && typeof view === 'object' && turn !== undefined)
        this.#refuseAnchor(view, turn, argument);
      if (start != null && 'contextBoxId' in start) throw hiddenView(start, argument, turn);
      views[index] = start ?? undefined;
    }
    return views;
  }

  #refuseAnchor(
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

  /** What the turns take from the accounts above them is written, so nothing of the primitive may be committed. */
  #refuse(refusal: KernelError): never {
    this.#gathering.unit.refuse(refusal);
    throw refusal;
  }

  /**
   * Locks the grants by which agents that exist are given turns: a right that is taken back meanwhile gives none. Those that the
   * caller is, has made, or that the handler has decided about need none.
   */
  async #lockRights(requests: readonly SubmitTurnRequest[]): Promise<GivenRights> {
    const { ctx, unit, isWoken } = this.#gathering;
    const { parent, source } = ctx;
    const agents = requests.flatMap(({ target, access }) =>
      target.kind === 'reuse' && access !== 'trusted' ? [target.agent] : [],
    );
    const tapes = (of: readonly AgentRow[]) => [...new Set(of.map(({ tapeBoxId }) => tapeBoxId))];
    if (isWoken && parent !== undefined) {
      const told = agents.filter(({ agentId }) => agentId !== parent.agentId);
      const makerId = told.length === 0 ? undefined : await findSessionMaker(unit.tx, parent.turnId);
      if (makerId === undefined) return { agents: [], makerId };
      await lockGrants(unit.tx, tapes(told), makerId);
      return { agents: told, makerId };
    }
    const lent = agents.filter(
      ({ agentId, ownerAgentId }) =>
        !source.isOperator && agentId !== source.agentId && ownerAgentId !== source.agentId,
    );
    if (lent.some(({ isShared }) => !isShared)) await lockGrants(unit.tx, tapes(lent), source.agentId);
    return { agents: lent, makerId: undefined };
  }

  /** Looks at these rights again, under the locks of grants and agents. */
  async #findLostRight({ agents, makerId }: GivenRights): Promise<KernelError | undefined> {
    if (agents.length === 0) return undefined;
    const { ctx, unit } = this.#gathering;
    const { projectId, source } = ctx;
    if (makerId !== undefined) {
      for (const { tapeBoxId: boxId } of agents) {
        const refusal = await findNotifyRefusal(unit.tx, { projectId, boxId, makerId });
        if (refusal !== undefined) return refusal;
      }
      return undefined;
    }
    const ids = agents.map(({ agentId }) => agentId);
    const found = await findAgents(unit.tx, { projectId, actorId: source.agentId }, { ids, names: [] });
    try {
      for (const agent of found) checkReuse(source, agent);
    } catch (error) {
      if (error instanceof KernelError) return error;
      throw error;
    }
    return undefined;
  }

  /** Under the lock of the run: a cancel either sees the new turns or is seen here. */
  async #checkOpen({ turnId, runId }: NonNullable<CallerContext['parent']>): Promise<void> {
    if (!(await isCanceled(this.#gathering.unit.tx, turnId))) return;
    throw new KernelError('canceled', {
      message: `Turn ${turnId}, a turn above it or its run ${runId} was canceled.`,
      details: { turn_id: turnId, run_id: runId },
    });
  }

  /** Why the tape that a turn was to be written to is not its agent's: reset meanwhile, or never. */
  async #explainTape({ agentId, outputBoxId }: TurnRef): Promise<KernelError> {
    const actor = { projectId: this.#gathering.ctx.projectId, actorId: this.#gathering.ctx.source.agentId };
    const tape = await findTape(this.#gathering.unit.tx, { kind: 'box', boxId: outputBoxId }, actor);
    const details = { agent_id: agentId, output_box_id: outputBoxId, project_id: actor.projectId };
    if (tape?.isArchived === true && tape.ownerAgentId === agentId)
      return new KernelError('tape_conflict', {
        message: `The tape of agent ${agentId} was reset meanwhile.`,
        details,
        // As a serialization failure, it is tried again for the kernel's own primitives: the handler then finds the tape that the agent has now.
        cause: Object.assign(new Error('the tape was reset meanwhile'), { code: '40001' }),
      });
    return new KernelError('not_found', {
      message: `submitTurn: no agent ${agentId} with the tape ${outputBoxId}.`,
      details,
    });
  }

  /** A turn of a profile that does not exist could never be run, and no foreign key would say so. */
  async #checkProfile({ profileId, name }: ProfileRow): Promise<void> {
    if (this.#profileIds.has(profileId)) return;
    if (!(await hasProfile(this.#gathering.unit.db, profileId, this.#gathering.ctx.projectId)))
      throw new KernelError('not_found', {
        message: `No profile '${name}' of id ${profileId} in this project.`,
        details: { profile_id: profileId, project_id: this.#gathering.ctx.projectId },
      });
    this.#profileIds.add(profileId);
  }

  /**
   * @throws KernelError `not_found` for contexts that were neither made here nor written before; `box_not_authorized` for those that
   * the caller may not read, unless the handler answers for it.
   */
  async #checkContexts(requests: readonly SubmitTurnRequest[]): Promise<void> {
    const { submission, db } = this.#gathering.unit;
    const { projectId, source } = this.#gathering.ctx;
    const here = new Set(submission.contextBoxes.map(({ id }) => id));
    const written = requests.filter(({ contextBoxId }) => !here.has(contextBoxId));
    if (written.length === 0) return;
    const ids = written.map(({ contextBoxId }) => contextBoxId);
    const known = await findContextBoxes(db, ids, { projectId, actorId: source.agentId });
    for (const { contextBoxId, access } of written) {
      const box = known.get(contextBoxId);
      if (box === undefined)
        throw new KernelError('not_found', {
          message: `submitTurn: no context box ${contextBoxId} in this project.`,
          details: { context_box_id: contextBoxId, project_id: projectId },
        });
      if (!box.isReadable && access !== 'trusted')
        throw new KernelError('box_not_authorized', {
          message: `submitTurn: agent ${source.agentId} may not read box ${contextBoxId}, so it cannot hand it on.`,
          details: { context_box_id: contextBoxId, source_agent_id: source.agentId },
        });
    }
  }

  /** The agents hold their turns' contexts: as owners of boxes made here, by a grant for those that were written before. */
  #own(turns: readonly TurnRef[]): void {
    const { submission } = this.#gathering.unit;
    const { projectId, source } = this.#gathering.ctx;
    const indexes = new Map(submission.contextBoxes.map((box, index) => [box.id, index]));
    for (const { contextBoxId, agentId } of turns) {
      const index = indexes.get(contextBoxId) ?? -1;
      const box = submission.contextBoxes[index];
      // A box has one owner. The agents of further turns that share it get grants.
      if (box === undefined || this.#owned.has(box.id)) {
        submission.grants.push({
          projectId,
          agentId,
          boxId: contextBoxId,
          mode: 'read',
          uptoPosition: null,
          source: source.agentId,
          expiresAt: null,
        });
        continue;
      }
      this.#owned.add(box.id);
      submission.contextBoxes[index] = { ...box, ownerAgentId: agentId };
    }
  }
}

/** The migration from which on builds know turns with a view of their own. */
const VIEWS_FORMAT = 29;

/** Handlers of programs come here without a schema. */
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
    message: `${field}: the prompt would show context box ${contextBoxId}, which agent ${makerId}, who made the session, may not read. Begin with a later anchor.`,
    details: {
      field,
      box_id: turn?.outputBoxId ?? null,
      context_box_id: contextBoxId,
      source_agent_id: makerId,
    },
  });
}

/** The migration from which on builds know turns with a selector. */
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

const toAgent = (
  { profile, name, isShared = false, agentId = newId<'agent'>() }: NewAgentRequest,
  { agentId: ownerAgentId, isOperator }: CallerContext['source'],
): AgentRow => ({
  agentId,
  name: name ?? freshAgentName(profile.name, agentId),
  tapeBoxId: newId<'box'>(),
  profile,
  ownerAgentId,
  isOperatorMade: isOperator,
  isShared,
  mayAppend: false,
});
