/** The nouns that can be listed: the filters and columns of each, and the function that loads a page. */
import { TURN_STATUSES, type TurnStatus } from '@boxcar/kernel';
import {
  type ListNoun,
  type ListSearch,
  listAgents,
  listBoxes,
  listPrimitives,
  listProjects,
  listRuns,
  listTools,
  listTurns,
} from '@boxcar/runtime';
import { findBoxIdsNextTo, findIdsNextTo } from '@boxcar/store';
import { describeLimits } from '../../input/project-settings.js';
import type { Reader } from '../../reader.js';
import { shortIds } from '../../text/short-ids.js';
import { type Column, formatCount, formatShortDuration } from '../../text/text.js';

type Pool = Reader['pool'];

export type Filter = 'status' | 'profile' | 'agent' | 'channel' | 'text' | 'since' | 'archived' | 'project';

/** A page, both as data and as a table. */
interface Page {
  readonly answer: {
    readonly next_cursor: string | null;
    readonly search?: ListSearch;
    readonly silent_workers?: number;
  };
  readonly rows: readonly (readonly string[])[];
  /** Shown instead of an empty table. */
  readonly empty: string;
}

export interface Noun {
  readonly name: ListNoun;
  readonly of: string;
  readonly description: string;
  readonly filters: readonly Filter[];
  /** The fields that `--text` searches. */
  readonly text: string;
  readonly columns: readonly Column[];
  readonly remarks?: string;
  readonly examples: readonly string[];
  readonly load: (pool: Pool, options: object) => Promise<Page>;
}

const ageOf = (date: Date): string => formatShortDuration(Math.max(Date.now() - date.getTime(), 0));
const AGE = { title: 'age', align: 'right' } as const;
const ID_REMARK =
  'Ids are shortened. Commands accept them as printed, because no other id begins with these digits.';

/**
 * Shortened ids that are unique in the list and among all ids that a command would look up: many commands accept a turn, a run or a
 * batch.
 */
const shorten = async (
  pool: Pool,
  kind: 'turn' | 'run' | 'box',
  ids: readonly string[],
): Promise<ReadonlyMap<string, string>> =>
  shortIds([...ids, ...(await (kind === 'box' ? findBoxIdsNextTo : findIdsNextTo)(pool, ids))]);

/** `running`, or `3 success, 1 failed`. */
function rootsText(roots: Readonly<Partial<Record<TurnStatus, number>>>): string {
  const parts = TURN_STATUSES.flatMap((status) => {
    const n = roots[status];
    return n === undefined ? [] : [{ status, n }];
  });
  const [only] = parts;
  return parts.length === 1 && only?.n === 1
    ? only.status
    : parts.map(({ status, n }) => `${formatCount(n)} ${status}`).join(', ');
}

/** `''` is the default pool. */
const targetsText = (targets: readonly string[]): string =>
  targets.map((target) => (target === '' ? 'default' : target)).join(', ');

const noWorkers = (noun: string, workers: number): string =>
  workers === 0 ? `no worker is live, so no ${noun} are registered; start one: boxcar worker` : `no ${noun}`;

