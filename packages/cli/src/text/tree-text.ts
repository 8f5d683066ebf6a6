/** A tree of turns as lines for a terminal. */

import { cut, toLine } from '@boxcar/host/base';
import { isFinal } from '@boxcar/kernel';
import type { BudgetReport, TreeOf, WaitLine } from '@boxcar/store';
import type { TreeBatch, TreeNode, TurnTree } from '@boxcar/store/report';
import { budgetLines, describeCost, formatCost } from './budget-text.js';
import { countOf, formatCount, formatShortCount, formatShortDuration, formatTable } from './text.js';

/** A tree with the kind of its root, and the accounts of its run. */
export interface BudgetedTree extends TurnTree {
  readonly of: TreeOf;
  readonly budgets: readonly BudgetReport[];
}

export interface TreeLayout {
  /** Columns of the terminal. */
  readonly width: number;
  /** The maximum number of lines; the last line counts the turns that do not fit. Default: all. */
  readonly height?: number;
  /** Shows the ids of turns instead of their figures, and the ids of batches. */
  readonly withIds?: boolean;
  /** The ids as shown. Default: in full. */
  readonly ids?: ReadonlyMap<string, string>;
}

/** `scout-1 (writer) · ask_expert`; the profile is shown only when the agent's name does not imply it. */
function labelOf(node: TreeNode): string {
  const isTold = node.agent.startsWith(node.profile);
  return `${node.agent}${isTold ? '' : ` (${node.profile})`} · ${node.primitive}`;
}

function callsOf(node: TreeNode): string {
  const [first] = node.open_calls;
  if (first === undefined) return `${node.pending_calls} calls`;
  const { batch } = first;
  const name =
    batch === null
      ? `${first.ticket_id === null ? '' : 'approval of '}${first.name}`
      : `${first.name} ${formatCount(batch.total - batch.remaining)}/${formatCount(batch.total)}`;
  return node.pending_calls > 1 ? `${name} +${node.pending_calls - 1}` : name;
}

const wordOf = (value: unknown): string => (typeof value === 'string' ? value : '');

/**
 * The reason why a turn waits, other than for calls: `retry 2 in 12 s: model_timeout`, `openai: rate`, `budget paused: tokens`.
 *
 * @param at - The server's clock; without it no time is shown.
 */
export function describeWait({ kind, due_at, provider, detail }: WaitLine, at?: string): string {
  const leftMs = due_at === null || at === undefined ? 0 : Date.parse(due_at) - Date.parse(at);
  const left = leftMs < 100_000 ? `${Math.ceil(leftMs / 1_000)} s` : formatShortDuration(leftMs);
  const inTime = leftMs > 0 ? ` in ${left}` : '';
  if (kind === 'retry') return `retry ${String(detail.retry ?? '')}${inTime}: ${wordOf(detail.code)}`;
  if (kind === 'budget') return `budget paused: ${wordOf(detail.limit)}`;
  if (provider === null) return kind;
  const reason = wordOf(detail.reason) || kind;
  return reason === 'failing' ? `${provider}: fails, again${inTime || ' soon'}` : `${provider}: ${reason}`;
}

/** The wait of a turn in progress, or the reason of its outcome. */
export function noteOf(node: TreeNode, at?: string): string {
  if (node.error !== null) return node.error.code;
  const target = node.worker_target === '' ? '' : ` for '${node.worker_target}'`;
  switch (node.status) {
    case 'queued':
      if (node.behind_turn_id !== null) return 'agent is busy';
      return node.has_worker ? 'room in the window' : `no worker${target}`;
    case 'dispatched':
      return node.has_worker ? 'a free worker' : `no worker${target}`;
    case 'suspended':
      return node.wait === null ? callsOf(node) : describeWait(node.wait, at);
    case 'running':
      return node.pending_calls > 0 ? callsOf(node) : 'the model';
    default:
      return '';
  }
}

type Counts = TreeNode['hidden'];

interface Row {
  readonly lead: string;
  /** Undefined: the row of a batch, or of siblings that are not listed. */
  readonly node: TreeNode | undefined;
  readonly label: string;
  /** For the row of a batch. */
  readonly batchId?: TreeBatch['batch_id'];
}

const describeCounts = (counts: Counts): string =>
  Object.entries(counts)
    .map(([status, n]) => `${formatCount(n)} × ${status}`)
    .join(', ');

/** `+ 985 done, 12 queued`. */
function describeFolded(counts: Counts): string {
  const { success = 0, ...rest } = counts;
  const parts = Object.entries(rest).map(([status, n]) => `${formatCount(n)} ${status}`);
  return `+ ${[...(success > 0 ? [`${formatCount(success)} done`] : []), ...parts].join(', ')}`;
}

