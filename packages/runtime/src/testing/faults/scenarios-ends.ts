/** Work that is ended, stopped or delayed from outside: cancels, budgets, a provider that fails. */
import type { JsonValue } from '@boxcar/kernel';
import type { Facts } from './facts.js';
import { type Client, Refused, type Scenario } from './scenario.js';

const DAY_MS = 86_400_000;

const boss = (
  name: string,
  script: readonly JsonValue[],
  rest: Readonly<Record<string, JsonValue>> = {},
) => ({
  name,
  tools: ['fork_join', 'ask_expert'],
  delegation_policy: { target_profiles: null },
  script,
  ...rest,
});

const fork = (targets: readonly string[]) => ({
  calls: [
    {
      tool: 'fork_join',
      arguments: {
        tasks: targets.map((target_ref) => ({
          target_strategy: 'new',
          target_ref,
          instruction: `do ${target_ref}`,
        })),
      },
    },
  ],
});

const ask = (expert_profile: string) => ({
  calls: [{ tool: 'ask_expert', arguments: { expert_profile, question: 'why' } }],
});

/** Works until it is stopped. */
const endless = { name: 'endless', script: [{ say: 'never', delayMs: DAY_MS }] };

const launch = (client: Client, rest: Readonly<Record<string, JsonValue>> = {}) =>
  client.submit('launch_principal', { profile_name: 'lead', instruction: 'go', ...rest }) as Promise<{
    readonly turn_id: string;
    readonly run_id?: string;
  }>;

/** The answer with the status and the number of ended turns, or the code of the refusal. */
async function cancel(client: Client, args: Readonly<Record<string, JsonValue>>): Promise<JsonValue> {
  try {
    const answer = await client.submit('cancel', args);
    return answer;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return { refused: error.code };
  }
}

const finding = (isRight: boolean, what: string): readonly string[] => (isRight ? [] : [what]);

const isCanceled = (
  value: JsonValue,
): value is { readonly status: 'canceled'; readonly turn_count: number } =>
  typeof value === 'object' && value !== null && 'status' in value && value.status === 'canceled';

/** For a run that was canceled as a whole: every turn, and therefore every batch, must have ended as canceled. */
function judgeCanceledRun({ turns, batches, driven }: Facts, sizes: readonly number[]): readonly string[] {
  return [
    ...finding(isCanceled(driven), `the cancel was answered ${JSON.stringify(driven)}`),
    ...finding(sizes.includes(turns.length), `there are ${turns.length} turns`),
    ...finding(
      isCanceled(driven) && driven.turn_count === turns.length,
      `the answer counts other turns than the ${turns.length} there are`,
    ),
    ...turns.flatMap(({ profile, status, error }) =>
      finding(status === 'canceled' && error === 'canceled', `${profile} is ${status} (${error})`),
    ),
    ...batches.flatMap(({ status }) => finding(status !== 'running', 'a batch runs on')),
  ];
}

/** A whole tree is in progress: one turn works, and another waits for a turn below it that works. */
export const cancelTree: Scenario = {
  name: 'cancel of a run with a tree in flight',
  profiles: [boss('lead', [fork(['endless', 'middle'])]), boss('middle', [ask('endless')]), endless],
  drive: async (client, watcher) => {
    const { turn_id } = await launch(client);
    await watcher.until(`
      select 1 as one
      from boxcar.turns t
      where t.run_id = (select run_id from boxcar.turns where id = '${turn_id}')
      having count(*) = 4`);
    return cancel(client, { turn_id });
  },
  judge: (facts) => judgeCanceledRun(facts, [4]),
};

/** The cancel is submitted as soon as there is a run: before, while, or after the lead forks. */
export const cancelRacingSpawn: Scenario = {
  name: 'cancel racing a spawn',
  profiles: [boss('lead', [fork(['endless', 'endless'])]), endless],
  drive: async (client) => {
    const { turn_id } = await launch(client);
    return cancel(client, { turn_id });
  },
  judge: (facts) => judgeCanceledRun(facts, [1, 3]),
};

/** A child is canceled while it ends: one of the two wins, and the parent is told which. */
export const cancelRacingCompletion: Scenario = {
  name: 'cancel racing a completion',
  profiles: [
    boss('lead', [ask('quick'), { say: 'was answered' }]),
    { name: 'quick', script: [{ say: 'quick answer' }] },
  ],
  drive: async (client, watcher) => {
    await launch(client);
    const { id } = await watcher.until('select id from boxcar.turns where depth = 1');
    return cancel(client, { turn_id: id ?? null });
  },
  judge: ({ turns, driven }) => {
    const lead = turns.find(({ profile }) => profile === 'lead');
    const quick = turns.find(({ profile }) => profile === 'quick');
    const won = isCanceled(driven) ? 'canceled' : 'success';
    return [
      ...finding(turns.length === 2, `there are ${turns.length} turns`),
      ...finding(lead?.status === 'success' && lead.steps === 2, 'the lead has not gone on to its end'),
      ...finding(
        quick?.status === won,
        `the child is ${quick?.status}, the cancel said ${JSON.stringify(driven)}`,
      ),
      ...finding(
        isCanceled(driven) || JSON.stringify(driven) === '{"refused":"turn_ended"}',
        `the cancel was answered ${JSON.stringify(driven)}`,
      ),
    ];
  },
};

