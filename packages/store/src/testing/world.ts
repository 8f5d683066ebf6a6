/** Rows for tests of the store, made by the store's own statements: projects, profiles, agents, and turns in any state. */
import {
  type AgentId,
  type BatchId,
  type BoxId,
  buildCard,
  type CardContent,
  type CardId,
  type FinalStatus,
  type Id,
  type NewCard,
  type ProfileId,
  type ProjectId,
  parseProfile,
  type RunId,
  type ToolCallId,
  type TurnId,
  type TurnStatus,
  type WorkerId,
} from '@boxcar/kernel';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import type pg from 'pg';
import { transaction } from '../db/db.js';
import { lockAgents } from '../submit/find-agents.js';
import { insertProfiles } from '../submit/profile-versions.js';
import { writeSubmission } from '../submit/submission.js';
import { emptySubmission, type NewTurn, type Submission } from '../submit/submission-rows.js';
import type { CallSettlement } from '../turn/call-types.js';
import { type ClaimedTurn, claim } from '../turn/claims.js';
import { commitSteps } from '../turn/commits.js';
import type { NewEntry, StepCommit } from '../turn/step-commit.js';
import { releaseTurns } from '../turn/turns.js';
import { registerWorker } from '../work/workers.js';

export const DEFAULT_PROJECT = '00000000-0000-7000-8000-000000000001' as ProjectId;
export const OPERATOR = '00000000-0000-7000-8000-000000000002' as AgentId;

let count = 0;
/** Ascending ids, like those of uuidv7. */
export const newId = <K extends string>(): Id<K> =>
  `00000000-0000-7000-9000-${(++count).toString(16).padStart(12, '0')}` as Id<K>;

export interface TestProfile {
  readonly id: ProfileId;
  readonly projectId: ProjectId;
  readonly name: string;
  readonly boxId: BoxId;
  readonly workerTarget: string;
}

export interface TestTurn {
  readonly turnId: TurnId;
  readonly runId: RunId;
  readonly projectId: ProjectId;
  readonly agentId: AgentId;
  readonly profile: TestProfile;
  readonly contextBoxId: BoxId;
  readonly tapeId: BoxId;
  readonly parentTurnId: TurnId | null;
}

export interface TurnOptions {
  readonly profile: TestProfile;
  /** Uses the agent of this turn instead of a new agent. */
  readonly reuse?: TestTurn;
  readonly parent?: TestTurn;
  /** The call of the parent that the end of this turn answers. */
  readonly answers?: ToolCallId;
  readonly deadlineMs?: number;
}

export interface TurnRow extends pg.QueryResultRow {
  readonly status: TurnStatus;
  readonly epoch: number;
  readonly holder_id: WorkerId | null;
  readonly attempt: number;
  readonly step_count: number;
  readonly pending_calls: number;
  readonly start_position: number | null;
  readonly deliverable_card_id: CardId | null;
  readonly error: { code: string } | null;
  readonly batch_ids: readonly BatchId[] | null;
}

export interface EntryRow extends pg.QueryResultRow {
  readonly position: number;
  readonly kind: string;
  readonly card_id: CardId | null;
  readonly payload: { name: string; data: Record<string, unknown> } | null;
  readonly anchor_name: string | null;
  readonly turn_id: TurnId | null;
  readonly step: number | null;
  readonly content: CardContent | null;
}

export const card = (
  content: CardContent,
  options: { readonly type?: string; readonly projectId?: ProjectId; readonly authorId?: string } = {},
): NewCard =>
  buildCard(
    { type: options.type ?? 'task.input', role: 'user', content, authorId: options.authorId ?? OPERATOR },
    { id: newId<'card'>(), projectId: options.projectId ?? DEFAULT_PROJECT },
  );
export const text = (words: string): CardContent => ({ kind: 'text', text: words });
const entryOf = (of: NewCard, kind: NewEntry['kind'] = 'message'): NewEntry => ({
  kind,
  cardId: of.id,
  tokens: of.tokenEstimate,
});

export class World implements AsyncDisposable {
  readonly database: TestDatabase;
  readonly pool: pg.Pool;

  private constructor(database: TestDatabase) {
    this.database = database;
    this.pool = database.pool;
  }

