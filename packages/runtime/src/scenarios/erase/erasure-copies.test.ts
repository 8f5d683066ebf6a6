/**
 * Every text from a caller or a model has a mark. After the erasure of all cards with marks, marks are found only in the places that
 * docs/reference/operations.md, "Erasure", lists.
 */
import {
  type BatchId,
  type CardId,
  type JsonValue,
  ModelError,
  type ProjectId,
  type TurnId,
} from '@boxcar/kernel';
import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';
import { PermissionEvaluator } from '@boxcar/policy';
import { eraseCards, eraseEvidence, keepEvidence } from '@boxcar/store';
import { queueBackends, waitFor } from '@boxcar/testkit';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { ApprovalGate } from '../../approval/approval-gate.js';
import { HandoffTool } from '../../handoff/index.js';
import type { Log } from '../../lib/log.js';
import { newId } from '../../lib/new-id.js';
import { type OpenRuntime, openRuntime } from '../../open.js';
import { checkInvariants } from '../../testing/invariants.js';
import { type TestBackend, testBackend } from '../../testing/queue-backend.js';
import { findTexts, searchOfTables } from '../../testing/texts-in-tables.js';
import { createWorker, type Worker } from '../../worker/worker.js';

const PROJECT = '00000000-0000-7000-8000-000000000001' as ProjectId;

const made = new Set<string>();

/** A text that occurs nowhere else. */
function mark(name: string): string {
  made.add(name);
  return `mark.${name}.q9`;
}
const MARK = /mark\.([a-z0-9-]+)\.q9/g;
const marksIn = (text: string): string[] => [...text.matchAll(MARK)].map(([, name]) => name ?? '');

const NAMES = ['anchor-name', 'imported-anchor-name'];
const EVENTS = ['event-data', 'event-name', 'imported-event'];

/** Marks that stay in tables, by column, with the reason. */
const STAYS_IN_TABLES: Readonly<Record<string, readonly string[]>> = {
  // Names are not content: names of agents, projects, profiles, tapes, sessions, anchors, channels and card types.
  'agents.name': ['tape-name'],
  'boxes.tape_name': ['tape-name'],
  'sessions.name': ['tape-name'],
  'tape_entries.anchor_name': NAMES,
  'turns.channel_id': ['channel'],
  'cards.type': ['card-type'],
  'sessions.status': ['session-status'],
  // The lineage of an imported tape, as in its file: names, times, statuses.
  'boxes.session_graph': ['session-graph'],
  // A person's reason about a request is the record of the decision.
  'approvals.decision_reason': ['decision', 'handoff-decision'],
  'handoffs.error': ['handoff-decision'],
  'approvals.response': ['decision-response'],
  // Callers choose these keys.
  'handoffs.idempotency_key': ['handoff-key'],
  'operations.idempotency_key': ['key'],
  'tape_entries.dedup_key': ['dedup-key'],
  // Metadata of cards and entries. In metadata of the kernel, the name of the anchor to which a message refers.
  'cards.metadata': ['anchor-name', 'card-metadata', 'imported-anchor-name'],
  // Events are not cards: an erasure removes neither their payload, nor their imported line, nor their search words.
  'tape_entries.meta': ['entry-meta', 'imported-event', 'imported-meta'],
  'tape_entries.payload': [...NAMES, ...EVENTS].sort(),
  'tape_words.words': [...NAMES, ...EVENTS].sort(),
  // A program decides about the answers of its own primitives.
  'operations.response': ['custom-answer'],
};

/** Marks that stay in the queues: in jobs that are not removed, and in their completion events, which contain the results of jobs. */
const STAYS_IN_QUEUES = ['door-answer', 'door-instruction', 'key', 'queued-result'];