const SMALL = { model_settings: { max_output_tokens: 50 } };

/** Everything fits: the possible cost of each attempt is reserved, the rest is given back, and nothing is counted twice. */
export const budgetThatFits: Scenario = {
  name: 'a budget that fits',
  profiles: [
    boss('lead', [fork(['writer', 'writer']), { say: 'joined' }], SMALL),
    { name: 'writer', script: [{ say: 'written', usage: { inputTokens: 20, outputTokens: 5 } }], ...SMALL },
  ],
  drive: (client) => launch(client, { budget: { tokens: 50_000, turns: 3, steps: 10, fan_out: 2 } }),
};

/** The steps are used up before the work is done: the turn ends as partial with the work so far. */
export const budgetSpent: Scenario = {
  name: 'a budget that is spent',
  profiles: [
    boss('lead', [ask('expert'), { say: 'never' }]),
    { name: 'expert', script: [{ say: 'because' }] },
  ],
  drive: (client) => launch(client, { budget: { steps: 2 } }),
};

/** The budget is so tight that an attempt whose answer was lost may be one too many. A turn without budget ends as partial. */
export const tightBudget: Scenario = {
  name: 'a budget with no room for lost answers',
  profiles: [
    boss('lead', [fork(['writer', 'writer', 'writer']), { say: 'joined' }], SMALL),
    { name: 'writer', script: [{ say: 'written' }], ...SMALL },
  ],
  drive: (client) => launch(client, { budget: { tokens: 2_500 } }),
  judge: ({ turns }) =>
    turns.flatMap(({ profile, status, error }) =>
      finding(
        (status === 'success' && error === null) || (status === 'partial' && error === 'budget_exceeded'),
        `${profile} is ${status} (${error})`,
      ),
    ),
};

const patient = [
  boss('lead', [ask('expert'), { say: 'went on' }], { limits: { on_budget: 'pause' } }),
  { name: 'expert', script: [{ say: 'because' }] },
];

/** The run waits for a larger budget, and gets it. */
export const budgetRaised: Scenario = {
  name: 'a budget that is raised when it is spent',
  profiles: patient,
  drive: async (client, watcher) => {
    const { turn_id } = await launch(client, { budget: { steps: 2 } });
    await watcher.until("select 1 as one from boxcar.waits where kind = 'budget'");
    return client.submit('raise_budget', { target: turn_id, budget: { steps: 5 } });
  },
};

/** The budget is raised while the run finds that it has none left. */
export const raiseRacingPause: Scenario = {
  name: 'a raise that races the pause of its turn',
  profiles: patient,
  drive: async (client, watcher) => {
    const { turn_id } = await launch(client, { budget: { steps: 2 } });
    await watcher.until('select 1 as one from boxcar.turns where depth = 1 and ended_at is not null');
    return client.submit('raise_budget', { target: turn_id, budget: { steps: 5 } });
  },
};

const SOON = { limits: { retry_base_seconds: 0.05 } };

/** First there are too many requests, then there is an answer: the turn waits without a worker and continues at the same place. */
export const retries: Scenario = {
  name: 'a model call that is tried again',
  profiles: [
    boss(
      'lead',
      [
        { fail: { status: 429, retryAfter: 0.2, times: 1 }, ...ask('expert') },
        { fail: { status: 503, times: 1 }, say: 'answered at last' },
      ],
      SOON,
    ),
    {
      name: 'expert',
      script: [{ fail: { status: 429, retryAfter: 0.2, times: 1 }, say: 'because' }],
      ...SOON,
    },
  ],
  drive: (client) => launch(client),
};

/** A provider that never answers: the retries are used up, and the parent gets the provider's message. */
export const retriesSpent: Scenario = {
  name: 'a model call whose retries all fail',
  profiles: [
    boss('lead', [ask('expert'), { say: 'without an answer' }]),
    {
      name: 'expert',
      script: [{ fail: { status: 503, message: 'out of order' } }],
      limits: { model_retries: 2, retry_base_seconds: 0.05 },
    },
  ],
  drive: (client) => launch(client),
  judge: ({ turns }) => {
    const lead = turns.find(({ profile }) => profile === 'lead');
    const expert = turns.find(({ profile }) => profile === 'expert');
    return [
      ...finding(lead?.status === 'success' && lead.steps === 2, 'the lead has not gone on to its end'),
      ...finding(expert?.status === 'failed', `the expert is ${expert?.status}`),
      ...finding(expert?.error === 'model_failed', `the expert ended with ${expert?.error}`),
    ];
  },
};

/** A provider that takes one call at a time: the other turns wait without a worker. */
export const providerRoom: Scenario = {
  name: 'a provider with room for one call',
  profiles: [
    boss('lead', [fork(['writer', 'writer']), { say: 'joined' }]),
    { name: 'writer', script: [{ say: 'written' }] },
  ],
  prepare: "insert into boxcar.providers (name, max_concurrent) values ('scripted', 1)",
  drive: (client) => launch(client),
};
