/** A tree of turns as lines for a terminal. */
import type { BudgetReport, TreeNode, TurnTree, WaitLine } from '@boxcar/store';
import { budgetLines, describeCost, formatCost } from './budget-text.js';
import {
  countOf,
  cut,
  formatCount,
  formatShortCount,
  formatShortDuration,
  formatTable,
  toLine,
} from './text.js';

/** With the accounts of its run. */
export interface BudgetedTree extends TurnTree {
  readonly budgets: readonly BudgetReport[];
}

export interface TreeLayout {
  /** Columns of the terminal. */
  readonly width: number;
  /** Lines at most; what does not fit is counted in the last one. Default: all. */
  readonly height?: number;
  /** The ids of the turns in place of their figures. */
  readonly withIds?: boolean;
}

/** `scout-1 (writer) · ask_expert`; the profile only where the agent's name does not say it. */
function labelOf(node: TreeNode): string {
  const isTold = node.agent.startsWith(node.profile);
  return `${node.agent}${isTold ? '' : ` (${node.profile})`} · ${node.primitive}`;
}

function callsOf(node: TreeNode): string {
  const [first] = node.open_calls;
  if (first === undefined) return `${node.pending_calls} calls`;
  return node.pending_calls > 1 ? `${first.name} +${node.pending_calls - 1}` : first.name;
}

const wordOf = (value: unknown): string => (typeof value === 'string' ? value : '');

/** Why a turn waits that waits for no call: `retry 2: model_timeout`, `openai: rate`. */
export function describeWait({ kind, provider, detail }: WaitLine): string {
  if (kind === 'retry') return `retry ${String(detail.retry ?? '')}: ${wordOf(detail.code)}`;
  if (kind === 'budget') return `budget: ${wordOf(detail.limit)}`;
  return provider === null ? kind : `${provider}: ${wordOf(detail.reason) || kind}`;
}

/** What a turn that has not ended waits for, or why it ended as it did. */
export function noteOf(node: TreeNode): string {
  if (node.error !== null) return node.error.code;
  const target = node.worker_target === '' ? '' : ` for '${node.worker_target}'`;
  switch (node.status) {
    case 'queued':
      if (node.behind_turn_id !== null) return 'agent is busy';
      return node.has_worker ? 'room in the window' : `no worker${target}`;
    case 'dispatched':
      return node.has_worker ? 'a free worker' : `no worker${target}`;
    case 'suspended':
      return node.wait === null ? callsOf(node) : describeWait(node.wait);
    case 'running':
      return node.pending_calls > 0 ? callsOf(node) : 'the model';
    default:
      return '';
  }
}

interface Row {
  readonly lead: string;
  /** Undefined: a line that stands for siblings that are not listed. */
  readonly node: TreeNode | undefined;
  readonly label: string;
}

const describeHidden = (hidden: TreeNode['hidden']): string =>
  Object.entries(hidden)
    .map(([status, n]) => `${formatCount(n)} × ${status}`)
    .join(', ');

function rowsOf(tree: TurnTree): Row[] {
  const children = new Map<string, TreeNode[]>();
  for (const node of tree.nodes) {
    if (node.parent_turn_id === null || node.turn_id === tree.root_turn_id) continue;
    const siblings = children.get(node.parent_turn_id);
    if (siblings === undefined) children.set(node.parent_turn_id, [node]);
    else siblings.push(node);
  }
  const rows: Row[] = [];
  // A stack, not recursion: a chain of delegations may be deep.
  const stack: (Row & { readonly below: string })[] = tree.nodes
    .slice(0, 1)
    .map((node) => ({ node, label: labelOf(node), lead: '', below: '' }));
  for (let row = stack.pop(); row !== undefined; row = stack.pop()) {
    const { node, below } = row;
    rows.push(row);
    if (node === undefined) continue;
    const listed = children.get(node.turn_id) ?? [];
    const hidden = describeHidden(node.hidden);
    const next: (Row & { readonly below: string })[] = listed.map((child, index) => {
      const isLast = index === listed.length - 1 && hidden === '';
      return {
        node: child,
        label: labelOf(child),
        lead: `${below}${isLast ? '└─ ' : '├─ '}`,
        below: `${below}${isLast ? '   ' : '│  '}`,
      };
    });
    if (hidden !== '') next.push({ node: undefined, label: `… ${hidden}`, lead: `${below}└─ `, below: '' });
    stack.push(...next.reverse());
  }
  return rows;
}

/** What all of it comes to, listed or not. */
function totalsOf(tree: TurnTree): string[] {
  const { totals } = tree;
  const { input_tokens: input, output_tokens: output } = totals.usage;
  return [
    `run ${tree.run_id}`,
    [
      countOf(totals.turns, 'turn'),
      countOf(totals.steps, 'step'),
      `${formatShortCount(input)}/${formatShortCount(output)} tokens`,
      ...(totals.cost_micros > 0 ? [describeCost(totals)] : []),
      describeHidden(totals.by_status),
    ].join(' · '),
  ];
}

/** Deep trees keep a readable label: the lead is cut from the left. */
const leadOf = (lead: string, width: number): string =>
  lead.length <= width ? lead : `…${lead.slice(lead.length - width + 1)}`;

/** The lines of a tree, none wider than the terminal and no more than it has room for. */
export function formatTree(tree: BudgetedTree, layout: TreeLayout): string[] {
  const { width, withIds = false } = layout;
  const rows = rowsOf(tree);
  const hasCosts = tree.totals.cost_micros > 0;
  const labelWidth = Math.max(24, width - (hasCosts ? 60 : 50));
  const cells = rows.flatMap(({ node, lead, label }) => {
    if (node === undefined) return [];
    const text = cut(`${leadOf(lead, Math.floor(labelWidth / 2))}${toLine(label)}`, labelWidth);
    if (withIds) return [[text, node.status, node.turn_id]];
    const { subtree, usage } = node;
    const own = formatShortCount(usage.input_tokens + usage.output_tokens);
    const all = formatShortCount(subtree.input_tokens + subtree.output_tokens);
    const tokens = own === all ? own : `${own} of ${all}`;
    const time = formatShortDuration(node.duration_ms);
    const cost = hasCosts ? [formatCost(subtree.cost_micros)] : [];
    return [[text, node.status, String(node.steps), tokens, ...cost, time, noteOf(node)]];
  });
  const right = 'right' as const;
  const columns = [
    { title: 'turn' },
    { title: 'status' },
    ...(withIds
      ? [{ title: 'id' }]
      : [
          { title: 'steps', align: right },
          { title: 'tokens', align: right },
          ...(hasCosts ? [{ title: 'cost', align: right }] : []),
          { title: 'time', align: right },
          { title: 'waits for' },
        ]),
  ];
  const head = [...totalsOf(tree), ...budgetLines(tree.budgets)].map((line) => cut(line, width));
  const [titles = '', ...table] = formatTable(columns, cells, { width, keepSpace: true }).split('\n');
  // What stands for siblings takes the whole line.
  const body = rows.map(({ node, lead, label }) =>
    node === undefined ? cut(`${lead}${label}`, width) : (table.shift() ?? ''),
  );
  const lines = [...head, titles, ...body];
  const { height } = layout;
  if (height === undefined || lines.length <= height) return lines;
  const kept = lines.slice(0, Math.max(height - 1, 0));
  return [...kept, cut(`… ${formatCount(lines.length - kept.length)} more lines; --json shows all`, width)];
}