/** Columns of texts without words of callers or models. A new column must be listed here, or `giveEverything` must put a mark into it. */
const WITHOUT_WORDS: Readonly<Record<string, readonly string[]>> = {
  // One of a closed list of values.
  values: [
    'approvals.status',
    'batches.closing',
    'batches.kind',
    'batches.status',
    'boxes.fork_status',
    'boxes.kind',
    'cards.role',
    'evidence.kind',
    'forks.on_error',
    'forks.status',
    'grants.mode',
    'grants.source',
    'handoff_events.type',
    'handoff_session_entries.type',
    'handoff_sessions.retention_policy',
    'handoff_sessions.status',
    'handoffs.phase',
    'steps.finish_reason',
    'sweep_failures.kind',
    'tape_entries.kind',
    'tool_calls.retry',
    'tool_calls.route',
    'tool_calls.status',
    'turns.status',
    'unsealed.allows',
    'waits.kind',
    'webhook_deliveries.status',
  ],
  // Names that operators of the pool give.
  names: [
    'api_keys.name',
    'approvals.agent',
    'approvals.tool_name',
    'batches.primitive',
    'handoff_sessions.agent_from',
    'handoff_sessions.agent_to',
    'handoffs.callback_url',
    'handoffs.platform',
    'handoffs.public_agent',
    'handoffs.source_agent',
    'handoffs.target_agent',
    'handoffs.worker_target',
    'operations.primitive',
    'policies.content',
    'profiles.name',
    'profiles.selector',
    'profiles.tags',
    'profiles.view',
    'profiles.worker_target',
    'projects.name',
    'provider_slots.provider',
    'providers.name',
    'steps.model',
    'tool_calls.name',
    'tool_calls.target',
    'turns.primitive',
    'turns.selector',
    'turns.selector_version',
    'turns.worker_target',
    'waits.provider',
    'push_configs.credentials',
    'push_configs.scheme',
    'push_configs.token',
    'push_configs.url',
    'push_configs.version',
    'webhook_deliveries.host',
    'webhook_deliveries.url',
    'workers.targets',
  ],
  // Ids, and keys made of ids.
  ids: [
    'api_keys.hint',
    'api_keys.scopes',
    'approvals.args_hash',
    'approvals.context_hash',
    'approvals.payload_hash',
    'approvals.policy_version',
    'approvals.principal',
    'approvals.resolved_by',
    'approvals.run_id',
    'cards.author_id',
    'forks.fork_key',
    'forks.receipt',
    'handoff_messages.ask_key',
    'handoff_messages.reply_key',
    'handoff_sessions.session_key',
    'handoffs.remote_task',
    'push_configs.id',
    'webhook_deliveries.push_config',
    'handoffs.cache_key',
    'handoffs.conversation',
    'handoffs.message_id',
    'handoffs.request_hash',
    'handoffs.run_id',
    'operations.door_job_id',
    'policies.version',
    'runs.traceparent',
    'sessions.parent_session_id',
    'handoff_messages.author',
    'tape_entries.author_id',
    'tool_calls.provider_call_id',
    'turn_parts.round',
    'turns.traceparent',
  ],
  // Names of anchors, which are not content.
  anchors: ['sessions.from_anchor'],
  // Numbers, ids and rules.
  figures: [
    'approvals.metadata',
    'boxes.segments',
    'budgets.limits',
    'evidence.usage',
    'handoff_events.data',
    'handoffs.decision',
    'handoffs.mode',
    'handoffs.retry',
    'handoffs.session_request',
    'projects.limits',
    'runs.limits',
    'steps.manifest',
    'steps.usage',
    'waits.detail',
  ],
  // Written by an erasure.
  erasures: ['cards.erased_reason', 'cards.placeholder', 'evidence.erased_reason'],
  // No code writes this column.
  unused: ['agents.metadata'],
  // Data about processes and their code, not about turns.
  processes: [
    'schema_version.checksum',
    'schema_version.name',
    'sweep_failures.last_error',
    'toolsets.schemas',
    'webhook_deliveries.last_error',
    'workers.answers',
    'workers.info',
  ],
};

/** Marks that were logged before the erasure. */
const STAYS_IN_LOG = ['retry-error'];

const functions: Record<string, ScriptedFunction> = {
  worker: ({ turn }, { call }) =>
    turn.step === 1
      ? {
          text: mark('thought'),
          toolCalls: [
            call('look', { at: mark('arguments') }, 'c1'),
            call('look', { at: 'fail' }, 'c2'),
            call('outside', { key: mark('queued-arguments') }, 'c3'),
            call('look', mark('arguments-no-object'), 'c4'),
            call('ask_first', { at: mark('approval-arguments') }, 'c5'),
          ],
        }
      : { text: mark('deliverable') },
  structured: ({ turn }, { call }) => ({
    toolCalls: [call('submit_result', { result: { answer: mark(`result-${turn.step}`) } }, 'c1')],
  }),
  door: () => ({ text: mark('door-answer') }),
  failing: () => {
    throw new ModelError('model_failed', `refused: ${mark('model-error')}`, {
      canRetry: false,
    });
  },
  retrying: ({ turn }) => {
    throw new ModelError('model_failed', `busy: ${mark('retry-error')} ${turn.step}`, { canRetry: true });
  },
  parent: ({ turn }, { call }) =>
    turn.step === 1
      ? {
          toolCalls: [
            call(
              'fork_join',
              {
                tasks: ['door', 'failing'].map((target_ref) => ({
                  target_strategy: 'new',
                  target_ref,
                  instruction: mark('task'),
                })),
              },
              'c1',
            ),
          ],
        }
      : { text: mark('joined') },
  handing: ({ turn }, { call }) =>
    turn.step === 1
      ? {
          toolCalls: [
            call('tape_handoff', { name: 'here', summary: mark('model-handoff') }, 'c1'),
            call('tape_search', { query: mark('search-query') }, 'c2'),
          ],
        }
      : { text: 'done' },
};

