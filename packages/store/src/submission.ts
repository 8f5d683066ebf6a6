/**
 * The one write of a submission: everything that a primitive makes, in a single statement.
 *
 * It owns: idempotency (the operation row decides whether anything is written), the fence of the calling turn, and the
 * decision whether a new turn is dispatched at once or queued.
 *
 * S1  A second submission under the same key writes nothing.
 * S2  A turn that has ended or changed hands cannot submit.
 * S3  A turn is dispatched only while the window of its target has room and none is queued before it.
 */
import type {
  AgentId,
  BoxId,
  ContextBoxDraft,
  JsonValue,
  NewCard,
  ProfileId,
  ProjectId,
  Ring,
  RunId,
  ToolCallId,
  TurnId,
  WorkerId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, type Statement, statement } from './db.js';
import { CARD_COLUMNS, CARD_TARGET, CARD_VALUES, cardRecord, contextBoxRecord } from './records.js';

export interface NewContextBox extends ContextBoxDraft {
  readonly id: BoxId;
  readonly projectId: ProjectId;
  readonly ownerAgentId: AgentId | null;
  readonly makerAgentId: AgentId;
}

export interface NewTape {
  readonly id: BoxId;
  readonly projectId: ProjectId;
  readonly ownerAgentId: AgentId;
}

export interface NewAgent {
  readonly id: AgentId;
  readonly projectId: ProjectId;
  readonly name: string;
  readonly profileId: ProfileId;
  readonly ownerAgentId: AgentId;
  readonly derivedFrom: AgentId | null;
  readonly tapeBoxId: BoxId;
}

export interface NewRun {
  readonly id: RunId;
  readonly projectId: ProjectId;
  readonly rootTurnId: TurnId;
  readonly traceparent: string | null;
}

export interface NewTurn {
  readonly id: TurnId;
  readonly projectId: ProjectId;
  readonly runId: RunId;
  readonly agentId: AgentId;
  readonly profileId: ProfileId;
  readonly parentTurnId: TurnId | null;
  readonly parentToolCallId: ToolCallId | null;
  readonly isAwaited: boolean;
  readonly depth: number;
  readonly primitive: string;
  readonly channelId: string;
  readonly maxSteps: number;
  readonly contextBoxId: BoxId;
  readonly outputBoxId: BoxId;
  readonly workerTarget: string;
  readonly deadlineMs: number | null;
  readonly traceparent: string | null;
  /** True for an agent that exists already: it may have a turn in hand, so its row must be locked before this write. */
  readonly isReuse: boolean;
}

export interface NewGrant {
  readonly projectId: ProjectId;
  readonly agentId: AgentId;
  readonly boxId: BoxId;
  readonly mode: 'read' | 'append';
  /** The last readable position of a tape; null = all, also what comes later. */
  readonly uptoPosition: number | null;
  readonly source: string;
  readonly expiresAt: string | null;
}

export interface NewOperation {
  readonly projectId: ProjectId;
  readonly idempotencyKey: string;
  readonly primitive: string;
  readonly requestHash: string;
  readonly response: JsonValue;
  readonly awaitedTurnId: TurnId | null;
  readonly doorJobId: string | null;
}

/** The calling turn must still be running at this epoch in this worker's hands. */
export interface Fence {
  readonly turnId: TurnId;
  readonly epoch: number;
  readonly holderId: WorkerId;
}

/** Everything a primitive writes, gathered before the one statement. */
export interface Submission {
  readonly cards: NewCard[];
  readonly contextBoxes: NewContextBox[];
  readonly tapes: NewTape[];
  readonly agents: NewAgent[];
  readonly runs: NewRun[];
  readonly turns: NewTurn[];
  readonly grants: NewGrant[];
}

export const emptySubmission = (): Submission => ({
  cards: [],
  contextBoxes: [],
  tapes: [],
  agents: [],
  runs: [],
  turns: [],
  grants: [],
});

export interface SubmittedTurn {
  readonly turn_id: TurnId;
  readonly status: 'queued' | 'dispatched';
  readonly epoch: number;
  readonly worker_target: string;
}

