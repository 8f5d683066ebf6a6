/**
 * The schema as this build knows it: its newest migration, its tables, and the rights that the role of a worker needs on each table.
 * Each new table needs a line here. Tests compare this file with the migrations and with the statements of the store.
 */

/** The newest migration that this build knows. */
export const SCHEMA_VERSION = 44;

/** In the spelling of GRANT. `update (id)` lets a role lock a row without changing it. */
type TableRight = 'insert' | 'update' | 'update (id)' | 'delete';

/** The rights that are needed on each table of the schema `boxcar` in addition to `select`. */
export const WORKER_TABLES: Readonly<Record<string, readonly TableRight[]>> = {
  agents: ['insert', 'update'],
  api_keys: ['insert', 'update'],
  approvals: ['insert', 'update'],
  batches: ['insert', 'update'],
  boxes: ['insert', 'update'],
  budgets: ['insert', 'update'],
  cards: ['insert', 'update (id)'],
  evidence: ['insert'],
  forks: ['insert', 'update'],
  grants: ['insert', 'update', 'delete'],
  handoff_events: ['insert'],
  handoff_messages: ['insert', 'update'],
  handoff_session_entries: ['insert'],
  handoff_sessions: ['insert', 'update'],
  handoffs: ['insert', 'update'],
  operations: ['insert', 'update'],
  policies: ['insert'],
  profiles: ['insert', 'update'],
  projects: ['insert', 'update'],
  push_configs: ['insert', 'update', 'delete'],
  provider_slots: ['insert', 'update', 'delete'],
  providers: ['insert', 'update'],
  runs: ['insert', 'update'],
  schema_version: [],
  sessions: ['insert', 'update'],
  steps: ['insert', 'update', 'delete'],
  sweep_failures: ['insert', 'update', 'delete'],
  sweeper: ['update'],
  tape_entries: ['insert'],
  tape_words: ['insert'],
  tool_calls: ['insert', 'update'],
  toolsets: ['insert'],
  turn_parts: ['insert'],
  turns: ['insert', 'update'],
  waits: ['insert', 'update', 'delete'],
  webhook_deliveries: ['update'],
  workers: ['insert', 'update', 'delete'],
};

/** The other tables of the schema `boxcar`, and the reason why no right on them is needed. */
export const NOT_FOR_WORKERS: Readonly<Record<string, string>> = {
  purging: 'purge writes it; the trigger that reads it runs as its owner',
  unsealed: 'erase_cards and purge_boxes write it; the trigger that reads it runs as its owner',
};