describe.each(queueBackends())('after all cards with marks are erased, queues on %s', (kind) => {
  let backend: TestBackend;
  let opened: OpenRuntime;
  let worker: Worker;
  const log: string[] = [];
  const write: Log = (_level, event, fields = {}) => void log.push(JSON.stringify({ event, fields }));

  beforeAll(async () => {
    backend = await testBackend(kind);
    opened = openRuntime({
      ...backend.urls,
      model: createModelRouter({ scripted: { functions } }),
      log: write,
    });
  });
  afterAll(async () => {
    await worker.close();
    await opened[Symbol.asyncDispose]();
    await backend.close();
  });

  const rows = async <R extends Record<string, unknown>>(
    text: string,
    values: unknown[] = [],
  ): Promise<R[]> => (await backend.database.pool.query<R>(text, values)).rows;
  const submit = async <T>(
    primitive: string,
    args: unknown,
    options: Parameters<typeof opened.runtime.submit>[2] = {},
  ): Promise<T> => (await opened.runtime.submit(primitive, args, options)) as unknown as T;
  const ended = (turnId: string) => opened.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });

  interface Launched {
    readonly turn_id: TurnId;
    readonly agent_id: string;
  }
  const launch = (profile_name: string, rest: object = {}, options: object = {}): Promise<Launched> =>
    submit('launch_principal', { profile_name, instruction: mark('instruction'), ...rest }, options);

  let collectAtDoor: (() => Promise<JsonValue>) | undefined;

  /** Submits like a program that knows only BullMQ. */
  async function submitAtDoor(name: string, data: JsonValue): Promise<JsonValue> {
    const queue = backend.queue('boxcar-primitives');
    const { id = '' } = await queue.add(name, data);
    await waitFor(async () => (await queue.getJob(id))?.finishedOn, {
      message: 'the job of the door is done',
      deadlineMs: 60_000,
    });
    return (await queue.getJob(id))?.returnvalue as JsonValue;
  }

  async function giveEverything(): Promise<void> {
    const { runtime } = opened;
    runtime.registerTool({
      name: 'look',
      description: 'Looks.',
      input: z.looseObject({}),
      run: async (input) => {
        if ((input as { at?: string }).at === 'fail') throw new Error(mark('tool-error'));
        return { seen: mark('tool-result') };
      },
    });
    runtime.registerTool({
      name: 'ask_first',
      description: 'Asks first.',
      requiresApproval: true,
      input: z.looseObject({}),
      run: async () => 'done',
    });
    const gate = new ApprovalGate({ runtime });
    const deciding = waitFor(async () => (await gate.list({ status: 'pending' })).approvals[0], {
      message: 'a ticket',
      deadlineMs: 60_000,
    }).then(({ ticket_id }) =>
      gate.approve(ticket_id, { reason: mark('decision'), response: { said: mark('decision-response') } }),
    );
    runtime.registerHandler('quote', {
      description: 'Quotes.',
      input: z.strictObject({}),
      handle: async () => ({ quoted: mark('custom-answer') }),
    });
    runtime.registerModel('thinking', {
      generate: async () => ({
        text: mark('thinking-answer'),
        reasoning: mark('reasoning'),
        providerParts: [{ kind: 'reasoning', text: mark('provider-data') }],
        toolCalls: [],
        usage: { inputTokens: 1, outputTokens: 1 },
        finishReason: 'stop',
      }),
    });
    const ANYONE = { delegation_policy: { target_profiles: null } };
    const outside = {
      name: 'outside',
      description: 'Outside.',
      parameters: { type: 'object', properties: { key: { type: 'string' } } },
      target: 'outside',
    };
    for (const [name, rest] of Object.entries({
      worker: { tools: ['look', 'ask_first', outside] },
      structured: {},
      door: {},
      failing: {},
      retrying: {},
      parent: { tools: ['fork_join'], ...ANYONE },
      handing: { tools: ['tape_handoff', 'tape_search'] },
    }))
      await runtime.applyProfile({ name, instructions: 'You work.', model: `scripted:${name}`, ...rest });
    await runtime.applyProfile({ name: 'thinking', instructions: 'You think.', model: 'thinking:any' });
    worker = await createWorker(runtime, { sweepMs: 200 });
    opened.serveQueueDoor();
    opened.serveToolResultsDoor();
    backend.worker('boxcar-tools-outside', async () => mark('queued-result'));

    // Cards with every kind of content.
    const contents: readonly JsonValue[] = [
      { kind: 'text', text: mark('text') },
      { kind: 'json', data: { [mark('json-key')]: mark('json') } },
      { kind: 'fields_schema', fields: [{ name: mark('field'), description: mark('field-description') }] },
      { kind: 'file', uri: mark('uri'), checksum: mark('checksum'), preview: mark('preview') },
    ];
    const { box_id } = await submit<{ box_id: string }>('create_box', {
      cards: contents.map((content, index) => ({
        type: index === 0 ? mark('card-type') : 'note',
        content,
        metadata: { note: mark('card-metadata') },
      })),
    });

    // A turn with context, fields, and calls in this process and outside.
    const first = await launch(
      'worker',
      { context_box_id: box_id },
      { idempotencyKey: mark('key'), channelId: mark('channel') },
    );
    await ended(first.turn_id);
    await ended(
      (
        await launch('structured', {
          result_fields: [{ name: 'answer', description: mark('result-field') }],
        })
      ).turn_id,
    );
    const failed = await launch('failing');
    await ended(failed.turn_id);
    const retrying = await launch('retrying');
    await waitFor(async () => (await rows("select 1 from boxcar.waits where kind = 'retry'")).length > 0, {
      message: 'a call of a model waits to be made again',
      deadlineMs: 60_000,
    });
    await submit('cancel', { turn_id: retrying.turn_id, reason: mark('cancel-reason') });
    await ended((await launch('parent')).turn_id);
    await ended((await launch('handing')).turn_id);
    await ended((await launch('thinking')).turn_id);
    const forked = await submit<{ batch_id: BatchId }>('fork_join', {
      tasks: ['door', 'failing'].map((target_ref) => ({
        target_strategy: 'new',
        target_ref,
        instruction: mark('forked'),
      })),
      wait: false,
    });
    await runtime.waitForBatch(forked.batch_id, { timeoutMs: 60_000 });
    await submit('collect', { turn_ids: [first.turn_id, failed.turn_id] });
    await submit('quote', {});

    // Handoffs: a function serves the first, and the second is denied.
    const policy = new PermissionEvaluator({
      text: "rules:\n  - condition: { tool_name: handoff, context: { target_agent: 'echo' } }\n    permission: ALWAYS\n",
    });
    const tool = new HandoffTool({ runtime, permissionEvaluator: policy });
    tool.registerAgent('echo', async (_input, { write }) => {
      write(mark('handoff-part'));
      // The first part has been written at this point.
      await new Promise((settle) => setImmediate(settle));
      return { said: mark('handoff-result') };
    });
    const words = {
      source_agent: 'x',
      context: { m: mark('handoff-context') },
      payload: [mark('handoff-payload')],
    };
    await tool.handoff({
      ...words,
      target_agent: 'echo',
      task: mark('handoff-task'),
      idempotency_key: mark('handoff-key'),
    });
    const denied = tool.handoff({
      ...words,
      target_agent: 'door',
      task: mark('denied-task'),
      run_id: 'denied',
    });
    const refusal = denied.catch((error: Error) => error.message);
    const { ticket_id } = await waitFor(
      async () => (await gate.list({ run_id: 'denied', status: 'pending' })).approvals[0],
      { message: 'a request for approval', deadlineMs: 60_000 },
    );
    await gate.deny(ticket_id, { reason: mark('handoff-decision') });
    expect(await refusal).toContain(mark('handoff-decision'));
    await tool.close();

    // At a door: a turn, and a batch with it.
    const { turn_id } = (await submitAtDoor('launch_principal', {
      project_id: 'default',
      arguments: { profile_name: 'door', instruction: mark('door-instruction'), wait: true },
      idempotency_key: `${mark('key')}-door`,
    })) as unknown as { turn_id: string };
    collectAtDoor = () =>
      submitAtDoor('collect', {
        project_id: 'default',
        arguments: { turn_ids: [turn_id] },
        idempotency_key: `${mark('key')}-collect`,
      });
    expect(await collectAtDoor()).toMatchObject({ results: [{ summary: mark('door-answer') }] });

    // A tape: entries of every kind, forks, sessions, handoffs, files, commands.
    const tape = await runtime.tape({ agent: first.agent_id });
    await tape.append(
      [
        { kind: 'message', content: mark('message'), meta: { note: mark('entry-meta') } },
        { kind: 'system', content: mark('system') },
        { kind: 'error', content: { kind: 'x', message: mark('tape-error') } },
        { kind: 'event', name: mark('event-name'), data: { said: mark('event-data') } },
      ],
      { dedupKey: mark('dedup-key') },
    );
    await tape.handoff(mark('anchor-name'), { state: { summary: mark('state') } });
    const fork = await tape.forkTape();
    await fork.tape.append([{ kind: 'message', content: mark('forked-message') }]);
    await runtime.importTape(
      { box: fork.tape.boxId },
      {
        main: {
          lines: () => [
            JSON.stringify({
              id: 1,
              kind: 'message',
              payload: { role: 'user', content: mark('imported') },
              meta: { note: mark('imported-meta') },
              extra: mark('imported-extra'),
            }),
            JSON.stringify({
              id: 2,
              kind: 'anchor',
              payload: { name: mark('imported-anchor-name'), state: { s: mark('imported-state') } },
              meta: {},
            }),
            JSON.stringify({
              id: 3,
              kind: 'event',
              payload: {
                name: 'handoff',
                data: { name: mark('imported-anchor-name'), state: { s: mark('imported-state') } },
              },
              meta: {},
            }),
            JSON.stringify({
              id: 4,
              kind: 'event',
              payload: { name: 'x', data: mark('imported-event') },
              meta: {},
            }),
            JSON.stringify({
              id: 5,
              kind: 'tool_call',
              payload: {
                calls: [
                  {
                    id: 'c1',
                    function: { name: 'f', arguments: JSON.stringify({ a: mark('imported-call') }) },
                  },
                ],
              },
              meta: {},
            }),
            JSON.stringify({
              id: 6,
              kind: 'tool_result',
              payload: { results: [mark('imported-result')] },
              meta: {},
            }),
            JSON.stringify({
              id: 7,
              kind: 'error',
              payload: { kind: 'tool', message: mark('imported-error') },
              meta: {},
            }),
          ],
        },
      },
      { append: true },
    );
    await fork.merge();
    const discarded = await tape.forkTape();
    await discarded.tape.append([{ kind: 'message', content: mark('discarded') }]);
    await discarded.discard();
    await tape.forkSession(mark('tape-name'), {
      intention: { next_steps: mark('next-steps'), context_summary: mark('context-summary') },
      triggerOnComplete: 'notify_parent',
    });
    await runtime.sessions.setStatus(mark('tape-name'), mark('session-status'), { projectId: PROJECT });
    await runtime.importTape('imported-whole', {
      main: {
        lines: () => [
          JSON.stringify({
            id: 1,
            kind: 'message',
            payload: { role: 'user', content: mark('imported-whole') },
            meta: {},
          }),
        ],
      },
      sessionGraph: `${JSON.stringify({
        session_id: 'imported-whole',
        parent_session_id: 'elsewhere',
        from_anchor: null,
        created_at: '2026-01-01T00:00:00+00:00',
        status: 'active',
        metadata: { note: mark('session-graph') },
      })}\n`,
    });
    await submit('context_handoff', {
      target_ref: 'door',
      reason: mark('reason'),
      summary: mark('handoff-summary'),
      tape_ref: `tape://default/${first.agent_id}/entry/5`,
      intention: { next_steps: mark('handoff-steps'), context_summary: mark('handoff-context') },
      wait: true,
    });
    expect(await tape.search('mark')).not.toEqual([]);
    for (const instruction of [
      `,handoff name=b summary=${mark('command-summary')}`,
      ',tape.search mark',
      ',anchors',
      ',tape.info',
    ])
      await submit('delegate_async', {
        target_strategy: 'reuse',
        target_ref: first.agent_id,
        instruction,
      });
    await keepEvidence(backend.database.pool, [
      {
        id: newId(),
        projectId: PROJECT,
        turnId: first.turn_id,
        kind: 'reply',
        step: 1,
        attempt: 9,
        epoch: 9,
        holderId: newId(),
        toolCallId: null,
        body: { text: mark('late') },
        usage: { input_tokens: 1, output_tokens: 1 },
      },
    ]);
    await waitFor(
      async () => (await rows('select 1 from boxcar.turns where ended_at is null')).length === 0,
      {
        message: 'all turns have ended',
        deadlineMs: 60_000,
      },
    );

    await deciding;
    // Words by which lists find turns.
    expect((await runtime.listTurns({ text: mark('instruction') })).turns.length).toBeGreaterThan(0);
  }

  async function eraseEverything(): Promise<void> {
    const cards = await rows<{ id: CardId }>(
      "select id from boxcar.cards where content::text like '%mark.%' order by id",
    );
    expect(cards.length).toBeGreaterThan(50);
    const erased = await eraseCards(
      backend.database.pool,
      cards.map(({ id }) => id),
      { projectId: PROJECT, reason: 'asked for' },
    );
    expect(new Set(erased.map(({ outcome }) => outcome))).toEqual(new Set(['erased']));
    const evidence = await rows<{ id: string }>('select id from boxcar.evidence');
    await eraseEvidence(
      backend.database.pool,
      evidence.map(({ id }) => id),
      { projectId: PROJECT, reason: 'asked for' },
    );
  }

  /** The marks in each column of each table of a schema. */
  async function marksInTables(schema: string): Promise<Record<string, string[]>> {
    const { pool } = backend.database;
    const found: Record<string, string[]> = {};
    for (const { place, text } of await findTexts(pool, await searchOfTables(pool, schema), '%mark.%'))
      found[place] = [...new Set([...(found[place] ?? []), ...marksIn(text)])].sort();
    return found;
  }

  /** Every column that can contain a text, as `table.column`. */
  const textColumns = async (): Promise<string[]> =>
    (
      await rows<{ place: string }>(
        `select c.relname || '.' || a.attname as place from pg_attribute a join pg_class c on c.oid = a.attrelid
         where c.relnamespace = 'boxcar'::regnamespace and c.relkind in ('r', 'p') and a.attnum > 0 and not a.attisdropped
           and a.atttypid in ('text'::regtype, 'varchar'::regtype, 'text[]'::regtype, 'json'::regtype, 'jsonb'::regtype)`,
      )
    )
      .map(({ place }) => place)
      .sort();

  async function marksInQueues(): Promise<string[]> {
    if (backend.redis === undefined) return Object.values(await marksInTables('bullmq')).flat();
    const redis = new Redis(backend.redis.url);
    try {
      const texts: string[] = [];
      for (const key of await redis.keys('*')) {
        texts.push(key);
        const type = await redis.type(key);
        if (type === 'string') texts.push((await redis.get(key)) ?? '');
        if (type === 'hash') texts.push(JSON.stringify(await redis.hgetall(key)));
        if (type === 'list') texts.push(...(await redis.lrange(key, 0, -1)));
        if (type === 'set') texts.push(...(await redis.smembers(key)));
        if (type === 'zset') texts.push(...(await redis.zrange(key, '0', '-1')));
        if (type === 'stream') texts.push(JSON.stringify(await redis.xrange(key, '-', '+')));
      }
      return texts.flatMap(marksIn);
    } finally {
      redis.disconnect();
    }
  }

  test('no table, queue or log has a mark, apart from the documented places', async () => {
    await giveEverything();
    const given = new Set([
      ...Object.values(await marksInTables('boxcar')).flat(),
      ...(await marksInQueues()),
    ]);
    expect([...made].filter((name) => !given.has(name))).toEqual([]);
    expect(made.size).toBeGreaterThan(60);
    const marked = await marksInTables('boxcar');
    expect((await textColumns()).filter((column) => marked[column] === undefined)).toEqual(
      Object.values(WITHOUT_WORDS).flat().sort(),
    );
    await eraseEverything();
    expect(await marksInTables('boxcar')).toEqual(STAYS_IN_TABLES);
    expect([...new Set(await marksInQueues())].sort()).toEqual(STAYS_IN_QUEUES);
    expect([...new Set(log.flatMap(marksIn))].sort()).toEqual(STAYS_IN_LOG);
    await checkInvariants(backend.database.pool);
    // The same request again, by another job.
    expect(await collectAtDoor?.()).toMatchObject({ status: 'success', results: [{ summary: '(erased)' }] });
  }, 120_000);
});
