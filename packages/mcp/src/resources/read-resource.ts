/** Reads the resource at an address, in the name of a client. */

import type { Scope } from '@boxcar/kernel';
import { ResourceNotFoundError } from '@modelcontextprotocol/server';
import { type McpClientScope, OPERATOR } from '../client-scope.js';
import { type Address, parseAddress } from './address.js';
import { type Body, toProtocolError } from './body.js';
import { healthBody, metricsBody } from './number-bodies.js';
import { contextBody, sessionsBody, summaryBody } from './session-bodies.js';
import { runBody, tapeBody, turnContextBody } from './turn-bodies.js';

/** The scope that a client needs to read it; null: none. */
const SCOPE_OF: Readonly<Record<Address['kind'], Scope | null>> = {
  sessions: 'handoffs:read',
  agent_sessions: 'handoffs:read',
  context: 'handoffs:read',
  summary: 'handoffs:read',
  health: null,
  metrics: 'handoffs:read',
  tape: 'tapes:read',
  run: 'turns:read',
  turn_context: 'turns:read',
};

/** Only the operator may read the numbers of the whole project. */
export function mayRead(scope: McpClientScope, kind: Address['kind']): boolean {
  const needed = SCOPE_OF[kind];
  return (needed === null || scope.scopes.includes(needed)) && (kind !== 'metrics' || scope.as === OPERATOR);
}

function read(scope: McpClientScope, address: Address): Promise<Body | undefined> {
  switch (address.kind) {
    case 'sessions':
    case 'agent_sessions':
      return sessionsBody(scope, address);
    case 'context':
      return contextBody(scope, address);
    case 'summary':
      return summaryBody(scope, address.sessionKey);
    case 'health':
      return healthBody(scope);
    case 'metrics':
      return metricsBody(scope);
    case 'tape':
      return tapeBody(scope, address);
    case 'run':
      return runBody(scope, address);
    case 'turn_context':
      return turnContextBody(scope, address);
    default:
      return address satisfies never;
  }
}

/** @throws ProtocolError; `ResourceNotFoundError` also for a resource that the client may not read. */
export async function readResource(scope: McpClientScope, uri: string): Promise<Body> {
  const address = parseAddress(uri);
  if (address === undefined || !mayRead(scope, address.kind)) throw new ResourceNotFoundError(uri);
  let body: Body | undefined;
  try {
    body = await read(scope, address);
  } catch (error) {
    throw toProtocolError(error, uri);
  }
  if (body === undefined) throw new ResourceNotFoundError(uri);
  return body;
}