export type SubmissionResult =
  | { readonly outcome: 'accepted'; readonly turns: readonly SubmittedTurn[] }
  /** The key was used before, or the fence no longer holds: nothing was written. */
  | { readonly outcome: 'refused' };

/** Turns per target that may wait for a worker at once, as a multiple of the live workers' concurrency. */
export const WINDOW_FACTOR = 4;

/** Room in the window of each target among the new turns. */
const ROOM = `
  select g.worker_target,
    ${WINDOW_FACTOR} * (select coalesce(sum(w.concurrency), 0) from boxcar.workers w
       where w.lease_until > now() and w.targets @> array[g.worker_target])
    - (select count(*) from boxcar.turns t where t.status = 'dispatched' and t.worker_target = g.worker_target) as free,
    exists (select from boxcar.turns t where t.status = 'queued' and t.worker_target = g.worker_target) as has_backlog
  from (select distinct worker_target from new_turns) g`;

// Who holds a box may widen and narrow what others hold; who was only given it cannot take from another what he has.
const IS_WIDER = `((excluded.upto_position is null or grants.upto_position <= excluded.upto_position)
          and (excluded.expires_at is null or grants.expires_at <= excluded.expires_at))`;
const IS_BY_OWNER = `exists (select from boxcar.boxes b join boxcar.projects p on p.id = b.project_id
          where b.id = excluded.box_id and excluded.source in (b.owner_agent_id::text, b.maker_agent_id::text, p.operator_agent_id::text))`;

