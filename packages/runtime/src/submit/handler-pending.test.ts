/** Calls of tools that a custom handler makes without awaiting them. */
import { type JsonValue, KernelError, type TurnId } from '@boxcar/kernel';
import { beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';
import type { HandlerTools, SubmitTurnRequest } from '../handler/handler.js';
import { newId } from '../lib/new-id.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { rowCounts } from '../testing/row-counts.js';

let h: Harness;

beforeEach(async () => {
  h = await harness();
  await h.profile('writer', [{ say: 'written' }], { tags: ['prose'] });
  return () => h[Symbol.asyncDispose]();
});

function register(name: string, handle: (tools: HandlerTools) => Promise<JsonValue>): void {
  h.runtime.registerHandler(name, {
    description: 'For tests.',
    input: z.strictObject({}),
    handle: (_input, tools) => handle(tools),
  });
}

async function requestFor(tools: HandlerTools): Promise<SubmitTurnRequest> {
  const profile = await tools.findProfile('writer');
  const { contextBoxId } = await tools.packer.packContextWithInstruction({
    projectId: tools.ctx.projectId,
    toolSuffix: tools.ctx.primitive,
    sourceAgentId: tools.ctx.source.agentId,
    profileName: profile.name,
    instruction: 'go',
  });
  return { target: { kind: 'new', profile }, contextBoxId };
}

const codeOf = (error: unknown): string => (error instanceof KernelError ? error.code : String(error));

/** The unhandled rejections until the end of `work` and one turn of the event loop. */
async function unhandledIn(work: () => Promise<void>): Promise<readonly string[]> {
  const found: string[] = [];
  const others = process.rawListeners('unhandledRejection');
  process.removeAllListeners('unhandledRejection');
  process.on('unhandledRejection', (error) => found.push(codeOf(error)));
  try {
    await work();
    await new Promise((resolve) => setImmediate(resolve));
    return found;
  } finally {
    process.removeAllListeners('unhandledRejection');
    for (const other of others) process.on('unhandledRejection', other as NodeJS.UnhandledRejectionListener);
  }
}

type Call = (tools: HandlerTools, request: SubmitTurnRequest) => Promise<unknown>;

const calls: Record<string, Call> = {
  submitTurn: (tools, request) => tools.submitTurn(request),
  submitTurns: (tools, request) => tools.submitTurns([request]),
  'joinTurns, after submitTurn': async (tools, request) => {
    const { turnId } = await tools.submitTurn(request);
    await tools.joinTurns([turnId], { wait: false });
  },
  'submitTurn, after a packing': async (tools, request) => {
    const { contextBoxId } = await tools.packer.packContextWithInstruction({
      projectId: tools.ctx.projectId,
      toolSuffix: tools.ctx.primitive,
      sourceAgentId: tools.ctx.source.agentId,
      profileName: 'writer',
      instruction: 'go on',
    });
    await tools.submitTurn({ ...request, contextBoxId });
  },
  'submitTurn for an agent of createAgent': async (tools, request) => {
    const { profile } = request.target.kind === 'new' ? request.target : request.target.agent;
    const agent = await tools.createAgent({ profile });
    await tools.submitTurn({ ...request, target: { kind: 'reuse', agent } });
  },
};

describe('a call that its handler does not wait for', () => {
  test.each(Object.keys(calls))('has its effect: %s', async (name) => {
    register('hasty', async (tools) => {
      const request = await requestFor(tools);
      void calls[name]?.(tools, request);
      return 'done';
    });
    const before = await rowCounts(h.database.pool);
    expect(await h.runtime.submit('hasty', {})).toBe('done');
    const after = await rowCounts(h.database.pool);
    expect(Number(after.turns) - Number(before.turns)).toBe(1);
    expect(Number(after.batches) - Number(before.batches)).toBe(name.startsWith('joinTurns') ? 1 : 0);
    await h.worker();
    const [turn] = await h.rows<{ id: TurnId }>('select id from boxcar.turns');
    if (turn === undefined) throw new Error('no turn');
    expect(await h.runtime.waitForTurn(turn.id, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
    await checkInvariants(h.database.pool);
  });

  test('returns with the end of its turn', async () => {
    register('hasty', async (tools) => {
      const request = await requestFor(tools);
      void tools.submitTurn({ ...request, wait: true });
      return 'receipt';
    });
    await h.worker();
    expect(await h.runtime.submit('hasty', {})).toMatchObject({ status: 'success' });
  });

  test('refuses the submission when it fails, and is reported once', async () => {
    register('hasty', async (tools) => {
      const request = await requestFor(tools);
      void tools.submitTurn({ ...request, contextBoxId: newId<'box'>() });
      void tools.submitTurn(request);
      return 'done';
    });
    const before = await rowCounts(h.database.pool);
    const unhandled = await unhandledIn(async () => {
      expect(await h.runtime.submit('hasty', {}).catch(codeOf)).toBe('not_found');
    });
    expect(unhandled).toEqual([]);
    expect(await rowCounts(h.database.pool)).toEqual(before);
  });

  test('does not hide the failure of its handler', async () => {
    register('hasty', async (tools) => {
      const request = await requestFor(tools);
      void tools.submitTurn({ ...request, contextBoxId: newId<'box'>() });
      throw new KernelError('conflict', { message: 'no' });
    });
    const before = await rowCounts(h.database.pool);
    const unhandled = await unhandledIn(async () => {
      expect(await h.runtime.submit('hasty', {}).catch(codeOf)).toBe('conflict');
    });
    expect(unhandled).toEqual([]);
    expect(await rowCounts(h.database.pool)).toEqual(before);
  });

  test('fails when it begins after the end', async () => {
    const late: Promise<unknown>[] = [];
    let end: (() => void) | undefined;
    const ended = new Promise<void>((resolve) => {
      end = resolve;
    });
    register('late', async (tools) => {
      const request = await requestFor(tools);
      const call = async (): Promise<unknown> => {
        await ended;
        return tools.submitTurn(request);
      };
      late.push(call().catch(codeOf));
      return 'done';
    });
    expect(await h.runtime.submit('late', {})).toBe('done');
    end?.();
    expect(await Promise.all(late)).toEqual(['internal_error']);
    expect(await h.rows('select id from boxcar.turns')).toEqual([]);
  });
});

test('a failure that its handler ignores is not hidden', async () => {
  register('hasty', async (tools) => {
    const request = await requestFor(tools);
    void tools.submitTurn({ ...request, deadlineMs: -1 });
    await tools.submitTurn(request);
    return 'done';
  });
  const unhandled = await unhandledIn(async () => {
    expect(await h.runtime.submit('hasty', {})).toBe('done');
  });
  expect(unhandled).toEqual(['bad_request']);
});

describe('statements that a handler does not wait for', () => {
  beforeEach(async () => {
    await h.rows('create table public.notes (id int primary key)');
  });
  const note = (tools: HandlerTools, id: number) =>
    tools.tx.query({ text: 'insert into public.notes values ($1)', values: [id] });

  test('are all part of the commit', async () => {
    register('hasty', async (tools) => {
      void note(tools, 1);
      void note(tools, 2).then(() => note(tools, 3));
      void tools.db.query({ text: 'insert into public.notes values (4)' });
      return 'done';
    });
    expect(await h.runtime.submit('hasty', {})).toBe('done');
    expect(await h.rows('select id from public.notes order by id')).toEqual(
      [1, 2, 3, 4].map((id) => ({ id })),
    );
  });

  test('fail the primitive when they fail, and nothing is written', async () => {
    register('hasty', async (tools) => {
      await note(tools, 1);
      void note(tools, 1);
      return 'done';
    });
    const unhandled = await unhandledIn(async () => {
      expect(await h.runtime.submit('hasty', {}).catch(String)).toMatch(/duplicate key/);
    });
    expect(unhandled).toEqual([]);
    expect(await h.rows('select id from public.notes')).toEqual([]);
  });
});

describe.each(['one after the other', 'in parallel'])('a handler that calls %s', (how) => {
  /** @returns The codes of the refused calls. */
  const both = async (calls: readonly (() => Promise<unknown>)[]): Promise<readonly string[]> => {
    const codes: string[] = [];
    const note = (error: unknown): void => void codes.push(codeOf(error));
    if (how === 'in parallel') await Promise.all(calls.map((call) => call().catch(note)));
    else for (const call of calls) await call().catch(note);
    return codes;
  };

  test('for two waits gets one wait', async () => {
    let codes: readonly string[] = [];
    register('hasty', async (tools) => {
      const [one, two] = [await requestFor(tools), await requestFor(tools)];
      codes = await both([one, two].map((request) => () => tools.submitTurn({ ...request, wait: true })));
      return 'receipt';
    });
    await h.worker();
    expect(await h.runtime.submit('hasty', {})).toMatchObject({ status: 'success' });
    expect(codes).toEqual(['bad_request']);
    expect(await h.rows('select is_awaited from boxcar.turns')).toHaveLength(1);
  });

  test('for a refused wait may wait for other work', async () => {
    register('hasty', async (tools) => {
      const request = await requestFor(tools);
      await both([() => tools.submitTurn({ ...request, wait: true, deadlineMs: -1 })]);
      await tools.submitTurn({ ...request, wait: true });
      return 'receipt';
    });
    await h.worker();
    expect(await h.runtime.submit('hasty', {})).toMatchObject({ status: 'success' });
  });

  test('for two agents with one name gets one agent', async () => {
    let codes: readonly string[] = [];
    register('hasty', async (tools) => {
      const profile = await tools.findProfile('writer');
      codes = await both([1, 2].map(() => () => tools.createAgent({ profile, name: 'x' })));
      return 'done';
    });
    expect(await h.runtime.submit('hasty', {})).toBe('done');
    expect(codes).toEqual(['agent_exists']);
    expect(await h.rows("select id from boxcar.agents where name = 'x'")).toHaveLength(1);
  });
});