function describeBatch(batch: TreeBatch): string {
  const { kind, total, remaining, succeeded, failed, min_success, status, closing } = batch;
  const parts = [
    `${formatCount(total - remaining)} of ${formatCount(total)} done`,
    ...(failed > 0 ? [`${formatCount(failed)} failed`] : []),
    ...(min_success === null
      ? []
      : [`${formatCount(succeeded)} of ${formatCount(min_success)} successes needed`]),
    ...(batch.is_awaited || status !== 'running' ? [] : ['no turn waits']),
    ...(status !== 'running' ? [status] : closing === null ? [] : [`ending: ${closing}`]),
  ];
  return `${kind}: ${parts.join(', ')}`;
}

/** The rows below a turn, below a batch, or at the top. */
interface Family {
  readonly batches: readonly TreeBatch[];
  readonly nodes: readonly TreeNode[];
  readonly hidden: Counts;
}

const RANKS: Readonly<Partial<Record<TreeNode['status'], number>>> = {
  running: 0,
  suspended: 1,
  dispatched: 2,
  queued: 4,
  success: 5,
};

/** Keeps the `most` most relevant of many siblings, and no finished one while others are in progress. */
function fold(family: Family, most: number, isOpenBelow: ReadonlySet<string>): Family {
  const { batches, nodes, hidden } = family;
  const isWide = nodes.length > most || Object.keys(hidden).length > 0;
  if (!isWide) return family;
  const rankOf = (node: TreeNode): number =>
    isOpenBelow.has(node.turn_id) && isFinal(node.status) ? 1 : (RANKS[node.status] ?? 3);
  const isUnderWay =
    nodes.some((node) => !isFinal(node.status) || isOpenBelow.has(node.turn_id)) ||
    (Object.keys(hidden) as TreeNode['status'][]).some((status) => !isFinal(status));
  const kept = new Set(
    nodes
      .filter((node) => !isUnderWay || rankOf(node) < 5)
      .toSorted((one, other) => rankOf(one) - rankOf(other))
      .slice(0, most),
  );
  const counts: Record<string, number> = { ...hidden };
  for (const node of nodes) if (!kept.has(node)) counts[node.status] = (counts[node.status] ?? 0) + 1;
  return { batches, nodes: nodes.filter((node) => kept.has(node)), hidden: counts };
}

type Families = ReadonlyMap<TreeBatch | TreeNode | 'top', Family>;

function familiesOf(tree: TurnTree): { families: Families; isOpenBelow: ReadonlySet<string> } {
  const byId = new Map(tree.nodes.map((node) => [node.turn_id, node]));
  const shown = tree.batches.filter(({ kind }) => kind === 'fork_join');
  const batches = new Map(shown.map((batch) => [batch.batch_id, batch]));
  const families = new Map<
    TreeBatch | TreeNode | 'top',
    { batches: TreeBatch[]; nodes: TreeNode[]; hidden: Counts }
  >([['top', { batches: [], nodes: [], hidden: tree.roots.hidden }]]);
  for (const one of [...tree.nodes, ...shown])
    families.set(one, { batches: [], nodes: [], hidden: one.hidden });
  const ownerOf = (turnId: TreeNode['parent_turn_id']): TreeNode | 'top' =>
    (turnId === null ? undefined : byId.get(turnId)) ?? 'top';
  for (const batch of shown) families.get(ownerOf(batch.turn_id))?.batches.push(batch);
  const isOpenBelow = new Set<string>();
  for (const node of tree.nodes) {
    const batch = node.batch_id === null ? undefined : batches.get(node.batch_id);
    families.get(batch ?? ownerOf(node.parent_turn_id))?.nodes.push(node);
    if (isFinal(node.status)) continue;
    for (let above = ownerOf(node.parent_turn_id); above !== 'top'; above = ownerOf(above.parent_turn_id)) {
      if (isOpenBelow.has(above.turn_id)) break;
      isOpenBelow.add(above.turn_id);
    }
  }
  return { families, isOpenBelow };
}