function buildSubmissionText(parts: { operation: boolean; fence: boolean; submission: Submission }): string {
  const { operation, fence, submission } = parts;
  const gate = operation ? 'where exists (select from op)' : fence ? 'where exists (select from fence)' : '';
  const ctes: string[] = [];
  if (fence) {
    ctes.push(`fence as (select 1 from boxcar.turns t, json_to_record($1) as f(turn_id uuid, epoch int, holder_id uuid)
      where t.id = f.turn_id and t.epoch = f.epoch and t.holder_id = f.holder_id and t.status = 'running' for update of t)`);
  } else {
    ctes.push('unfenced as (select $1::json)');
  }
  if (operation) {
    ctes.push(`op as (insert into boxcar.operations (project_id, idempotency_key, primitive, request_hash, response, awaited_turn_id, door_job_id)
      select x.project_id, x.idempotency_key, x.primitive, decode(x.request_hash, 'hex'), x.response::json, x.awaited_turn_id, x.door_job_id
      from json_to_record($2) as x(project_id uuid, idempotency_key text, primitive text, request_hash text, response text, awaited_turn_id uuid, door_job_id text)
      ${fence ? 'where exists (select from fence)' : ''}
      on conflict do nothing returning 1)`);
  } else {
    ctes.push('no_operation as (select $2::json)');
  }
  if (submission.cards.length > 0) {
    ctes.push(
      `new_cards as (insert into ${CARD_TARGET} select ${CARD_VALUES} from json_to_recordset($3::json->'cards') as x(${CARD_COLUMNS}) ${gate} returning 1)`,
    );
  }
  if (submission.contextBoxes.length > 0) {
    ctes.push(`new_boxes as (insert into boxcar.boxes (id, project_id, kind, owner_agent_id, maker_agent_id, card_ids, card_tokens, segments, card_count, token_estimate)
      select x.id, x.project_id, 'context', x.owner_agent_id, x.maker_agent_id, x.card_ids, x.card_tokens, x.segments, x.card_count, x.token_estimate
      from json_to_recordset($3::json->'contextBoxes') as x(id uuid, project_id uuid, owner_agent_id uuid, maker_agent_id uuid, card_ids uuid[], card_tokens int[], segments jsonb, card_count int, token_estimate int)
      ${gate} returning 1)`);
  }
  if (submission.tapes.length > 0) {
    ctes.push(`new_tapes as (insert into boxcar.boxes (id, project_id, kind, owner_agent_id, maker_agent_id, incarnation, head_position, last_anchor_position, view_position)
      select x.id, x.project_id, 'tape', x.owner_agent_id, x.owner_agent_id, 1, 2, 1, 1
      from json_to_recordset($3::json->'tapes') as x(id uuid, project_id uuid, owner_agent_id uuid) ${gate} returning id, project_id, owner_agent_id),
    bootstrap as (insert into boxcar.tape_entries (box_id, position, kind, card_id, tokens, payload, anchor_name, author_id)
      select n.id, e.position, e.kind, case e.position when 1 then p.bootstrap_card_id end, case e.position when 1 then 10 else 0 end, e.payload::json, e.anchor_name, n.owner_agent_id::text
      from new_tapes n join boxcar.projects p on p.id = n.project_id
      cross join (values (1, 'anchor', null, 'session/start'), (2, 'event', '{"name":"handoff","data":{"name":"session/start","state":{"owner":"human"}}}', null)) as e(position, kind, payload, anchor_name)
      returning 1)`);
  }
  if (submission.agents.length > 0) {
    ctes.push(`new_agents as (insert into boxcar.agents (id, project_id, name, profile_id, owner_agent_id, derived_from, tape_box_id)
      select x.id, x.project_id, x.name, x.profile_id, x.owner_agent_id, x.derived_from, x.tape_box_id
      from json_to_recordset($3::json->'agents') as x(id uuid, project_id uuid, name text, profile_id uuid, owner_agent_id uuid, derived_from uuid, tape_box_id uuid) ${gate} returning 1)`);
  }
  if (submission.runs.length > 0) {
    ctes.push(`new_runs as (insert into boxcar.runs (id, project_id, root_turn_id, traceparent)
      select x.id, x.project_id, x.root_turn_id, x.traceparent
      from json_to_recordset($3::json->'runs') as x(id uuid, project_id uuid, root_turn_id uuid, traceparent text) ${gate} returning 1)`);
  }
  if (submission.grants.length > 0) {
    ctes.push(`new_grants as (insert into boxcar.grants (project_id, agent_id, box_id, mode, upto_position, source, expires_at)
      select x.project_id, x.agent_id, x.box_id, x.mode, x.upto_position, x.source, x.expires_at
      from json_to_recordset($3::json->'grants') as x(project_id uuid, agent_id uuid, box_id uuid, mode text, upto_position int, source text, expires_at timestamptz) ${gate}
      on conflict (agent_id, box_id, mode) do update set expires_at = excluded.expires_at, upto_position = excluded.upto_position, source = excluded.source
        where grants.expires_at <= now() or ${IS_WIDER} or ${IS_BY_OWNER} returning 1)`);
  }
  if (submission.turns.length > 0) {
    ctes.push(`new_turns as (select row_number() over (partition by x.worker_target order by x.ord) as rank,
        row_number() over (partition by x.agent_id order by x.ord) as place, x.*
      from rows from (json_to_recordset($3::json->'turns') as (id uuid, project_id uuid, run_id uuid, agent_id uuid, profile_id uuid, parent_turn_id uuid, parent_tool_call_id uuid, is_awaited boolean, depth int, primitive text, channel_id text, max_steps int, context_box_id uuid, output_box_id uuid, worker_target text, deadline_ms float8, traceparent text, is_reuse boolean)) with ordinality
        as x(id, project_id, run_id, agent_id, profile_id, parent_turn_id, parent_tool_call_id, is_awaited, depth, primitive, channel_id, max_steps, context_box_id, output_box_id, worker_target, deadline_ms, traceparent, is_reuse, ord) ${gate}),
    room as (${ROOM}),
    decided as (select n.*, r.free >= n.rank and not r.has_backlog and n.place = 1
        and not (n.is_reuse and exists (select from boxcar.turns t where t.agent_id = n.agent_id and t.status in ('queued', 'dispatched', 'running', 'suspended'))) as is_ready
      from new_turns n join room r using (worker_target)),
    turns as (insert into boxcar.turns (id, project_id, run_id, agent_id, profile_id, parent_turn_id, parent_tool_call_id, is_awaited, depth, primitive, channel_id, max_steps, context_box_id, output_box_id, worker_target, deadline_at, traceparent, status, epoch, dispatched_at)
      select id, project_id, run_id, agent_id, profile_id, parent_turn_id, parent_tool_call_id, is_awaited, depth, primitive, channel_id, max_steps, context_box_id, output_box_id, worker_target,
        now() + deadline_ms * interval '1 millisecond', traceparent,
        case when is_ready then 'dispatched' else 'queued' end, case when is_ready then 1 else 0 end, case when is_ready then now() end
      from decided returning id as turn_id, status, epoch, worker_target)`);
  }
  if (submission.turns.length === 0) ctes.push('rest as (select $3::json)');
  const accepted = operation ? 'exists (select from op)' : fence ? 'exists (select from fence)' : 'true';
  const turns =
    submission.turns.length > 0 ? "(select coalesce(json_agg(t), '[]') from turns t)" : "'[]'::json";
  return `with ${ctes.join(',\n')}\nselect ${accepted} as accepted, ${turns} as turns`;
}

