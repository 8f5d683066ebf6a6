/** Checks that handoffs and requests for approval have the form of the shipped schemas on the wire. */
import { toHandoffRequest, toHandoffResponse } from '@boxcar/kernel';
import { wireErrors } from '@boxcar/kernel/testing';
import { expect } from 'vitest';
import { ApprovalGate, DEFAULT_PROJECT } from '../approval/index.js';
import { listHandoffPage } from '../handoff/index.js';
import type { Runtime } from '../runtime.js';

/** Reads all pages. The pages are small, so that each test reads more than one. */
async function every<T>(
  load: (page: {
    limit: number;
    cursor?: string | undefined;
  }) => Promise<{ rows: readonly T[]; next: string | null }>,
): Promise<readonly T[]> {
  const all: T[] = [];
  for (let cursor: string | undefined; ; ) {
    const { rows, next } = await load({ limit: 2, cursor });
    all.push(...rows);
    if (next === null) return all;
    cursor = next;
  }
}

/** Checks every row of the project: requests, existing answers and tickets. @returns The number of handoffs and tickets. */
export async function checkWire(
  runtime: Runtime,
): Promise<{ readonly handoffs: number; readonly tickets: number }> {
  const gate = new ApprovalGate({ runtime });
  const handoffs = await every(async (page) => {
    const { handoffs: rows, next_cursor: next } = await listHandoffPage(runtime, DEFAULT_PROJECT, page);
    return { rows, next };
  });
  const tickets = await every(async (page) => {
    const { approvals: rows, next_cursor: next } = await gate.list(page);
    return { rows, next };
  });
  for (const handoff of handoffs) {
    const response = toHandoffResponse(handoff);
    expect([handoff, wireErrors.request(toHandoffRequest(handoff))]).toEqual([handoff, []]);
    expect([handoff, response === undefined ? [] : wireErrors.response(response)]).toEqual([handoff, []]);
    expect([handoff.phase, response?.completed_at != null]).toEqual([
      handoff.phase,
      handoff.ended_at !== null,
    ]);
  }
  for (const ticket of tickets) expect([ticket, wireErrors.ticket(ticket)]).toEqual([ticket, []]);
  return { handoffs: handoffs.length, tickets: tickets.length };
}
