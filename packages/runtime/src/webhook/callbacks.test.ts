/** Callbacks of handoffs: their content, their repetitions, and the addresses that are refused. */
import type { LookupAddress } from 'node:dns';
import { PermissionEvaluator } from '@boxcar/policy';
import { findDeliveryTrouble, purgeRuns } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { Webhook } from 'standardwebhooks';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { ApprovalGate } from '../approval/index.js';
import { HandoffTool } from '../handoff/index.js';
import { failureOf } from '../testing/failure-of.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { openReceiver, type Receiver, WEBHOOK_SECRET } from '../testing/receiver.js';

const SETTINGS = { secret: WEBHOOK_SECRET, allowPrivate: ['127.0.0.1', '127.0.0.2'] };

let h: Harness;
let tool: HandoffTool;
let receiver: Receiver;

async function open(options: Parameters<typeof harness>[0] = {}): Promise<void> {
  h = await harness({ connections: 8, handoffs: { enabled: true, webhooks: SETTINGS }, ...options });
  tool = new HandoffTool({ runtime: h.runtime });
  tool.registerAgent('echo', (input) => input);
  tool.registerAgent('broken', () => {
    throw new Error('out of paper');
  });
}

beforeEach(async () => {
  receiver = await openReceiver();
});
afterEach(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await h[Symbol.asyncDispose]();
  await receiver[Symbol.asyncDispose]();
});

const ask = (target_agent: string, rest: object = {}) => ({
  source_agent: 'main',
  target_agent,
  task: 'do it',
  callback: { url: receiver.url },
  ...rest,
});
const deliveries = () =>
  h.rows<{
    id: string;
    status: string;
    attempts: number;
    failures: number;
    last_status: number | null;
    last_error: string | null;
  }>(
    'select id, status, attempts, failures, last_status, last_error from boxcar.webhook_deliveries order by created_at, id',
  );
const hasStatus = (status: string) =>
  waitFor(async () => (await deliveries()).find((one) => one.status === status), {
    message: `a delivery is ${status}`,
    deadlineMs: 30_000,
  });
/** Makes the pauses end now. */
const makeDue = async () => {
  await h.rows(
    "update boxcar.webhook_deliveries set next_at = now(), give_up_at = now() + interval '1 day' where status = 'pending' and holder_id is null",
  );
  h.runtime.webhooks.wake();
};
/** Waits until this many attempts were recorded as failed. */
const hasFailed = (failures: number) =>
  waitFor(async () => (await deliveries()).find((one) => one.failures === failures), {
    message: `${failures} attempts have failed`,
    deadlineMs: 30_000,
  });