  static async open(): Promise<World> {
    return new World(await testDatabase());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.database.close();
  }

  async rows<R extends pg.QueryResultRow>(sql: string, values: unknown[] = []): Promise<R[]> {
    return (await this.pool.query<R>(sql, values)).rows;
  }

  async count(table: string, where = 'true'): Promise<number> {
    const [row] = await this.rows<{ n: number }>(
      `select count(*)::int as n from boxcar.${table} where ${where}`,
    );
    return row?.n ?? 0;
  }

  async project(name: string): Promise<{ readonly projectId: ProjectId; readonly operatorId: AgentId }> {
    const projectId = newId<'project'>();
    const operatorId = newId<'agent'>();
    const bootstrap = card({ kind: 'json', data: { owner: 'human' } }, { projectId, type: 'tape.anchor' });
    const submission = { ...emptySubmission(), cards: [bootstrap] };
    await this.pool.query(
      'insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id) values ($1, $2, $3, $4)',
      [projectId, name, operatorId, bootstrap.id],
    );
    await this.pool.query("insert into boxcar.agents (id, project_id, name) values ($1, $2, 'operator')", [
      operatorId,
      projectId,
    ]);
    await writeSubmission(this.pool, submission);
    return { projectId, operatorId };
  }

  async profile(
    name: string,
    options: {
      readonly projectId?: ProjectId;
      readonly workerTarget?: string;
      readonly maxSteps?: number;
    } = {},
  ): Promise<TestProfile> {
    const projectId = options.projectId ?? DEFAULT_PROJECT;
    const workerTarget = options.workerTarget ?? '';
    const profile = parseProfile({
      name,
      instructions: 'work',
      model: 'scripted',
      worker_target: workerTarget,
      limits: { max_steps: options.maxSteps ?? 50 },
    });
    const profileCard = card(
      { kind: 'json', data: JSON.parse(JSON.stringify(profile)) },
      { type: 'sys.profile', projectId },
    );
    const boxId = newId<'box'>();
    const id = newId<'profile'>();
    await transaction(this.pool, async (tx) => {
      await writeSubmission(tx, {
        ...emptySubmission(),
        cards: [profileCard],
        contextBoxes: [this.listedBox([profileCard], { id: boxId, projectId })],
      });
      await insertProfiles(tx, projectId, [{ id, boxId, cardId: profileCard.id, profile }]);
    });
    return { id, projectId, name, boxId, workerTarget };
  }

  /** The row of a sealed box with these cards. */
  listedBox(
    cards: readonly Pick<NewCard, 'id' | 'tokenEstimate'>[],
    options: { readonly id?: BoxId; readonly projectId?: ProjectId; readonly maker?: AgentId } = {},
  ): Submission['contextBoxes'][number] {
    const tokens = cards.reduce((sum, item) => sum + item.tokenEstimate, 0);
    return {
      id: options.id ?? newId<'box'>(),
      projectId: options.projectId ?? DEFAULT_PROJECT,
      ownerAgentId: null,
      makerAgentId: options.maker ?? OPERATOR,
      cardIds: cards.map((item) => item.id),
      cardTokens: cards.map((item) => item.tokenEstimate),
      segments:
        cards.length === 0
          ? []
          : [{ rule: 'create_box', from: 1, to: cards.length, count: cards.length, tokens }],
      count: cards.length,
      tokens,
    };
  }

