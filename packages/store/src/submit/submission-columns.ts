/** The columns of the records of a submission, as its statement reads them from JSON. */

export const OPERATION_COLUMNS = `
  item int, project_id uuid, idempotency_key text, primitive text, request_hash text, response text,
  awaited_turn_id uuid, awaited_batch_id uuid, door_job_id text, made uuid[], is_outside boolean, seen_project text,
  seen_source uuid, seen_source_version text, seen_profiles uuid[]`;
export const SPAWN_COLUMNS = 'item int, run_id uuid, n int, max_turns int';
export const WAIT_COLUMNS = 'item int, tool_call_id uuid, batch_id uuid, deadline_ms float8';
export const FENCE_COLUMNS = 'item int, turn_id uuid, epoch int, holder_id uuid, is_ended boolean';
export const CONTEXT_BOX_COLUMNS = `
  item int, id uuid, project_id uuid, owner_agent_id uuid, maker_agent_id uuid, card_ids uuid[], card_tokens int[],
  segments jsonb, card_count int, token_estimate int`;
export const AGENT_COLUMNS = `
  item int, id uuid, project_id uuid, name text, profile_id uuid, owner_agent_id uuid, derived_from uuid,
  tape_box_id uuid, is_shared boolean`;
export const BUDGET_COLUMNS = `
  item int, id uuid, project_id uuid, run_id uuid, parent_id uuid, top_depth int, limits jsonb, seconds float8,
  parent_deadline_at timestamptz, tokens_reserved bigint, cost_reserved bigint, steps_reserved int, turns_used int`;
export const GRANT_COLUMNS = `
  item int, project_id uuid, agent_id uuid, box_id uuid, mode text, upto_position int, source text,
  expires_at timestamptz`;
export const BATCH_COLUMNS = `
  item int, id uuid, project_id uuid, run_id uuid, turn_id uuid, tool_call_id uuid, primitive text, kind text,
  turn_ids uuid[], remaining int, succeeded int, failed int, min_success int, fail_fast boolean, deadline_ms float8`;
export const TURN_COLUMNS = `
  id uuid, project_id uuid, run_id uuid, agent_id uuid, profile_id uuid, parent_turn_id uuid,
  parent_tool_call_id uuid, is_awaited boolean, depth int, primitive text, channel_id text, max_steps int,
  context_box_id uuid, output_box_id uuid, worker_target text, deadline_ms float8, traceparent text, is_reuse boolean,
  batch_ids uuid[], priority smallint, budget_id uuid, allotted_tokens bigint, allotted_cost bigint,
  allotted_steps int, budget_deadline_at timestamptz, is_metered boolean, format smallint, is_waited_for boolean,
  is_woken boolean, own_view_anchor int, own_view_position int, selector text, warm_turn_id uuid, is_told boolean`;
export const HANDOFF_COLUMNS = `
  id uuid, project_id uuid, phase text, is_ended boolean, source_agent text, source_agent_id uuid, target_agent text,
  platform text, run_id text, parent_turn_id uuid, tool_call_id uuid, is_awaited boolean, context_box_id uuid,
  task_card_id uuid, context_card_id uuid, payload_card_id uuid, worker_target text, turn_id uuid, ticket_id uuid,
  root_handoff_id uuid, parent_handoff_id uuid, depth int, decision jsonb, error jsonb, timeout_ms bigint,
  retry jsonb, idempotency_key text, request_hash text, callback_url text, told_agent_id uuid, notifies boolean,
  public_agent text, conversation text, message_id text, serving_agent_id uuid, events jsonb, mode text, hop int,
  compensates uuid, cached_from uuid, cache_key text, cache_seconds int, session_id uuid, session_request text,
  session_head int`;
export const TURN_NAMES = TURN_COLUMNS.replace(
  / (uuid\[\]|uuid|boolean|smallint|int|text|float8|bigint|timestamptz)/g,
  '',
);