describe('the callback about an end', () => {
  test('is sent once, signed, with the final event and the result', async () => {
    await open();
    const { handoff_id } = await tool.handoff(ask('echo', { payload: { a: 1 } }));
    const [got] = await receiver.reached(1);
    const last = (await tool.getEvents(handoff_id)).at(-1);
    expect(got).toMatchObject({ isGenuine: true, body: { ...last, result: { a: 1 } } });
    const delivered = await hasStatus('delivered');
    expect(delivered).toMatchObject({ id: got?.id, attempts: 1, last_status: 204, last_error: null });
    expect((await tool.listWebhooks({ handoff_id })).webhooks).toMatchObject([
      { delivery_id: got?.id, event_type: 'handoff.completed', status: 'delivered', next_at: null },
    ]);
    expect(receiver.received).toHaveLength(1);
  });

  test('has the error of a failure and of a refusal', async () => {
    await open({
      permissionEvaluator: new PermissionEvaluator({
        text: "rules:\n  - condition: { tool_name: handoff, context: { target_agent: 'external-*' } }\n    permission: NEVER\n  - condition: { tool_name: handoff, context: { target_agent: '*' } }\n    permission: ALWAYS\n",
        environment: 'production',
      }),
    });
    const failed = await failureOf(tool.handoff(ask('broken')));
    await receiver.reached(1);
    const refused = await failureOf(tool.handoff(ask('external-x')));
    const got = await receiver.reached(2);
    expect(got.map(({ body, isGenuine }) => ({ ...body, isGenuine }))).toMatchObject([
      {
        event_type: 'handoff.failed',
        handoff_id: failed.details.handoff_id,
        error: { code: 'platform_failed', message: 'out of paper' },
        isGenuine: true,
      },
      {
        event_type: 'handoff.rejected',
        handoff_id: refused.details.handoff_id,
        error: { code: 'permission_denied' },
        isGenuine: true,
      },
    ]);
    expect(got.every(({ body }) => !('result' in body))).toBe(true);
  });

  test('is sent for a decision, and each of the handoffs that share a ticket has its own callback', async () => {
    await open({
      permissionEvaluator: new PermissionEvaluator({
        text: 'tools:\n  handoff: { permission: REQUIRE_APPROVAL }\n',
        environment: 'production',
      }),
    });
    const gate = new ApprovalGate({ runtime: h.runtime });
    const parked = async (run_id: string, path: string) =>
      tool.handoff(ask('echo', { run_id, wait: false, callback: { url: `${receiver.url}${path}` } }));
    const first = await parked('r1', '');
    const second = await parked('r1', '');
    expect(second.ticket_id).toBe(first.ticket_id);
    // Another receiver is another request: the approval of one request does not approve the other.
    const other = await parked('r1', '/other');
    expect(other.ticket_id).not.toBe(first.ticket_id);
    const ticket = await gate.get(String(other.ticket_id));
    expect(ticket.tool_args.callback).toEqual({ url: `${receiver.url}/other` });
    await gate.approve(String(first.ticket_id));
    await gate.deny(String(other.ticket_id), { reason: 'no' });
    const got = await receiver.reached(3);
    expect(new Set(got.map(({ id }) => id)).size).toBe(3);
    expect(got.map(({ body }) => [body.handoff_id, body.event_type]).sort()).toEqual(
      [
        [first.handoff_id, 'handoff.completed'],
        [second.handoff_id, 'handoff.completed'],
        [other.handoff_id, 'handoff.rejected'],
      ].sort(),
    );
  });

  test('is sent with all keys during a change of the secret, and a text is used as the key itself', async () => {
    const old = `whsec_${Buffer.from('another secret').toString('base64')}`;
    const allowPrivate = ['127.0.0.0/8'];
    await open({
      handoffs: { enabled: true, webhooks: { secret: `${old} ${WEBHOOK_SECRET}`, allowPrivate } },
    });
    await using other = await openReceiver([], new Webhook(old));
    await tool.handoff(ask('echo'));
    await tool.handoff(ask('echo', { callback: { url: other.url } }));
    expect((await receiver.reached(1))[0]?.isGenuine).toBe(true);
    expect((await other.reached(1))[0]?.isGenuine).toBe(true);
    h.runtime.webhooks.configure({ secret: 'words with blanks', allowPrivate });
    await using plain = await openReceiver([], new Webhook('words with blanks', { format: 'raw' }));
    await tool.handoff(ask('echo', { callback: { url: plain.url } }));
    expect((await plain.reached(1))[0]?.isGenuine).toBe(true);
  });

  test('is sent again with its id when the first answer was an error, until the receiver accepts it', async () => {
    await open();
    receiver.behaviours.push(500, 302, 404);
    await tool.handoff(ask('echo'));
    for (const failures of [1, 2, 3]) {
      await hasFailed(failures);
      await makeDue();
    }
    expect(await hasStatus('delivered')).toMatchObject({ attempts: 4, last_status: 204 });
    expect(new Set(receiver.received.map(({ id }) => id)).size).toBe(1);
    expect(receiver.received).toHaveLength(4);
    expect(h.log.filter(({ event }) => event === 'webhook.retrying')).toHaveLength(3);
  });

  test('that is not accepted for a day is given up, and is sent once more when a person says so', async () => {
    await open();
    receiver.behaviours.push(...Array.from({ length: 12 }, () => 500));
    await tool.handoff(ask('echo'));
    // More than an hour of failures: the pauses grow, and nothing is lost.
    const pauses: number[] = [];
    for (let failures = 1; failures <= 11; failures += 1) {
      await hasFailed(failures);
      const [row] = await h.rows<{ ms: number }>(
        'select extract(epoch from next_at - now())::float8 * 1000 as ms from boxcar.webhook_deliveries',
      );
      pauses.push(row?.ms ?? 0);
      await makeDue();
    }
    for (const [index, pause] of pauses.entries())
      expect(pause).toBeLessThanOrEqual(Math.min(5_000 * 2 ** index, 3_600_000) * 1.25);
    expect(pauses.at(-1)).toBeGreaterThan(1_800_000);
    await hasFailed(12);
    // The next attempt would be after the end of its day.
    await h.rows(
      "update boxcar.webhook_deliveries set give_up_at = now() + interval '1 minute', next_at = now()",
    );
    receiver.behaviours.push(500);
    const failed = await hasStatus('failed');
    expect(failed).toMatchObject({
      attempts: 13,
      last_status: 500,
      last_error: expect.stringContaining('500'),
    });
    expect(await findDeliveryTrouble(h.database.pool, { lateMs: 1, limit: 5 })).toEqual({
      failed: [failed.id],
      late: [],
    });
    expect((await tool.listWebhooks({ status: 'failed' })).webhooks).toMatchObject([
      { delivery_id: failed.id },
    ]);
    expect(await tool.retryWebhook(failed.id)).toMatchObject({ delivery_id: failed.id });
    expect(await hasStatus('delivered')).toMatchObject({ id: failed.id, attempts: 14 });
    expect((await failureOf(tool.retryWebhook(failed.id))).code).toBe('conflict');
    const stranger = new HandoffTool({
      runtime: h.runtime,
      projectId: (await h.runtime.createProject({ name: 'other' })).project_id,
    });
    expect((await stranger.listWebhooks()).webhooks).toEqual([]);
    expect((await failureOf(stranger.retryWebhook(failed.id))).code).toBe('not_found');
  });

  test('is not sent again to a receiver that no longer exists', async () => {
    await open();
    receiver.behaviours.push(410);
    await tool.handoff(ask('echo'));
    expect(await hasStatus('failed')).toMatchObject({ attempts: 1, last_status: 410 });
  });

  test('is accepted by a receiver whose answer never ends, and not by a receiver that does not answer', async () => {
    await open();
    h.runtime.webhooks.limits = { attemptMs: 300 };
    receiver.behaviours.push(
      () => undefined,
      (response) => {
        response.writeHead(200);
        response.write('x'.repeat(200_000));
      },
      (response) => {
        response.writeHead(200);
        response.write('y');
      },
    );
    await tool.handoff(ask('echo'));
    expect(await hasFailed(1)).toMatchObject({
      last_status: null,
      last_error: 'No answer within 0.3 seconds.',
    });
    await makeDue();
    expect(await hasStatus('delivered')).toMatchObject({ attempts: 2, last_status: 200 });
    await tool.handoff(ask('echo'));
    await waitFor(
      async () => (await deliveries()).every(({ status }) => status === 'delivered') || undefined,
      {
        message: 'both are delivered',
      },
    );
  });

  test('to a slow receiver does not delay others', async () => {
    await open();
    h.runtime.webhooks.limits = { perHost: 1, maxInFlight: 3 };
    await using other = await openReceiver();
    const open_: (() => void)[] = [];
    receiver.behaviours.push((response) => void open_.push(() => response.writeHead(204).end()));
    for (let n = 0; n < 4; n += 1) await tool.handoff(ask('echo'));
    await receiver.reached(1);
    await tool.handoff(ask('echo', { callback: { url: other.url } }));
    await other.reached(1);
    expect(receiver.received).toHaveLength(1);
    open_[0]?.();
    await receiver.reached(4);
  });

  test('has no result when the result was erased', async () => {
    await open();
    receiver.behaviours.push(500);
    const { handoff_id } = await tool.handoff(ask('echo', { payload: 'a secret thing' }));
    await hasFailed(1);
    const { turn_id } = (await tool.getHandoff(handoff_id)) ?? {};
    await h.rows(
      "select boxcar.erase_cards(array(select deliverable_card_id from boxcar.turns where id = $1), 'asked')",
      [turn_id],
    );
    await makeDue();
    await receiver.reached(2);
    expect(JSON.stringify(receiver.received[0]?.body)).toContain('a secret thing');
    expect(receiver.received[1]?.body).toMatchObject({ event_type: 'handoff.completed', result: null });
  });

  test('is purged with its handoff', async () => {
    await open();
    await tool.handoff(ask('echo'));
    await hasStatus('delivered');
    await purgeRuns(h.database.pool, { before: new Date(Date.now() + 60_000) });
    expect(await deliveries()).toEqual([]);
  });
});

