/** Work that is given to several turns at once, and their joined results. */
import type { JsonValue } from '@boxcar/kernel';
import type { BatchFact, Facts } from './facts.js';
import type { Scenario } from './scenario.js';

const DAY_MS = 86_400_000;

const task = (target_ref: string, rest: Readonly<Record<string, JsonValue>> = {}) => ({
  target_strategy: 'new',
  target_ref,
  instruction: `do ${target_ref}`,
  ...rest,
});

const fork = (targets: readonly string[], rest: Readonly<Record<string, JsonValue>> = {}) => ({
  calls: [{ tool: 'fork_join', arguments: { tasks: targets.map((target) => task(target)), ...rest } }],
});

/** A profile that delegates work. */
const boss = (name: string, script: readonly JsonValue[]) => ({
  name,
  tools: ['fork_join', 'collect', 'delegate_async'],
  delegation_policy: { target_profiles: null },
  script,
});

const writer = { name: 'writer', script: [{ say: 'written for {{instruction}}' }] };
const broken = { name: 'broken', script: [{ fail: { status: 400, message: 'no' } }] };
/** Works until it is stopped. */
const endless = { name: 'endless', script: [{ say: 'never', delayMs: DAY_MS }] };

const launchLead: Scenario['drive'] = (client) =>
  client.submit('launch_principal', { profile_name: 'lead', instruction: 'go' });

/** Three turns at once, one of which fails: the answer reports the failure and contains the results of the others. */
export const forkJoin: Scenario = {
  name: 'fork_join',
  profiles: [
    boss('lead', [fork(['writer', 'broken', 'writer']), { say: 'joined {{instruction}}' }]),
    writer,
    broken,
  ],
  drive: launchLead,
};

/** The second child waits for the first model call of the other, and loses nothing with its worker. */
export const warmCache: Scenario = {
  name: 'fork_join with a warm cache',
  profiles: [boss('lead', [fork(['writer', 'writer'], { warm_cache: true }), { say: 'joined' }]), writer],
  drive: launchLead,
};

/** A fork_join in a fork_join, beside another fork_join of the parent. */
export const nestedForkJoin: Scenario = {
  name: 'nested fork_join',
  profiles: [
    boss('lead', [fork(['middle', 'writer']), { say: 'joined' }]),
    boss('middle', [fork(['writer', 'writer']), { say: 'joined below' }]),
    writer,
  ],
  drive: launchLead,
};

/** Receipts first, and the results later: those of a batch, and one of its turns again. */
export const collectLater: Scenario = {
  name: 'fork_join without waiting, and collect',
  profiles: [
    boss('lead', [
      fork(['writer', 'writer'], { wait: false }),
      { calls: [{ tool: 'collect', arguments: { batch_id: '{{results/fork_join/batch_id}}' } }] },
      {
        calls: [{ tool: 'collect', arguments: { turn_ids: ['{{first:results/fork_join/turn_ids}}'] } }],
      },
      { say: 'collected' },
    ]),
    writer,
  ],
  drive: launchLead,
};

/** The expected state of a batch whose remaining turns were ended early, and of the lead that waited for it. */
function judgeEarlyEnd(
  { turns, batches }: Facts,
  expected: Pick<BatchFact, 'status' | 'closing' | 'members'> & {
    readonly codes: readonly (string | null)[];
  },
): readonly string[] {
  const [batch, ...more] = batches;
  const lead = turns.find(({ profile }) => profile === 'lead');
  const codes = batch?.results?.map(({ error }) => error?.code ?? null);
  const said = batch?.results?.map(({ status }) => status);
  return [
    ...(lead?.status === 'success' && lead.steps === 2 ? [] : ['the lead has not gone on to its end']),
    ...(turns.length === 1 + expected.members.length ? [] : [`there are ${turns.length} turns`]),
    ...(batch === undefined || more.length > 0 ? [`there are ${batches.length} batches`] : []),
    ...(batch?.status === expected.status && batch.closing === expected.closing
      ? []
      : [`the batch is ${batch?.status}, closed for ${batch?.closing}`]),
    ...(JSON.stringify(batch?.members) === JSON.stringify(expected.members)
      ? []
      : [`its members are ${batch?.members}`]),
    ...(JSON.stringify(said) === JSON.stringify(expected.members) ? [] : [`its answer says ${said}`]),
    ...(JSON.stringify(codes) === JSON.stringify(expected.codes) ? [] : [`its answer has codes ${codes}`]),
  ];
}

/** The first failure ends the turns that would never end. */
export const failFast: Scenario = {
  name: 'fork_join with fail_fast',
  profiles: [
    boss('lead', [fork(['endless', 'broken', 'endless'], { fail_fast: true }), { say: 'went on' }]),
    broken,
    endless,
  ],
  drive: launchLead,
  judge: (facts) =>
    judgeEarlyEnd(facts, {
      status: 'failed',
      closing: 'fail_fast',
      members: ['canceled', 'failed', 'canceled'],
      codes: ['batch_closed', 'model_failed', 'batch_closed'],
    }),
};

/** One success is enough. */
export const minSuccess: Scenario = {
  name: 'fork_join with min_success',
  profiles: [
    boss('lead', [fork(['endless', 'writer'], { min_success: 1 }), { say: 'went on' }]),
    writer,
    endless,
  ],
  drive: launchLead,
  judge: (facts) =>
    judgeEarlyEnd(facts, {
      status: 'success',
      closing: 'min_success',
      members: ['canceled', 'success'],
      codes: ['batch_closed', null],
    }),
};

/** The deadline of the batch ends the turns that are still open, and their subtrees: here a turn that waits for a turn of its own. */
export const batchDeadline: Scenario = {
  name: 'fork_join to its deadline',
  profiles: [
    boss('lead', [fork(['middle', 'writer'], { deadline_seconds: 1 }), { say: 'went on' }]),
    boss('middle', [fork(['endless']), { say: 'never' }]),
    writer,
    endless,
  ],
  drive: launchLead,
  judge: ({ turns, batches }) => {
    const lead = turns.find(({ profile }) => profile === 'lead');
    const of = (name: string) => turns.find(({ profile }) => profile === name)?.status;
    const outer = batches.find(({ members }) => members.length === 2);
    const inner = batches.find(({ members }) => members.length === 1);
    return [
      ...(lead?.status === 'success' && lead.steps === 2 ? [] : ['the lead has not gone on to its end']),
      ...(outer?.status === 'timeout' && outer.closing === 'deadline'
        ? []
        : [`its batch is ${outer?.status}`]),
      ...(of('middle') === 'timeout' ? [] : [`the middle is ${of('middle')}`]),
      // A slow turn may have missed the deadline.
      ...(of('writer') === 'success' || of('writer') === 'timeout' ? [] : [`the writer is ${of('writer')}`]),
      ...(of('endless') === undefined || of('endless') === 'timeout'
        ? []
        : [`the endless is ${of('endless')}`]),
      ...((inner === undefined) === (of('endless') === undefined) ? [] : ['a batch without its member']),
      ...batches.filter(({ status }) => status === 'running').map(() => 'a batch runs on'),
    ];
  },
};