  /** The rows of a submission of this turn, not written yet. */
  draft(options: TurnOptions): { readonly turn: TestTurn; readonly submission: Submission } {
    const { profile, reuse, parent } = options;
    const { projectId } = profile;
    const turn: TestTurn = {
      turnId: newId<'turn'>(),
      runId: parent?.runId ?? newId<'run'>(),
      projectId,
      agentId: reuse?.agentId ?? newId<'agent'>(),
      profile,
      contextBoxId: newId<'box'>(),
      tapeId: reuse?.tapeId ?? newId<'box'>(),
      parentTurnId: parent?.turnId ?? null,
    };
    const instruction = card(text('go'), { type: 'task.instruction', projectId });
    const row: NewTurn = {
      id: turn.turnId,
      projectId,
      runId: turn.runId,
      agentId: turn.agentId,
      profileId: profile.id,
      parentTurnId: turn.parentTurnId,
      parentToolCallId: options.answers ?? null,
      isAwaited: options.answers !== undefined,
      depth: parent === undefined ? 0 : 1,
      primitive: 'delegate_async',
      channelId: 'public',
      maxSteps: 50,
      contextBoxId: turn.contextBoxId,
      outputBoxId: turn.tapeId,
      workerTarget: profile.workerTarget,
      deadlineMs: options.deadlineMs ?? null,
      traceparent: null,
      isReuse: reuse !== undefined,
    };
    return {
      turn,
      submission: {
        ...emptySubmission(),
        cards: [instruction],
        contextBoxes: [this.listedBox([instruction], { id: turn.contextBoxId, projectId })],
        turns: [row],
        runs:
          parent === undefined
            ? [{ id: turn.runId, projectId, rootTurnId: turn.turnId, traceparent: null }]
            : [],
        tapes: reuse === undefined ? [{ id: turn.tapeId, projectId, ownerAgentId: turn.agentId }] : [],
        agents:
          reuse === undefined
            ? [
                {
                  id: turn.agentId,
                  projectId,
                  name: `${profile.name}-${turn.agentId}`,
                  profileId: profile.id,
                  ownerAgentId: parent?.agentId ?? OPERATOR,
                  derivedFrom: null,
                  tapeBoxId: turn.tapeId,
                },
              ]
            : [],
      },
    };
  }

  /** Submits a turn; its status shows whether the window had room. */
  async submit(options: TurnOptions): Promise<TestTurn> {
    const { turn, submission } = this.draft(options);
    await transaction(this.pool, async (tx) => {
      if (options.reuse !== undefined) await lockAgents(tx, [turn.agentId]);
      await writeSubmission(tx, submission);
    });
    return turn;
  }

  /** A worker with a valid lease. */
  async worker(
    options: {
      readonly concurrency?: number;
      readonly targets?: readonly string[];
      readonly leaseMs?: number;
    } = {},
  ): Promise<WorkerId> {
    const id = newId<'worker'>();
    await registerWorker(this.pool, {
      id,
      lockKey: String(++count),
      targets: options.targets ?? [''],
      concurrency: options.concurrency ?? 100,
      leaseMs: options.leaseMs ?? 3_600_000,
      info: {},
    });
    return id;
  }

  /** A turn that is held by a worker, with an open first step. */
  async running(options: TurnOptions & { readonly holder: WorkerId }): Promise<TestTurn> {
    const turn = await this.submit(options);
    await this.claim(turn, options.holder);
    return turn;
  }

  /** Returns turns at their present epochs. */
  async release(
    holder: WorkerId,
    turns: readonly TestTurn[],
    options?: Parameters<typeof releaseTurns>[3],
  ): ReturnType<typeof releaseTurns> {
    const held = await Promise.all(
      turns.map(async (turn) => ({ turnId: turn.turnId, epoch: (await this.row(turn)).epoch })),
    );
    return releaseTurns(this.pool, holder, held, options);
  }

  async claim(turn: TestTurn, holder: WorkerId): Promise<ClaimedTurn> {
    const { epoch } = await this.row(turn);
    const [outcome] = await claim(this.pool, [{ turnId: turn.turnId, epoch }], holder);
    if (outcome?.outcome !== 'claimed') throw new Error(`turn ${turn.turnId} was not to be had`);
    return outcome.turn;
  }

  async row(turn: Pick<TestTurn, 'turnId'>): Promise<TurnRow> {
    const [row] = await this.rows<TurnRow>('select * from boxcar.turns where id = $1', [turn.turnId]);
    if (row === undefined) throw new Error(`no turn ${turn.turnId}`);
    return row;
  }

  async statusOf(turn: Pick<TestTurn, 'turnId'>): Promise<TurnStatus> {
    return (await this.row(turn)).status;
  }

  entries(tape: Pick<TestTurn, 'tapeId'>): Promise<EntryRow[]> {
    return this.rows<EntryRow>(
      `
        select e.*, c.content
        from boxcar.tape_entries e
        left join boxcar.cards c on c.id = e.card_id
        where e.box_id = $1
        order by e.position`,
      [tape.tapeId],
    );
  }

