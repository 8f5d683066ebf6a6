/** Access to approval tickets, either in the database or through a server. */
import { openStack } from '@boxcar/host/open';
import { type ApprovalTicket, KernelError } from '@boxcar/kernel';
import { ApprovalGate, type ListTicketsOptions, type TicketPage } from '@boxcar/runtime';
import { findTicketId } from '@boxcar/store';
import type { Context } from '../../context.js';
import { readFlag, wrongUsage } from '../../input/usage.js';

type Verb = 'approve' | 'deny';

export interface Tickets extends AsyncDisposable {
  list(options: ListTicketsOptions): Promise<TicketPage>;
  get(ref: string): Promise<ApprovalTicket>;
  decide(verb: Verb, ref: string, reason: string | undefined): Promise<ApprovalTicket>;
}

export interface TicketsFlags {
  readonly url?: string;
  readonly project?: string;
}

/** @param decides - Whether the command may start the approved work. */
export function openTickets(context: Context, flags: TicketsFlags, decides: boolean): Promise<Tickets> {
  return flags.url === undefined
    ? ticketsOfDatabase(context, flags.project ?? context.config.project, decides)
    : ticketsOfServer(context, flags.url, flags.project);
}

async function ticketsOfDatabase(context: Context, project: string, decides: boolean): Promise<Tickets> {
  const stack = await openStack(context.config, {
    log: context.log('warn'),
    policy: decides ? 'decides' : false,
  });
  const { runtime } = stack;
  const find = async (ref: string) => {
    const { ticketId, projectId } = await findTicketId(runtime.pool, ref, project);
    return { ticketId, gate: new ApprovalGate({ runtime, projectId }) };
  };
  return {
    list: async (options) => {
      const { project_id: projectId } = await runtime.getProject(project);
      return new ApprovalGate({ runtime, projectId }).list(options);
    },
    get: async (ref) => {
      const { gate, ticketId } = await find(ref);
      return gate.get(ticketId);
    },
    decide: async (verb, ref, reason) => {
      const { gate, ticketId } = await find(ref);
      return gate[verb](ticketId, { reason });
    },
    [Symbol.asyncDispose]: () => stack.close(),
  };
}

/** Opens no database. */
async function ticketsOfServer(
  { config }: Context,
  address: string,
  project: string | undefined,
): Promise<Tickets> {
  const { askServer, localAccessFor, readServerUrl } = await import('@boxcar/http/client');
  const { localFolder } = await import('../serve/local-folder.js');
  if (project !== undefined)
    throw wrongUsage('--project and --url exclude each other: the project is that of the key', 'project');
  const url = readFlag(() => readServerUrl(address));
  const server =
    config.apiKey === undefined ? localAccessFor(url, localFolder()) : { url, key: config.apiKey };
  if (server === undefined)
    throw new KernelError('unauthorized', {
      message: `There is no key for ${url.origin}: BOXCAR_API_KEY is not set, and no server of this account runs there.`,
      next: 'Set BOXCAR_API_KEY to a key that boxcar keys create has made.',
      details: { url: url.origin },
    });
  const pathOf = (ref: string): string => `/approvals/${encodeURIComponent(ref)}`;
  return {
    list: ({ run_id: run, ...query }) =>
      askServer<TicketPage>(server, {
        path: run === undefined ? '/approvals' : `/runs/${encodeURIComponent(run)}/approvals`,
        query: { ...query },
      }),
    get: (ref) => askServer<ApprovalTicket>(server, { path: pathOf(ref) }),
    decide: (action, ref, reason) =>
      askServer<ApprovalTicket>(server, { path: pathOf(ref), body: { action, reason } }),
    [Symbol.asyncDispose]: async () => undefined,
  };
}