function rowsOf({ families, isOpenBelow }: ReturnType<typeof familiesOf>, most: number): Row[] {
  const rows: Row[] = [];
  type Item = Row & { readonly below: string; readonly of: TreeBatch | TreeNode | 'top' | undefined };
  // A stack instead of recursion: a chain of delegations may be deep.
  const stack: Item[] = [{ node: undefined, label: '', lead: '', below: '', of: 'top' }];
  for (let row = stack.pop(); row !== undefined; row = stack.pop()) {
    const { below, of } = row;
    if (of !== 'top') rows.push(row);
    const family = of === undefined ? undefined : families.get(of);
    if (family === undefined) continue;
    const folded = fold(family, most, isOpenBelow);
    const next = [
      ...folded.batches.map((batch) => ({
        of: batch,
        node: undefined,
        label: describeBatch(batch),
        batchId: batch.batch_id,
      })),
      ...folded.nodes.map((node) => ({ of: node, node, label: labelOf(node) })),
      ...(Object.keys(folded.hidden).length === 0
        ? []
        : [{ of: undefined, node: undefined, label: describeFolded(folded.hidden) }]),
    ];
    const items = next.map((item, index) => {
      const isLast = index === next.length - 1;
      return of === 'top'
        ? { ...item, lead: '', below: '' }
        : { ...item, lead: `${below}${isLast ? '└─ ' : '├─ '}`, below: `${below}${isLast ? '   ' : '│  '}` };
    });
    stack.push(...items.reverse());
  }
  return rows;
}

/** Lists as many siblings as fit for all, at least one; without a limit, all that are loaded. */
function fittingRows(tree: TurnTree, room: number | undefined): Row[] {
  const families = familiesOf(tree);
  let most = Math.max(1, ...[...families.families.values()].map(({ nodes }) => nodes.length));
  for (;;) {
    const rows = rowsOf(families, most);
    if (room === undefined || rows.length <= room || most === 1) return rows;
    most -= 1;
  }
}

/** The root of the tree, and the totals of all its turns, listed or not. */
function totalsOf(tree: BudgetedTree): string[] {
  const { totals, of } = tree;
  const { input_tokens: input, output_tokens: output } = totals.usage;
  return [
    `run ${tree.run_id}`,
    ...(of.kind === 'run' ? [] : [`${of.kind} ${of.id} and the turns below it`]),
    [
      countOf(totals.turns, 'turn'),
      countOf(totals.steps, 'step'),
      `${formatShortCount(input)}/${formatShortCount(output)} tokens`,
      ...(totals.cost_micros + totals.free_steps > 0 ? [describeCost(totals)] : []),
      describeCounts(totals.by_status),
    ].join(' · '),
  ];
}

/** Deep trees keep a readable label: the lead is cut on the left. */
const leadOf = (lead: string, width: number): string =>
  lead.length <= width ? lead : `…${lead.slice(lead.length - width + 1)}`;

/** The lines of a tree, none wider than the terminal, and no more than fit. */
export function formatTree(tree: BudgetedTree, layout: TreeLayout): string[] {
  const { width, height, withIds = false } = layout;
  const idOf = (id: string): string => layout.ids?.get(id) ?? id;
  const head = [...totalsOf(tree), ...budgetLines(tree.budgets, idOf)].map((line) => cut(line, width));
  const rows = fittingRows(tree, height === undefined ? undefined : height - head.length - 1);
  const hasCosts = tree.totals.cost_micros > 0;
  const labelWidth = Math.max(24, width - (hasCosts ? 60 : 50));
  const cells = rows.flatMap(({ node, lead, label }) => {
    if (node === undefined) return [];
    const text = cut(`${leadOf(lead, Math.floor(labelWidth / 2))}${toLine(label)}`, labelWidth);
    if (withIds) return [[text, node.status, idOf(node.turn_id)]];
    const { subtree, usage } = node;
    const own = formatShortCount(usage.input_tokens + usage.output_tokens);
    const all = formatShortCount(subtree.input_tokens + subtree.output_tokens);
    const tokens = own === all ? own : `${own} of ${all}`;
    const time = formatShortDuration(node.duration_ms);
    const cost = hasCosts ? [formatCost(subtree.cost_micros)] : [];
    return [[text, node.status, String(node.steps), tokens, ...cost, time, noteOf(node, tree.at)]];
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
  const [titles = '', ...table] = formatTable(columns, cells, { width, keepSpace: true }).split('\n');
  // The row of a batch or of unlisted siblings uses the whole line.
  const body = rows.map(({ node, lead, label, batchId }) => {
    if (node !== undefined) return table.shift() ?? '';
    return cut(`${lead}${label}${withIds && batchId !== undefined ? `, batch ${idOf(batchId)}` : ''}`, width);
  });
  const lines = [...head, titles, ...body];
  if (height === undefined || lines.length <= height) return lines;
  const kept = lines.slice(0, Math.max(height - 1, 0));
  return [...kept, cut(`… ${formatCount(lines.length - kept.length)} more lines; --json shows all`, width)];
}
