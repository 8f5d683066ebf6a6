import { widthOf } from '@boxcar/host/base';
import type { BudgetReport } from '@boxcar/store';
import type { TreeBatch, TreeNode } from '@boxcar/store/report';
import { describe, expect, it } from 'vitest';
import { type BudgetedTree, formatTree, noteOf } from './tree-text.js';

const node = (id: string, parent: string | null, rest: Partial<TreeNode> = {}): TreeNode => ({
  turn_id: id as TreeNode['turn_id'],
  parent_turn_id: parent as TreeNode['parent_turn_id'],
  batch_id: null,
  status: 'success',
  agent_id: 'agent' as TreeNode['agent_id'],
  agent: `writer-${id}`,
  profile: 'writer',
  profile_version: 1,
  primitive: 'ask_expert',
  worker_target: '',
  steps: 2,
  max_steps: 50,
  usage: { input_tokens: 1_200, output_tokens: 34 },
  cost_micros: 0,
  free_steps: 0,
  unpriced_steps: 2,
  subtree: { input_tokens: 1_200, output_tokens: 34, cost_micros: 0, free_steps: 0, unpriced_steps: 2 },
  created_at: '2026-01-01T00:00:00Z',
  ended_at: null,
  duration_ms: 2_345,
  has_worker: true,
  pending_calls: 0,
  open_calls: [],
  wait: null,
  behind_turn_id: null,
  error: null,
  hidden: {},
  ...rest,
});

const tree = (nodes: readonly TreeNode[], rest: Partial<BudgetedTree> = {}): BudgetedTree => ({
  of: { kind: 'run', id: '0198c1f2-0000-7000-8000-000000000001' as BudgetedTree['run_id'] },
  run_id: '0198c1f2-0000-7000-8000-000000000001' as BudgetedTree['run_id'],
  root_turn_id: 'r' as BudgetedTree['root_turn_id'],
  roots: { by_status: {}, hidden: {} },
  at: '2026-01-01T00:00:00Z',
  totals: {
    turns: 10_000,
    open: 2,
    steps: 20_000,
    usage: { input_tokens: 1_234_567, output_tokens: 890 },
    cost_micros: 0,
    free_steps: 0,
    unpriced_steps: 20_000,
    by_status: { running: 1, success: 9_998 },
  },
  nodes,
  batches: [],
  budgets: [],
  ...rest,
});
const batch = (id: string, parent: string | null, rest: Partial<TreeBatch> = {}): TreeBatch => ({
  batch_id: id as TreeBatch['batch_id'],
  turn_id: parent as TreeBatch['turn_id'],
  kind: 'fork_join',
  status: 'running',
  total: 1_000,
  remaining: 15,
  succeeded: 985,
  failed: 0,
  min_success: null,
  closing: null,
  deadline_at: null,
  is_awaited: true,
  hidden: {},
  ...rest,
});

const call = {
  tool_call_id: 'k',
  name: 'ask_expert',
  deadline_at: '',
  awaited_turn_id: null,
  ticket_id: null,
  batch: null,
} as never;