  /** The texts on a tape after the bootstrap entries: a card's text, an event's name. */
  async tape(turn: Pick<TestTurn, 'tapeId'>): Promise<string[]> {
    return (await this.entries(turn))
      .slice(2)
      .map(({ content, payload }) =>
        content?.kind === 'text' ? content.text : (payload?.name ?? content?.kind ?? ''),
      );
  }

  /** A commit of a turn that is held by a worker: by default its next step with one thought, after which the turn continues. */
  async commit(
    turn: TestTurn,
    options: {
      readonly says?: string;
      readonly calls?: readonly ToolCallId[];
      readonly results?: readonly CallSettlement[];
      readonly step?: 'next' | 'none';
      readonly end?: FinalStatus;
      readonly settles?: CallSettlement;
      readonly holder?: WorkerId | null;
      readonly epoch?: number;
    } = {},
  ): Promise<StepCommit> {
    const row = await this.row(turn);
    const said = card(text(options.says ?? 'thought'), { type: 'agent.thought' });
    const calls = (options.calls ?? []).map((id) => ({
      id,
      card: card(
        { kind: 'tool_call', tool_call_id: id, provider_call_id: 'call_0', name: 'tool', arguments: {} },
        { type: 'tool.call' },
      ),
    }));
    const settles = options.settles;
    return {
      turnId: turn.turnId,
      projectId: turn.projectId,
      agentId: turn.agentId,
      epoch: options.epoch ?? row.epoch,
      isMember: row.batch_ids !== null,
      holderId: options.holder === undefined ? row.holder_id : options.holder,
      step:
        options.step === 'none'
          ? null
          : {
              step: row.step_count + 1,
              attempt: row.attempt,
              model: 'scripted',
              promptHash: '00'.repeat(32),
              toolsetHash: '00'.repeat(32),
              manifest: { v: 1, head: 3 },
              thoughtCardId: said.id,
              usage: { input_tokens: 1 },
              finishReason: 'stop',
              modelMs: 1,
              error: null,
            },
      cards: [said, ...calls.map((call) => call.card)],
      entries: [entryOf(said), ...calls.map((call) => entryOf(call.card, 'tool_call'))],
      calls: calls.map(({ id }, index) => ({
        id,
        ordinal: index + 1,
        providerCallId: 'call_0',
        name: 'tool',
        arguments: {},
        route: 'function',
        target: null,
        retry: 'never',
        timeoutMs: 60_000,
      })),
      emptyReplies: 0,
      results: options.results ?? [],
      end:
        options.end === undefined
          ? null
          : {
              status: options.end,
              deliverableCardId: said.id,
              error: null,
              settles: settles === undefined ? null : { ...settles },
            },
    };
  }

  /** Commits a step with this many calls; the worker keeps the turn. */
  async call(turn: TestTurn, n: number): Promise<ToolCallId[]> {
    const ids = Array.from({ length: n }, () => newId<'tool_call'>());
    const { outcomes } = await commitSteps(this.pool, [await this.commit(turn, { calls: ids })]);
    if (outcomes[0]?.outcome !== 'committed') throw new Error('the step was fenced');
    return ids;
  }

  /** Makes a call wait for this time, and for a batch if one is given, in the same way as a submission does. */
  async wait(toolCallId: ToolCallId, deadlineMs: number, batchId: BatchId | null = null): Promise<void> {
    await this.pool.query(
      "update boxcar.tool_calls set batch_id = $2, deadline_at = now() + $3 * interval '1 millisecond' where id = $1",
      [toolCallId, batchId, deadlineMs],
    );
  }

  result(turn: TestTurn, toolCallId: ToolCallId, words = 'result'): CallSettlement {
    const resultCard = buildCard(
      {
        type: 'tool.result',
        role: 'tool',
        content: text(words),
        authorId: 'tool:tool',
        toolCallId,
      },
      { id: newId<'card'>(), projectId: turn.projectId },
    );
    return { toolCallId, turnId: turn.turnId, status: 'success', card: resultCard };
  }
}