const variants = new Map<string, Statement>();

/** One text per combination of parts, so that a connection prepares each once. */
function submissionStatement(parts: {
  operation: boolean;
  fence: boolean;
  submission: Submission;
}): Statement {
  const { submission } = parts;
  const key = [
    parts.operation,
    parts.fence,
    ...Object.values(submission).map((rows: readonly unknown[]) => rows.length > 0),
  ].join();
  const known = variants.get(key);
  if (known !== undefined) return known;
  const built = statement(buildSubmissionText(parts));
  variants.set(key, built);
  return built;
}

const snake = (record: object): Record<string, unknown> =>
  Object.fromEntries(
    Object.entries(record).map(([key, value]) => [
      key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      value,
    ]),
  );

/**
 * Writes a submission in one statement. Rule: docs/primitives.md, "Accepting".
 *
 * @returns `refused` when the key exists already or the fence no longer holds; then nothing was written.
 */
export async function writeSubmission(
  db: Queryable,
  submission: Submission,
  options: { operation?: NewOperation; fence?: Fence } = {},
): Promise<SubmissionResult> {
  const prepared = submissionStatement({
    operation: options.operation !== undefined,
    fence: options.fence !== undefined,
    submission,
  });
  const values = [
    options.fence === undefined ? null : JSON.stringify(snake(options.fence)),
    options.operation === undefined
      ? null
      : JSON.stringify(snake({ ...options.operation, response: JSON.stringify(options.operation.response) })),
    JSON.stringify({
      cards: submission.cards.map(cardRecord),
      contextBoxes: submission.contextBoxes.map((box) => ({
        id: box.id,
        project_id: box.projectId,
        owner_agent_id: box.ownerAgentId,
        maker_agent_id: box.makerAgentId,
        ...contextBoxRecord(box),
      })),
      tapes: submission.tapes.map(snake),
      agents: submission.agents.map(snake),
      runs: submission.runs.map(snake),
      turns: submission.turns.map(snake),
      // One row per key: a statement cannot touch a row twice.
      grants: [
        ...new Map(
          submission.grants.map((grant) => [`${grant.agentId} ${grant.boxId} ${grant.mode}`, snake(grant)]),
        ).values(),
      ],
    }),
  ];
  const [row] = await run<{ accepted: boolean; turns: SubmittedTurn[] } & pg.QueryResultRow>(
    db,
    prepared,
    values,
  );
  return row?.accepted === true ? { outcome: 'accepted', turns: row.turns } : { outcome: 'refused' };
}

/** The rings of freshly dispatched turns. */
export const ringsOf = (turns: readonly SubmittedTurn[]): Ring[] =>
  turns
    .filter((turn) => turn.status === 'dispatched')
    .map((turn) => ({ turnId: turn.turn_id, epoch: turn.epoch, workerTarget: turn.worker_target }));