describe('a tree of turns', () => {
  it('shows the cost of its turns and subtrees, the rest of the budget, and the waiting turns', () => {
    const budget: BudgetReport = {
      budget_id: '0198c1f2-0000-7000-8000-000000000001',
      parent_id: null,
      limits: { tokens: 10_000, cost_micros: 2_000_000, depth: 3 },
      deadline_at: null,
      turns: 2,
      open_turns: 1,
      paused_turns: 1,
      steps: 2,
      steps_held: 0,
      tokens: 5_000,
      tokens_held: 1_000,
      cost_micros: 1_250_000,
      cost_held: 0,
    };
    const subtree = {
      input_tokens: 4_000,
      output_tokens: 1_000,
      cost_micros: 1_250_000,
      free_steps: 0,
      unpriced_steps: 0,
    };
    const root = node('r', null, {
      status: 'suspended',
      wait: { kind: 'budget', due_at: null, provider: null, detail: { limit: 'tokens' } },
      cost_micros: 250_000,
      subtree,
    });
    const plain = tree([root]);
    const lines = formatTree(
      { ...plain, totals: { ...plain.totals, cost_micros: 1_250_000, unpriced_steps: 1 }, budgets: [budget] },
      { width: 160 },
    );
    expect(lines[1]).toContain('$1.25, 1 step without a known price');
    const free = formatTree(
      { ...plain, totals: { ...plain.totals, free_steps: 2, unpriced_steps: 0 } },
      { width: 160 },
    );
    expect(free[1]).toContain('$0.00, 2 steps free');
    expect(lines[2]).toBe(
      'budget 0198c1f2-0000-7000-8000-000000000001: tokens 4,000 of 10,000 left · cost $0.75 of $2.00 left · depth 3 · 1 waiting',
    );
    expect(lines[3]).toMatch(/^turn +status +steps +tokens +cost +time +waits for$/);
    expect(lines[4]).toMatch(/suspended +2 +1\.2k of 5\.0k +\$1\.25 +2\.3 ?s +budget paused: tokens$/);
  });

  it('is drawn with lines, and the last line counts siblings that are not listed', () => {
    const lines = formatTree(
      tree([
        node('r', null, { status: 'suspended', pending_calls: 3, open_calls: [call], primitive: 'launch' }),
        node('a', 'r', { status: 'running' }),
        node('b', 'r', { hidden: { success: 9_950, failed: 2 } }),
        node('c', 'a', { status: 'failed', error: { code: 'model_failed', message: 'x' } }),
      ]),
      { width: 80 },
    );
    expect(lines).toEqual([
      'run 0198c1f2-0000-7000-8000-000000000001',
      '10,000 turns · 20,000 steps · 1.2M/890 tokens · 1 × running, 9,998 × success',
      'turn                         status     steps  tokens  time  waits for',
      'writer-r · launch            suspended      2    1.2k  2.3s  ask_expert +2',
      '├─ writer-a · ask_expert     running        2    1.2k  2.3s  the model',
      '│  └─ writer-c · ask_expert  failed         2    1.2k  2.3s  model_failed',
      '└─ writer-b · ask_expert     success        2    1.2k  2.3s',
      '   └─ + 9,950 done, 2 failed',
    ]);
  });

  it('shows the batch of each turn and its progress, and finished turns in one line', () => {
    const ofBatch = { batch_id: 'b' as TreeNode['batch_id'] };
    const lines = formatTree(
      tree(
        [
          node('r', null, {
            status: 'suspended',
            pending_calls: 1,
            open_calls: [
              {
                tool_call_id: 'k' as never,
                name: 'fork_join',
                deadline_at: '',
                awaited_turn_id: null,
                ticket_id: null,
                batch: { batch_id: 'b' as TreeBatch['batch_id'], total: 1_000, remaining: 15 },
              },
            ],
          }),
          node('a', 'r', { ...ofBatch, status: 'running' }),
          node('b', 'r', {
            ...ofBatch,
            status: 'suspended',
            wait: {
              kind: 'retry',
              due_at: '2026-01-01T00:00:12Z',
              provider: null,
              detail: { retry: 2, code: 'rate_limited' },
            },
          }),
          node('c', 'r', ofBatch),
          node('d', 'r', { ...ofBatch, status: 'failed', error: { code: 'model_failed', message: 'x' } }),
          node('e', 'r'),
        ],
        {
          batches: [
            batch('b', 'r', { failed: 1, hidden: { success: 984, queued: 12 } }),
            batch('f', 'r', { status: 'partial', total: 3, remaining: 0, succeeded: 1, failed: 2 }),
            batch('c', 'r', { kind: 'collect' }),
          ],
        },
      ),
      { width: 100 },
    );
    expect(lines.slice(3)).toEqual([
      expect.stringMatching(/^writer-r · ask_expert .*fork_join 985\/1,000$/),
      '├─ fork_join: 985 of 1,000 done, 1 failed',
      expect.stringMatching(/^│ {2}├─ writer-a .*the model$/),
      expect.stringMatching(/^│ {2}├─ writer-b .*retry 2 in 12 s: rate_limited$/),
      expect.stringMatching(/^│ {2}├─ writer-d .*model_failed$/),
      '│  └─ + 985 done, 12 queued',
      '├─ fork_join: 3 of 3 done, 2 failed, partial',
      expect.stringMatching(/^└─ writer-e /),
    ]);
  });

  it('shows all roots of a run from outside, with their batch above them', () => {
    const roots = ['r', 's', 't'].map((id) => node(id, null, { batch_id: 'b' as TreeNode['batch_id'] }));
    const lines = formatTree(
      tree(roots, { batches: [batch('b', null, { total: 3, remaining: 0, status: 'success' })] }),
      { width: 80 },
    );
    expect(lines.slice(3).map((line) => line.split(/ {2}(?=success)/)[0])).toEqual([
      'fork_join: 3 of 3 done, success',
      '├─ writer-r · ask_expert',
      '├─ writer-s · ask_expert',
      '└─ writer-t · ask_expert',
    ]);
    const running = roots.map((root) => ({ ...root, status: 'running' as const }));
    const plain = formatTree(tree(running, { roots: { by_status: {}, hidden: { queued: 4 } } }), {
      width: 80,
    });
    expect(plain.slice(3).map((line) => line.slice(0, 8))).toEqual([
      'writer-r',
      'writer-s',
      'writer-t',
      '+ 4 queu',
    ]);
  });

  it('folds siblings until all levels fit into a terminal of 80x24, and keeps turns under way longest', () => {
    const wide = (parent: string, status: TreeNode['status']): TreeNode[] =>
      Array.from({ length: 10 }, (_, n) =>
        node(`${parent}${n}`, parent, { status: n < 2 ? status : 'success' }),
      );
    const lines = formatTree(
      tree([
        node('r', null, { status: 'suspended' }),
        ...wide('r', 'suspended'),
        ...wide('r0', 'running'),
        ...wide('r1', 'running'),
      ]),
      { width: 80, height: 23 },
    );
    expect(lines.length).toBeLessThanOrEqual(23);
    expect(lines.join('\n')).not.toContain('more lines');
    for (const id of ['r0', 'r1', 'r00', 'r01', 'r10', 'r11'])
      expect(lines.some((line) => line.includes(`writer-${id} `))).toBe(true);
    expect(lines.filter((line) => line.includes('+ 8 done'))).toHaveLength(3);
    expect(Math.max(...lines.map(widthOf))).toBeLessThanOrEqual(80);
  });

  it('keeps within the width and height of the terminal, and reports how much is left out', () => {
    const wide = node('r', null, { agent: '作家'.repeat(40), profile: 'other\u001b[31m' });
    const chain = Array.from({ length: 60 }, (_, index) =>
      node(`${index}`, index === 0 ? 'r' : `${index - 1}`),
    );
    const lines = formatTree(tree([wide, ...chain]), { width: 80, height: 23 });
    expect(lines).toHaveLength(23);
    expect(lines.at(-1)).toBe('… 42 more lines; --json shows all');
    expect(Math.max(...lines.map(widthOf))).toBeLessThanOrEqual(80);
    expect(lines.join('')).not.toContain('\u001b');
  });

  it('shows full ids on request', () => {
    const id = '0198c1f2-7d3e-7abc-8def-0123456789ab';
    const lines = formatTree(
      { ...tree([node(id, null)]), root_turn_id: id as BudgetedTree['root_turn_id'] },
      { width: 80, withIds: true },
    );
    expect(lines.at(-1)).toContain(id);
    expect(Math.max(...lines.map(widthOf))).toBeLessThanOrEqual(80);
  });
});