describe('a request with a callback', () => {
  const refused = async (url: string) => {
    const error = await failureOf(tool.handoff(ask('echo', { callback: { url } })));
    return [url, error.code, error.details.field];
  };

  test('to an address that is not public is refused, in every notation, and leaves no row', async () => {
    await open({ handoffs: { enabled: true, webhooks: { secret: WEBHOOK_SECRET } } });
    const port = String(receiver.port);
    for (const url of [
      `http://127.0.0.1:${port}/`,
      `http://127.1:${port}/`,
      `http://2130706433:${port}/`,
      `http://0x7f000001:${port}/`,
      `http://0177.0.0.1:${port}/`,
      `http://[::1]:${port}/`,
      `http://[::ffff:127.0.0.1]:${port}/`,
      `http://[fe80::1%25eth0]:${port}/`,
      `http://localhost:${port}/`,
      'http://169.254.169.254/latest/meta-data/',
      'http://10.0.0.1/',
      'file:///etc/passwd',
      'ftp://receiver.example/',
      'http://user:password@receiver.example/',
      'not a url',
      `https://${Array.from({ length: 1_900 }, (_, at) => (at % 50 === 49 ? '.' : String.fromCodePoint(0x4e00 + ((at * at * 7_919) % 20_000)))).join('')}.example/`,
    ])
      expect(await refused(url)).toEqual([url, 'bad_request', 'arguments.callback.url']);
    expect(await h.rows('select from boxcar.handoffs')).toEqual([]);
    expect(receiver.received).toEqual([]);
    expect(h.log.filter(({ event }) => event === 'handoff.refused').length).toBeGreaterThan(10);
  });

  test('without a configured secret is refused with the next step', async () => {
    await open({ handoffs: { enabled: true } });
    const error = await failureOf(tool.handoff(ask('echo')));
    expect(error.code).toBe('bad_config');
    expect(error.message).toContain('BOXCAR_WEBHOOK_SECRET');
    expect(await h.rows('select from boxcar.handoffs')).toEqual([]);
  });

  test('from a model cannot name a receiver', async () => {
    await open();
    await h.profile(
      'main',
      [
        {
          calls: [
            {
              tool: 'handoff',
              arguments: { target_agent: 'echo', task: 'x', callback: { url: receiver.url } },
            },
          ],
        },
        { say: 'done' },
      ],
      { tools: ['handoff'], delegation_policy: { target_profiles: null } },
    );
    await h.worker();
    const { turn_id } = (await h.runtime.submit('launch_principal', {
      profile_name: 'main',
      instruction: 'go',
    })) as { turn_id: string };
    await h.runtime.waitForTurn(turn_id);
    const [call] = await h.rows<{ content: { error?: { code: string; message: string } } }>(
      'select c.content from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id',
    );
    expect(call?.content.error).toMatchObject({ code: 'bad_request' });
    expect(await h.rows('select from boxcar.handoffs')).toEqual([]);
  });

  test('with the same key makes one handoff and one delivery; another receiver is another request', async () => {
    await open();
    const keyed = ask('echo', { idempotency_key: 'k' });
    const [a, b] = await Promise.all([tool.handoff(keyed), tool.handoff(keyed)]);
    expect(a.handoff_id).toBe(b.handoff_id);
    await hasStatus('delivered');
    expect(await deliveries()).toHaveLength(1);
    const other = { ...keyed, callback: { url: `${receiver.url}/other` } };
    expect((await failureOf(tool.handoff(other))).code).toBe('idempotency_conflict');
  });
});