export const NOUNS: readonly Noun[] = [
  {
    name: 'runs',
    of: 'run',
    description: 'Runs, newest first: their status, profile, agent and instruction.',
    filters: ['status', 'profile', 'agent', 'channel', 'text', 'since', 'project'],
    text: 'a part of the instruction',
    columns: [
      { title: 'run' },
      { title: 'status', max: 20 },
      { title: 'turns', align: 'right' },
      { title: 'profile', max: 14 },
      AGE,
      { title: 'instruction' },
    ],
    remarks: `A run has the status, profile, agent and channel of its roots. It is listed if any root matches: a fork_join from outside has several. ${ID_REMARK}`,
    examples: [
      'boxcar runs ls',
      'boxcar runs ls --status failed,timeout --since 2026-01-31',
      "boxcar runs ls --text 'release notes' --json",
    ],
    load: async (pool, options) => {
      const answer = await listRuns(pool, options);
      const short = await shorten(
        pool,
        'run',
        answer.runs.map((run) => run.run_id),
      );
      const rows = answer.runs.map((run) => [
        short.get(run.run_id) ?? '',
        rootsText(run.roots),
        formatCount(run.turns),
        run.profile,
        ageOf(run.created_at),
        run.instruction ?? '',
      ]);
      return { answer, rows, empty: 'no runs' };
    },
  },
  {
    name: 'turns',
    of: 'turn',
    description: 'Turns, newest first: their status, agent, number of steps and instruction.',
    filters: ['status', 'profile', 'agent', 'channel', 'text', 'since', 'project'],
    text: 'a part of the instruction',
    columns: [
      { title: 'turn' },
      { title: 'status' },
      { title: 'agent', max: 18 },
      { title: 'steps', align: 'right' },
      AGE,
      { title: 'instruction' },
    ],
    remarks: ID_REMARK,
    examples: [
      'boxcar turns ls --status running,suspended',
      'boxcar turns ls --profile writer --channel ops --limit 10',
      "boxcar turns ls --text invoice --json | jq -r '.turns[].turn_id'",
    ],
    load: async (pool, options) => {
      const answer = await listTurns(pool, options);
      const short = await shorten(
        pool,
        'turn',
        answer.turns.map((turn) => turn.turn_id),
      );
      const rows = answer.turns.map((turn) => [
        short.get(turn.turn_id) ?? '',
        turn.status,
        turn.agent,
        formatCount(turn.steps),
        ageOf(turn.created_at),
        turn.instruction ?? '',
      ]);
      return { answer, rows, empty: 'no turns' };
    },
  },
  {
    name: 'agents',
    of: 'agent',
    description: 'Agents, newest first: their profile and their maker.',
    filters: ['profile', 'text', 'since', 'project'],
    text: 'a part of the name',
    columns: [{ title: 'agent', max: 40 }, { title: 'profile', max: 24 }, AGE, { title: 'made by' }],
    examples: ['boxcar agents ls', 'boxcar agents ls --profile writer --text notes --json'],
    load: async (pool, options) => {
      const answer = await listAgents(pool, options);
      const rows = answer.agents.map((agent) => [
        agent.name,
        agent.profile === null ? '' : `${agent.profile}@${agent.profile_version ?? ''}`,
        ageOf(agent.created_at),
        agent.owner ?? '',
      ]);
      return { answer, rows, empty: 'no agents' };
    },
  },
  {
    name: 'boxes',
    of: 'box',
    description: 'Context boxes and tapes, newest first: their size and their owner.',
    filters: ['agent', 'text', 'since', 'project'],
    text: 'a part of the name of a tape',
    columns: [
      { title: 'box' },
      { title: 'kind' },
      { title: 'holds', align: 'right' },
      { title: 'tokens', align: 'right' },
      AGE,
      { title: 'owner', max: 24 },
      { title: 'name' },
    ],
    remarks: `A context box holds cards, a tape entries. --agent names the owner. ${ID_REMARK}`,
    examples: [
      'boxcar boxes ls --agent writer-1',
      'boxcar boxes ls --text notes --json',
      'boxcar boxes ls --limit 5',
    ],
    load: async (pool, options) => {
      const answer = await listBoxes(pool, options);
      const short = await shorten(
        pool,
        'box',
        answer.boxes.map((box) => box.box_id),
      );
      const rows = answer.boxes.map((box) => [
        short.get(box.box_id) ?? '',
        box.archived_at === null ? box.kind : 'archived',
        formatCount(box.count),
        box.tokens === null ? '' : formatCount(box.tokens),
        ageOf(box.created_at),
        box.owner ?? '',
        box.name ?? '',
      ]);
      return { answer, rows, empty: 'no boxes' };
    },
  },
  {
    name: 'projects',
    of: 'project',
    description: 'Projects, newest first: their turns under way and their limits.',
    filters: ['text', 'since', 'archived'],
    text: 'a part of the name',
    columns: [
      { title: 'project', max: 24 },
      { title: 'active', align: 'right' },
      { title: 'suspended', align: 'right' },
      AGE,
      { title: 'state' },
      { title: 'limits' },
    ],
    remarks:
      'An archived project takes no new submissions. Active turns are dispatched or running: --max-concurrent counts them.',
    examples: [
      'boxcar projects ls',
      'boxcar projects ls --text team --json',
      'boxcar projects ls --archived',
    ],
    load: async (pool, options) => {
      const answer = await listProjects(pool, options);
      const rows = answer.projects.map((project) => [
        project.name,
        formatCount(project.active),
        formatCount(project.suspended),
        ageOf(project.created_at),
        project.archived_at === null ? '' : 'archived',
        describeLimits(project.limits),
      ]);
      return { answer, rows, empty: 'no projects' };
    },
  },
  {
    name: 'tools',
    of: 'tool',
    description: 'The tools that live workers have registered, by name.',
    filters: ['text'],
    text: 'a part of the name',
    columns: [
      { title: 'tool', max: 40 },
      { title: 'workers', align: 'right' },
      { title: 'versions', align: 'right' },
      { title: 'pools' },
    ],
    remarks:
      'Workers register their tools when they start, for all projects. Tools that a profile declares are not listed, because tool workers answer them. Several versions mean that the arguments differ: workers with an older plugin are still live.',
    examples: ['boxcar tools ls', 'boxcar tools ls --text tape --json'],
    load: async (pool, options) => {
      const answer = await listTools(pool, options);
      const rows = answer.tools.map((tool) => [
        tool.name,
        formatCount(tool.workers),
        formatCount(tool.versions),
        targetsText(tool.targets),
      ]);
      return { answer, rows, empty: noWorkers('tools', answer.live_workers) };
    },
  },
  {
    name: 'primitives',
    of: 'primitive',
    description: 'The primitives that live workers and queue doors have registered, by name.',
    filters: ['text'],
    text: 'a part of the name',
    columns: [
      { title: 'primitive', max: 40 },
      { title: 'workers', align: 'right' },
      { title: 'doors', align: 'right' },
      { title: 'versions', align: 'right' },
      { title: 'pools' },
    ],
    remarks:
      'Workers register their primitives when they start, for all projects. A door is a process that takes primitives from the queue boxcar-primitives. Several versions mean that the arguments differ.',
    examples: ['boxcar primitives ls', 'boxcar primitives ls --text fork --json'],
    load: async (pool, options) => {
      const answer = await listPrimitives(pool, options);
      const rows = answer.primitives.map((primitive) => [
        primitive.name,
        formatCount(primitive.workers),
        formatCount(primitive.doors),
        formatCount(primitive.versions),
        targetsText(primitive.targets),
      ]);
      return { answer, rows, empty: noWorkers('primitives', answer.live_workers) };
    },
  },
];
