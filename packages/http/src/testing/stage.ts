/** For tests: a frame on a separate database, with tickets to decide. */
import { argsHash, buildCard, type JsonObject, type ProjectId, type Scope } from '@boxcar/kernel';
import { createKey, newId, type OpenRuntime, openRuntime } from '@boxcar/runtime';
import { requestApproval } from '@boxcar/store';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { approvalRoutes } from '../approvals/approval-routes.js';
import { createHttpFrame, type HttpFrame, type HttpFrameOptions } from '../frame.js';
import { handoffRoutes } from '../handoffs/handoff-routes.js';
import type { Route } from '../route.js';

const DEFAULT_PROJECT = '00000000-0000-7000-8000-000000000001' as ProjectId;

export interface LogLine {
  readonly level: string;
  readonly event: string;
  readonly fields: Readonly<Record<string, unknown>>;
}

export interface Stage extends AsyncDisposable {
  readonly database: TestDatabase;
  readonly opened: OpenRuntime;
  readonly log: LogLine[];
  readonly frame: HttpFrame;
  readonly url: string;
  readonly port: number;
  key(
    scopes: readonly Scope[],
    rest?: { readonly projectId?: string; readonly agent?: string },
  ): Promise<string>;
  ticket(
    args: JsonObject,
    rest?: { readonly runId?: string; readonly projectId?: ProjectId; readonly timeoutMs?: number },
  ): Promise<string>;
}

export interface StageOptions extends Partial<Omit<HttpFrameOptions, 'runtime' | 'log'>> {
  readonly routes?: readonly Route[];
  readonly approvalMs?: number | null;
  /** Default false, as in production. */
  readonly handoffs?: boolean;
}

const noModel = {
  generate: () => Promise.reject(new Error('no model')),
};

export async function openStage({
  routes = [],
  approvalMs,
  handoffs = false,
  ...options
}: StageOptions = {}): Promise<Stage> {
  const database = await testDatabase();
  const log: LogLine[] = [];
  const opened = openRuntime({
    databaseUrl: database.url,
    directUrl: database.url,
    model: noModel,
    handoffs: { enabled: handoffs },
    ...(approvalMs === undefined ? {} : { approvalMs }),
  });
  const { runtime } = opened;
  const frame = createHttpFrame({
    runtime,
    port: 0,
    ...options,
    log: (level, event, fields = {}) => void log.push({ level, event, fields }),
  }).mount([...approvalRoutes(runtime), ...handoffRoutes(runtime), ...routes]);
  const { url, port } = await frame.listen();
  return {
    database,
    opened,
    log,
    frame,
    url,
    port,
    key: async (scopes, rest = {}) => (await createKey(database.pool, { scopes, ...rest })).key,
    ticket: async (args, { runId = 'run-1', projectId = DEFAULT_PROJECT, timeoutMs = 60_000 } = {}) => {
      const { id } = await requestApproval(database.pool, {
        id: newId<'ticket'>(),
        projectId,
        runId,
        turnId: null,
        toolCallId: null,
        agent: 'main',
        toolName: 'pay',
        card: buildCard(
          {
            type: 'approval.request',
            role: null,
            content: { kind: 'json', data: args },
            metadata: {},
            authorId: 'main',
          },
          { id: newId<'card'>(), projectId },
        ),
        argsHash: argsHash(args),
        contextHash: '',
        payloadHash: '',
        policyVersion: '',
        timeoutMs,
        callMs: null,
        metadata: {},
      });
      return id;
    },
    [Symbol.asyncDispose]: async () => {
      await frame.close({ graceMs: 0 });
      await opened.close();
      await database.close();
    },
  };
}

export const bearer = (key: string): Readonly<Record<string, string>> => ({ authorization: `Bearer ${key}` });