describe('the host name of a receiver', () => {
  /** A resolver whose answer changes with each query. */
  const resolver = (...answers: readonly (readonly string[])[]) => {
    const asked: string[] = [];
    const lookUp = (
      name: string,
      _options: unknown,
      callback: (error: Error | null, found: LookupAddress[]) => void,
    ) => {
      const found = answers[Math.min(asked.length, answers.length - 1)] ?? [];
      asked.push(name);
      process.nextTick(() =>
        callback(
          null,
          found.map((address) => ({ address, family: 4 })),
        ),
      );
    };
    return {
      asked,
      lookUp: lookUp as unknown as NonNullable<Harness['runtime']['webhooks']['limits']['lookUp']>,
    };
  };
  const named = () => ({ callback: { url: `http://receiver.example:${receiver.port}/hook` } });

  test('that resolves to an address that is not public at connection time is not connected to, whatever it resolved to before', async () => {
    await open({ handoffs: { enabled: true, webhooks: { secret: WEBHOOK_SECRET } } });
    const { asked, lookUp } = resolver(['10.0.0.1'], ['127.0.0.1'], ['169.254.169.254', '127.0.0.1']);
    h.runtime.webhooks.limits = { lookUp };
    await tool.handoff(ask('echo', named()));
    for (const failures of [1, 2, 3]) {
      expect((await hasFailed(failures)).last_error).toContain('not public');
      await makeDue();
    }
    await hasFailed(4);
    expect(asked.slice(0, 4)).toEqual(Array(4).fill('receiver.example'));
    expect(receiver.received).toEqual([]);
  });

  test('is resolved once for each attempt, and only its allowed addresses are used', async () => {
    await open({
      handoffs: { enabled: true, webhooks: { secret: WEBHOOK_SECRET, allowPrivate: ['127.0.0.1/32'] } },
    });
    const { asked, lookUp } = resolver(['10.0.0.1', '127.0.0.1'], ['10.0.0.1']);
    h.runtime.webhooks.limits = { lookUp };
    await tool.handoff(ask('echo', named()));
    await receiver.reached(1);
    await hasStatus('delivered');
    expect(asked).toEqual(['receiver.example']);
  });

  test('whose receiver redirects elsewhere is not followed', async () => {
    await open();
    await using inner = await openReceiver();
    receiver.behaviours.push((response) => response.writeHead(307, { location: inner.url }).end());
    await tool.handoff(ask('echo'));
    expect(await hasFailed(1)).toMatchObject({
      last_status: 307,
      last_error: expect.stringContaining('not followed'),
    });
    expect(inner.received).toEqual([]);
  });
});

test('an address that is no longer allowed ends the delivery for good', async () => {
  await open();
  receiver.behaviours.push(500);
  await tool.handoff(ask('echo'));
  await hasFailed(1);
  h.runtime.webhooks.configure({ secret: WEBHOOK_SECRET });
  await makeDue();
  expect(await hasStatus('failed')).toMatchObject({
    last_status: null,
    last_error: expect.stringContaining('not public'),
  });
});

test('a sender that was stopped midway leaves the event to others, with the same id', async () => {
  await open();
  receiver.behaviours.push(() => undefined);
  const sender = await h.worker();
  // The tool serves by workers of its own, which send too.
  await tool.handoff(ask('echo'));
  await receiver.reached(1);
  await tool.close();
  await sender.close({ graceMs: 0 });
  const [left] = await deliveries();
  expect(left).toMatchObject({ status: 'pending', failures: 0 });
  await h.worker();
  await receiver.reached(2);
  expect(await hasStatus('delivered')).toMatchObject({ attempts: 2 });
  expect(new Set(receiver.received.map(({ id }) => id)).size).toBe(1);
});