it.each<[string, Partial<TreeNode>]>([
  ['agent is busy', { status: 'queued', behind_turn_id: 'x' as never }],
  ['no worker', { status: 'queued', has_worker: false }],
  ["no worker for 'gpu'", { status: 'dispatched', has_worker: false, worker_target: 'gpu' }],
  ['room in the window', { status: 'queued' }],
  ['a free worker', { status: 'dispatched' }],
  ['the model', { status: 'running' }],
  ['ask_expert', { status: 'running', pending_calls: 1, open_calls: [call] }],
  ['2 calls', { status: 'suspended', pending_calls: 2 }],
  [
    'retry 2: model_timeout',
    {
      status: 'suspended',
      wait: { kind: 'retry', due_at: '', provider: null, detail: { retry: 2, code: 'model_timeout' } },
    },
  ],
  [
    'openai: rate',
    {
      status: 'suspended',
      wait: { kind: 'limit', due_at: '', provider: 'openai', detail: { reason: 'rate' } },
    },
  ],
  [
    'openai: fails, again in 65 s',
    {
      status: 'suspended',
      wait: {
        kind: 'limit',
        due_at: '2026-01-01T00:01:05Z',
        provider: 'openai',
        detail: { reason: 'failing' },
      },
    },
  ],
  [
    'approval of pay +1',
    {
      status: 'suspended',
      pending_calls: 2,
      open_calls: [
        {
          tool_call_id: 'k' as never,
          name: 'pay',
          deadline_at: '',
          awaited_turn_id: null,
          ticket_id: 'k1' as never,
          batch: null,
        },
      ],
    },
  ],
  ['', { status: 'success' }],
])('a turn is shown as waiting for: %s', (note, rest) => {
  expect(noteOf(node('r', null, rest), '2026-01-01T00:00:00Z')).toBe(note);
});
