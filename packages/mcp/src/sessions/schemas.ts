/** Output schemas of the tools for sessions, for the tool lists of clients. */
import { z } from 'zod';
import { outputOf } from '../tool/index.js';

const open = z.record(z.string(), z.unknown());
const status = z.string();
const session = z.object({ id: z.string(), session_key: z.string(), status });
const written = z.object({
  id: z.string(),
  sequence_number: z.int(),
  context_type: z.string(),
  content_length: z.int(),
  created_at: z.string(),
});
const said = { success: z.literal(true), message: z.string() };

export const REGISTERED = outputOf(
  z.object({
    ...said,
    session: session.extend({
      agent_from: z.string(),
      created_at: z.string(),
      metadata: open,
      retention_policy: z.string(),
      expires_at: z.string().nullable(),
      continues: z.string().optional(),
    }),
  }),
);

export const UPDATED = outputOf(
  z.object({ ...said, context_entry: written, context_entries: z.array(written).optional(), session }),
);

export const CLOSED = outputOf(z.object({ ...said, session }));

export const CONTEXT = outputOf(
  z.object({
    success: z.literal(true),
    session_key: z.string(),
    entries: z.array(
      z.object({
        sequence_number: z.int(),
        context_type: z.string(),
        content: z.unknown().describe('Null after an erasure.'),
        metadata: z.unknown(),
        created_at: z.string(),
      }),
    ),
    has_more: z.boolean(),
    next_cursor: z.int().nullable(),
  }),
);

export const SUMMARY = outputOf(
  z.object({
    success: z.literal(true),
    session_key: z.string(),
    summary: z.string(),
    key_points: z.array(z.string()),
    participants: z.array(z.string()),
    status,
    context_entries: z.int(),
    counts: z.record(z.string(), z.int()),
    generated_at: z.string(),
  }),
);

const target = z.object({
  target_agent: z.string(),
  handoff_id: z.string(),
  status: z.string(),
  ticket_id: z.string().optional(),
});

export const HANDOFF = outputOf(
  z.object({
    ...said,
    handoff: target.extend({
      session_key: z.string(),
      source_agent: z.string(),
      request_type: z.string(),
      context_summary: z.string(),
      context_entries: z.int(),
      cache_key: z.string(),
      status: z.enum(['active', 'completed', 'pending_approval']),
      targets: z.array(target).optional(),
    }),
    instructions: z.object({ message: z.string(), next_steps: z.array(z.string()) }),
  }),
);

export const PACKAGE = outputOf(
  z.object({
    ...said,
    handoff: z.object({
      handoff_id: z.string(),
      status: z.string(),
      session_key: z.string(),
      source_agent: z.string(),
      target_agent: z.string(),
      request_type: z.string(),
      context_summary: z.string(),
      context_entries: z.int(),
      request_data: open,
      cache_key: z.string(),
      created_at: z.string(),
    }),
  }),
);
